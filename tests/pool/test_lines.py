"""Lines between the server and workers on its machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pools import RecordingBackend, cartpole_agent, pool_of, sample, sample_request, settings
from support import equal

import rollserve
from rollserve_server.agents import MlpSpec, RandomSpec
from rollserve_server.errors import OverLimitError, WorkerLostError
from rollserve_server.pool import AtLeast, Backend, Delivery, Exactly, Fragments, InProcessBackend, Pool
from rollserve_server.pool.backends.ray import line as line_module
from rollserve_server.pool.backends.ray import worker as ray_worker
from rollserve_server.pool.backends.ray.line import (
    HEAD,
    Line,
    LineEndedError,
    Listener,
    MessageKind,
    Place,
    WorkerLine,
    packed_head,
)
from rollserve_server.sampling import Worker

BIG = rollserve.EnvSpec("sample_envs:Big", {"observation_bytes": 1 << 18, "length": 40})
BE_NOBODY = "import os, socket, sys; os.setuid(65534)"
"""Code for another process, which becomes another user."""


class Unreachable(Listener):
    """A listener that workers cannot reach, as from another machine."""

    def __init__(self) -> None:
        super().__init__()
        self.name += "-elsewhere"


class Unsupported(Listener):
    """A listener on a system without such sockets."""

    def __init__(self) -> None:
        raise OSError("no such sockets")


def large_agent(scale: float) -> MlpSpec:
    """Return an agent that is large enough to travel through Ray's object store."""
    sizes = (4, 400, 400, 2)
    shapes = {f"{i}/weight": (sizes[i + 1], sizes[i]) for i in range(3)} | {
        f"{i}/bias": (sizes[i + 1],) for i in range(3)
    }
    parameters = {name: np.full(shape, scale, np.float32) for name, shape in shapes.items()}
    return MlpSpec(sizes, "tanh", "categorical", parameters)


def process_of(pool: Pool) -> int:
    """Return the id of the process of a pool's first worker."""
    return pool.status().workers[0].identity.process_id


def links_in(folder: Path) -> list[str]:
    """Return where the links of a folder lead that do not vanish meanwhile."""
    links = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(path))
    return links


async def batches(pool: Pool) -> list[rollserve.EpisodeBatch]:
    """Return batches of small and large calls, with a small and a large agent."""
    await pool.update_agent([cartpole_agent()])
    targets = (AtLeast(30), Exactly(2), AtLeast(8000), Fragments(8 * 800))
    small = [await sample(pool, target, seed=3) for target in targets]
    await pool.update_agent([large_agent(0.001)])
    return [*small, await sample(pool, AtLeast(100), seed=3)]


