"""A sampler that follows its load on a cluster whose nodes come and go by Ray's own autoscaler."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pools import adds_up
from ray_clusters import cluster_server, ray_cluster
from support import equal, server_environment

import rollserve
from rollserve_server.local import local_server

OPTIONS = "--env", "sample_envs:Watched", "--vectorization", "rows", "--rows", "4"
SCALED = "--min-workers", "1", "--max-workers", "4", "--scale-down-seconds", "8"
NUM_STEPS = 400
STEP_SECONDS = 0.002
"""So that workers are busy, whatever this machine can do."""
NUM_NODES = 3
TIMEOUT_SECONDS = 240.0


def kwargs(folder: Path, step_seconds: float) -> tuple[str, str]:
    return "--env-kwargs", json.dumps({"folder": str(folder), "step_seconds": step_seconds})


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


class Trainer(threading.Thread):
    """A client that samples call after call, each with the next seed.

    Attributes:
        batches: what it has got.
        numbers: number of workers of each call.
    """

    def __init__(self, address: str, first_seed: int) -> None:
        super().__init__()
        self._address, self._first_seed = address, first_seed
        self._ended = threading.Event()
        self.batches: dict[int, rollserve.EpisodeBatch] = {}
        self.numbers: list[int] = []

    def run(self) -> None:
        """Sample until the end."""
        with rollserve.connect(self._address, shared=True) as sampler:
            for seed in itertools.count(self._first_seed):
                if self._ended.is_set():
                    return
                self.batches[seed] = batch = sampler.obtain_samples(NUM_STEPS, seed=seed)
                self.numbers.append(len(batch.account.workers))

    def end(self) -> None:
        """Wait for the last call."""
        self._ended.set()
        self.join()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_workers_and_nodes_come_with_load_and_go_without(tmp_path: Path) -> None:
    """The head has room for the first worker alone."""
    with (
        ray_cluster(1, max_nodes=NUM_NODES) as cluster,
        cluster_server(cluster, tmp_path, *OPTIONS, *SCALED, *kwargs(tmp_path, STEP_SECONDS)) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        trainers = [Trainer(server.address, first_seed) for first_seed in (1, 1_000_000)]
        for trainer in trainers:
            trainer.start()
        until(lambda: all(trainer.numbers[-1:] == [4] for trainer in trainers))
        for trainer in trainers:
            trainer.end()
        until(lambda: len(sampler.status().workers) == 1)
        own = sampler.obtain_samples(NUM_STEPS, seed=5)
        assert sampler.status().counters.num_failed_calls == 0
    batches = {5: own, **trainers[0].batches, **trainers[1].batches}
    assert all(adds_up(batch.account) for batch in batches.values())
    assert sum(batch.account.num_retried_episodes for batch in batches.values()) == 0
    options = *OPTIONS, "--workers", "2", "--backend", "in-process", *kwargs(tmp_path, 0.0)
    with (
        local_server(*options, environment=server_environment()) as fixed,
        rollserve.connect(fixed.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        for seed, batch in batches.items():
            assert equal(sampler.obtain_samples(NUM_STEPS, seed=seed), batch)
