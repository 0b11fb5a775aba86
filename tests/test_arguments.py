"""What a caller passes to the client is checked before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import gymnasium
import numpy as np
import pytest

import rollserve
from rollserve import spaces

NOWHERE = "127.0.0.1:1"
OBSERVATIONS = spaces.Box(np.float32(-1), np.float32(1), (3,), np.dtype(np.float32))
ACTIONS = spaces.Discrete(2)


@pytest.fixture
def nowhere() -> Iterator[rollserve.Sampler]:
    """A sampler that is out of reach: what is sent to it ends with another error than what is refused here."""
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
def test_targets_that_are_none(connect: Callable[[str], object], target: str) -> None:
    with pytest.raises(rollserve.InvalidArgumentError, match=r"target: .* was expected") as caught:
        connect(target)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_VALUE")


@pytest.mark.parametrize(
    "target",
    ["localhost:1", "a-b.c:65535", "[::1]:1", "unix:/a", "unix:///a", "dns:///a:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1"],
)
def test_targets(target: str) -> None:
    rollserve.connect(target).close()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("target", 50051, TypeError, "target: int came, a string was expected"),
        ("sampler", 1, TypeError, "sampler: int came, a string was expected"),
        ("sampler", "\udcff", rollserve.InvalidArgumentError, r"sampler: '\\udcff' came"),
        ("timeout", None, TypeError, "timeout: NoneType came, a number of seconds was expected"),
        ("timeout", 0, rollserve.InvalidArgumentError, "timeout: 0 came, a positive number of seconds was expected"),
        ("timeout", float("nan"), rollserve.InvalidArgumentError, "timeout: nan came"),
        ("max_message_bytes", -1, rollserve.InvalidArgumentError, "max_message_bytes: -1 came, an integer from 0 to"),
        ("max_message_bytes", 2**31, rollserve.InvalidArgumentError, "max_message_bytes: 2147483648 came"),
        ("max_message_bytes", 1e6, TypeError, "max_message_bytes: float came, an integer was expected"),
    ],
)
def test_connections(name: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rollserve.connect(**({"target": NOWHERE} | {name: value}))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_steps": 10**20}, rollserve.InvalidArgumentError, f"num_steps: {10**20} came, an integer of 64 bits"),
        ({"num_steps": 1e4}, TypeError, "num_steps: float came, an integer was expected"),
        ({"num_steps": True}, TypeError, "num_steps: bool came, an integer was expected"),
        ({"seed": -1}, rollserve.InvalidArgumentError, r"seed: -1 came, an integer from 0 to 2\*\*64 - 1 was expected"),
        ({"seed": 2**64}, rollserve.InvalidArgumentError, "seed: 18446744073709551616 came"),
        ({"seed": "7"}, TypeError, "seed: str came, an integer was expected"),
        ({"seed": 1, "first_episode_index": -1}, rollserve.InvalidArgumentError, "first_episode_index: -1 came"),
        ({"max_episode_length": 2**63}, rollserve.InvalidArgumentError, "max_episode_length: 9223372036854775808 came"),
        ({"expected_policy_version": 2**63}, rollserve.InvalidArgumentError, "expected_policy_version: "),
        ({"policy_version": -(2**63) - 1}, rollserve.InvalidArgumentError, "policy_version: -9223372036854775809 came"),
        ({"env_version": 0.5}, TypeError, "env_version: float came"),
        ({"timeout": -1}, rollserve.InvalidArgumentError, "timeout: -1 came"),
        ({"timeout": "1"}, TypeError, "timeout: str came"),
        ({"deadline": float("nan")}, rollserve.InvalidArgumentError, "deadline: nan came, a number of seconds"),
        ({"deterministic": 1}, TypeError, "deterministic: int came, a truth value was expected"),
        ({"temperature": "1"}, TypeError, r"temperature\[0\]: str came, a number was expected"),
        ({"noise_scale": {1.0}}, TypeError, "noise_scale: set came, a number or a sequence of some was expected"),
        ({"epsilon": [0, True]}, TypeError, r"epsilon\[1\]: bool came, a number was expected"),
        ({"sead": 1}, TypeError, "unexpected options: sead"),
    ],
)
def test_sampling_calls(
    nowhere: rollserve.Sampler, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        nowhere.obtain_samples(**({"num_steps": 1} | options))

    async def asynchronously() -> None:
        async with rollserve.aconnect(NOWHERE) as sampler:
            await sampler.obtain_samples(**({"num_steps": 1} | options))

    with pytest.raises(error, match=message):
        asyncio.run(asynchronously())


def test_numbers_of_numpy_are_numbers(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(np.int32(10), seed=np.uint64(2**64 - 1), timeout=np.float32(60))
    assert batch.account is not None
    assert batch.account.seed == 2**64 - 1


def test_exact_episodes(nowhere: rollserve.Sampler) -> None:
    with pytest.raises(rollserve.InvalidArgumentError, match="num_episodes_per_worker: 9223372036854775808 came"):
        nowhere.obtain_exact_episodes(2**63)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.update_env("A-v0", wrappers=["TimeLimit"]), r"wrappers\[0\]: str came, a Wrapper, such as"),
        (lambda s: s.update_env("A-v0", wrappers=rollserve.Wrapper("A")), "wrappers: Wrapper came, a sequence"),
        (lambda s: s.update_env("A-v0", kwargs=[1]), "kwargs: list came, a mapping was expected"),
        (
            lambda s: s.update_env(5),
            "env: int came, an id, an EnvSpec, an EnvChange, or a list with one for each row was",
        ),
        (
            lambda s: s.update_env(per_worker=["A-v0"]),
            r"per_worker\[0\]: str came, an EnvSpec, an EnvChange, or a list with one for each row was",
        ),
        (lambda s: s.update_env(per_worker=[None]), r"per_worker\[0\]: NoneType came, an EnvSpec, an EnvChange, or a"),
        (lambda s: s.update_env(["A-v0"]), r"env\[0\]: str came, an EnvSpec, an EnvChange or None was expected"),
        (
            lambda s: s.update_env(per_worker=[[None, [None]]]),
            r"per_worker\[0\]\[1\]: list came, an EnvSpec, an EnvChange or None was expected",
        ),
        (lambda s: s.update_env([rollserve.EnvSpec("A-v0")], kwargs={"a": 1}), "kwargs and wrappers go with an id"),
        (
            lambda s: s.update_env(per_worker=5),
            "per_worker: int came, a sequence of EnvSpecs, EnvChanges and lists of them was",
        ),
        (lambda s: s.update_agent("mlp"), "agent: str came, an agent or a mapping of parameters was expected"),
        (lambda s: s.update_agent(per_worker=[None]), r"per_worker\[0\]: NoneType came, an agent or a mapping"),
        (lambda s: s.update_agent(per_worker=5), "per_worker: int came, a sequence of updates was expected"),
        (lambda s: s.update_agent(), "exactly one of agent and per_worker was expected"),
        (lambda s: s.update_agent(rollserve.RandomAgent(), timeout="1"), "timeout: str came"),
        (lambda _: rollserve.EnvSpec(5), "id: int came, a string was expected"),
        (lambda _: rollserve.Wrapper("A", kwargs=5), "kwargs: int came, a mapping was expected"),
        (lambda _: rollserve.MlpAgent([], "categorical"), "parameters: list came, a mapping from names to arrays"),
    ],
)
def test_updates(nowhere: rollserve.Sampler, call: Callable[[rollserve.Sampler], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call(nowhere)


def test_names_that_cannot_be_sent(nowhere: rollserve.Sampler) -> None:
    with pytest.raises(rollserve.InvalidArgumentError, match=r"id: '\\ud800' came, text that UTF-8 can write"):
        nowhere.update_env("\ud800")
    with pytest.raises(rollserve.InvalidArgumentError, match=r"wrappers\[0\]\.name: "):
        nowhere.update_env("A-v0", wrappers=[rollserve.Wrapper("\ud800")])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            (gymnasium.spaces.Box(-1, 1, (3,)), ACTIONS),
            TypeError,
            "observation_space: Box came, a space of rollserve.spaces",
        ),
        (
            (OBSERVATIONS, gymnasium.spaces.Discrete(2)),
            TypeError,
            "action_space: Discrete came, a space of rollserve.spaces",
        ),
        ((OBSERVATIONS, ACTIONS, 64), TypeError, r"hidden_sizes: int came, a sequence such as \(64, 64\) was expected"),
        ((OBSERVATIONS, ACTIONS, (64, 0)), ValueError, r"hidden_sizes\[1\]: 0 came, at least 1 was expected"),
        ((OBSERVATIONS, ACTIONS, (6.4,)), TypeError, r"hidden_sizes\[0\]: float came, an integer was expected"),
        ((OBSERVATIONS, ACTIONS, (64,), "softsign"), ValueError, "activation: 'softsign' came, 'tanh' or 'relu' or "),
    ],
)
def test_untrained_agents(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    names = ("observation_space", "action_space", "hidden_sizes", "activation")
    given = dict(zip(names, arguments, strict=False))
    observation_space, action_space = given.pop("observation_space"), given.pop("action_space")
    with pytest.raises(error, match=message):
        rollserve.MlpAgent.initial(observation_space, action_space, **given)


def test_heads() -> None:
    with pytest.raises(ValueError, match="head: 'softmax' came, 'categorical' or 'diagonal_gaussian' or "):
        rollserve.MlpAgent({}, "softmax")
    with pytest.raises(ValueError, match=r"epsilon: 0\.1 came, none was expected with the head 'boltzmann'"):
        rollserve.MlpAgent({}, "boltzmann", epsilon=0.1)
    with pytest.raises(TypeError, match="temperature: str came, a number was expected"):
        rollserve.MlpAgent({}, "boltzmann", temperature="1")
    with pytest.raises(
        ValueError, match="head: 'bernoulli' came, 'categorical' or 'epsilon_greedy' or 'boltzmann' was"
    ):
        rollserve.MlpAgent.initial(OBSERVATIONS, ACTIONS, head="bernoulli")
    with pytest.raises(ValueError, match="value: 'own' came, 'shared' or 'separate' was expected"):
        rollserve.MlpAgent.initial(OBSERVATIONS, ACTIONS, value="own")