@pytest.mark.parametrize("listener", [Listener, Unreachable, pytest.param(Unsupported, marks=pytest.mark.slow)])
async def test_batches_are_the_same_on_lines_and_through_ray(
    listener: type[Listener], ray_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of(InProcessBackend()) as pool:
        expected = await batches(pool)
    monkeypatch.setattr("rollserve_server.pool.backends.ray.worker.Listener", listener)
    async with pool_of(ray_backend) as pool:
        got = await batches(pool)
    assert all(map(equal, got, expected))


async def test_results_that_are_read_slowly_are_not_written_over(ray_backend: Backend) -> None:
    held: list[tuple[Delivery, bytes]] = []
    async with pool_of(
        ray_backend, BIG, workers=1, rows=1, call_window_bytes=1 << 24, allow_module=("sample_envs",)
    ) as pool:
        await pool.update_agent([RandomSpec()])
        async with contextlib.aclosing(pool.sample(sample_request(AtLeast(400)))) as items:
            held += [(item, item.buffer.tobytes()) async for item in items if isinstance(item, Delivery)]
        os.kill(process_of(pool), signal.SIGKILL)
    assert len(held) > 3
    assert all(delivery.buffer.tobytes() == before for delivery, before in held)


@pytest.mark.parametrize("hold_memory", [True, False])
@pytest.mark.slow
async def test_memory_of_results_is_bounded(hold_memory: bool, ray_backend: Backend, without_recycling: None) -> None:
    async with pool_of(
        ray_backend,
        BIG,
        workers=1,
        rows=1,
        call_window_bytes=1 << 24,
        hold_memory=hold_memory,
        allow_module=("sample_envs",),
    ) as pool:
        await pool.update_agent([RandomSpec()])
        for _ in range(20):
            await sample(pool, AtLeast(200))
        opened = await asyncio.to_thread(links_in, Path(f"/proc/{process_of(pool)}/fd"))
        regions = [link for link in opened if "rollserve-results" in link]
    assert hold_memory <= len(regions) <= 20  # for 100 results


@pytest.mark.slow
async def test_killed_worker_that_leaves_its_line_first_is_replaced(
    ray_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the line can reach the worker before its death, as if another server had taken it."""
    recording, kill = RecordingBackend(ray_backend), ray_worker._kill
    async with pool_of(recording) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, Fragments(8 * 500), seed=1)
        left: list[object] = []
        monkeypatch.setattr(ray_worker, "_kill", left.append)
        recording.handles[0].kill(WorkerLostError("killed by the test", 0))
        assert equal(await sample(pool, Fragments(8 * 500), seed=1), expected)
        for actor in left:
            kill(actor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a process as another user")
async def test_processes_of_other_users_are_turned_away() -> None:
    listener = Listener()
    connect = f"{BE_NOBODY}; s = socket.socket(socket.AF_UNIX); s.connect('\\0{listener.name}'); print(s.recv(1))"
    with contextlib.closing(listener):
        stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", connect, stdout=subprocess.PIPE)
        assert (await stranger.communicate())[0].strip() == b"b''"
        assert not listener.line.done()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a process as another user")
def test_workers_take_no_calls_of_other_users() -> None:
    listen = (
        f"{BE_NOBODY}; s = socket.socket(socket.AF_UNIX); s.bind('\\0rollserve-of-a-stranger'); s.listen(); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    stranger = subprocess.Popen([sys.executable, "-c", listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline().strip() == b"ready"
        with pytest.raises(PermissionError, match="another user"):
            WorkerLine.connect("rollserve-of-a-stranger", keeps_memory=True)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 300_000)), max_size=12),
    num_at_once=st.integers(1, 4),
    keeps_memory=st.booleans(),
)
def test_calls_are_answered_in_order_whatever_their_size(
    sizes: list[tuple[int, int]], num_at_once: int, keeps_memory: bool
) -> None:
    async def ask_all() -> None:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=_answer, args=(WorkerLine(theirs, keeps_memory=keeps_memory),))
        thread.start()
        line = Line(ours)
        for start in range(0, len(sizes), num_at_once):
            asked = [line.ask(bytes(size), result) for size, result in sizes[start : start + num_at_once]]
            for answer, (size, result) in zip(asked, sizes[start:], strict=False):
                (num_bytes, number), buffer = await answer
                assert (num_bytes, number) == (size, result)
                assert buffer is not None
                assert np.array_equal(buffer, np.full(result, result % 251, np.uint8))
            del asked
        line.close()
        with pytest.raises(LineEndedError):
            await line.ask(b"", 0)
        await asyncio.to_thread(thread.join)

    asyncio.run(ask_all())


class Unreadable:
    """A value that can be pickled, and not be read."""

    def __init__(self, error: BaseException | None = None) -> None:
        if error is not None:
            raise error

    def __reduce__(self) -> Any:
        return Unreadable, (SystemExit("unreadable"),)


def _frame(answer: Any) -> bytes:
    content = pickle.dumps(answer)
    return packed_head(MessageKind.ANSWER, len(content)) + content


BROKEN_FRAMES = {
    "not a pickle": packed_head(MessageKind.ANSWER, 4) + b"abcd",
    "a value that cannot be read": _frame((Unreadable(), None, None)),
    "other parts": _frame((1,)),
    "another version": HEAD.pack(MessageKind.ANSWER, b"line-0\n", 4) + b"abcd",
    "another kind": HEAD.pack(99, b"line-1\n", 4) + b"abcd",
    "too large": packed_head(MessageKind.ANSWER, 1 << 60),
    "a region that never was": _frame((1, None, Place(7, 1, True))),
}


@pytest.mark.parametrize("frame", BROKEN_FRAMES.values(), ids=BROKEN_FRAMES)
async def test_frame_that_cannot_be_taken_ends_the_calls_that_wait(frame: bytes) -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    with theirs:
        asked = [line.ask(number) for number in range(3)]
        theirs.sendall(frame)
        for answer in asked:
            with pytest.raises(LineEndedError) as ended:
                await asyncio.wait_for(answer, 60)
            assert ended.value.cause
    assert not line.is_open


async def test_truncated_frame_ends_the_calls_that_wait() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    asked = line.ask(1)
    theirs.sendall(packed_head(MessageKind.ANSWER, 100) + b"abcd")
    theirs.close()
    with pytest.raises(LineEndedError):
        await asyncio.wait_for(asked, 60)


async def test_call_that_cannot_be_sent_takes_no_answer_of_another() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    thread = threading.Thread(target=_answer, args=(WorkerLine(theirs, keeps_memory=True),))
    thread.start()
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        line.ask(lambda: None)
    assert (await asyncio.wait_for(line.ask(b"abc", 5), 60))[0] == (3, 5)
    line.close()
    await asyncio.to_thread(thread.join)


async def test_result_without_room_fails_its_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    thread = threading.Thread(target=_answer, args=(WorkerLine(theirs, keeps_memory=True),))
    thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(line_module, "_mapped", _without_room)
        with pytest.raises(OverLimitError, match="no room"):
            await asyncio.wait_for(line.ask(b"", 300_000), 60)
    _, buffer = await asyncio.wait_for(line.ask(b"", 300_000), 60)
    assert buffer is not None
    line.close()
    await asyncio.to_thread(thread.join)


def _without_room(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


async def _ray_worker(backend: Backend) -> Any:
    """Return the handle of a worker that has answered a call."""
    worker: Any = backend.create_worker(0, settings().worker)
    await worker.call(Worker.identity)
    return getattr(worker, "_worker", worker)


async def _heartbeats(worker: Any) -> None:
    """Look at a worker again and again, as the pool does, until it is lost."""
    while True:
        await worker.heartbeat()
        await asyncio.sleep(0.1)


def _break_on_server(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "_unpickled", lambda _: pickle.loads(b"abcd"))


def _send_garbage(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker._line.result()._connection.send(b"garbage " * 8)


def _send_unreadable(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "pickle", SimpleNamespace(dumps=lambda _: b"abcd", loads=pickle.loads))


def _lose_a_frame(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "_LOST_FRAME_SECONDS", 0.5)
    monkeypatch.setattr(worker._line.result(), "_send", lambda *_: None)


@pytest.mark.parametrize(
    "break_line",
    [
        _send_garbage,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (_break_on_server, _send_unreadable, _lose_a_frame)),
    ],
)
async def test_call_on_a_broken_line_ends_with_the_cause(
    break_line: Callable[..., None], ray_backend: Backend, without_recycling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await _ray_worker(ray_backend)
    with monkeypatch.context() as patch:
        break_line(worker, patch)
        asked = asyncio.ensure_future(worker.call(Worker.identity))
        with pytest.raises(WorkerLostError, match="worker 0 is lost"):
            await asyncio.wait_for(_heartbeats(worker), 60)
        with pytest.raises(WorkerLostError, match=r"cannot be read|Unpickling|a frame of the form|not answered a call"):
            await asyncio.wait_for(asked, 60)
    worker.kill()


@pytest.mark.parametrize(
    ("listener", "method"),
    [
        (Listener, ["no_such_method"]),
        pytest.param(Listener, ["__getattribute__", "stop"], marks=pytest.mark.slow),  # Ray pickles more
        pytest.param(Unreachable, ["no_such_method"], marks=pytest.mark.slow),
    ],
)
async def test_answer_that_cannot_be_sent_ends_the_call_with_the_cause(
    listener: type[Listener],
    method: list[Any],
    ray_backend: Backend,
    without_recycling: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollserve_server.pool.backends.ray.worker.Listener", listener)
    worker = await _ray_worker(ray_backend)
    with pytest.raises(WorkerLostError, match=r"TypeError|PicklingError|AttributeError"):
        await asyncio.wait_for(worker._call(method[0], method[1:], {}), 60)
    worker.kill()


@pytest.mark.slow
async def test_batch_is_the_same_when_answers_cannot_be_read(
    ray_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpickled, num_broken = line_module._unpickled, 0

    def break_two(content: memoryview) -> Any:
        nonlocal num_broken
        num_broken += 1
        return pickle.loads(b"abcd") if num_broken in (3, 9) else unpickled(content)

    async with pool_of(ray_backend) as pool:
        await pool.update_agent([cartpole_agent()])
        expected = await sample(pool, AtLeast(3000), seed=5)
        monkeypatch.setattr(line_module, "_unpickled", break_two)
        assert equal(await sample(pool, AtLeast(3000), seed=5), expected)
        assert pool.status().workers[0].num_restarts + pool.status().workers[1].num_restarts > 0


async def test_call_on_a_line_whose_worker_has_just_ended_fails() -> None:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    theirs.close()
    with pytest.raises(LineEndedError):
        await line.ask(b"", 0)
    assert not line.is_open


def _answer(line: WorkerLine) -> None:
    while (call := line.next_call()) is not None:
        content, num_bytes = call
        buffer = line.results.new_buffer(num_bytes)
        buffer[:] = num_bytes % 251
        line.answer((len(content), num_bytes), buffer)
    line.close()
