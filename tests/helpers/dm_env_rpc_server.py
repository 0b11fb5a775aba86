"""A server of dm_env_rpc whose worlds are environments of dm_env, with one agent each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dm_env
import grpc
from dm_env import specs
from dm_env_rpc.v1 import (
    dm_env_flatten_utils,
    dm_env_rpc_pb2,
    dm_env_rpc_pb2_grpc,
    dm_env_utils,
    spec_manager,
    tensor_utils,
)
from google.rpc import status_pb2

pb = dm_env_rpc_pb2


class Worlds(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """The worlds of a server.

    Attributes:
        address: HOST:PORT.
        open: the worlds that are not destroyed, by name.
        num_made: number of worlds ever made.
    """

    def __init__(self, make: Callable[..., dm_env.Environment]) -> None:
        """Take what makes an environment with the settings of a world."""
        self._make = make
        self._contexts: list[Any] = []
        self.address = ""
        self.open: dict[str, dm_env.Environment] = {}
        self.num_made = 0

    def Process(self, request_iterator: Any, context: Any) -> Iterator[Any]:  # noqa: N802  # gRPC's name
        self._contexts.append(context)
        agent = _Agent(self)
        for request in request_iterator:
            kind = request.WhichOneof("payload")
            response = pb.EnvironmentResponse()
            try:
                getattr(response, kind).CopyFrom(getattr(agent, kind)(getattr(request, kind)))
            except Exception as error:
                response.error.CopyFrom(status_pb2.Status(message=repr(error)))
            yield response

    def hang_up(self) -> None:
        """End all connections and worlds."""
        for context in self._contexts:
            context.cancel()
        self._contexts.clear()
        self.open.clear()

    def create(self, settings: dict[str, Any]) -> str:
        self.num_made += 1
        name = f"world {self.num_made}"
        self.open[name] = self._make(**settings)
        return name


class _Agent:
    """The agent of a connection, with a method for each request."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        self._env: dm_env.Environment | None = None

    def create_world(self, request: Any) -> Any:
        return pb.CreateWorldResponse(world_name=self._worlds.create(_unpacked(request.settings)))

    def destroy_world(self, request: Any) -> Any:
        if self._worlds.open.pop(request.world_name) is self._env:
            raise ValueError("a world with an agent")
        return pb.DestroyWorldResponse()

    def join_world(self, request: Any) -> Any:
        if _unpacked(request.settings) not in ({}, {"name": "Ann"}):
            raise ValueError(f"unknown settings {sorted(request.settings)}")
        self._env = env = self._worlds.open[request.world_name]
        observed = {**env.observation_spec(), "reward": env.reward_spec(), "discount": env.discount_spec()}
        observed["note"] = specs.StringArray((), name="note")
        self._actions, self._observations = _manager(env.action_spec()), _manager(observed)
        self._is_running = False
        return pb.JoinWorldResponse(specs=self._specs())

    def leave_world(self, request: Any) -> Any:
        self._env = None
        return pb.LeaveWorldResponse()

    def reset(self, request: Any) -> Any:
        self._is_running = False
        return pb.ResetResponse(specs=self._specs())

    def step(self, request: Any) -> Any:
        assert self._env is not None
        if self._is_running:
            actions = self._actions.unpack(request.actions)
            step = self._env.step(dm_env_flatten_utils.unflatten_dict(actions, "."))
        else:
            step = self._env.reset()
        self._is_running = not step.last()
        observed = dm_env_flatten_utils.flatten_dict(step.observation, ".")
        # This discount does not tell how an episode has ended.
        observed |= {"reward": step.reward or 0.0, "discount": 0.5, "note": "fine"}
        packed = self._observations.pack(observed)
        state = pb.RUNNING if self._is_running else pb.INTERRUPTED if step.discount else pb.TERMINATED
        return pb.StepResponse(state=state, observations={uid: packed[uid] for uid in request.requested_observations})

    def _specs(self) -> Any:
        return pb.ActionObservationSpecs(
            actions=self._actions.specs_by_uid, observations=self._observations.specs_by_uid
        )


def _unpacked(settings: Any) -> dict[str, Any]:
    unpacked = {name: tensor_utils.unpack_tensor(tensor) for name, tensor in settings.items()}
    return {name: value.item() if value.shape == () else value for name, value in unpacked.items()}


def _manager(spec: Any) -> spec_manager.SpecManager:
    """Return the manager of the parts of a spec, numbered against their order."""
    parts = dm_env_flatten_utils.flatten_dict(spec, ".")
    found = {name: dm_env_utils.dm_env_spec_to_tensor_spec(part.replace(name=name)) for name, part in parts.items()}
    return spec_manager.SpecManager({90 - number: found[name] for number, name in enumerate(found)})


@contextmanager
def serving(make: Callable[..., dm_env.Environment]) -> Iterator[Worlds]:
    """Serve worlds on a free port."""
    worlds, server = Worlds(make), grpc.server(ThreadPoolExecutor(32))
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(worlds, server)
    worlds.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield worlds
    finally:
        server.stop(None).wait()
