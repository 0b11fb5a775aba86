"""Child processes that are stuck in native code or in the kernel: they end with their RPC, and with their server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_models import changed, node
from pools import until
from raw_calls import soon
from support import server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server

_PROGRAMS = {
    "sandbox": "onnx/probe.py",
    "probe": "probing.child",
    "renderer": "probing.child",
    "reader": "datasets.reading",
    "recorder": "datasets.writing",
}
_FORKED = ("probe", "renderer")


def endless_model(num_rounds: int = 1 << 62) -> rollserve.OnnxAgent:
    """Return a model that runs for ever."""
    body = onnx.helper.make_graph(
        [node("Tanh", "state", "next"), node("Identity", "go", "going")],
        "body",
        [
            onnx.helper.make_tensor_value_info("i", TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("state", TensorProto.FLOAT, ["N", 4]),
        ],
        [
            onnx.helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("next", TensorProto.FLOAT, ["N", 4]),
        ],
    )
    loop = onnx.helper.make_node("Loop", ["most", "yes", "observation"], ["x"], body=body)
    constants = {"w": np.ones((4, 2), np.float32), "most": np.array(num_rounds), "yes": np.array(True)}
    made = changed(nodes=[loop, node("Gemm", "x w", "logits")], initializers=constants)
    return rollserve.OnnxAgent(made.SerializeToString(), head="categorical")


def processes(kind: str = "") -> dict[int, int]:
    """Return the processes of children of a kind, or of all kinds, that run, and their parents."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = path.joinpath("cmdline").read_text()
            state, parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[:2]
            kinds = [each for each, program in _PROGRAMS.items() if program in command]
            if state != "Z" and (kind in kinds or (kinds and not kind)):
                found[int(path.name)] = int(parent)
    return found


