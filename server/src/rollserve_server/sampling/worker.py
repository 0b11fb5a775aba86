"""A worker: environments and agents by version, and the stream of episodes that it works on."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import numpy as np
import threadpoolctl

from rollserve_server.agents import build_agent
from rollserve_server.envs import RowEnvs
from rollserve_server.errors import DomainError
from rollserve_server.sampling.encoding import Encoding
from rollserve_server.sampling.orders import (
    EnvDescription,
    Order,
    Parcel,
    Report,
    Stream,
    WorkerConfig,
    WorkerIdentity,
)
from rollserve_server.sampling.stream_work import StreamWork

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from rollserve import EnvSpec
    from rollserve_server.agents import AgentSpec

__all__ = ["Worker"]


class Worker:
    """Runs episodes and writes them as messages. Its methods are called one at a time."""

    def __init__(self, worker_index: int, config: WorkerConfig) -> None:
        # Workers share the machine's cores; with one thread each they are fastest.
        threadpoolctl.threadpool_limits(1)
        self._index = worker_index
        self._config = config
        self._envs: dict[int, RowEnvs] = {}
        self._agents: dict[int, AgentSpec] = {}
        self._work: StreamWork | None = None

    def identity(self) -> WorkerIdentity:
        """Where the worker runs."""
        return WorkerIdentity(os.getpid(), socket.gethostname())

    def add_env(self, version: int, spec: EnvSpec) -> EnvDescription:
        """Makes the rows of an environment, beside those that are there.

        Raises:
            NotFoundError, InvalidValueError: see `make_env`.
        """
        envs = self._envs[version] = RowEnvs(spec, self._config.num_rows)
        return EnvDescription(envs.observation_space, envs.action_space, envs.max_episode_steps)

    def add_agent(self, version: int, spec: AgentSpec) -> None:
        """Takes an agent, beside those that are there. The caller has checked that it fits its environment."""
        self._agents[version] = spec

    def retain(self, env_versions: Collection[int], policy_versions: Collection[int]) -> None:
        """Forgets all environments and agents but those of these versions."""
        for version in self._envs.keys() - set(env_versions):
            self._envs.pop(version).close()
        for version in self._agents.keys() - set(policy_versions):
            del self._agents[version]

    def work(self, order: Order) -> tuple[Report, NDArray[np.uint8]]:
        """Does a slice of work. Work on another stream than before forgets that one.

        Returns:
            What came of it, and the buffer with the messages that it tells of.
        """
        work = self._open(order.stream)
        work.enqueue(order.begin)
        began = time.perf_counter()
        sampled = began
        finished: list[tuple[int, int, int]] = []
        parcels: list[Parcel] = []
        num_steps, buffer, failure = 0, np.empty(0, np.uint8), None
        try:
            if order.seconds > 0:
                finished, num_steps = work.sample(order.seconds, self._config.buffer_bytes)
            sampled = time.perf_counter()
            encoding = Encoding(order.stream.policy_version, self._index if order.bind_worker else None)
            parcels, buffer = work.write(order.deliver, encoding, order.max_message_bytes)
        except DomainError as error:
            failure = error
        report = Report(
            finished=tuple(finished),
            parcels=tuple(parcels),
            num_simulated_steps=num_steps,
            sampling_seconds=sampled - began,
            encoding_seconds=time.perf_counter() - sampled,
            dropped_infos=work.take_dropped_infos(),
            failure=failure,
        )
        return report, buffer

    def close_stream(self, stream_id: int) -> int:
        """Forgets the work on a stream; returns how many steps of it were not delivered."""
        if self._work is None or self._work.stream.stream_id != stream_id:
            return 0
        num_steps = self._work.abandon()
        self._work = None
        return num_steps

    def close(self) -> None:
        """Closes all environments."""
        self.retain((), ())

    def _open(self, stream: Stream) -> StreamWork:
        if self._work is None or self._work.stream != stream:
            envs = self._envs[stream.env_version]
            spec = self._agents[stream.policy_version]
            agent = build_agent(spec, envs.observation_space, envs.action_space, envs.num_rows)
            self._work = StreamWork(stream, envs, agent)
        return self._work
