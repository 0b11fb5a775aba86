"""Messages in shared memory equal messages over the connection, and no memory remains when a client or call ends."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from pools import Reading
from raw_calls import careless
from scripted_server import scripted_server
from support import equal, raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Beginning, SharedMemory, SharedMessage
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

RING_BYTES = 3 << 20
MESSAGE_BYTES = 400_000
ENV = rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": 1 << 16, "length": 40})


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with shared memory for one call at a time."""
    options = ("--env", "CartPole-v1", "--workers", "2", "--backend", "in-process", "--allow-module", "sample_envs")
    log = tmp_path_factory.mktemp("sharing") / "server.log"
    memory = ("--shared-memory-bytes", str(RING_BYTES))
    with local_server(*options, *memory, log=log, environment=server_environment()) as running:
        with rollserve.connect(running.address) as sampler:
            sampler.update_env(ENV)
            sampler.update_agent(rollserve.RandomAgent())
        yield running
    text = log.read_text()
    assert "Traceback" not in text, text


@contextlib.contextmanager
def samplers(server: LocalServer) -> Iterator[tuple[rollserve.Sampler, rollserve.Sampler]]:
    """Yield a client without and a client with shared memory."""
    with (
        rollserve.connect(server.address, max_message_bytes=MESSAGE_BYTES) as plain,
        rollserve.connect(server.address, max_message_bytes=MESSAGE_BYTES, shared_memory=True) as shared,
    ):
        yield plain, shared


def shared_bytes(batch: rollserve.EpisodeBatch) -> int:
    return batch.account.shared_message_bytes


async def test_shared_memory_gives_the_same_batches(sharing: LocalServer) -> None:
    with samplers(sharing) as (plain, shared):
        buffer = rollserve.EpisodeBuffer()
        calls: list[tuple[str, int]] = [("samples", 300), ("exact_episodes", 3), ("fragments", 160)]
        for name, count in calls:
            expected = getattr(plain, f"obtain_{name}")(count, seed=3)
            assert shared_bytes(expected) == 0
            batch = getattr(shared, f"obtain_{name}")(count, seed=3)
            assert equal(batch, expected)
            assert shared_bytes(batch) > expected.num_steps * 60_000  # all but the first messages
            assert equal(getattr(shared, f"obtain_{name}")(count, seed=3, out=buffer), expected)
            with getattr(shared, f"stream_{name}")(count, seed=3) as stream:
                parts = list(stream)  # far more than the ring holds
            assert equal(rollserve.EpisodeBatch.concatenate(*parts).joined(), expected)
            assert stream.end().shared_message_bytes > 0
            async with rollserve.aconnect(
                sharing.address, max_message_bytes=MESSAGE_BYTES, shared_memory=True
            ) as asynchronous:
                batch = await getattr(asynchronous, f"obtain_{name}")(count, seed=3)
                assert equal(batch, expected)
                assert shared_bytes(batch) > 0


def test_shared_memory_gives_the_same_compressed_columns(sharing: LocalServer) -> None:
    with samplers(sharing) as (plain, shared):
        expected = plain.obtain_samples(100, seed=3)
        assert equal(shared.obtain_samples(100, seed=3, compression="lz4"), expected)


def test_broken_stream_is_resumed(sharing: LocalServer) -> None:
    with samplers(sharing) as (plain, _):
        expected = plain.obtain_samples(600, seed=3)
    with (
        cutting_proxy(sharing.address, num_cuts=2, max_bytes=4000, seed=5) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=140_000, shared_memory=True) as distant,
    ):
        batch = distant.obtain_samples(600, seed=3)  # the connection carries only the places of messages
    assert equal(batch, expected)
    assert batch.account.num_resumptions == 2


def test_call_without_free_memory_uses_the_connection(sharing: LocalServer) -> None:
    with samplers(sharing) as (plain, shared):
        expected = plain.obtain_samples(100, seed=3)
        with shared.stream_samples(1000) as first:
            next(first)
            second = shared.obtain_samples(100, seed=3)
        assert shared_bytes(second) == 0
        assert equal(second, expected)
        eventually_shares(shared)


