"""A sampler's state as bytes: complete, and without anything that reading would execute."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import OrderedDict
from typing import Any

import msgpack
import numpy as np
import pytest
from every_space import EVERY_SPACE
from gymnasium import spaces

import rollserve
from rollserve_server.agents import (
    ConstantSpec,
    CoreSpec,
    HeadSettings,
    HeldPolicy,
    InfoSpec,
    InstalledFactory,
    MlpSpec,
    Normalization,
    OnnxSpec,
    PickledFactory,
    PolicySet,
    PythonSpec,
    RandomSpec,
    content_hash,
)
from rollserve_server.agents.specs import Batching, Port, PythonForm
from rollserve_server.envs import describe_space
from rollserve_server.pool.state.agent_version import AgentVersion
from rollserve_server.pool.state.codec import decode, encode
from rollserve_server.settings import WorkerSettings
from rollserve_wire.policy_map import PolicyMap
from rollserve_wire.spaces import space_to_proto

BOX = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 2], np.float32))
SPACES = [
    BOX,
    spaces.Box(-np.inf, np.inf, (3,), np.int64),
    spaces.Box(0, 255, (2, 3), np.uint8),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([[3, 5], [2, 1]], np.int32, start=[[0, 1], [2, 3]]),
    spaces.MultiBinary(3),
    spaces.Text(7, min_length=0, charset="ab€😀"),
    spaces.MultiBinary((2, 2)),
    spaces.Dict(OrderedDict(z=spaces.Tuple((copy.deepcopy(BOX), spaces.Discrete(2))), a=copy.deepcopy(BOX))),
]
PARAMETERS = {"0/weight": np.arange(6, dtype=np.float32).reshape(2, 3), "0/bias": np.zeros(0, np.float32)}
SHAPES = {name: (array.dtype, array.shape) for name, array in PARAMETERS.items()}
AGENTS = [
    RandomSpec(),
    ConstantSpec({"a/b": np.array(1)}),
    MlpSpec(
        (3, 2),
        None,
        "categorical",
        PARAMETERS,
        value=(4, 5),
        core=CoreSpec("gru", 3),
        normalization=Normalization(1e-6, 5.0),
    ),
    MlpSpec((3, 2), "tanh", "diagonal_gaussian", PARAMETERS, HeadSettings(min_log_std=-2.0), 1e-5, "shared"),
    OnnxSpec(
        b"graph",
        (Port("observation", "x", np.dtype("f4"), (3,)),),
        {"logits": Port("logits", "y", np.dtype("f4"), (2,))},
        "categorical",
        ("value",),
        Batching(8, 64),
        ("CPUExecutionProvider",),
        PARAMETERS,
        SHAPES,
        b"digest",
    ),
    PythonSpec(
        InstalledFactory("agent", {"size": 3, "names": ["a"], "none": None, "large": 10**30}),
        PARAMETERS,
        SPACES[-1],
        BOX,
        PythonForm(2, ("previous_action",), (InfoSpec("h", np.dtype("f8"), (2,)),), (), Batching(1, 16)),
        SHAPES,
    ),
    PythonSpec(PickledFactory(b"pickle"), {}, BOX, BOX, PythonForm(0, (), (), (), Batching(1, 16)), {}),
]


@pytest.mark.parametrize("space", EVERY_SPACE, ids=str)
def test_every_space_comes_back(space: Any) -> None:
    again = decode(encode(space))
    assert repr(again) == repr(space)
    assert space_to_proto(describe_space(again)) == space_to_proto(describe_space(space))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_come_back_as_they_were(space: Any) -> None:
    again = decode(encode(space))
    assert again == space
    assert str(again) == str(space)
    assert again.dtype == space.dtype
    space.seed(1)
    again.seed(1)
    assert str(again.sample()) == str(space.sample())  # also whether bounds are infinite


POLICIES = PolicySet(
    {"main": (HeldPolicy(7, AGENTS[2]), HeldPolicy(3, AGENTS[3])), "other": (HeldPolicy(5, RandomSpec()),)},
    PolicyMap.of({"a": "main", 1: [("main", -1, 0.5), ("other", 0, 0.5)], "b*": ("main", 3)}),
)


@pytest.mark.parametrize("agent", [*AGENTS, POLICIES], ids=lambda agent: type(agent).__name__)
def test_agents_come_back_as_they_were(agent: Any) -> None:
    version = AgentVersion([agent], "client")
    version.add_client("another")
    again = decode(encode(version))
    assert [content_hash(one) for one in again] == [content_hash(agent)]
    assert encode(again) == encode(version)
    assert (again.clients, again.updated_seconds, again.num_bytes) == (
        version.clients,
        version.updated_seconds,
        version.num_bytes,
    )
    for field in dataclasses.fields(agent):
        assert type(getattr(again[0], field.name)) is type(getattr(agent, field.name)), field.name


@pytest.mark.parametrize(
    "value",
    [
        rollserve.EnvSpec(
            "A-v0",
            {"MlpSpec": ["tuple", 1], "text": "\ud800"},
            (rollserve.Wrapper("ClipAction"),),
            rollserve.Task("set_task", {"a": None}),
            num_rows=3,
        ),
        WorkerSettings(rows=3, max_episode_length=7),
        [1, (2.5, None), {3: frozenset({4})}, b"\x00", -(2**63), 2**64 - 1, -(2**80), True, float("inf")],
        np.float32(3),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value: Any) -> None:
    again = decode(encode(value))
    assert again == value
    assert type(again) is type(value)


class Bomb:
    """A value whose pickle raises when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1 / 0",)


def test_values_of_other_classes_are_not_written() -> None:
    with pytest.raises(TypeError, match="got Bomb"):
        encode([Bomb()])


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Bomb()),
        b"",
        msgpack.packb(["os.system", "true"]),
        msgpack.packb([]),
        msgpack.packb(["RowPoint", 1]),
        msgpack.packb(["Popen", "true"]),
        msgpack.packb({"a": 1, 2: 3}),
        msgpack.packb(["array", ["dtype", "O"], ["tuple", 1], bytes(8)]),
        msgpack.packb(["array", ["dtype", "<f4"], ["tuple", 1 << 40], bytes(8)]),
        msgpack.packb(["array", ["dtype", "<f4"], ["tuple", -1, -2], bytes(8)]),
        encode([1.0, 2.0])[:-1],
        encode([1.0, 2.0]) + b"\x00",
    ],
)
def test_other_bytes_are_not_read(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)
