"""What does one gateway carry, and what do several?

    python -m benchmarks.studies.gateway [--workers N] [--gateways 1,2] [--at-a-time 1,4,16] [--idle 200,800]

Gateways on one Ray, each with workers of its own on this machine. The figures are processor time of a gateway's
process, from which follows what one core carries, also where clients and workers take most of the machine: for calls
for one episode of CartPole-v1 of each worker, for calls that ask for the status, and for a gigabyte of observations of
1 MiB through gRPC. Then memory and processor time of connections that do nothing. What Ray's own server (`gcs_server`),
which gateways share, takes for a call says how many gateways one cluster carries.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
from rich.console import Console
from rich.table import Table

import rollserve
from benchmarks.shared.ray_nodes import RAY, new_environment, started_node
from benchmarks.studies.server import add_workers
from rollserve_server.local import LocalServer, local_server

SECONDS = 5.0
"""Duration of each measurement."""
BULK = rollserve.EnvSpec("benchmarks.service.environments:Bulk", vectorization="rows", num_rows=1)
NUM_BULK_STEPS = 128


@contextlib.contextmanager
def gateways_of(number: int, num_workers: int) -> Iterator[list[LocalServer]]:
    """Run a Ray of its own, and gateways on it with CartPole-v1, for as long as the block."""
    environment = new_environment()
    options = ["--env", "CartPole-v1", "--workers", str(num_workers), "--vectorization", "native"]
    options += ["--max-connections", "10000", "--max-peer-connections", "10000"]
    options += ["--allow-module", "benchmarks.service.environments"]
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True))
        )
        port = 24000 + os.getpid() % 6000
        head = [RAY, "start", "--head", f"--port={port}", f"--num-cpus={number * num_workers}", f"--temp-dir={folder}"]
        command = " ".join(map(str, [*head, "--include-dashboard=false", f"--ray-client-server-port={port + 6000}"]))
        stack.enter_context(started_node(["sh", "-c", f"exec {command}"], folder / "log", environment))
        own = [*options, "--ray-address", f"127.0.0.1:{port}"]
        yield [
            stack.enter_context(
                local_server(
                    *own, "--ray-namespace", f"gateway-{each}", log=folder / f"log-{each}", environment=environment
                )
            )
            for each in range(number)
        ]


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time of a process so far."""
    return sum(process.cpu_times()[:2])


def repeated(work: Callable[[], object], until: float) -> int:
    """Do a piece of work again and again; return how often."""
    count = 0
    while time.monotonic() < until:
        work()
        count += 1
    return count


def calls_of(
    servers: Sequence[LocalServer], at_a_time: int, call: Callable[[rollserve.Sampler], object]
) -> tuple[float, float, float]:
    """Return calls per second, and processor milliseconds for a call of its gateway and of Ray's own server."""
    processes = [psutil.Process(server.process.pid) for server in servers]
    gcs = next(each for each in psutil.process_iter() if each.name() == "gcs_server")
    with contextlib.ExitStack() as stack:
        samplers = [stack.enter_context(rollserve.connect(each.address)) for each in servers for _ in range(at_a_time)]
        for sampler in samplers:
            call(sampler)
        threads = stack.enter_context(ThreadPoolExecutor(len(samplers)))
        before, gcs_before = sum(map(cpu_seconds, processes)), cpu_seconds(gcs)
        until = time.monotonic() + SECONDS
        count = sum(threads.map(lambda sampler: repeated(lambda: call(sampler), until), samplers))
        seconds, gcs_seconds = sum(map(cpu_seconds, processes)) - before, cpu_seconds(gcs) - gcs_before
    return count / SECONDS, 1000 * seconds / count, 1000 * gcs_seconds / count


def idle_of(server: LocalServer, number: int) -> tuple[float, float, float]:
    """Return KiB and processor microseconds per second of each idle connection, and the time of a small call beside."""
    process = psutil.Process(server.process.pid)
    with rollserve.connect(server.address) as sampler, contextlib.ExitStack() as stack:
        sampler.obtain_exact_episodes(2)
        before = process.memory_full_info().pss
        for _ in range(number):  # a pool of its own each, or they would share one connection
            channel = grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])
            stack.callback(channel.close)
            grpc.channel_ready_future(channel).result(timeout=60)
        time.sleep(1)
        memory, cpu = process.memory_full_info().pss - before, cpu_seconds(process)
        time.sleep(SECONDS)
        cpu = cpu_seconds(process) - cpu
        began = time.monotonic()
        count = repeated(lambda: sampler.obtain_exact_episodes(2), began + SECONDS)
        return memory / number / 1024, 1e6 * cpu / SECONDS / number, 1000 * (time.monotonic() - began) / count


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description="Measure what gateways carry.")
    add_workers(parser)
    parser.add_argument("--gateways", default="1,2", help="numbers of gateways (default: %(default)s)")
    parser.add_argument("--at-a-time", default="1,4,16", help="calls at a time, of each (default: %(default)s)")
    parser.add_argument("--idle", default="200,800", help="numbers of idle connections (default: %(default)s)")
    arguments = parser.parse_args()
    num_workers, gateways = arguments.workers, [int(each) for each in arguments.gateways.split(",")]
    calls = Table("gateways", "calls", "at a time", "calls/s", "CPU ms of a call", "calls/s of one core", "gcs CPU ms")
    idle = Table("idle connections", "KiB of each", "CPU µs/s of each", "ms of a small call")
    for number in gateways:
        with gateways_of(number, num_workers) as servers:
            samplers = [rollserve.connect(server.address) for server in servers]
            for sampler in samplers:
                sampler.update_agent(rollserve.RandomAgent())
            kinds: dict[str, Callable[[rollserve.Sampler], object]] = {
                "status": lambda sampler: sampler.status(),
                f"{num_workers} episodes": lambda sampler: sampler.obtain_exact_episodes(num_workers),
            }
            for name, call in kinds.items():
                for at_a_time in map(int, arguments.at_a_time.split(",")):
                    rate, cpu, gcs = calls_of(servers, at_a_time, call)
                    row = (f"{rate:,.0f}", f"{cpu:.2f}", f"{1000 / cpu:,.0f}", f"{gcs:.3f}")
                    calls.add_row(str(number), name, str(at_a_time), *row)
            if number == 1:
                for count in map(int, arguments.idle.split(",")):
                    kib, microseconds, milliseconds = idle_of(servers[0], count)
                    idle.add_row(f"{count:,}", f"{kib:.0f}", f"{microseconds:.0f}", f"{milliseconds:.1f}")
            for sampler in samplers:
                sampler.update_env(BULK)
                sampler.update_agent(rollserve.RandomAgent())
            rate, cpu, gcs = calls_of(servers, 1, lambda sampler: sampler.obtain_samples(NUM_BULK_STEPS))
            gigabytes = NUM_BULK_STEPS / 1024
            calls.add_row(
                str(number),
                f"{NUM_BULK_STEPS} MiB",
                "1",
                f"{rate:.1f}",
                f"{cpu:.0f}",
                f"{gigabytes * 1000 / cpu:.2f} GiB/s",
                "",
            )
            for sampler in samplers:
                sampler.close()
    console = Console(width=120)
    console.print(calls)
    console.print(idle)


if __name__ == "__main__":
    main()
