"""Reads of datasets: batches of files, mixed with what the sampler samples meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rollserve_server.datasets import DatasetReader
from rollserve_server.errors import InvalidValueError, within
from rollserve_server.futures import in_request_thread
from rollserve_server.pool import Account, AtLeast, Beginning, Delivery, Progress, SampleRequest
from rollserve_wire.v1 import datasets_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.datasets import DataFolder, DrawnBatch
    from rollserve_server.gateway.messages.dataset_requests import ReadRequest
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.pool import Pool

__all__ = ["read"]

_PROGRESS_SECONDS = 1.0

ReadItem = pb.ReadDatasetResponse | bytes | Delivery | Progress | Account
"""Item of a read: its beginning; messages of files and of live episodes, progress, and the end of each batch."""


async def read(request: ReadRequest, folder: DataFolder, pool: Pool, rpc: OpenRpc) -> AsyncGenerator[ReadItem, None]:
    """Read batches from a folder in a process of its own, until a source ends.

    Raises:
        OverLimitError: batches that are too large.
        NotAllowedError, NotFoundError: a path that leaves the folder, or that names nothing.
        NotReadyError: files that cannot be read.
        DomainError: as of `Pool.sample`, for live episodes.
    """
    reader = await DatasetReader.start(await in_request_thread(_opening, request, folder))
    try:
        contents = [datasets_pb2.DatasetContent.FromString(each) for each in reader.contents]
        yield pb.ReadDatasetResponse(beginning=datasets_pb2.DatasetBeginning(contents=contents))
        while True:
            while not await reader.wait(_PROGRESS_SECONDS):
                yield Progress(0)
            drawn = await reader.next()
            if drawn is None:
                return
            for message in drawn.messages:
                yield message
            if drawn.is_live:
                async with contextlib.aclosing(_live(request, drawn, pool, rpc)) as items:
                    async for item in items:
                        yield item
            yield pb.ReadDatasetResponse(end=_end_of(drawn))
    finally:
        reader.close()


def _opening(request: ReadRequest, folder: DataFolder) -> dict[str, object]:
    """Return the request that opens the files."""
    files: list[dict[str, object] | None] = []
    for number, (paths, options) in enumerate(zip(request.paths, request.files, strict=True)):
        if paths is None or options is None:
            files.append(None)
            continue
        with within(f"sources[{number}].files"):
            found = [str(path) for path in folder.files(paths)]
        files.append({**options, "path": found, "folder": folder.root})
    return {
        "files": files,
        "weights": request.weights,
        "positions": request.positions,
        "num_drawn": request.num_drawn,
        "batch_size": request.batch_size,
        "mix_seed": request.mix_seed,
        "until": "last" if request.until_last else "first",
        "max_message_bytes": request.messages.max_message_bytes,
    }


async def _live(
    request: ReadRequest, drawn: DrawnBatch, pool: Pool, rpc: OpenRpc
) -> AsyncGenerator[Delivery | Progress | Account, None]:
    """Sample a batch of live episodes."""
    if pool.status().env.agents:
        field = f"sources[{drawn.source}].live"
        raise InvalidValueError.of(field, expected="an environment with one agent", got="many agents")
    target = AtLeast(request.live_steps[drawn.source])
    sample_request = SampleRequest(target, request.messages, request.options)
    async with contextlib.aclosing(pool.sample(sample_request, rpc)) as items:
        async for item in items:
            if isinstance(item, Delivery | Progress | Account):
                yield item
            else:
                assert isinstance(item, Beginning)  # noqa: S101  # these calls make no updates


def _end_of(drawn: DrawnBatch) -> datasets_pb2.DatasetBatchEnd:
    sources = [
        datasets_pb2.SourcePosition(epoch=epoch, chunk=chunk, segment=segment)
        for epoch, chunk, segment in drawn.positions
    ]
    return datasets_pb2.DatasetBatchEnd(
        source_index=drawn.source,
        position=datasets_pb2.DatasetPosition(sources=sources, drawn_count=drawn.num_drawn),
        continuing_messages=drawn.continuing,
    )
