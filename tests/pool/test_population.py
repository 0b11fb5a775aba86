"""Populations: each member has the outcomes of a single agent, on any number of workers and rows."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from onnx_models import categorical, mlp_parameters
from pools import (
    CARTPOLE,
    adds_up,
    evaluate,
    evaluate_population,
    kill_one,
    pool_of,
    sample,
    until,
)
from rejections import Rejection, check_status, rejection_of, rejections
from support import raises

import rollserve
from rollserve.agents import agent_to_proto
from rollserve_server.agents import (
    Exploration,
    MlpSpec,
    OnnxModel,
    RandomSpec,
    build_agent,
    build_population,
    check_population,
    mlp_from_proto,
)
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend, Evaluation, InProcessBackend, Progress
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import agent_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

EXAMPLE = Path(__file__).parents[2] / "examples" / "evolution.py"
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=8)
HALF_CHEETAH = rollserve.EnvSpec("HalfCheetah-v5", {"max_episode_steps": 40})
BOX4 = rollserve.spaces.Box(np.float32(-1), np.float32(1), (4,), np.dtype(np.float32))
BOX17 = rollserve.spaces.Box(np.float32(-1), np.float32(1), (17,), np.dtype(np.float32))
BOX6 = rollserve.spaces.Box(np.float32(-1), np.float32(1), (6,), np.dtype(np.float32))

Parameters = Mapping[str, np.ndarray]


def spec_of(agent: rollserve.MlpAgent, parameters: Parameters | None = None) -> MlpSpec:
    """Return the agent as the gateway reads it from a message."""
    return mlp_from_proto(agent_to_proto(agent).mlp, parameters or agent.parameters)


def cartpole_agent() -> rollserve.MlpAgent:
    return rollserve.MlpAgent.initial(BOX4, rollserve.spaces.Discrete(2), hidden_sizes=(16,), seed=1)


def members_of(parameters: Parameters, num_members: int, seed: int = 0) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {
        name: value + 0.5 * source.standard_normal((num_members, *value.shape), np.float32)
        for name, value in parameters.items()
    }


def member_of(members: Parameters, member: int) -> dict[str, np.ndarray]:
    return {name: value[member] for name, value in members.items()}


def returns_of(evaluation: Evaluation) -> list[float]:
    return [outcome.total_reward for outcome in evaluation.outcomes]


@pytest.mark.parametrize(
    ("case", "deterministic"),
    [
        ("CartPole", True),
        ("CartPole", False),
        ("HalfCheetah", False),
        ("recurrent", True),
        ("python", False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("HalfCheetah", True), ("recurrent", False), ("python", True))
        ),
    ],
)
def test_member_has_the_returns_of_a_single_agent(sampler: rollserve.Sampler, case: str, deterministic: bool) -> None:
    sampler.update_env(HALF_CHEETAH if case == "HalfCheetah" else "CartPole-v1")
    agent: rollserve.MlpAgent | rollserve.PythonAgent
    if case == "HalfCheetah":
        agent = rollserve.MlpAgent.initial(BOX17, BOX6, hidden_sizes=(64, 64), seed=1)
    elif case == "recurrent":
        discrete = rollserve.spaces.Discrete(2)
        agent = rollserve.MlpAgent.initial(BOX4, discrete, hidden_sizes=(8,), core="gru", core_size=12, seed=1)
    elif case == "python":
        agent = rollserve.PythonAgent("matrix", {}, {"first": np.eye(4, 8), "second": np.ones((8, 2))})
    else:
        agent = cartpole_agent()
    version = sampler.update_agent(agent)
    members = members_of(agent.parameters, 6)
    options: Any = {"seed": 3, "deterministic": deterministic, "max_episode_length": 100}
    result = sampler.evaluate_population(members, 3, **options)
    apart = sampler.evaluate_population(members, 3, same_episodes=False, first_episode_index=2, **options)
    assert result.returns.shape == result.lengths.shape == (len(result), 3) == (6, 3)
    assert (result.policy_version, result.seed, result.first_episode_index) == (version, 3, 0)
    assert sampler.status().policy_version == version
    assert result.num_steps == result.lengths.sum() == result.account.num_discarded_steps
    assert adds_up(result.account)
    assert np.array_equal(result.mean_returns, result.returns.mean(axis=1))
    for member in range(6):
        sampler.update_agent(member_of(members, member))
        alone = sampler.evaluate(3, **options)
        assert np.array_equal(result.returns[member], alone.returns)
        assert np.array_equal(result.lengths[member], alone.lengths)
        alone = sampler.evaluate(3, first_episode_index=2 + 3 * member, **options)
        assert np.array_equal(apart.returns[member], alone.returns)
    assert len({float(each) for each in result.mean_returns}) > 3
    if case == "CartPole":  # the default seed is the one of evaluations
        assert sampler.evaluate_population(members, 1).seed == sampler.evaluate(1).seed


def test_members_may_have_initial_states_of_their_own(sampler: rollserve.Sampler) -> None:
    """The initial recurrent state comes from the parameters, here one number."""
    sampler.update_env("CartPole-v1")
    sampler.update_agent(rollserve.PythonAgent("counting", {}, {"first": np.array(5)}))
    members = {"first": np.arange(4)}
    result = sampler.evaluate_population(members, 8, seed=1)
    for member in range(4):
        sampler.update_agent({"first": members["first"][member]})
        assert np.array_equal(result.returns[member], sampler.evaluate(8, seed=1).returns)
    assert np.array_equal(result.returns[0], result.returns[2])
    assert not np.array_equal(result.returns[0], result.returns[1])


SHAPES: dict[str, dict[str, Any]] = {
    "categorical": {},
    "without hidden layers": {"hidden_sizes": ()},
    "layer norm": {"layer_norm": True, "activation": "relu"},
    "shared value": {"value": "shared", "activation": "gelu"},
    "separate value": {"value": "separate"},
    "gaussian": {"head": "diagonal_gaussian"},
    "squashed, predicted": {"head": "squashed_gaussian", "predicted_log_std": True},
    "epsilon greedy": {"head": "epsilon_greedy"},
}


@pytest.mark.parametrize("exploration", [Exploration(), Exploration(deterministic=True)], ids=["chance", "best"])
@pytest.mark.parametrize("shape", SHAPES)
def test_stacked_members_act_bit_for_bit_as_alone(shape: str, exploration: Exploration) -> None:
    options = {"hidden_sizes": (24, 40), **SHAPES[shape]}
    observation_space = spaces.Box(-1, 1, (17,), np.float32)
    action_space: Any = spaces.Box(-1, 1, (6,), np.float32) if "head" in options else spaces.Discrete(5)
    client_space: Any = BOX6 if "head" in options else rollserve.spaces.Discrete(5)
    if shape == "epsilon greedy":
        action_space, client_space = spaces.Discrete(5), rollserve.spaces.Discrete(5)
    made = rollserve.MlpAgent.initial(BOX17, client_space, seed=1, **options)
    spec = spec_of(made)
    members = members_of(made.parameters, 5)
    assert check_population(spec, members) == 5
    num_rows = 7
    base = build_agent(spec, observation_space, action_space, num_rows, exploration=exploration)
    population = build_population(spec, members, base, observation_space, action_space, num_rows, exploration)
    assert population.side_by_side
    rows = [0, 1, 1, 4, 2, 4, 3]
    for row, member in enumerate(rows):
        population.assign(row, 4 - member)  # the last member counts
        population.assign(row, member)
    source = np.random.default_rng(2)
    for _ in range(20):
        observations = source.standard_normal((num_rows, 17)).astype(np.float32)
        noise = np.zeros((num_rows, population.noise_width))
        population.draw_noise(source, noise)
        (actions,), _ = population.act([observations], noise)
        actions = actions.copy()
        for row, member in enumerate(rows):
            alone = build_agent(
                spec_of(made, member_of(members, member)), observation_space, action_space, 3, exploration=exploration
            )
            (expected,), _ = alone.act(
                [np.repeat(observations[row : row + 1], 3, 0)], np.repeat(noise[row : row + 1], 3, 0)
            )
            assert actions[row].tobytes() == expected[1].tobytes()


@pytest.mark.slow
async def test_outcomes_do_not_depend_on_workers_or_kills(ray_backend: Backend) -> None:
    agent = cartpole_agent()
    members = members_of(agent.parameters, 400)  # large enough for Ray's object store
    async with pool_of(InProcessBackend(), workers=1, rows=5) as pool:
        await pool.update_agent([spec_of(agent)])
        expected = await evaluate_population(pool, members, 5, seed=1)
    async with pool_of(ray_backend, workers=3, rows=16, progress_seconds=0.01) as pool:
        await pool.update_agent([spec_of(agent)])
        result = await evaluate_population(pool, members, 5, seed=1)
        assert result.outcomes == expected.outcomes
        assert sum(worker.num_simulated_steps > 0 for worker in result.account.workers) == 3
        parts: list[object] = []
        running = asyncio.create_task(evaluate_population(pool, members, 5, seed=1, parts=parts))
        await until(lambda: any(isinstance(part, Progress) and part.num_simulated_steps for part in parts))
        kill_one(pool, random.Random(2))
        result = await running
        assert result.outcomes == expected.outcomes
        assert adds_up(result.account)
        assert result.account.num_retried_episodes > 0
        await until(lambda: all(worker.healthy for worker in pool.status().workers))
        few = {name: value[:7] for name, value in members.items()}
        assert (await evaluate_population(pool, few, 5, seed=1)).outcomes == expected.outcomes[:35]


async def test_native_environments_are_stepped_row_by_row(backend: Backend) -> None:
    agent = cartpole_agent()
    members = members_of(agent.parameters, 5)
    async with pool_of(backend, CARTPOLE) as pool, pool_of(backend, NATIVE) as native:
        for each in (pool, native):
            await each.update_agent([spec_of(agent)])
        expected = await evaluate_population(pool, members, 4, seed=1)
        assert (await evaluate_population(native, members, 4, seed=1)).outcomes == expected.outcomes
        own = await evaluate_population(pool, members, 4, seed=1, env=NATIVE)
        assert own.outcomes == expected.outcomes
        assert (own.account.env_version, expected.account.env_version) == (0, 1)
        status = native.status()
        assert (status.env_version, status.env.num_episodes_per_row) == (1, 8)


async def test_members_may_be_models(backend: Backend) -> None:
    """Parameters that members lack have the values of the sampler's agent."""
    model = OnnxModel(categorical((4, 8, 2)).SerializeToString(), {}, {}, "categorical", ())
    parameters = mlp_parameters((4, 8, 2))
    biases = members_of({"1.bias": parameters["1.bias"]}, 6)
    async with pool_of(backend, rows=3) as pool:
        await pool.update_agent([model])
        result = await evaluate_population(pool, biases, 4, seed=1)
        for member in range(6):
            await pool.update_agent([member_of(biases, member)])
            alone = await evaluate(pool, 4, seed=1)
            assert returns_of(alone) == returns_of(result)[4 * member : 4 * member + 4]
        assert len(set(returns_of(result))) > 3