def eventually_shares(sampler: rollserve.Sampler) -> None:
    """Wait until a call gets shared memory again."""
    deadline = time.monotonic() + 30
    while not shared_bytes(sampler.obtain_samples(100)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


KILLED = """
import sys
import rollserve
sampler = rollserve.connect(sys.argv[1], max_message_bytes=int(sys.argv[2]), shared_memory=True)
stream = sampler.stream_samples(10**6)
for _ in range(50):
    next(stream)
print("reading", flush=True)
input()
"""


def test_memory_of_a_killed_client_is_reused(sharing: LocalServer) -> None:
    command = [sys.executable, "-c", KILLED, sharing.address, str(MESSAGE_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "reading\n"
        client.send_signal(signal.SIGKILL)
    with samplers(sharing) as (_, shared):
        eventually_shares(shared)
    assert len(shared_memory_of(sharing.process.pid)) == 1


def shared_memory_of(process_id: int) -> set[int]:
    """Return the inode numbers of the shared memory that a process has open."""
    found = set()
    for path in Path(f"/proc/{process_id}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            if "memfd:rollserve" in os.readlink(path):
                found.add(path.stat().st_ino)
    return found


def test_client_without_shared_memory_gets_all_messages(sharing: LocalServer, server: LocalServer) -> None:
    options = pb.SamplingOptions(accept_shared_memory=True, seed=3)
    with grpc.insecure_channel(sharing.address) as channel:
        stub: Any = SamplerServiceStub(channel)
        responses = list(stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=100, options=options)))
    assert responses[0].beginning.HasField("shared_memory")
    kinds = {response.WhichOneof("content") for response in responses}
    assert kinds <= {"beginning", "batch", "progress", "account"}
    assert responses[-1].account.shared_message_bytes == 0
    with rollserve.connect(server.address, shared_memory=True) as sampler:  # this server has no shared memory
        sampler.update_env("CartPole-v1")
        sampler.update_agent(rollserve.RandomAgent())
        assert shared_bytes(sampler.obtain_samples(10_000)) == 0
    with raises(TypeError, field="shared_memory"):
        rollserve.connect(server.address, shared_memory=1)  # type: ignore[arg-type]


class Foreign(NamedTuple):
    """Messages of one call, read by a client without code of Rollserve's.

    Attributes:
        inode: number of the shared memory.
        memory: the memory, which stays mapped.
        place: where the last message was in it.
        content: that message.
        batch: the batch of all messages.
    """

    inode: int
    memory: mmap.mmap
    place: slice
    content: bytes
    batch: rollserve.EpisodeBatch


def foreign_call(
    channel: grpc.Channel,
    seed: int,
    *,
    max_message_bytes: int = MESSAGE_BYTES,
    num_held: int = 0,
    releases_last: bool = True,
) -> Foreign:
    """Read the memory as the protos document it.

    Args:
        channel: connection to the server.
        seed: seed of the call.
        max_message_bytes: bound of the size of its messages.
        num_held: number of responses that are read and released later.
        releases_last: whether those are released in the end.
    """
    options = pb.SamplingOptions(accept_shared_memory=True, seed=seed, max_message_bytes=max_message_bytes)
    stub: Any = SamplerServiceStub(channel)
    call = stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=200, options=options))
    offer = next(call).beginning.shared_memory
    with open(f"/proc/{offer.process_id}/fd/{offer.file_descriptor}", "r+b") as file:
        memory, inode = mmap.mmap(file.fileno(), offer.size), os.fstat(file.fileno()).st_ino
    words = np.frombuffer(memory, "<u8", 3)
    assert words[0] == offer.nonce
    words[1] = offer.nonce
    reading, held, num_bytes = Reading(), deque[pb.ObtainSamplesResponse](), 0
    place, content = slice(0, 0), b""
    for response in itertools.chain(call, [None] * num_held):
        if response is not None:
            held.append(response)
        if response is None or len(held) > num_held:
            oldest = held.popleft()
            data = oldest.SerializeToString()
            if oldest.HasField("shared"):
                place = slice(oldest.shared.offset, oldest.shared.offset + oldest.shared.size)
                data = content = memory[place]
                num_bytes += len(data)
                words[2] += np.uint64(response is not None or releases_last)
            reading.add_response(data)
    batch = reading.batch()
    assert shared_bytes(batch) == num_bytes > 0
    return Foreign(inode, memory, place, content, batch)


