"""Requests of the hostile tenant that a server has to refuse, and the answers that refuse them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_models
from faults.chaos.catalogue import ENV_MODULE, agent
from faults.chaos.service import HOSTILE
from faults.fuzzing.mutation import mutated_bytes
from google.protobuf.message import Message

import rollserve
from rollserve.agents import Agent, agent_to_proto
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.v1 import agent_versions_pb2, environment_pb2, samplers_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["ATTACKS", "UNAVAILABLE", "Attack"]

UNAVAILABLE = frozenset(
    {
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "SAMPLER_DELETED",
        "SAMPLER_NOT_FOUND",  # a server that was started again has only the default one
        "SERVER_STOPPING",
        "UNAVAILABLE",
        "WORKER_HUNG",
        "WORKER_LOST",
        "WORKER_LOST_AGAIN",
    }
)
"""Answers that the faults of a run explain, whatever the request."""


@dataclass(frozen=True)
class Attack:
    """A kind of requests.

    Attributes:
        name: what they try.
        answers: reasons that refuse them; also `ok` for requests that may be valid by chance.
        draw: draws the method and the request.
        sampler: name of the sampler that the metadata names.
        has_token: whether the tenant shows its token.
        hangs: whether they hang native code.
    """

    name: str
    answers: frozenset[str]
    draw: Callable[[random.Random], tuple[str, bytes]]
    sampler: str = HOSTILE
    has_token: bool = True
    hangs: bool = False


def _env(spec: rollserve.EnvSpec) -> environment_pb2.EnvironmentUpdate:
    return environment_pb2.EnvironmentUpdate(environment=env_spec_to_proto(spec))


def _env_update(spec: rollserve.EnvSpec, sampler: str = HOSTILE) -> tuple[str, bytes]:
    return "UpdateEnv", pb.UpdateEnvRequest(sampler=sampler, all_workers=_env(spec)).SerializeToString()


def _agent_update(sent: Agent, sampler: str = HOSTILE) -> tuple[str, bytes]:
    update = pb.AgentUpdate(agent=agent_to_proto(sent))
    return "UpdateAgent", pb.UpdateAgentRequest(sampler=sampler, all_workers=update).SerializeToString()


def _large(source: random.Random) -> tuple[str, bytes]:
    """Observations of 20 or 800 MB in each of four rows."""
    stack = rollserve.Wrapper("FrameStackObservation", {"stack_size": source.choice([5_000, 200_000])})
    return _env_update(rollserve.EnvSpec(f"{ENV_MODULE}:Screens", {}, [stack], vectorization="rows", num_rows=4))


def _native(source: random.Random) -> tuple[str, bytes]:
    kwargs = source.choice([{"batch_size": 7}, {"batch_size": 2}, {"num_threads": 10**6}, {"num_threads": -1}])
    return _env_update(rollserve.EnvSpec("ALE/Pong-v5", kwargs, vectorization="native", num_rows=4))


def _hanging(source: random.Random) -> tuple[str, bytes]:
    kwargs = source.choice([{"stack_num": 0}, {"img_width": 0}])
    return _env_update(rollserve.EnvSpec("ALE/Pong-v5", kwargs, vectorization="native", num_rows=4))


def _forbidden(source: random.Random) -> tuple[str, bytes]:
    """Modules, paths, wrappers and windows that no client may name."""
    specs = [
        rollserve.EnvSpec("os:system"),
        rollserve.EnvSpec("faults.chaos.catalogue:ENVS"),
        rollserve.EnvSpec("faults.chaos.__main__:main"),
        rollserve.EnvSpec("CartPole-v1", {"path": "/etc/passwd"}),
        rollserve.EnvSpec("CartPole-v1", {"render_mode": "human_list"}),
        rollserve.EnvSpec("CartPole-v1", wrappers=[rollserve.Wrapper("RecordVideo", {"video_folder": "x"})]),
        rollserve.EnvSpec("CartPole-v1", task=rollserve.Task("close", {})),
    ]
    return _env_update(source.choice(specs))


def _garbage_agent(source: random.Random) -> tuple[str, bytes]:
    """An agent that fits nothing, or a request with bytes changed at random."""
    mlp = agent("mlp 1")
    assert isinstance(mlp, rollserve.MlpAgent)
    wrong: Sequence[Callable[[], Agent]] = (
        lambda: rollserve.OnnxAgent(source.randbytes(20_000), "categorical"),
        lambda: rollserve.OnnxAgent(
            mutated_bytes(onnx_models.categorical().SerializeToString(), source), "categorical"
        ),
        lambda: rollserve.PythonAgent("nothing-of-this-name", {"a": 1}),
        lambda: rollserve.PickledAgent(b"cos\nsystem\n(S'true'\ntR."),
        lambda: rollserve.MlpAgent(_not_finite(mlp.parameters), "categorical"),
        lambda: mlp,
    )
    name, data = _agent_update(source.choice(wrong)())
    return name, mutated_bytes(data, source)


def _not_finite(parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.full_like(array, np.nan) for name, array in parameters.items()}


def _garbage_env(source: random.Random) -> tuple[str, bytes]:
    name, data = _env_update(rollserve.EnvSpec("CartPole-v1", {"max_episode_steps": 30}))
    return name, mutated_bytes(data, source)


def _others(source: random.Random) -> Iterator[tuple[str, Message]]:
    """Yield requests to change, read or end what belongs to others."""
    cart = rollserve.EnvSpec("CartPole-v1")
    for sampler in ("default", "", "other"):
        update = pb.AgentUpdate(agent=agent_to_proto(rollserve.RandomAgent()))
        yield "UpdateAgent", pb.UpdateAgentRequest(sampler=sampler, all_workers=update)
        yield "UpdateEnv", pb.UpdateEnvRequest(sampler=sampler, all_workers=_env(cart))
        yield "ResizePool", pb.ResizePoolRequest(sampler=sampler, worker_count=1)
        yield "GetAgentParameters", agent_versions_pb2.GetAgentParametersRequest(sampler=sampler)
        yield "DeleteSampler", samplers_pb2.DeleteSamplerRequest(sampler=sampler or "other")
    name = f"x{source.randrange(10**6)}"
    yield (
        "CreateSampler",
        samplers_pb2.CreateSamplerRequest(sampler=name, environment=env_spec_to_proto(cart), worker_count=1),
    )


def _other_sampler(source: random.Random) -> tuple[str, bytes]:
    name, request = source.choice(list(_others(source)))
    return name, request.SerializeToString()


def _too_many(source: random.Random) -> tuple[str, bytes]:
    """More workers than the tenant's quota."""
    return "ResizePool", pb.ResizePoolRequest(sampler=HOSTILE, worker_count=source.choice([2, 100])).SerializeToString()


