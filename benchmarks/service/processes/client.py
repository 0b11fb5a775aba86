"""The timed client, a process of its own: `python -m …processes.client HOST:PORT [CA [TOKEN_FILE]]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import rollserve
from benchmarks.service.agents import mlp_agent
from benchmarks.service.batches import arrays_of, num_bytes, observations_checksum, sample_segments
from benchmarks.service.processes.echo import echoed
from benchmarks.service.processes.marked_sampler import MarkedSampler
from benchmarks.service.processes.wire_bytes import CountingSampler
from benchmarks.shared.commands import answer_commands
from rollserve.mlp_agent import Head
from rollserve.session import Session
from rollserve.spaces import Box, Discrete

__all__: list[str] = []

_OBTAIN = {"samples": "obtain_samples", "fragments": "obtain_fragments"}
_STREAM = {"samples": "stream_samples", "fragments": "stream_fragments"}
_NUM_WARM_UP_STEPS = 20
_NUM_PARAMETER_SETS = 8
"""Number of parameter sets, which updates send by turns: none equals the one before."""


class _Client:
    """Carries out commands, and keeps the last batch until the next call.

    Batches are read into a buffer that is kept from call to call, as trainers keep their rollouts' memory.
    """

    def __init__(self, address: str, ca: str | None = None, token_file: str | None = None) -> None:
        self._sampler = rollserve.connect(address, ca=ca, token_file=token_file)
        self._sharing_sampler = rollserve.connect(address, ca=ca, shared_memory=True)
        self._counting = CountingSampler(address, ca)
        self._marked = MarkedSampler(address, ca)
        self._buffer = rollserve.EpisodeBuffer()
        self._batch: rollserve.EpisodeBatch | None = None

    def hello(self) -> dict[str, Any]:
        """Answer, as soon as this process is ready."""
        return {}

    def obtain(self, call: str, num_steps: int, shared_memory: bool = False, **options: Any) -> dict[str, Any]:
        """Time a call that returns one batch."""
        self._batch = None
        method = getattr(self._sharing_sampler if shared_memory else self._sampler, _OBTAIN[call])
        began = time.perf_counter()
        batch = self._batch = method(num_steps, out=self._buffer, **options)
        seconds = time.perf_counter() - began
        if int(batch.lengths.sum()) != batch.num_steps:
            raise ValueError(f"lengths: expected a sum of {batch.num_steps}, got {batch.lengths.sum()}")
        return {
            "seconds": seconds,
            "num_steps": batch.num_steps,
            "num_simulated_steps": batch.account.num_simulated_steps,
            "num_bytes": num_bytes(batch),
            "shared_message_bytes": batch.account.shared_message_bytes,
        }

    def checksum(self) -> dict[str, Any]:
        """Report the checksum of the last batch's observations."""
        return {"checksum": observations_checksum(self._last_batch())}

    def save_sample(self, path: str, num_steps: int) -> dict[str, Any]:
        """Save segments with about `num_steps` steps from the last batch to a file."""
        sample_segments(self._last_batch(), num_steps).save(path)
        return {}

    def stream(self, call: str, num_steps: int, pause_seconds: float = 0.0, **options: Any) -> dict[str, Any]:
        """Time a call message by message, with a pause after each, and count the bytes of its messages.

        Only with a pause is the checksum of the observations computed: it takes time.
        """
        self._batch = None
        self._counting.num_wire_bytes = 0
        num_received_steps = num_received_bytes = checksum = 0
        first_message_seconds = None
        began = time.perf_counter()
        for batch in getattr(self._counting.sampler, _STREAM[call])(num_steps, **options):
            first_message_seconds = first_message_seconds or time.perf_counter() - began
            num_received_steps += batch.num_steps
            num_received_bytes += num_bytes(batch)
            if pause_seconds:
                time.sleep(pause_seconds)
                checksum = observations_checksum(batch, checksum)
        return {
            "seconds": time.perf_counter() - began,
            "first_message_seconds": first_message_seconds,
            "num_steps": num_received_steps,
            "num_bytes": num_received_bytes,
            "num_wire_bytes": self._counting.num_wire_bytes,
            "checksum": checksum,
        }

    def round_trips(self, num_calls: int, num_workers: int, num_episode_steps: int) -> dict[str, Any]:
        """Time calls for one episode from each worker, whose observations are the numbers of their steps."""
        steps = np.tile(np.arange(num_episode_steps, dtype=np.float32), num_workers)
        expected = np.tile(steps[:, np.newaxis], 4)
        latencies = []
        for _ in range(num_calls):
            began = time.perf_counter()
            batch = self._sampler.obtain_exact_episodes(1)
            latencies.append(time.perf_counter() - began)
            if not np.array_equal(arrays_of(batch.observations)[0], expected):
                raise ValueError(f"observations: expected the numbers of steps, got {batch.observations}")
        return {"latencies": latencies}

    def updates(self, num_updates: int, layer_sizes: list[int]) -> dict[str, Any]:
        """Time updates of the agent's parameters, after one update of the whole agent."""
        updating = _Updating(self._marked, layer_sizes, "categorical")
        moments = [updating.update() for _ in range(num_updates)]
        self._batch = self._sampler.obtain_exact_episodes(1)
        return {"updates": moments, "last_seed": updating.seed}

    def iterate(
        self, call: str, num_steps: int, num_iterations: int, layer_sizes: list[int], head: Head
    ) -> dict[str, Any]:
        """Time iterations of an on-policy trainer, in turns: calls that update the agent, and updates and calls.

        Returns:
            The moments of the calls that update, and of updates and calls alone; the number of all steps, and the seed
            of the last parameters.
        """
        self._batch = None
        updating = _Updating(self._marked, layer_sizes, head)
        method = getattr(self._marked.sampler, _OBTAIN[call])
        moments: dict[str, list[Any]] = {"iterations": [], "updates": [], "calls": []}
        num_received_steps = 0

        def take(what: str, **options: Any) -> None:
            nonlocal num_received_steps
            self._batch = None
            batch, taken = self._marked.timed(method, num_steps, out=self._buffer, **options)
            moments[what].append(taken)
            num_received_steps += batch.num_steps
            if np.any(batch.policy_versions != updating.version):
                raise ValueError(f"policy_versions: expected {updating.version}, got {set(batch.policy_versions)}")
            self._batch = batch

        for _ in range(num_iterations):
            moments["updates"].append(updating.update())
            take("calls")
            take("iterations", agent=updating.next_parameters())
        return {**moments, "num_steps": num_received_steps, "last_seed": updating.seed}

    def drive(self, num_steps: int) -> dict[str, Any]:
        """Time the steps of a session that records nothing, after some that warm up.

        Returns:
            The latencies of steps; the numbers of steps in the account and in each row; and the bytes of actions and
            of what a step shows.
        """
        with self._sampler.drive(record=False) as session:
            step, actions = session.observe(), _random_actions(session, np.random.default_rng(0))
            latencies = []
            for _ in range(_NUM_WARM_UP_STEPS + num_steps):
                began = time.perf_counter()
                session.step(actions)
                latencies.append(time.perf_counter() - began)
        shown = step.observations, step.episode_indices, step.env_seeds, step.rewards
        return {
            "latencies": latencies[_NUM_WARM_UP_STEPS:],
            "num_steps": session.account.num_discarded_steps,
            "num_made_steps": len(latencies),
            "num_sent_bytes": actions.nbytes,
            "num_received_bytes": sum(array.nbytes for column in shown for array in arrays_of(column)),
        }

    def record(self, num_steps: int) -> dict[str, Any]:
        """Make what a session with random actions records the last batch."""
        generator = np.random.default_rng(1)
        with self._sampler.drive(fragment_length=num_steps) as session:
            session.observe()
            for _ in range(num_steps):
                session.step(_random_actions(session, generator))
            self._batch = session.batch()
        return {}

    def echo(self, address: str, num_bytes: int, num_messages: int) -> dict[str, Any]:
        """Time messages that a server of `echo` answers."""
        return {"latencies": echoed(address, num_bytes, num_messages)}

    def _last_batch(self) -> rollserve.EpisodeBatch:
        assert self._batch is not None  # noqa: S101  # commands about the last batch follow a call
        return self._batch


