"""Shares of a server's throughput: what steady clients get with the hostile tenant beside them, and without it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from faults.chaos.events import EventLog, read_events
from faults.chaos.processes import end_with_parent
from faults.chaos.service import Service, python_path
from faults.chaos.tenant import Tenant, is_refusal

import rollserve

__all__ = ["NUM_STEADY", "Shares", "answers_of", "main", "measure_shares"]

NUM_STEADY = 3
"""Number of steady clients, each a principal."""
_TOLERANCE = 0.8
"""Part of a fair share that a client has to get. Attacks cost more than turns: probes of environments, connections and
requests to refuse take time of the same processors."""
_NUM_STEPS = 60_000  # of each call: one to three seconds, so that calls begin and end in each window
_SETTLING_SECONDS = 2.0


@dataclass(frozen=True)
class Shares:
    """Throughput of the steady clients.

    Attributes:
        alone: steps per second of each client without the tenant, the median of all windows.
        beside: the same, with the tenant.
        num_workers: number of workers of their sampler.
        wrong: a sentence for each problem.
    """

    alone: Sequence[float]
    beside: Sequence[float]
    num_workers: int
    wrong: Sequence[str]

    @property
    def fair(self) -> float:
        """Part of its throughput that each client keeps when one more principal takes an equal share.

        The tenant's own worker takes a share, too: of the processors, where they are fewer than all workers.
        """
        num_cores = len(os.sched_getaffinity(0))
        alone, beside = (min(1, num_cores / number) for number in (self.num_workers, self.num_workers + 1))
        return len(self.alone) / (len(self.alone) + 1) * beside / alone

    @property
    def bound(self) -> float:
        """Part of its throughput that each client has to keep."""
        return _TOLERANCE * self.fair

    @property
    def kept(self) -> Sequence[float]:
        """Part of its throughput that each client keeps beside the tenant."""
        return [beside / max(alone, 1e-9) for beside, alone in zip(self.beside, self.alone, strict=True)]

    def problems(self) -> Iterator[str]:
        """Yield what is wrong."""
        yield from self.wrong
        for number, kept in enumerate(self.kept):
            if kept < self.bound:
                yield f"steady client {number} keeps {kept:.2f} of its throughput, expected {self.bound:.2f}"


def measure_shares(
    service: Service, folder: Path, *, seed: int, num_workers: int, num_pairs: int, seconds: float
) -> Shares:
    """Measure the throughput of steady clients in windows that alternate between quiet and hostile.

    Args:
        service: server whose sampler has an agent.
        folder: folder for logs.
        seed: seed of the tenant.
        num_workers: number of workers of the sampler.
        num_pairs: number of pairs of windows.
        seconds: duration of a window.
    """
    windows: dict[bool, list[list[float]]] = {False: [], True: []}
    tenants: list[Path] = []
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_steady(service, folder, number)) for number in range(NUM_STEADY)]
        for position in range(2 * num_pairs):
            is_hostile = position % 4 in (1, 2)  # quiet, hostile, hostile, quiet: a drift does not count
            with contextlib.ExitStack() as window:
                if is_hostile:
                    tenant = Tenant(service, folder, f"share-{position}", seed, with_hangs=False)
                    window.callback(tenant.end)
                    tenants.append(tenant.log)
                    tenant.wait_until_ready()
                time.sleep(_SETTLING_SECONDS)
                start = time.monotonic()
                time.sleep(seconds)
                stop = time.monotonic()
            windows[is_hostile].append([_num_steps(log, start, stop) / (stop - start) for log in clients])
        wrong = [f"{log}: another result" for log in clients if any(_is_wrong(log))]
    wrong += [f"{path.stem}: {text}" for path in tenants for text in answers_of([path])[1]]
    alone, beside = ([statistics.median(each) for each in zip(*windows[which], strict=True)] for which in (False, True))
    return Shares(alone, beside, num_workers, wrong)


def answers_of(logs: Sequence[Path]) -> tuple[dict[str, Counter[str]], list[str]]:
    """Return how often each attack of the hostile tenant got each answer, and a sentence for each improper one."""
    answers: dict[str, Counter[str]] = {}
    for event in read_events(*logs):
        if event["event"] == "answer":
            answers.setdefault(event["attack"], Counter())[event["answer"]] += 1
    wrong = [
        f"{times} times the answer {answer} to the hostile tenant's {attack}"
        for attack, found in answers.items()
        for answer, times in found.items()
        if not is_refusal(attack, answer)
    ]
    return answers, wrong


@contextlib.contextmanager
def _steady(service: Service, folder: Path, number: int) -> Iterator[Path]:
    """Run a steady client during the block; yield its log."""
    log = folder / f"steady-{number}.jsonl"
    EventLog(log).close()
    config = {"address": service.address, "log": str(log), "seed": number}
    token = service.token_file(f"steady-{number}", "client")
    with (folder / f"steady-{number}.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "faults.chaos.shares", json.dumps(config)],
            env={**os.environ, **python_path(), "ROLLSERVE_TOKEN_FILE": str(token)},
            stdout=output,
            stderr=output,
        )
    try:
        yield log
        if process.poll() is not None:
            raise RuntimeError(f"a steady client ended: see {log.with_suffix('.txt')}")
    finally:
        process.kill()
        process.wait()


def _num_steps(log: Path, start: float, stop: float) -> int:
    """Return how many steps a steady client received between two times."""
    events = (event for event in read_events(log) if event["event"] == "steps")
    return sum(event["num_steps"] for event in events if start <= event["time"] < stop)


def _is_wrong(log: Path) -> Iterator[bool]:
    """Yield for each call of a steady client whether its episodes differ from the first call's."""
    digests = [event["digests"] for event in read_events(log) if event["event"] == "call"]
    yield from (digest != digests[0] for digest in digests)


def main(text: str) -> None:
    """Sample the same episodes again and again; the JSON text has the keys `address`, `seed` and `log`."""
    end_with_parent()
    config = json.loads(text)
    log = EventLog(Path(config["log"]))
    with rollserve.connect(config["address"], max_message_bytes=64 << 10) as sampler:
        while True:
            columns = [hashlib.sha256() for _ in range(3)]
            for batch in sampler.stream_samples(_NUM_STEPS, seed=config["seed"]):
                log.write("steps", num_steps=batch.num_steps)
                for column, values in zip(columns, (batch.observations, batch.actions, batch.rewards), strict=True):
                    column.update(np.ascontiguousarray(values))
            log.write("call", digests=[column.hexdigest() for column in columns])


if __name__ == "__main__":
    main(sys.argv[1])
