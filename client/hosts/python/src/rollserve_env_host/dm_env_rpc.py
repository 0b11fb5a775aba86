"""Environments of servers of dm_env_rpc, by its package `dm-env-rpc`."""

from __future__ import annotations

import contextlib
from typing import Any, Mapping, Optional, Sequence

import grpc
from dm_env_rpc.v1 import connection, dm_env_adaptor, dm_env_rpc_pb2, error

from rollserve_env_host.environments import DmEnvironment

__all__ = ["DmEnvRpcEnvironment"]

_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class DmEnvRpcEnvironment(DmEnvironment):
    """An agent in a world of its own, over a connection of its own."""

    def __init__(
        self,
        address: str,
        world: Optional[Mapping[str, Any]] = None,
        join: Optional[Mapping[str, Any]] = None,
        seed_setting: str = "",
        observations: Optional[Sequence[str]] = None,
    ) -> None:
        """Connect to a server, and make and join a world.

        Args:
            address: `dm_env_rpc://HOST:PORT`, or `dm_env_rpc+tls://HOST:PORT` with TLS.
            world: settings of the world.
            join: settings of the agent.
            seed_setting: the setting of a world that is the seed of its episode: each episode has a world of its own.
                By default, episodes follow each other in one world, and are no functions of their seeds.
            observations: names of the observations; by default, all of them but the reward and the discount.

        Raises:
            grpc.RpcError: there is no such server.
            dm_env_rpc.v1.error.DmEnvRpcError: the server refuses a setting.
            ValueError: an observation or action is no array of numbers of one shape, or there is no such observation.
        """
        scheme, _, place = address.partition("://")
        self._channel = (
            grpc.secure_channel(place, grpc.ssl_channel_credentials(), options=_OPTIONS)
            if scheme.endswith("+tls")
            else grpc.insecure_channel(place, options=_OPTIONS)
        )
        self._settings, self._agent_settings, self._names = world or {}, join or {}, observations
        try:
            self._link = _Link(self._channel)
            self._env = self._joined()
            try:
                super().__init__(self._env, self._joined, seed_setting)
            except BaseException:
                self._leave()
                raise
        except BaseException:
            self._channel.close()
            raise

    def close(self) -> None:
        try:
            self._leave()
        finally:
            self._channel.close()

    def _joined(self, **seed: int) -> Any:
        env, self._world = dm_env_adaptor.create_and_join_world(
            self._link, {**self._settings, **seed}, self._agent_settings, requested_observations=self._names
        )
        return env

    def _leave(self) -> None:
        self._env.close()
        with contextlib.suppress(error.DmEnvRpcError):  # some servers have one world, which outlives its agents
            self._link.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=self._world))

    def _is_terminal(self, step: Any) -> bool:
        return bool(self._link.state == dm_env_rpc_pb2.EnvironmentStateType.TERMINATED)


class _Link(connection.Connection):
    """A connection that remembers the state of the last step."""

    state = dm_env_rpc_pb2.EnvironmentStateType.RUNNING

    def send(self, request: Any) -> Any:
        response = super().send(request)
        self.state = getattr(response, "state", self.state)
        return response