def children(process_id: int, kind: str) -> set[int]:
    """Return the children of a kind that a process has; for environments, without the process that forks them."""
    own = {child for child, parent in processes(kind).items() if parent == process_id}
    return {child for child, parent in processes(kind).items() if parent in own} if kind in _FORKED else own


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[LocalServer]:
    """A server whose folder for datasets has files that nobody can open to the end."""
    (folder / "data/a-v0/data").mkdir(parents=True)
    os.mkfifo(folder / "data/a-v0/data/metadata.json")
    os.mkfifo(folder / "data/b.parquet")
    options = ("--env", "sample_envs:Busy", "--allow-module", "sample_envs")
    options += ("--backend", "in-process", "--workers", "1", "--rows", "1", "--data-dir", str(folder / "data"))
    with local_server(*options, log=folder / "log", environment=server_environment()) as running:
        with rollserve.connect(running.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield running
        if running.process.poll() is None:
            assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def server(shared: LocalServer) -> Iterator[LocalServer]:
    """The shared server as it was at its start; checks that the test leaves no child there."""
    shared.reset()
    with rollserve.connect(shared.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
    yield shared
    assert soon(lambda: not any(children(shared.process.pid, kind) for kind in _PROGRAMS), 30)


def calls(sampler: rollserve.AsyncSampler) -> dict[str, Callable[[], Awaitable[object]]]:
    """Return calls whose children get stuck, by their kind."""

    async def read() -> None:
        async with sampler.read("b.parquet", format="parquet", batch_size=1) as stream:
            await anext(stream)

    return {
        "sandbox": lambda: sampler.update_agent(endless_model()),
        "probe": lambda: sampler.update_env(rollserve.EnvSpec("sample_envs:Busy", {"in_reset": True})),
        "renderer": lambda: sampler.render(seed=1, index=0),
        "reader": read,
        "recorder": lambda: sampler.record("a-v0", num_episodes=1),
    }


@contextlib.asynccontextmanager
async def stuck(server: LocalServer) -> AsyncIterator[set[int]]:
    """Make calls whose children get stuck; yield the children. The calls are cancelled after the block."""
    found: set[int] = set()
    async with contextlib.AsyncExitStack() as stack:
        tasks: list[asyncio.Task[object]] = []
        for kind in _PROGRAMS:
            sampler = await stack.enter_async_context(rollserve.aconnect(server.address))
            tasks.append(asyncio.ensure_future(calls(sampler)[kind]()))
            found |= await new_children(server.process.pid, kind, found, tasks[-1])
        await asyncio.sleep(1)  # until they are stuck
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def new_children(process_id: int, kind: str, known: set[int], call: asyncio.Future[object]) -> set[int]:
    """Wait until a call has started children that are not known, and return them."""
    async with asyncio.timeout(60):
        await until(lambda: not children(process_id, kind) <= known or call.done())
    assert not call.done(), call
    return children(process_id, kind) - known


async def test_children_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        async with stuck(server) as found:
            running = processes()
            assert found <= set(running)
            found |= {child for child, parent in running.items() if parent == server.process.pid}
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            assert soon(lambda: found.isdisjoint(processes()), 30)


async def test_children_yield_to_workers_and_end_with_their_calls(server: LocalServer) -> None:
    async with stuck(server) as found:
        assert found <= set(processes())
        for child in found:
            assert os.getsid(child) == os.getsid(server.process.pid)  # sessions may share the processors equally
            assert os.getpgid(child) == child
            assert os.getpriority(os.PRIO_PROCESS, child) >= 15
    assert soon(lambda: found.isdisjoint(processes()), 30)


async def test_cancelled_updates_hold_nobody_up(server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as sampler, contextlib.AsyncExitStack() as stack:
        others = [await stack.enter_async_context(rollserve.aconnect(server.address)) for _ in range(8)]
        known: set[int] = set()
        for other in others:
            update = asyncio.ensure_future(other.update_agent(endless_model()))
            known |= await new_children(server.process.pid, "sandbox", known, update)
            update.cancel()
        assert (await sampler.status(timeout=30)).policy_version == 1
        await sampler.update_agent(rollserve.ConstantAgent(0), timeout=30)


@pytest.mark.parametrize("rpc", ["UpdateAgent", "ObtainSamples"])
async def test_agent_on_trial_holds_no_update_up(server: LocalServer, rpc: str) -> None:
    async with rollserve.aconnect(server.address) as sampler, rollserve.aconnect(server.address) as other:
        update = other.update_agent if rpc == "UpdateAgent" else functools.partial(other.obtain_samples, 1)
        num_updates = 1 if rpc == "UpdateAgent" else 3
        on_trial = [asyncio.ensure_future(update(agent=endless_model())) for _ in range(num_updates)]
        await new_children(server.process.pid, "sandbox", set(), on_trial[0])
        await sampler.update_agent(rollserve.ConstantAgent(0), timeout=30)
        assert not any(each.done() for each in on_trial)
        for each in on_trial:
            each.cancel()
        await asyncio.gather(*on_trial, return_exceptions=True)


@pytest.mark.slow
async def test_recorder_that_hangs_ends_with_its_call(server: LocalServer) -> None:
    async with rollserve.aconnect(server.address) as sampler:
        recording = asyncio.ensure_future(sampler.record("c-v0", num_steps=10**9))
        found = await new_children(server.process.pid, "recorder", set(), recording)
        await asyncio.sleep(5)  # until it writes
        for child in found:
            os.kill(child, signal.SIGSTOP)
        recording.cancel()
        await asyncio.gather(recording, return_exceptions=True)
    assert soon(lambda: found.isdisjoint(processes()), 90)


@pytest.mark.slow
async def test_probe_ends_with_a_worker_that_is_killed() -> None:
    options = ("--env", "CartPole-v1", "--workers", "1", "--allow-module", "sample_envs")
    with local_server(*options, environment=server_environment()) as server:
        async with rollserve.aconnect(server.address) as sampler:
            worker = (await sampler.status()).workers[0].process_id
            update = asyncio.ensure_future(calls(sampler)["probe"]())
            found = await new_children(worker, "probe", set(), update)
            os.kill(worker, signal.SIGKILL)
            assert soon(lambda: found.isdisjoint(processes()), 30)
            update.cancel()
            await asyncio.gather(update, return_exceptions=True)


def test_child_ends_with_its_parent_though_forks_of_the_parent_live() -> None:
    program = """
import os, subprocess, sys, time
from rollserve_server.children import Lifeline, launching
lifeline = Lifeline()
with lifeline.end() as end:
    command = launching(end, "-c", "import time; time.sleep(600)")
    child = subprocess.Popen(command, pass_fds=[end], process_group=0)
fork = os.fork()
if not fork:
    time.sleep(600)
print(child.pid, fork, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, fork = map(int, parent.stdout.readline().split())
        try:
            parent.kill()
            while is_running(child):
                time.sleep(0.01)
            assert is_running(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


def test_child_has_no_terminal() -> None:
    program = """
import fcntl, subprocess, termios
from rollserve_server.children import Lifeline, launching
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with open("/dev/tty"):
    print("the parent has one", flush=True)
lifeline = Lifeline()
with lifeline.end() as end:
    subprocess.run(launching(end, "-c", "open('/dev/tty')"), pass_fds=[end], process_group=0)
"""
    ends = os.openpty()
    command = [sys.executable, "-c", program]
    parent = subprocess.run(command, stdin=ends[1], capture_output=True, start_new_session=True, text=True, check=False)
    for end in ends:
        os.close(end)
    assert parent.stdout == "the parent has one\n"
    assert "No such device or address: '/dev/tty'" in parent.stderr


def is_running(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
