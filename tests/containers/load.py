"""Calls that go on while containers are disturbed, and whose results are compared with undisturbed ones."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import numpy as np

import rollserve

__all__ = ["Load", "digest", "new_agent", "references"]

NUM_SEEDS = 4
NUM_STEPS = 20_000


def new_agent(sampler: rollserve.Sampler) -> rollserve.MlpAgent:
    """Return the agent of all calls, with parameters that are always the same."""
    status = sampler.status()
    return rollserve.MlpAgent.initial(status.observation_space, status.action_space, hidden_sizes=(16,), seed=1)


def digest(*parts: rollserve.EpisodeBatch) -> str:
    """Return a digest of the observations, actions and rewards of a call, which may be in parts."""
    names = ("observations", "actions", "rewards")
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


def references(sampler: rollserve.Sampler) -> list[str]:
    """Return the digests of undisturbed calls, by their seeds."""
    return [digest(sampler.obtain_samples(NUM_STEPS, seed=seed)) for seed in range(NUM_SEEDS)]


class Load:
    """A thread that calls one after the other, for as long as the block.

    Attributes:
        num_calls: calls that ended well; each returned what it returns undisturbed.
        num_errors: calls that failed. Unless `may_fail`, none may.
        longest_seconds: the longest time between two ends of calls.
    """

    def __init__(
        self, connect: Callable[[], rollserve.Sampler], expected: list[str], *, may_fail: bool = False
    ) -> None:
        self._connect = connect
        self._expected = expected
        self._may_fail = may_fail
        self._stop = threading.Event()
        self._problem = ""
        self.num_calls = self.num_errors = 0
        self.longest_seconds = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for_calls(2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._problem or value is not None, self._problem

    def wait_for_calls(self, num_calls: int, seconds: float = 180.0) -> None:
        """Wait until so many more calls have ended well."""
        wanted, deadline = self.num_calls + num_calls, time.monotonic() + seconds
        while self.num_calls < wanted:
            assert not self._problem, self._problem
            assert time.monotonic() < deadline, f"no {num_calls} calls within {seconds:.0f} s"
            time.sleep(0.05)

    def _run(self) -> None:
        with self._connect() as sampler:
            last = time.monotonic()
            while not self._stop.is_set() and not self._problem:
                seed = self.num_calls % NUM_SEEDS
                try:
                    got = digest(sampler.obtain_samples(NUM_STEPS, seed=seed))
                except rollserve.RollserveError as error:
                    self._recover(sampler, error)
                    continue
                if got != self._expected[seed]:
                    self._problem = f"the call with seed {seed} returned other episodes than undisturbed"
                self.num_calls += 1
                now = time.monotonic()
                self.longest_seconds, last = max(self.longest_seconds, now - last), now

    def _recover(self, sampler: rollserve.Sampler, error: rollserve.RollserveError) -> None:
        """Record a failed call; set the agent again, which a new sampler lacks."""
        self.num_errors += 1
        if not self._may_fail:
            self._problem = f"a call failed: {error}"
            return
        time.sleep(0.5)
        try:
            sampler.update_agent(new_agent(sampler))
        except rollserve.RollserveError:
            time.sleep(0.5)
