"""Arguments that the client checks before it sends anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import gymnasium
import numpy as np
import pytest
from support import raises

import rollserve
from rollserve import spaces

NOWHERE = "127.0.0.1:1"
OBSERVATIONS = spaces.Box(np.float32(-1), np.float32(1), (3,), np.dtype(np.float32))
ACTIONS = spaces.Discrete(2)


@pytest.fixture
def nowhere() -> Iterator[rollserve.Sampler]:
    """A sampler that is out of reach: requests that are sent to it fail with other errors than the checks."""
    with rollserve.connect(NOWHERE) as sampler:
        yield sampler


@pytest.mark.parametrize(
    "target",
    [
        "localhost",
        "127.0.0.1:99999",
        "127.0.0.1:0",
        "127.0.0.1:",
        ":50051",
        "",
        "::1:50051",
        "http://a:1",
        "a:1\n",
        "a\udcff:1",
    ],
)
@pytest.mark.parametrize("connect", [rollserve.connect, rollserve.aconnect])
def test_invalid_target_is_rejected(connect: Callable[[str], object], target: str) -> None:
    with raises(rollserve.InvalidArgumentError, field="target", reason=rollserve.Reason.INVALID_VALUE) as caught:
        connect(target)
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "target",
    ["localhost:1", "a-b.c:65535", "[::1]:1", "unix:/a", "unix:///a", "dns:///a:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1"],
)
def test_valid_target_is_accepted(target: str) -> None:
    rollserve.connect(target).close()


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("target", 50051, TypeError),
        ("sampler", 1, TypeError),
        ("sampler", "\udcff", rollserve.InvalidArgumentError),
        ("timeout", None, TypeError),
        ("timeout", 0, rollserve.InvalidArgumentError),
        ("timeout", float("nan"), rollserve.InvalidArgumentError),
        ("max_message_bytes", -1, rollserve.InvalidArgumentError),
        ("max_message_bytes", 2**31, rollserve.InvalidArgumentError),
        ("max_message_bytes", 1e6, TypeError),
    ],
)
def test_invalid_connection_argument_is_rejected(name: str, value: Any, error: type[Exception]) -> None:
    with raises(error, field=name):
        rollserve.connect(**({"target": NOWHERE} | {name: value}))


@pytest.mark.parametrize(
    ("options", "error", "field"),
    [
        ({"num_steps": 10**20}, rollserve.InvalidArgumentError, "num_steps"),
        ({"num_steps": 1e4}, TypeError, "num_steps"),
        ({"num_steps": True}, TypeError, "num_steps"),
        ({"seed": -1}, rollserve.InvalidArgumentError, "seed"),
        ({"seed": 2**64}, rollserve.InvalidArgumentError, "seed"),
        ({"seed": "7"}, TypeError, "seed"),
        ({"seed": 1, "first_episode_index": -1}, rollserve.InvalidArgumentError, "first_episode_index"),
        ({"max_episode_length": 2**63}, rollserve.InvalidArgumentError, "max_episode_length"),
        ({"expected_policy_version": 2**63}, rollserve.InvalidArgumentError, "expected_policy_version"),
        ({"policy_version": -(2**63) - 1}, rollserve.InvalidArgumentError, "policy_version"),
        ({"env_version": 0.5}, TypeError, "env_version"),
        ({"timeout": -1}, rollserve.InvalidArgumentError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout"),
        ({"deadline": float("nan")}, rollserve.InvalidArgumentError, "deadline"),
        ({"deterministic": 1}, TypeError, "deterministic"),
        ({"temperature": "1"}, TypeError, "temperature[0]"),
        ({"noise_scale": {1.0}}, TypeError, "noise_scale"),
        ({"epsilon": [0, True]}, TypeError, "epsilon[1]"),
        ({"soft_horizon": True}, TypeError, "soft_horizon"),
    ],
)
def test_invalid_sampling_option_is_rejected(
    nowhere: rollserve.Sampler, options: dict[str, Any], error: type[Exception], field: str
) -> None:
    with raises(error, field=field):
        nowhere.obtain_samples(**({"num_steps": 1} | options))

    async def asynchronously() -> None:
        async with rollserve.aconnect(NOWHERE) as sampler:
            await sampler.obtain_samples(**({"num_steps": 1} | options))

    with raises(error, field=field):
        asyncio.run(asynchronously())


async def test_unknown_sampling_option_is_rejected(nowhere: rollserve.Sampler) -> None:
    with raises(TypeError, quotes="sead"):
        nowhere.obtain_samples(1, sead=1)  # type: ignore[call-arg]
    async with rollserve.aconnect(NOWHERE) as sampler:
        with raises(TypeError, quotes="sead"):
            await sampler.obtain_samples(1, sead=1)  # type: ignore[call-arg]


def test_numbers_of_numpy_are_accepted(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(np.int32(10), seed=np.uint64(2**64 - 1), timeout=np.float32(60))
    assert batch.account.seed == 2**64 - 1


def test_invalid_episode_count_is_rejected(nowhere: rollserve.Sampler) -> None:
    with raises(rollserve.InvalidArgumentError, field="num_episodes_per_worker"):
        nowhere.obtain_exact_episodes(2**63)


def test_numbers_of_numpy_are_arguments_of_environments(thread_sampler: rollserve.Sampler) -> None:
    kwargs = {"max_episode_steps": np.int64(30), "sutton_barto_reward": np.bool_(True)}
    thread_sampler.update_env("CartPole-v1", kwargs=kwargs)
    assert thread_sampler.status().envs[0].kwargs == {"max_episode_steps": 30, "sutton_barto_reward": True}
    with raises(ValueError, match=r"kwargs: expected what JSON can hold, got .*ndarray is not JSON serializable"):
        thread_sampler.update_env("CartPole-v1", kwargs={"max_episode_steps": np.arange(2)})


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda s: s.update_env("A-v0", wrappers=["TimeLimit"]), "wrappers[0]"),
        (lambda s: s.update_env("A-v0", wrappers=rollserve.Wrapper("A")), "wrappers"),
        (lambda s: s.update_env("A-v0", kwargs=[1]), "kwargs"),
        (lambda s: s.update_env(5), "env"),
        (lambda s: s.update_env(per_worker=["A-v0"]), "per_worker[0]"),
        (lambda s: s.update_env(per_worker=[None, 5]), "per_worker[1]"),
        (lambda s: s.update_env(["A-v0"]), "env[0]"),
        (lambda s: s.update_env(per_worker=[[None, [None]]]), "per_worker[0][1]"),
        (lambda s: s.update_env(per_worker=5), "per_worker"),
        (lambda s: s.update_agent("mlp"), "agent"),
        (lambda s: s.update_agent(per_worker=[None, 5]), "per_worker[1]"),
        (lambda _: rollserve.AgentChange(kwargs=5), "kwargs"),
        (lambda _: rollserve.AgentChange(parameters=[1]), "parameters"),
        (lambda s: s.update_agent(per_worker=5), "per_worker"),
        (lambda s: s.update_agent(rollserve.RandomAgent(), timeout="1"), "timeout"),
        (lambda _: rollserve.EnvSpec(5), "id"),
        (lambda _: rollserve.Wrapper("A", kwargs=5), "kwargs"),
        (lambda _: rollserve.MlpAgent([], "categorical"), "parameters"),
    ],
)
def test_invalid_update_argument_is_rejected(
    nowhere: rollserve.Sampler, call: Callable[[rollserve.Sampler], object], field: str
) -> None:
    with raises(TypeError, field=field):
        call(nowhere)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda s: s.update_env([rollserve.EnvSpec("A-v0")], kwargs={"a": 1}), ("kwargs", "EnvSpec")),
        (lambda s: s.update_agent(), ("agent", "per_worker")),
    ],
    ids=["kwargs beside specs", "no agent"],
)
def test_update_arguments_that_exclude_each_other_are_rejected(
    nowhere: rollserve.Sampler, call: Callable[[rollserve.Sampler], object], names: tuple[str, ...]
) -> None:
    with raises(TypeError, quotes=names):
        call(nowhere)


def test_names_that_are_no_unicode_are_rejected(nowhere: rollserve.Sampler) -> None:
    with raises(rollserve.InvalidArgumentError, field="id", reason=rollserve.Reason.INVALID_VALUE):
        nowhere.update_env("\ud800")
    with raises(rollserve.InvalidArgumentError, field="wrappers[0].name", reason=rollserve.Reason.INVALID_VALUE):
        nowhere.update_env("A-v0", wrappers=[rollserve.Wrapper("\ud800")])


@pytest.mark.parametrize(
    ("arguments", "error", "field"),
    [
        ((gymnasium.spaces.Box(-1, 1, (3,)), ACTIONS), TypeError, "observation_space"),
        ((OBSERVATIONS, gymnasium.spaces.Discrete(2)), TypeError, "action_space"),
        ((OBSERVATIONS, ACTIONS, 64), TypeError, "hidden_sizes"),
        ((OBSERVATIONS, ACTIONS, (64, 0)), ValueError, "hidden_sizes[1]"),
        ((OBSERVATIONS, ACTIONS, (6.4,)), TypeError, "hidden_sizes[0]"),
        ((OBSERVATIONS, ACTIONS, (64,), "softsign"), ValueError, "activation"),
    ],
)
def test_invalid_argument_of_an_initial_agent_is_rejected(
    arguments: tuple[Any, ...], error: type[Exception], field: str
) -> None:
    names = ("observation_space", "action_space", "hidden_sizes", "activation")
    named = dict(zip(names, arguments, strict=False))
    observation_space, action_space = named.pop("observation_space"), named.pop("action_space")
    with raises(error, field=field):
        rollserve.MlpAgent.initial(observation_space, action_space, **named)


def test_invalid_head_is_rejected() -> None:
    with raises(ValueError, field="head"):
        rollserve.MlpAgent({}, "softmax")
    with raises(ValueError, field="epsilon"):
        rollserve.MlpAgent({}, "boltzmann", epsilon=0.1)
    with raises(TypeError, field="temperature"):
        rollserve.MlpAgent({}, "boltzmann", temperature="1")
    with raises(ValueError, field="head"):
        rollserve.MlpAgent.initial(OBSERVATIONS, ACTIONS, head="bernoulli")
    with raises(ValueError, field="value"):
        rollserve.MlpAgent.initial(OBSERVATIONS, ACTIONS, value="own")


def test_keys_that_json_would_make_texts_of_are_rejected(nowhere: rollserve.Sampler) -> None:
    with raises(ValueError, field="kwargs", match="keys of objects are texts, not 1"):
        nowhere.update_env("CartPole-v1", kwargs={"levels": [{1: "easy"}]})