def _without_token(source: random.Random) -> tuple[str, bytes]:
    return source.choice(["UpdateAgent", "ObtainSamples", "GetSampler"]), source.randbytes(20_000)


_MAY_BE_VALID = frozenset({"ok", *rollserve.Reason})
_FORBIDDEN_CODE = frozenset(
    {
        "METHOD_NOT_ALLOWED",
        "MODULE_NOT_ALLOWED",
        "PATH_NOT_ALLOWED",
        "RENDER_MODE_NOT_ALLOWED",
        "WRAPPER_NOT_ALLOWED",
    }
)

ATTACKS: Sequence[Attack] = (
    # On a busy machine, an environment is still tried when the tenant's time for it ends, or refused as too slow.
    Attack("large environment", frozenset({"ENVIRONMENTS_TOO_LARGE", "ENV_REFUSED", "NO_PROGRESS"}), _large),
    Attack("native arguments", frozenset({"INVALID_VALUE", "ENV_NOT_FOUND", "NO_PROGRESS"}), _native),
    Attack("hanging arguments", frozenset({"INVALID_VALUE", "ENV_NOT_FOUND", "NO_PROGRESS"}), _hanging, hangs=True),
    Attack("forbidden code", _FORBIDDEN_CODE | {"NO_PROGRESS"}, _forbidden),
    Attack("garbage agent", _MAY_BE_VALID, _garbage_agent),
    Attack("garbage environment", _MAY_BE_VALID, _garbage_env),
    Attack("sampler of others", frozenset({"SCOPE_MISSING"}), _other_sampler, sampler="default"),
    Attack("more workers", frozenset({"QUOTA_EXCEEDED", "TOO_MANY_WORKERS"}), _too_many),
    Attack("no token", frozenset({"TOKEN_MISSING"}), _without_token, has_token=False),
)
