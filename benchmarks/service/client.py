"""The client of a measurement, a process of its own: `python -m benchmarks.service.client HOST:PORT`."""

from __future__ import annotations

import sys
import time
import zlib
from typing import Any

import numpy as np

import rollserve
from benchmarks.service.agents import mlp_agent
from benchmarks.service.children import answer_commands
from benchmarks.service.counted import CountingSampler
from benchmarks.service.segments import spread_segments
from rollserve._codec.columns import leaves_of

__all__: list[str] = []

_OBTAIN = {"samples": "obtain_samples", "fragments": "obtain_fragments"}
_STREAM = {"samples": "stream_samples", "fragments": "stream_fragments"}
_LARGE = ("observations", "last_observations", "actions", "rewards", "agent_infos", "env_infos", "episode_infos")


class _Client:
    """Does what the commands say, and keeps the last batch until the next one is asked for."""

    def __init__(self, address: str) -> None:
        self._sampler = rollserve.connect(address)
        self._sharing = rollserve.connect(address, shared_memory=True)
        self._counting = CountingSampler(address)
        self._batch: rollserve.EpisodeBatch | None = None

    def hello(self) -> dict[str, Any]:
        """Answers, once this process is ready."""
        return {}

    def obtain(self, call: str, num_steps: int, shared_memory: bool = False, **options: Any) -> dict[str, Any]:
        """Times a call that returns one batch."""
        self._batch = None
        method = getattr(self._sharing if shared_memory else self._sampler, _OBTAIN[call])
        began = time.perf_counter()
        batch = self._batch = method(num_steps, **options)
        seconds = time.perf_counter() - began
        assert batch.account is not None  # noqa: S101  # what a call returns has one
        if int(batch.lengths.sum()) != batch.num_steps:
            raise ValueError(f"lengths of {batch.lengths.sum()} steps in all came with {batch.num_steps} steps")
        return {
            "seconds": seconds,
            "num_steps": batch.num_steps,
            "num_simulated_steps": batch.account.num_simulated_steps,
            "num_bytes": _num_bytes(batch),
            "shared_message_bytes": batch.account.shared_message_bytes,
        }

    def sample(self, path: str, num_steps: int) -> dict[str, Any]:
        """Tells the checksum of the last batch, and saves segments from all over it if there is a path to."""
        assert self._batch is not None  # noqa: S101  # it was obtained
        if path:
            spread_segments(self._batch, num_steps).save(path)
        checksum = 0
        for leaf in leaves_of(self._batch.observations).values():
            checksum = zlib.crc32(np.ascontiguousarray(leaf).data, checksum)
        return {"checksum": checksum}

    def stream(self, call: str, num_steps: int, pause_seconds: float = 0.0, **options: Any) -> dict[str, Any]:
        """Times a call message by message, with a pause after each, and counts what comes over the wire."""
        self._batch = None
        self._counting.num_wire_bytes = 0
        num_received = num_bytes = checksum = 0
        first_seconds = None
        began = time.perf_counter()
        for part in getattr(self._counting.sampler, _STREAM[call])(num_steps, **options):
            first_seconds = first_seconds or time.perf_counter() - began
            num_received += part.num_steps
            num_bytes += _num_bytes(part)
            if pause_seconds:
                time.sleep(pause_seconds)
                checksum = zlib.crc32(np.ascontiguousarray(part.observations).data, checksum)
        return {
            "seconds": time.perf_counter() - began,
            "first_message_seconds": first_seconds,
            "num_steps": num_received,
            "num_bytes": num_bytes,
            "num_wire_bytes": self._counting.num_wire_bytes,
            "checksum": checksum,
        }

    def round_trips(self, num_calls: int, num_workers: int, num_episode_steps: int) -> dict[str, Any]:
        """Times calls for an episode of each worker; each step of an episode has to show its number."""
        expected = np.tile(np.arange(num_episode_steps, dtype=np.float32), num_workers)
        latencies = []
        for _ in range(num_calls):
            began = time.perf_counter()
            batch = self._sampler.obtain_exact_episodes(1)
            latencies.append(time.perf_counter() - began)
            if not np.array_equal(leaves_of(batch.observations)[""], np.tile(expected[:, np.newaxis], 4)):
                raise ValueError(f"{batch} came, whose observations are not the numbers of steps")
        return {"latencies": latencies}

    def updates(self, num_updates: int, layer_sizes: list[int]) -> dict[str, Any]:
        """Times updates of the agent's parameters, after one of the whole agent; each has to raise the version."""
        version = self._sampler.update_agent(mlp_agent(layer_sizes, "categorical"))
        latencies = []
        for seed in range(1, num_updates + 1):
            parameters = mlp_agent(layer_sizes, "categorical", seed).parameters
            began = time.perf_counter()
            came = self._sampler.update_agent(parameters)
            latencies.append(time.perf_counter() - began)
            version += 1
            if came != version:
                raise ValueError(f"policy version {came} came, {version} was expected")
        self._batch = self._sampler.obtain_exact_episodes(1)
        return {"latencies": latencies}


def _num_bytes(batch: rollserve.EpisodeBatch) -> int:
    """How many bytes the arrays of a batch have."""
    return sum(leaf.nbytes for name in _LARGE for leaf in leaves_of(getattr(batch, name)).values())


def main() -> None:
    """Answers commands."""
    client = _Client(sys.argv[1])
    names = ("hello", "obtain", "sample", "stream", "round_trips", "updates")
    answer_commands({name: getattr(client, name) for name in names})


if __name__ == "__main__":
    main()
