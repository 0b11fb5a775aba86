"""What does a step cost whose actions come from the client?

    python -m benchmarks.studies.driving [--cases cartpole-64,cartpole-512,cheetah-8,pong-8] [--seconds S]

Each case drives rows with random actions, and compares a step with an echo of as many bytes by a plain server of
`grpc.aio` in another process, on one stream, and the steps per second with gymnasium's `AsyncVectorEnv` of as many rows
in this process. A second run has the same rows over TLS with a token. All in one run, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ale_py
import grpc
import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import rollserve
from rollserve_server.local import local_server


class Case(NamedTuple):
    """Environments that are driven.

    Attributes:
        env: id of the environment.
        rows: number of rows of all workers.
        options: options of the server.
    """

    env: str
    rows: int
    options: tuple[str, ...]


CASES = {
    "cartpole-64": Case("CartPole-v1", 64, ("--workers", "1", "--vectorization", "native", "--native-rows", "64")),
    "cartpole-512": Case("CartPole-v1", 512, ("--workers", "1", "--vectorization", "native", "--native-rows", "512")),
    "cheetah-8": Case("HalfCheetah-v5", 8, ("--workers", "2", "--vectorization", "rows", "--rows", "4")),
    "pong-8": Case("ALE/Pong-v5", 8, ("--workers", "2", "--vectorization", "rows", "--rows", "4")),
}
_MAX_PROCESSES = 16
_ECHO = "rollserve.benchmarks.Echo"


def times_of(step: Callable[[], object], seconds: float) -> list[float]:
    """Return how long each step takes that is made in so many seconds."""
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return found


def driven(case: Case, seconds: float, *, is_encrypted: bool = False) -> tuple[list[float], int, int]:
    """Return the times of a session's steps, and the bytes of a step's request and response."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server_options, client_options = _encrypted(folder) if is_encrypted else ((), {})
        options = ("--env", case.env, *case.options, *server_options)
        server = stack.enter_context(local_server(*options, log=folder / "server.log"))
        sampler = stack.enter_context(rollserve.connect(server.address, **client_options))
        session = stack.enter_context(sampler.drive(record=False))
        shown = session.observe()
        generator = np.random.default_rng(0)
        actions = random_actions(session.action_space, session.num_rows, generator)
        for _ in range(20):
            session.step(actions)
        times = times_of(lambda: session.step(actions), seconds)
    num_bytes = np.asarray(shown.observations).nbytes + 25 * case.rows
    return times, np.asarray(actions).nbytes, num_bytes


def _encrypted(folder: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return options of a server with TLS and tokens, and of its clients."""
    hashes, tls, server = folder / "tokens.json", folder / "tls", [sys.executable, "-m", "rollserve_server"]
    subprocess.run([*server, "init-tls", tls], check=True, capture_output=True)  # noqa: S603  # this installation
    create = [*server, "token", "create", "--file", hashes, "--name", "trainer", "--scope", "drive"]
    token = subprocess.run(create, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    options = "--tls-cert", tls / "server.pem", "--tls-key", tls / "server-key.pem", "--token-hashes", hashes
    return tuple(map(str, options)), {"ca": tls / "ca.pem", "token": token}


def random_actions(space: rollserve.spaces.Space, num_rows: int, generator: np.random.Generator) -> np.ndarray:
    """Return an action for each row."""
    if isinstance(space, rollserve.spaces.Discrete):
        return generator.integers(space.n, size=num_rows)
    assert isinstance(space, rollserve.spaces.Box)  # noqa: S101  # as in all cases
    return generator.uniform(-1, 1, (num_rows, *space.shape)).astype(space.dtype)


async def echo(num_bytes: int) -> None:
    """Answer each message of a stream with so many bytes, until this process ends."""
    server, answer = grpc.aio.server(), bytes(num_bytes)

    async def respond(requests: Any, _: object) -> Any:
        async for _request in requests:
            yield answer

    handler = grpc.stream_stream_rpc_method_handler(respond)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_ECHO, {"Echo": handler}),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def echoed(num_sent: int, num_received: int, seconds: float) -> list[float]:
    """Return the times of echoes."""
    command = [sys.executable, "-m", "benchmarks.studies.driving", "--echo", str(num_received)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  # this module
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        port = process.stdout.readline().strip()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
            call = channel.stream_stream(f"/{_ECHO}/Echo")(iter(requests.get, None))

            def exchange() -> None:
                requests.put(bytes(num_sent))
                next(call)

            for _ in range(20):
                exchange()
            times = times_of(exchange, seconds)
            call.cancel()
        process.kill()
    return times


def in_processes(case: Case, seconds: float) -> list[float]:
    """Return the times of the steps of gymnasium's environments in processes of their own."""
    gymnasium.register_envs(ale_py)
    envs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make(case.env)] * case.rows)
    with contextlib.closing(envs):
        envs.reset(seed=0)
        actions = envs.action_space.sample()
        for _ in range(20):
            envs.step(actions)
        return times_of(lambda: envs.step(actions), seconds)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Measure steps whose actions come from the client.")
    parser.add_argument("--cases", default=",".join(CASES), help="cases to measure (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of each measurement (default: %(default)s)"
    )
    parser.add_argument("--echo", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.echo is not None:
        asyncio.run(echo(arguments.echo))
        return
    table = Table("rows", "steps/s", "p50, ms", "p99, ms", "/ echo", "/ AsyncVectorEnv", "TLS / plain")
    for name in arguments.cases.split(","):
        case = CASES[name]
        times, num_sent, num_received = driven(case, arguments.seconds)
        encrypted, *_ = driven(case, arguments.seconds, is_encrypted=True)
        echoes = echoed(num_sent, num_received, arguments.seconds)
        here = in_processes(case, arguments.seconds) if case.rows <= _MAX_PROCESSES else []
        p50 = statistics.median(times)
        table.add_row(
            name,
            f"{case.rows / statistics.mean(times):,.0f}",
            f"{1000 * p50:.2f}",
            f"{1000 * np.percentile(times, 99):.2f}",
            f"{p50 / statistics.median(echoes):.1f}",
            f"{statistics.mean(here) / statistics.mean(times):.2f}" if here else "",
            f"{statistics.mean(times) / statistics.mean(encrypted):.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