class _Updating:
    """Updates of all parameters of an agent, by parameter sets that are ready in memory.

    Attributes:
        version: policy version after the last update.
        seed: seed of the last update's parameters.
    """

    def __init__(self, marked: MarkedSampler, layer_sizes: list[int], head: Head) -> None:
        self._marked = marked
        self._sets = [mlp_agent(layer_sizes, head, seed).parameters for seed in range(_NUM_PARAMETER_SETS)]
        self.seed = 0
        self.version = marked.sampler.update_agent(mlp_agent(layer_sizes, head))

    def next_parameters(self) -> Mapping[str, np.ndarray]:
        """Return the parameters of the next version, for one update."""
        self.seed = (self.seed + 1) % _NUM_PARAMETER_SETS
        self.version += 1
        return self._sets[self.seed]

    def update(self) -> dict[str, Any]:
        """Update the parameters; return the moments of the call."""
        version, moments = self._marked.timed(self._marked.sampler.update_agent, self.next_parameters())
        if version != self.version:
            raise ValueError(f"policy_version: expected {self.version}, got {version}")
        return moments


def _random_actions(session: Session, generator: np.random.Generator) -> np.ndarray:
    """Return an action for each row."""
    space, num_rows = session.action_space, session.num_rows
    if isinstance(space, Discrete):
        return generator.integers(space.n, size=num_rows)
    assert isinstance(space, Box)  # noqa: S101  # as in all workloads
    return generator.uniform(-1, 1, (num_rows, *space.shape)).astype(space.dtype)


def main() -> None:
    """Answer commands until the end of standard input."""
    client = _Client(*sys.argv[1:])
    names = ("hello", "obtain", "checksum", "save_sample", "stream", "round_trips", "updates", "iterate")
    names += ("drive", "record", "echo")
    answer_commands({name: getattr(client, name) for name in names})


if __name__ == "__main__":
    main()
