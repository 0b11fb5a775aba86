"""Messages in shared memory equal messages over the connection, and no memory remains when a client or call ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from hypothesis import given, settings
from hypothesis import strategies as st
from support import equal, raises, server_environment

import rollserve
from rollserve._calls.stream_reader import SharedRing
from rollserve_server.gateway.shared_memory import Rings
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import SharedMemory, SharedMessage
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


def test_foreign_client_reads_shared_memory(sharing: LocalServer) -> None:
    """Read the memory as the protos document it, without code of the client; release only a few messages."""
    options = pb.SamplingOptions(accept_shared_memory=True, seed=3, max_message_bytes=MESSAGE_BYTES)
    with grpc.insecure_channel(sharing.address) as channel:
        stub: Any = SamplerServiceStub(channel)
        call = stub.ObtainSamples(pb.ObtainSamplesRequest(step_count=200, options=options))
        offer = next(call).beginning.shared_memory
        with open(f"/proc/{offer.process_id}/fd/{offer.file_descriptor}", "r+b") as file:
            memory = mmap.mmap(file.fileno(), offer.size)
        words = np.frombuffer(memory, "<u8", 3)
        assert words[0] == offer.nonce
        words[1] = offer.nonce
        num_steps = num_held = 0
        for response in call:
            if response.HasField("shared"):
                shared = response.shared
                data = memory[shared.offset : shared.offset + shared.size]
                response = pb.ObtainSamplesResponse.FromString(data)
                num_held += 1
                if num_held > 5:
                    words[2] += np.uint64(1)
            num_steps += len(response.batch.rewards.data) // 8
            account = response.account
        assert num_steps == account.step_count >= 200
        assert account.shared_message_bytes > 0


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


def test_client_rejects_other_memory(tmp_path: Path) -> None:
    with memory() as (mapped, offer):
        assert SharedRing.attach(offer) is not None
        assert mapped[8:16] == mapped[:8]
    others = [memory("other"), memory(sealed=False), memory(size=16)]
    for other in others:
        with other as (mapped, offer):
            before = mapped[:]
            assert SharedRing.attach(offer) is None
            assert mapped[:] == before
    with memory() as (mapped, offer):
        before = mapped[:]
        for changes in ({"nonce": 6}, {"size": 4096}, {"size": 1 << 40}, {"process_id": 2**32 - 1}):
            changed = SharedMemory()
            changed.CopyFrom(offer)
            for field, value in changes.items():
                setattr(changed, field, value)
            assert SharedRing.attach(changed) is None
        assert mapped[:] == before
    path = tmp_path / "file"
    path.write_bytes((5).to_bytes(8, "little") + bytes(8184))
    with path.open("r+b") as file:
        offer = SharedMemory(process_id=os.getpid(), file_descriptor=file.fileno(), size=8192, nonce=5)
        assert SharedRing.attach(offer) is None
    assert path.read_bytes()[8:] == bytes(8184)


def test_read_rejects_places_outside_the_ring() -> None:
    with memory() as (_, offer):
        ring = SharedRing.attach(offer)
        assert ring is not None
        for start, size in ((8000, 193), (0, 100), (8192, 1), (2**63, 2**63)):
            with raises(ValueError, quotes=("8192", str(start))):
                ring.read(SharedMessage(offset=start, size=size))


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1 << 16, 348_160), min_size=1, max_size=20),
    max_held=st.integers(1, 12),
)
@pytest.mark.slow
def test_message_is_not_overwritten_before_its_release(sizes: list[int], max_held: int) -> None:
    async def go() -> None:
        rings = Rings(1 << 20)
        with rings.lend("one") as ring:
            assert ring is not None
            client = SharedRing.attach(ring.offer())
            assert client is not None
            held: list[tuple[memoryview, bytes]] = []

            def release() -> None:
                view, content = held.pop(0)
                assert view == content
                client.release()

            for number, size in enumerate(sizes):
                content = bytes([number]) * size
                writing = asyncio.ensure_future(ring.write(np.frombuffer(content, np.uint8)))
                await asyncio.sleep(0)
                while not writing.done() and len(held) > 1:
                    release()
                    await asyncio.sleep(0.003)
                place = await asyncio.wait_for(writing, 60)  # a single message that is being read never blocks the next
                assert place is not None
                held.append((client.read(place), content))
                if len(held) > max_held:
                    release()
            assert ring.num_message_bytes == sum(sizes)
            while held:
                release()
            assert ring.is_free
        with rings.lend("one") as again, rings.lend("one") as none:
            assert again is ring
            assert none is None

    asyncio.run(go())
    gc.collect()


async def test_ring_in_use_is_not_lent_again() -> None:
    rings = Rings(1 << 20)
    content = np.full(1 << 17, 7, np.uint8)
    with rings.lend("one") as ring:
        assert ring is not None
        client = SharedRing.attach(ring.offer())
        assert client is not None
        place = await ring.write(content)
        assert place is not None
        view = client.read(place)
    with rings.lend("one") as other:
        assert other is not None
        assert other is not ring
        second = SharedRing.attach(other.offer())
        assert second is not None
        await other.write(np.zeros(1 << 17, np.uint8))
        assert view == content.tobytes()
    with rings.lend(None) as none:
        assert none is None
    with Rings(0).lend("one") as none:
        assert none is None


async def test_borrower_sees_nothing_of_another_one() -> None:
    rings, size = Rings(1 << 20), 1 << 17
    contents = [np.full(size, number, np.uint8) for number in (7, 9)]
    with rings.lend("one") as first:
        assert first is not None
        client = SharedRing.attach(first.offer())
        assert client is not None
        assert await first.write(contents[0]) is not None
        kept = raw_memory(first.offer())
        client.release()
    with rings.lend("one") as again:  # its own memory, as it was
        assert again is first
    with rings.lend("other") as second:
        assert second is not None
        raw = raw_memory(second.offer())
        assert not any(raw[mmap.PAGESIZE :])
        other = SharedRing.attach(second.offer())
        assert other is not None
        place = await second.write(contents[1])
        assert place is not None
        assert raw[place.offset : place.offset + size] == contents[1].tobytes()
        assert bytes([9]) * 64 not in kept[:]  # which the first one may read as long as it likes
        assert contents[0].tobytes() in kept[:]


def raw_memory(offer: SharedMemory) -> mmap.mmap:
    """Map the memory of an offer as any process of the same user can."""
    with open(f"/proc/{offer.process_id}/fd/{offer.file_descriptor}", "r+b") as file:
        return mmap.mmap(file.fileno(), offer.size)
