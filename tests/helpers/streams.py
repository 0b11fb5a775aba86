"""Streams of a pool, and their rounds as a client joins them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from pools import Reading, adds_up, sample

import rollserve
from rollserve._calls.joining import Joining
from rollserve.rounds import round_from_proto
from rollserve_server.gateway.messages.accounts import moments_to_proto
from rollserve_server.pool import (
    Account,
    ApplyUpdate,
    AtLeast,
    Delivery,
    Fragments,
    MessageFormat,
    Pool,
    Progress,
    RowFragments,
    SamplingOptions,
    StreamBounds,
    StreamClient,
    StreamRequest,
    StreamRound,
)
from rollserve_wire.records import message_from_record
from rollserve_wire.v1 import sampler_service_pb2 as pb

NUM_ROWS = 8
"""Number of rows of the pools that `pool_of` makes."""


def stream_request(
    rounds: RowFragments | AtLeast,
    *,
    apply_update: ApplyUpdate = ApplyUpdate.NEXT_FRAGMENT,
    first_number: int = 0,
    options: dict[str, Any] | None = None,
    max_message_bytes: int = 1 << 22,
    moments: dict[str, Any] | None = None,
    **bounds: Any,
) -> StreamRequest:
    """Return a request; `bounds` are fields of `StreamBounds`."""
    return StreamRequest(
        rounds,
        MessageFormat(max_message_bytes),
        SamplingOptions(**options or {}),
        StreamBounds(**bounds),
        apply_update,
        first_number,
        **moments or {},
    )


class Receiving:
    """The receiving end of a stream that runs.

    Attributes:
        client: what the stream hears of its client.
        progress: the last progress.
        account: account of the stream, at its end.
    """

    def __init__(self, items: AsyncGenerator[Any, None], client: StreamClient) -> None:
        self.client = client
        self.progress = Progress(0)
        self.account: Account | None = None
        self._items = items
        self._reading = Reading()

    async def next(self) -> rollserve.EpisodeBatch | None:
        """Return the next round and count it as taken; None at the end."""
        async for item in self._items:
            batch = self._read(item)
            if batch is not None:
                self.client.take(self.client.num_taken + 1)
                return batch
        return None

    async def next_few(self, count: int) -> list[rollserve.EpisodeBatch]:
        """Return the next rounds."""
        batches = [await self.next() for _ in range(count)]
        return [batch for batch in batches if batch is not None]

    async def end(self) -> Account:
        """End the stream, drop the rounds that still come, and return the account, which adds up."""
        self.client.end()
        while await self.next() is not None:
            pass
        assert self.account is not None
        assert adds_up(self.account)
        return self.account

    def _read(self, item: object) -> rollserve.EpisodeBatch | None:
        match item:
            case Delivery():
                self._reading.add(item)
            case StreamRound():
                return self._joined(item)
            case Progress():
                self.progress = item
            case Account():
                self.account = item
        return None

    def _joined(self, ended: StreamRound) -> rollserve.EpisodeBatch:
        """Join what has been delivered of a round."""
        parts, self._reading = self._reading.parts, Reading()
        message = message_from_record(pb.StreamRound, ended, **moments_to_proto(ended.account.moments))
        with Joining() as joining:
            for part in parts:
                joining.add(part)
            batch = joining.join_round(round_from_proto(message))
        assert isinstance(batch, rollserve.EpisodeBatch)
        return batch


@contextlib.asynccontextmanager
async def streaming(pool: Pool, request: StreamRequest) -> AsyncIterator[Receiving]:
    """Run a stream, which breaks off at the end of the block unless it has ended."""
    client = StreamClient()
    async with contextlib.aclosing(pool.stream(request, client)) as items:
        yield Receiving(items, client)


async def again(
    pool: Pool, batch: rollserve.EpisodeBatch, *, row_step_count: int | None = None, **moments: Any
) -> rollserve.EpisodeBatch:
    """Request a round again, as an ordinary call; of fragments, at a position that is the round's own unless given."""
    sampled = batch.round
    assert sampled is not None
    options: dict[str, Any] = {"seed": sampled.seed, **moments}
    options |= {"policy_version": sampled.policy_version, "env_version": sampled.env_version}
    if not sampled.num_rows:
        return await sample(pool, AtLeast(sampled.num_steps), first_index=sampled.first_episode_index, **options)
    clock = sampled.row_step_count if row_step_count is None else row_step_count
    replayed = await sample(pool, Fragments(sampled.num_steps, row_step_count=clock or None), **options)
    return dataclasses.replace(replayed, row_indices=replayed.episode_indices % sampled.num_rows)


async def sampled_ahead(pool: Pool) -> None:
    """Wait until the pool simulates nothing any more, because its stream waits."""
    before = -1
    while (now := pool.status().num_simulated_steps) != before or pool.status().num_running_calls:
        before = now
        await asyncio.sleep(0.05)


def num_steps_of_round(pool: Pool) -> int:
    """Return the number of steps that workers have reported of the rounds that are being sampled."""
    rounds = (stream._running for stream in pool._streams._open)
    return sum(each.call.account.num_simulated_steps for each in rounds if each is not None)
