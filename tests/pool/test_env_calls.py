"""Calls of environments' methods: their values, and that nothing they do has an effect on episodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import raises, server_environment

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Task, Wrapper
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb

TASKS = "sample_envs:Tasks"
PROFILES = '{"tasks": {"env": "sample_envs:Tasks"}}'


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with two workers of two rows, whose environments have methods that clients may call."""
    folder: Path = tmp_path_factory.mktemp("calls")
    options = ["--env", TASKS, "--workers", "2", "--rows", "2", "--backend", "in-process", "--step-seconds", "2"]
    options += ["--allow-module", "sample_envs", "--profiles", PROFILES, "--reset-seconds", "8"]
    for method in ("set_task", "describe", "misbehave"):
        options += ["--allow-method", method]
    with local_server(*options, log=folder / "server.log", environment=server_environment()) as server:
        yield server


@pytest.fixture
def asked(curriculum: LocalServer) -> Iterator[rollserve.Sampler]:
    """The server's sampler, as it was at its start, with an agent."""
    curriculum.reset()
    with rollserve.connect(curriculum.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        yield sampler


def goal(number: int) -> EnvChange:
    return EnvChange(task=Task("set_task", {"goal": number}))


def described(size: int, task: int, *arguments: object) -> dict[str, object]:
    return {"size": size, "task": task, "arguments": list(arguments)}


def test_method_returns_a_value_of_each_environment(asked: rollserve.Sampler) -> None:
    assert asked.call_environments("describe") == [described(1, 0)]
    asked.update_env(EnvSpec(TASKS, {"size": 5}, (Wrapper("TimeLimit", {"max_episode_steps": 3}),)))
    asked.update_env(goal(4))
    arguments = ({"level": [1, None, "ü"]}, 2.5)
    assert asked.call_environments("describe", *arguments) == [described(5, 4, *arguments)]
    asked.update_env(per_worker=[None, EnvSpec(TASKS, {"size": 6})])
    assert asked.call_environments("describe") == [described(5, 4), described(6, 0)]
    # One for each row, as in the status.
    asked.update_env(per_worker=[[None, goal(7)], None])
    expected = [described(5, 4), described(5, 7), described(6, 0), described(6, 0)]
    assert asked.call_environments("describe") == expected
    assert len(asked.status().envs) == len(expected)


def test_call_has_no_effect_on_episodes(asked: rollserve.Sampler) -> None:
    before, status = asked.obtain_samples(20, seed=1), asked.status()
    asked.obtain_fragments(8, seed=2)
    assert asked.call_environments("set_task", {"goal": 3}) == [None]
    assert asked.call_environments("describe") == [described(1, 0)]
    again = asked.obtain_samples(20, seed=1)
    assert np.array_equal(before.observations, again.observations)
    assert np.array_equal(before.actions, again.actions)
    assert asked.obtain_fragments(8, seed=2, row_step_count=2).observations[:, 1].tolist() == [0] * 8
    after = asked.status()
    assert (after.env_version, after.policy_version) == (status.env_version, status.policy_version)


def test_environments_of_kept_versions_can_be_asked(asked: rollserve.Sampler) -> None:
    old = asked.status().env_version
    new = asked.update_env(goal(2)).env_version
    assert asked.call_environments("describe", env_version=old) == [described(1, 0)]
    assert asked.call_environments("describe", env_version=new) == [described(1, 2)]
    with raises(rollserve.PreconditionError, field="environment_version", reason=Reason.ENVIRONMENT_VERSION):
        asked.call_environments("describe", env_version=new + 1)


def test_environments_of_another_client_are_not_asked(asked: rollserve.Sampler, curriculum: LocalServer) -> None:
    version = asked.update_env(goal(1)).env_version
    with rollserve.connect(curriculum.address) as other:
        other.update_env(goal(2))
    with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
        asked.call_environments("describe")
    assert asked.call_environments("describe", env_version=version) == [described(1, 1)]


async def test_asynchronous_client_calls_methods(asked: rollserve.Sampler, curriculum: LocalServer) -> None:
    async with rollserve.aconnect(curriculum.address) as sampler:
        assert await sampler.call_environments("describe", 1) == [described(1, 0, 1)]


@pytest.mark.parametrize(
    ("method", "arguments", "field", "quotes", "reason"),
    [
        ("close", (), "method", ("'close'", "--allow-method"), Reason.METHOD_NOT_ALLOWED),
        ("describe", ("/etc/passwd",), "arguments_json[0]", "/etc/passwd", Reason.PATH_NOT_ALLOWED),
        ("describe", (1,) * 17, "arguments_json", ("16", "17"), Reason.INVALID_VALUE),
        ("set_task", (), "arguments_json", "TypeError", Reason.ENV_REFUSED),
        ("set_task", ({"goal": -1},), "arguments_json", "a goal of at least 0", Reason.ENV_REFUSED),
        ("misbehave", ("raise",), "arguments_json", "no such level", Reason.ENV_REFUSED),
        ("misbehave", ("die",), "", "ended its process", Reason.ENV_REFUSED),
        ("misbehave", ("hang",), "", "hung", Reason.ENV_REFUSED),
        ("misbehave", ("large",), "method", ("65536", str((1 << 17) + 2)), Reason.ENV_REFUSED),
        ("misbehave", ("nan",), "method", "JSON", Reason.ENV_REFUSED),
        ("misbehave", ("object",), "method", "object", Reason.ENV_REFUSED),
        ("misbehave", ("deep",), "method", "64", Reason.ENV_REFUSED),
    ],
)
def test_bad_call_is_refused(
    asked: rollserve.Sampler, method: str, arguments: tuple[Any, ...], field: str, quotes: Any, reason: Reason
) -> None:
    with raises(rollserve.RollserveError, field=field, quotes=quotes, reason=reason):
        asked.call_environments(method, *arguments)
    assert asked.call_environments("describe") == [described(1, 0)]


def test_unknown_method_is_refused(asked: rollserve.Sampler) -> None:
    asked.update_env("CartPole-v1")
    with raises(rollserve.InvalidArgumentError, field="method", quotes="'describe'"):
        asked.call_environments("describe")


def test_environments_of_a_profile_are_not_asked(asked: rollserve.Sampler) -> None:
    asked.update_env("profile:tasks")
    with raises(rollserve.InvalidArgumentError, field="method", quotes="profile"):
        asked.call_environments("describe")


def test_environments_without_single_rows_are_not_asked(asked: rollserve.Sampler) -> None:
    asked.update_env(EnvSpec("Coins-v0", vectorization="native"))
    with raises(rollserve.InvalidArgumentError, field="method", quotes="one by one"):
        asked.call_environments("describe")


def test_malformed_argument_is_refused(asked: rollserve.Sampler) -> None:
    request = pb.CallEnvironmentsRequest(method="describe", arguments_json=["1", "{"])
    with raises(rollserve.InvalidArgumentError, field="arguments_json[1]"):
        asked._call(asked._stub.CallEnvironments, request, None)
