"""A worker: environments and agents by version, and the streams of episodes that it works on."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from dataclasses import dataclass
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
    """Runs episodes and writes them as messages. Its methods are called one at a time, but for `stop`."""

    def __init__(self, worker_index: int, config: WorkerConfig) -> None:
        # Workers share the machine's cores; with one thread each they are fastest.
        threadpoolctl.threadpool_limits(1)
        self._index = worker_index
        self._config = config
        self._envs: dict[int, _EnvVersion] = {}
        self._agents: dict[int, AgentSpec] = {}
        self._streams: dict[int, StreamWork] = {}
        self._stopped: set[int] = set()

    def identity(self) -> WorkerIdentity:
        """Where the worker runs."""
        return WorkerIdentity(os.getpid(), socket.gethostname())

    def add_env(self, version: int, spec: EnvSpec) -> EnvDescription:
        """Makes the rows of an environment, beside those that are there, and looks at what they do.

        Free rows of another version that differs in nothing but its task or the options of resets are changed in place.

        Raises:
            NotFoundError, InvalidValueError: see `make_env` and `set_task`.
        """
        envs = self._changed(spec) or RowEnvs(spec, self._config.num_rows)
        if version in self._envs:  # of an update that was not completed
            self._envs[version].close()
        self._envs[version] = _EnvVersion(spec, [envs])
        reproducibility = envs.classify()
        return EnvDescription(envs.observation_space, envs.action_space, envs.max_episode_steps, reproducibility)

    def add_agent(self, version: int, spec: AgentSpec) -> None:
        """Takes an agent, beside those that are there. The caller has checked that it fits its environment."""
        self._agents[version] = spec

    def retain(self, env_versions: Collection[int], policy_versions: Collection[int]) -> None:
        """Forgets all environments and agents but those of these versions.

        Of the environments that are left, only those of the newest stand ready when no stream needs them.
        """
        for version in self._envs.keys() - set(env_versions):
            self._envs.pop(version).close()
        for version in self._envs.keys() - {max(env_versions, default=0)}:
            self._envs[version].close()
        for version in self._agents.keys() - set(policy_versions):
            del self._agents[version]

    def work(self, order: Order) -> tuple[Report, NDArray[np.uint8]]:
        """Does a slice of work.

        Returns:
            What came of it, and the buffer with the messages that it tells of.
        """
        stream_id = order.stream.stream_id
        work = self._open(order.stream)
        work.enqueue(order.begin, order.begin_again)
        num_steps_before = work.num_simulated_steps
        began = sampled = time.perf_counter()
        finished: list[tuple[int, int, int]] = []
        parcels: list[Parcel] = []
        buffer, failure = np.empty(0, np.uint8), None
        try:
            if order.seconds > 0:
                finished = work.sample(order.seconds, self._config.buffer_bytes, lambda: stream_id in self._stopped)
            sampled = time.perf_counter()
            encoding = Encoding(order.stream.policy_version, self._index if order.bind_worker else None)
            parcels, buffer = work.write(order.deliver, encoding, order.max_message_bytes)
        except DomainError as error:
            failure = error
        report = Report(
            finished=tuple(finished),
            parcels=tuple(parcels),
            num_simulated_steps=work.num_simulated_steps - num_steps_before,
            sampling_seconds=sampled - began,
            encoding_seconds=time.perf_counter() - sampled,
            dropped_infos=work.take_dropped_infos(),
            failure=failure,
        )
        return report, buffer

    def stop(self, stream_id: int) -> None:
        """Ends the work on a stream with the vector step that is being made. May be called while `work` runs."""
        self._stopped.add(stream_id)

    def close_stream(self, stream_id: int) -> None:
        """Forgets the work on a stream, which has been stopped. Its environments are free for others."""
        self._stopped.discard(stream_id)
        work = self._streams.pop(stream_id, None)
        if work is not None:
            version = self._envs.get(work.stream.env_version)
            if version is None:
                work.envs.close()
            else:
                version.free.append(work.envs)

    def close(self) -> None:
        """Closes all environments."""
        for work in self._streams.values():
            work.envs.close()
        self.retain((), ())

    def _changed(self, spec: EnvSpec) -> RowEnvs | None:
        """Free rows of another version, changed to what the spec says, if there are any that can be."""
        for version in self._envs.values():
            alike = dataclasses.replace(version.spec, task=spec.task, reset_options=spec.reset_options) == spec
            # There is no way back from a task to none, nor to what another method has set.
            task = version.spec.task
            if version.free and alike and (task is None or (spec.task is not None and spec.task.method == task.method)):
                envs = version.free.pop()
                try:
                    envs.change(spec)
                except BaseException:
                    envs.close()
                    raise
                return envs
        return None

    def _open(self, stream: Stream) -> StreamWork:
        work = self._streams.get(stream.stream_id)
        if work is None:
            version = self._envs[stream.env_version]
            envs = version.free.pop() if version.free else RowEnvs(version.spec, self._config.num_rows)
            agent = build_agent(
                self._agents[stream.policy_version], envs.observation_space, envs.action_space, envs.num_rows
            )
            work = self._streams[stream.stream_id] = StreamWork(stream, envs, agent)
        return work


@dataclass
class _EnvVersion:
    """A version of the environment.

    Attributes:
        spec: how to make it.
        free: rows of it that no stream uses.
    """

    spec: EnvSpec
    free: list[RowEnvs]

    def close(self) -> None:
        """Closes the rows that no stream uses."""
        while self.free:
            self.free.pop().close()
