"""What does one gateway carry, and what do several?

    python -m benchmarks.studies.gateway [--workers N] [--gateways 1,2] [--at-a-time 1,4,16] [--idle 200,800]

Gateways on one Ray, each with workers of its own on this machine. The figures are processor time of a gateway's
process, from which follows what one core carries, also where clients and workers take most of the machine: for calls
for one episode of CartPole-v1 of each worker, for calls that ask for the status, and for 128 observations of 1 MiB
through gRPC. Then memory and processor time of connections that do nothing. What Ray's own server (`gcs_server`),
which gateways share, takes for a call says how many gateways one cluster carries.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.service.workloads.bulk import BULK
from benchmarks.shared.ray_nodes import single_node
from benchmarks.studies.server import add_workers, cpu_seconds
from rollserve_server.local import LocalServer, local_server

SECONDS = 5.0
"""Duration of each measurement."""
NUM_BULK_STEPS = 128


class Gateways(NamedTuple):
    """Gateways on one Ray, and Ray's own server, which they share."""

    servers: Sequence[LocalServer]
    gcs: psutil.Process


@contextlib.contextmanager
def gateways_of(number: int, num_workers: int) -> Iterator[Gateways]:
    """Run a Ray of its own, and gateways on it with CartPole-v1, for as long as the block."""
    options = ["--env", "CartPole-v1", "--workers", str(num_workers), "--vectorization", "native"]
    options += ["--max-connections", "10000", "--max-peer-connections", "10000"]
    options += ["--allow-module", "benchmarks.service.environments"]
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))  # names of sockets are short
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        address, environment = stack.enter_context(single_node(folder, number * num_workers))
        gcs = next(
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if process.info["name"] == "gcs_server" and str(folder) in " ".join(process.info["cmdline"])
        )
        servers = []
        for each in range(number):
            own = [*options, "--ray-address", address, "--ray-namespace", f"gateway-{each}"]
            log = folder / f"gateway-{each}.log"
            servers.append(stack.enter_context(local_server(*own, log=log, environment=environment)))
        yield Gateways(servers, gcs)


def repeated(work: Callable[[], object], until: float) -> int:
    """Do a piece of work again and again; return how often."""
    count = 0
    while time.monotonic() < until:
        work()
        count += 1
    return count


def calls_of(
    gateways: Gateways, at_a_time: int, call: Callable[[rollserve.Sampler], object]
) -> tuple[float, float, float]:
    """Return calls per second, and processor milliseconds for a call of its gateway and of Ray's own server."""
    processes = [psutil.Process(server.process.pid) for server in gateways.servers]
    with contextlib.ExitStack() as stack:
        addresses = [server.address for server in gateways.servers for _ in range(at_a_time)]
        samplers = [stack.enter_context(rollserve.connect(address)) for address in addresses]
        for sampler in samplers:
            call(sampler)
        threads = stack.enter_context(ThreadPoolExecutor(len(samplers)))
        before, gcs_before = cpu_seconds(processes), cpu_seconds([gateways.gcs])
        until = time.monotonic() + SECONDS
        count = sum(threads.map(lambda sampler: repeated(lambda: call(sampler), until), samplers))
        seconds, gcs_seconds = cpu_seconds(processes) - before, cpu_seconds([gateways.gcs]) - gcs_before
    return count / SECONDS, 1000 * seconds / count, 1000 * gcs_seconds / count


def idle_of(server: LocalServer, number: int, num_workers: int) -> tuple[float, float, float]:
    """Return KiB and processor microseconds per second of each idle connection, and the time of a small call beside."""
    process = psutil.Process(server.process.pid)
    with rollserve.connect(server.address) as sampler, contextlib.ExitStack() as stack:
        sampler.obtain_exact_episodes(num_workers)
        before = process.memory_full_info().pss
        for _ in range(number):  # a pool of its own each, or they would share one connection
            channel = grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])
            stack.callback(channel.close)
            grpc.channel_ready_future(channel).result(timeout=60)
        time.sleep(1)
        memory, cpu = process.memory_full_info().pss - before, cpu_seconds([process])
        time.sleep(SECONDS)
        cpu = cpu_seconds([process]) - cpu
        began = time.monotonic()
        count = repeated(lambda: sampler.obtain_exact_episodes(num_workers), began + SECONDS)
        return memory / number / 1024, 1e6 * cpu / SECONDS / number, 1000 * (time.monotonic() - began) / count


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="Measure what gateways carry.")
    add_workers(parser)
    parser.add_argument("--gateways", default="1,2", help="numbers of gateways (default: %(default)s)")
    parser.add_argument("--at-a-time", default="1,4,16", help="calls at a time, of each (default: %(default)s)")
    parser.add_argument("--idle", default="200,800", help="numbers of idle connections (default: %(default)s)")
    arguments = parser.parse_args()
    num_workers = arguments.workers
    kinds: dict[str, Callable[[rollserve.Sampler], object]] = {
        "status": lambda sampler: sampler.status(),
        f"{num_workers} episodes": lambda sampler: sampler.obtain_exact_episodes(num_workers),
    }
    calls = Table("gateways", "calls", "at a time", "calls/s", "CPU ms of a call", "calls/s of one core", "gcs CPU ms")
    idle = Table("idle connections", "KiB of each", "CPU µs/s of each", "ms of a small call")

    def measure(gateways: Gateways, name: str, at_a_time: int, call: Callable[[rollserve.Sampler], object]) -> None:
        rate, cpu, gcs = calls_of(gateways, at_a_time, call)
        figures = (f"{rate:,.1f}", f"{cpu:.2f}", f"{1000 / cpu:,.1f}", f"{gcs:.3f}")
        calls.add_row(str(len(gateways.servers)), name, str(at_a_time), *figures)

    for number in map(int, arguments.gateways.split(",")):
        with contextlib.ExitStack() as stack:
            gateways = stack.enter_context(gateways_of(number, num_workers))
            samplers = [stack.enter_context(rollserve.connect(server.address)) for server in gateways.servers]
            for sampler in samplers:
                sampler.update_agent(rollserve.RandomAgent())
            for name, call in kinds.items():
                for at_a_time in map(int, arguments.at_a_time.split(",")):
                    measure(gateways, name, at_a_time, call)
            for count in map(int, arguments.idle.split(",") if number == 1 else ()):
                kib, microseconds, milliseconds = idle_of(gateways.servers[0], count, num_workers)
                idle.add_row(f"{count:,}", f"{kib:.0f}", f"{microseconds:.0f}", f"{milliseconds:.1f}")
            for sampler in samplers:
                sampler.update_env(BULK)
                sampler.update_agent(rollserve.RandomAgent())
            measure(gateways, f"{NUM_BULK_STEPS} MiB", 1, lambda sampler: sampler.obtain_samples(NUM_BULK_STEPS))
    console = Console(width=120)
    console.print(calls)
    console.print(idle)


if __name__ == "__main__":
    main()
