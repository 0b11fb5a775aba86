"""An environment that follows a script of the test, for tests within one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from support import read_batch

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import EnvFailedError
from rollserve_server.sampling import Claim, EpisodeRange, Order, Report, SequenceSpec, Worker
from rollserve_server.settings import WorkerSettings


def no_infos(step: int) -> Mapping[Any, Any]:
    return {}


def zeros(step: int) -> Any:
    return np.zeros(1, np.float32)


@dataclass
class Script:
    """Contents of each episode, as functions of the number of the step, which is 0 at the reset."""

    length: int = 1
    info: Callable[[int], Mapping[Any, Any]] = no_infos
    observation: Callable[[int], Any] = zeros
    reward: Callable[[int], Any] = lambda step: 1.0
    terminated: Callable[[int], Any] | None = None
    truncated: Callable[[int], Any] = lambda step: False
    observation_space: gymnasium.Space[Any] = field(default_factory=lambda: spaces.Box(-1, 1, (1,), np.float32))


class Scripted(gymnasium.Env[Any, int]):
    """An environment that follows the script.

    Attributes:
        script: contents of all episodes; set by tests.
        make: function called by each constructor; set by tests.
        num_open: number of environments made and not closed.
    """

    action_space = spaces.Discrete(2)
    script: ClassVar[Script] = Script()
    make: ClassVar[Callable[[], None]] = lambda: None
    num_open: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).make()
        self.observation_space = self.script.observation_space
        Scripted.num_open += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._step = 0
        return self.script.observation(0), self.script.info(0)

    def step(self, action: int) -> tuple[Any, Any, Any, Any, Any]:
        self._step += 1
        script, step = self.script, self._step
        over = step == script.length if script.terminated is None else script.terminated(step)
        return script.observation(step), script.reward(step), over, script.truncated(step), script.info(step)

    def close(self) -> None:
        Scripted.num_open -= 1


class Sharing(gymnasium.Env[Any, int]):
    """An environment whose observations, rewards and infos are in arrays and mappings of the class."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-9, 9, (2,), np.float64)
    observation, reward = np.zeros(2), np.zeros(())
    info: ClassVar[dict[str, Any]] = {"number": 0.0, "nested": {"array": np.zeros(2)}}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return self._observed()[0], self.info

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Any]:
        observation, self.reward[...] = self._observed()
        return observation, self.reward, False, False, self.info

    def _observed(self) -> tuple[Any, float]:
        self.observation[:] = self.np_random.standard_normal(2)
        self.info["number"] = self.np_random.random()
        self.info["nested"]["array"][:] = self.observation
        return self.observation, self.np_random.random()


SPEC = rollserve.EnvSpec("scripted_env:Scripted")


class Sampling:
    """A worker with one sequence of episodes."""

    def __init__(self, num_rows: int = 2, buffer_bytes: int = 1 << 28) -> None:
        self.worker = Worker(
            0, WorkerSettings(vectorization="rows", rows=num_rows, worker_buffer_bytes=buffer_bytes, env_retries=0)
        )
        self.worker.add_env(1, SPEC)
        self.worker.add_agent(1, RandomSpec())

    def sample(self, num_episodes: int = 0, claim: Claim | None = None) -> tuple[Report, bytes]:
        """Begin episodes, work until none runs, and deliver the claim."""
        sequence = SequenceSpec(work_id=1, root_seed=0, policy_version=1, env_version=1)
        begin = (EpisodeRange(range(num_episodes), 0),) if num_episodes else ()
        deliver = () if claim is None else (claim,)
        report, buffer = self.worker.work(Order(sequence, begin, (), None, deliver, 1 << 22, seconds=60))
        if report.failure is not None:
            raise report.failure
        if report.env_failures:
            raise EnvFailedError(report.env_failures[0].text)
        return report, buffer.tobytes()


def sample(num_episodes: int, num_rows: int = 2) -> tuple[rollserve.EpisodeBatch, Mapping[str, int]]:
    """Return a batch of episodes, and the numbers of dropped values of infos by name."""
    sampling = Sampling(num_rows)
    report, _ = sampling.sample(num_episodes)
    assert len(report.finished) == num_episodes
    delivered, buffer = sampling.sample(claim=Claim(0, 0, num_episodes))
    (parcel,) = delivered.parcels
    assert parcel.complete
    messages = [buffer[message.offset : message.offset + message.size] for message in parcel.messages]
    batches = [read_batch(memoryview(message)) for message in messages]
    sampling.worker.close()
    dropped: Counter[str] = Counter()
    for each in parcel.messages:
        dropped.update(each.dropped_infos)
    return rollserve.EpisodeBatch.concatenate(*batches).joined(), dropped