async def test_members_may_have_some_parameters(backend: Backend) -> None:
    agent = cartpole_agent()
    biases = members_of({"1/bias": agent.parameters["1/bias"]}, 3)
    async with pool_of(backend) as pool:
        await pool.update_agent([spec_of(agent)])
        result = await evaluate_population(pool, biases, 4, seed=1)
        await pool.update_agent([{**agent.parameters, **member_of(biases, 2)}])
        assert returns_of(await evaluate(pool, 4, seed=1)) == returns_of(result)[8:]
        assert returns_of(await evaluate_population(pool, biases, 4, seed=1, policy_version=1)) == returns_of(result)


async def test_population_evaluation_fails_and_can_be_cancelled(backend: Backend) -> None:
    agent = rollserve.MlpAgent.initial(
        rollserve.spaces.Box(np.float32(-1), np.float32(1), (1,), np.dtype(np.float32)),
        rollserve.spaces.Discrete(2),
        seed=1,
    )
    members = members_of(agent.parameters, 8)
    failing = rollserve.EnvSpec("sample_envs:FailsForSomeSeeds")
    slow = rollserve.EnvSpec("sample_envs:Slow", {"step_seconds": 0.02, "length": 1000})
    async with pool_of(backend, slow, workers=1, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([spec_of(agent)])
        with pytest.raises(EnvFailedError, match=r"member \d\b.*episode \d+\b.*seed \d+\b.*\b0\b.*broken by design"):
            await evaluate_population(pool, members, 20, env=failing)
        running = asyncio.create_task(evaluate_population(pool, members, 20))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        result = await evaluate_population(pool, members, 2, max_episode_length=2)
        assert [(outcome.length, outcome.truncated) for outcome in result.outcomes] == [(2, True)] * 16
        batch = await sample(pool, AtLeast(1), max_episode_length=2)
        assert batch.lengths[0] == 2


async def test_population_is_rejected_where_workers_differ(backend: Backend) -> None:
    agent = cartpole_agent()
    members = members_of(agent.parameters, 2)
    async with pool_of(backend) as pool:
        await pool.update_agent([spec_of(agent), RandomSpec()], per_worker=True)
        with raises(InvalidValueError, field="parameters", quotes="workers"):
            await evaluate_population(pool, members, 1)
        await pool.update_agent([spec_of(agent)])
        await pool.update_env([CARTPOLE, CARTPOLE], per_worker=True)
        with raises(InvalidValueError, field="options.environment"):
            await evaluate_population(pool, members, 1)
        assert len((await evaluate_population(pool, members, 1, env=CARTPOLE)).outcomes) == 2


WEIGHT = np.zeros((3, 2, 16), np.float32)


def request(parameters: Mapping[str, Any], **fields: Any) -> pb.EvaluatePopulationRequest:
    tensors = agent_pb2.Parameters(tensors=named_tensors_to_proto(parameters))
    return pb.EvaluatePopulationRequest(**{"parameters": tensors, "episode_count": 1, **fields})


WITH_NAN = np.where(np.arange(96).reshape(3, 2, 16) == 50, np.nan, WEIGHT).astype(np.float32)
REJECTIONS = {
    "no parameters": Rejection(request({}), "parameters", ("parameter",)),
    "unknown name": Rejection(request({"2/bias": np.zeros((3, 2), np.float32)}), "parameters", ("'2/bias'",)),
    "no axis": Rejection(request({"1/weight": np.zeros(())}), "parameters['1/weight'].shape", ("()", "(2, 16)")),
    "no member": Rejection(request({"1/weight": WEIGHT[:0]}), "parameters['1/weight'].shape", ("(0, 2, 16)",)),
    "one member without an axis": Rejection(
        request({"1/weight": WEIGHT[0]}), "parameters['1/weight'].shape", ("(2, 16)", "(2, 2, 16)")
    ),
    "two members of three": Rejection(
        request({"1/weight": WEIGHT, "1/bias": np.zeros((2, 2), np.float32)}),
        "parameters['1/bias'].shape",
        ("(2, 2)", "(3, 2)"),
    ),
    "other type": Rejection(
        request({"1/weight": WEIGHT.astype(np.float64)}), "parameters['1/weight'].data_type", ("float64", "float32")
    ),
    "NaN": Rejection(request({"1/weight": WITH_NAN}), "parameters['1/weight'][1, 1, 2]", ("nan",)),
    "no episodes": Rejection(request({"1/weight": WEIGHT}, episode_count=0), "episode_count", ("0", "43690")),
    "too many episodes": Rejection(
        request({"1/weight": WEIGHT}, episode_count=1 << 16), "episode_count", (str(1 << 16),)
    ),
    "rows of EnvPool": Rejection(
        request({"1/weight": WEIGHT}, options={"environment": {"id": "CartPole-v1", "vectorization": 3}}),
        "options.environment.vectorization",
        ("EnvPool",),
    ),
    "epsilon without meaning": Rejection(
        request({"1/weight": WEIGHT}, options={"exploration": {"epsilons": [0]}}),
        "options.exploration.epsilons",
        ("categorical",),
    ),
}


@rejections(REJECTIONS)
def test_population_request_is_rejected(
    sampler: rollserve.Sampler, stub: SamplerServiceStub, rejection: Rejection
) -> None:
    sampler.update_agent(cartpole_agent())
    error = rejection_of(stub.EvaluatePopulation, rejection.request)
    check_status(error, rejection.reason, field=rejection.field, quotes=rejection.quotes)


def test_population_is_rejected_for_agents_without_parameters(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.RandomAgent())
    with raises(rollserve.InvalidArgumentError, field="parameters", quotes="random"):
        sampler.evaluate_population({"1/weight": WEIGHT}, 1)
    with raises(TypeError, field="parameters"):
        sampler.evaluate_population([WEIGHT], 1)  # type: ignore[arg-type]


async def test_async_client_evaluates_populations(sampler: rollserve.Sampler, server: LocalServer) -> None:
    agent = cartpole_agent()
    sampler.update_agent(agent)
    members = members_of(agent.parameters, 3)
    expected = sampler.evaluate_population(members, 2)
    async with rollserve.aconnect(server.address) as asynchronous:
        result = await asynchronous.evaluate_population(members, 2)
    assert np.array_equal(result.returns, expected.returns)


def test_example_evolution_strategy_learns_cartpole(server: LocalServer, sampler: rollserve.Sampler) -> None:
    command = [sys.executable, EXAMPLE, "--server", server.address]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert re.match(r"generation +1: mean return +\d+\.\d, best +\d+\.\d\n", shown.stdout)
    found = re.fullmatch(r"evolution: return (\d+(\.\d+)?) ± .*", shown.stdout.splitlines()[-1])
    assert found is not None
    assert float(found[1]) >= 475