@pytest.mark.parametrize(("max_message_bytes", "num_held"), [(150_000, 12), (400_000, 5), (900_000, 1)])
def test_message_is_not_overwritten_before_its_release(
    sharing: LocalServer, max_message_bytes: int, num_held: int
) -> None:
    with careless(sharing) as channel, samplers(sharing) as (plain, _):
        call = foreign_call(channel, 3, max_message_bytes=max_message_bytes, num_held=num_held)
        assert equal(call.batch, plain.obtain_samples(200, seed=3))
    assert shared_bytes(call.batch) > 3 * RING_BYTES


def test_memory_in_use_is_not_lent_again(sharing: LocalServer) -> None:
    with careless(sharing) as channel:
        first = foreign_call(channel, 3, num_held=3, releases_last=False)
        second = foreign_call(channel, 4)
    assert second.inode != first.inode
    assert first.memory[first.place] == first.content


def test_borrower_sees_nothing_of_another_one(sharing: LocalServer) -> None:
    with careless(sharing) as channel, careless(sharing) as other:
        first, again, second = foreign_call(channel, 3), foreign_call(channel, 3), foreign_call(other, 4)
    assert again.inode == first.inode != second.inode
    for reader, writer in ((first, second), (second, first)):
        assert reader.content in reader.memory[:]
        assert writer.content not in reader.memory[:]


@contextlib.contextmanager
def memory(
    name: str = "rollserve", size: int = 8192, *, sealed: bool = True
) -> Iterator[tuple[mmap.mmap, SharedMemory]]:
    """Yield memory of this process, and the message in which a server would offer it."""
    descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if sealed:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    mapped = mmap.mmap(descriptor, size)
    mapped[:8] = (5).to_bytes(8, "little")
    try:
        yield mapped, SharedMemory(process_id=os.getpid(), file_descriptor=descriptor, size=size, nonce=5)
    finally:
        os.close(descriptor)


def read(offer: SharedMemory, *messages: SharedMessage) -> None:
    """Make a call of a client to a server that offers memory, says where messages are, and ends without an account."""
    responses = [pb.ObtainSamplesResponse(beginning=Beginning(shared_memory=offer))]
    responses += [pb.ObtainSamplesResponse(shared=message) for message in messages]
    data = [response.SerializeToString() for response in responses]
    with (
        scripted_server(ObtainSamples=lambda _: data) as address,
        rollserve.connect(address, shared_memory=True) as sampler,
    ):
        sampler.obtain_samples(1)


def check_not_taken(mapped: mmap.mmap, offer: SharedMemory) -> None:
    """Check that a client writes nothing into memory that a server offers."""
    before = mapped[:]
    with raises(rollserve.ServerError, quotes="account"):
        read(offer)
    assert mapped[:] == before


def test_client_rejects_other_memory(tmp_path: Path) -> None:
    with memory() as (mapped, offer):
        for changes in ({"nonce": 6}, {"size": 4096}, {"size": 1 << 40}, {"process_id": 2**32 - 1}):
            changed = SharedMemory()
            changed.CopyFrom(offer)
            for field, value in changes.items():
                setattr(changed, field, value)
            check_not_taken(mapped, changed)
        with raises(rollserve.ServerError, quotes="account"):
            read(offer)
        assert mapped[8:16] == mapped[:8]
    for other in (memory("other"), memory(sealed=False), memory(size=16)):
        with other as (mapped, offer):
            check_not_taken(mapped, offer)
    path = tmp_path / "file"
    path.write_bytes((5).to_bytes(8, "little") + bytes(8184))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8192) as mapped:
        offer = SharedMemory(process_id=os.getpid(), file_descriptor=file.fileno(), size=8192, nonce=5)
        check_not_taken(mapped, offer)


@pytest.mark.parametrize(("start", "size"), [(8000, 193), (0, 100), (8192, 1), (2**63, 2**63)])
def test_client_rejects_places_outside_the_memory(start: int, size: int) -> None:
    with memory() as (_, offer), raises(rollserve.ServerError, quotes=("8192", str(start))):
        read(offer, SharedMessage(offset=start, size=size))
