"""Recurrent agents: what they remember is theirs, row by row, goes on with the episode, and comes back."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from fragment_truth import Truth
from gymnasium import spaces as gym_spaces
from pools import CARTPOLE, kill_one, pool_of, sample
from support import equal, raises
from test_fragments import fragments, in_calls
from test_mlp_agents import spec_of
from test_native_fragments import of_episodes

import rollserve
from rollserve_server.agents import RandomSpec, build_agent
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend, InProcessBackend, Pool
from rollserve_server.pool.backends.ray.backend import RayBackend
from rollserve_server.sampling import ColumnFormat

CORES = ("gru", "lstm")
NAMES = {"gru": ("h",), "lstm": ("h", "c")}
ALL_STATES = ColumnFormat(all_states=True)
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=2)


def agent_for(
    core: Any, num_inputs: int = 4, num_actions: int = 2, *, seed: int = 0, **options: Any
) -> rollserve.MlpAgent:
    """An agent whose parameters are nowhere 0, for a Box of so many floats."""
    space = rollserve.spaces.Box(np.float32(-1), np.float32(1), (num_inputs,), np.dtype(np.float32))
    actions = rollserve.spaces.Discrete(num_actions)
    options = {"hidden_sizes": (8,), "core_size": 6, **options}
    agent = rollserve.MlpAgent.initial(space, actions, core=core, seed=seed, **options)
    generator = np.random.default_rng(seed + 1)
    parameters = {
        name: (value + generator.normal(scale=0.3, size=value.shape)).astype(np.float32)
        for name, value in agent.parameters.items()
    }
    return dataclasses.replace(agent, parameters=parameters)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def core_step(
    parameters: Mapping[str, np.ndarray], x: np.ndarray, recurrent_state: list[np.ndarray]
) -> list[np.ndarray]:
    """What is remembered after a step, as PyTorch's documentation writes it."""
    h = recurrent_state[0]
    of_input = parameters["core/weight_ih"] @ x + parameters["core/bias_ih"]
    of_memory = parameters["core/weight_hh"] @ h + parameters["core/bias_hh"]
    if len(recurrent_state) == 1:
        (ir, iz, i_n), (hr, hz, hn) = np.split(of_input, 3), np.split(of_memory, 3)
        r, z = sigmoid(ir + hr), sigmoid(iz + hz)
        n = np.tanh(i_n + r * hn)
        return [(1 - z) * n + z * h]
    i, f, g, o = np.split(of_input + of_memory, 4)
    c = sigmoid(f) * recurrent_state[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


def rollout(agent: rollserve.MlpAgent, observations: np.ndarray) -> dict[str, np.ndarray]:
    """In float64, the states before each step and behind the last one, the logits and the values."""
    parameters = {name: value.astype(np.float64) for name, value in agent.parameters.items()}
    assert agent.core is not None
    last = len(agent.layer_sizes) - 2
    recurrent_state = [np.zeros(parameters["core/weight_hh"].shape[1]) for _ in NAMES[agent.core]]
    told: dict[str, list[np.ndarray]] = {}
    for x in observations.astype(np.float64):
        for name, state in zip(NAMES[agent.core], recurrent_state, strict=True):
            told.setdefault(name, []).append(state)
        hidden = x
        for layer in range(last):
            hidden = np.tanh(parameters[f"{layer}/weight"] @ hidden + parameters[f"{layer}/bias"])
        recurrent_state = core_step(parameters, hidden, recurrent_state)
        told.setdefault("logits", []).append(
            parameters[f"{last}/weight"] @ recurrent_state[0] + parameters[f"{last}/bias"]
        )
        if "value/weight" in parameters:
            told.setdefault("value", []).append(
                (parameters["value/weight"] @ recurrent_state[0] + parameters["value/bias"])[0]
            )
    for name, state in zip(NAMES[agent.core], recurrent_state, strict=True):
        told[name].append(state)
    return {name: np.stack(values) for name, values in told.items()}


def check_episodes(agent: rollserve.MlpAgent, batch: rollserve.EpisodeBatch) -> None:
    """That each episode is what the formulas make of its observations, from initial states on."""
    assert agent.core is not None
    assert (batch.first_steps == 0).all()
    for episode in batch.split():
        expected = rollout(agent, episode.observations)
        for name in NAMES[agent.core]:
            assert np.allclose(episode.agent_infos[f"state/{name}"], expected.pop(name)[:-1], rtol=0, atol=1e-5)
            assert not episode.initial_states[name].any()
        for name, column in expected.items():
            assert np.allclose(episode.agent_infos[name], column, rtol=1e-5, atol=1e-5)


def check_beginnings(batch: rollserve.EpisodeBatch) -> int:
    """That segments begin with the states of their first steps; returns how many of them go on with an episode."""
    starts = np.cumsum(batch.lengths) - batch.lengths
    goes_on = batch.first_steps > 0
    for name, column in batch.initial_states.items():
        assert column.shape == (len(batch), *batch.agent_infos[f"state/{name}"].shape[1:])
        assert np.array_equal(column, batch.agent_infos[f"state/{name}"][starts])
        assert not column[~goes_on].any()
        assert column[goes_on].any(axis=1).all()
    assert batch.initial_states
    return int(goes_on.sum())


# What they compute.


@pytest.mark.parametrize("hidden_sizes", [(), (8, 5)])
@pytest.mark.parametrize("core", CORES)
def test_formulas(sampler: rollserve.Sampler, core: str, hidden_sizes: tuple[int, ...]) -> None:
    agent, other = (
        agent_for(core, hidden_sizes=hidden_sizes, layer_norm=False, value="shared", seed=seed) for seed in range(2)
    )
    sampler.update_agent(agent)
    check_episodes(agent, sampler.obtain_samples(300, return_states=True))
    sampler.update_agent(other.parameters)
    check_episodes(other, sampler.obtain_exact_episodes(4, return_states=True))


@pytest.mark.parametrize("core", CORES)
def test_formulas_with_a_value_of_its_own(sampler: rollserve.Sampler, core: str) -> None:
    agent = agent_for(core, value="separate")
    sampler.update_agent(agent)
    batch = sampler.obtain_samples(100, return_states=True)
    check_episodes(agent, batch)
    hidden = np.tanh(batch.observations @ agent.parameters["value/0/weight"].T + agent.parameters["value/0/bias"])
    values = hidden @ agent.parameters["value/1/weight"].T + agent.parameters["value/1/bias"]
    assert np.allclose(batch.agent_infos["value"], values[:, 0], atol=1e-5)


@pytest.mark.parametrize("core", CORES)
def test_formulas_are_those_of_torch(core: str) -> None:
    """Skipped where PyTorch is not installed."""
    torch = pytest.importorskip("torch")
    agent = agent_for(core, hidden_sizes=())
    module = (torch.nn.GRU if core == "gru" else torch.nn.LSTM)(4, 6)
    module.load_state_dict(
        {
            f"{name}_l0": torch.as_tensor(agent.parameters[f"core/{name}"])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
    )
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    outputs, _ = module(torch.as_tensor(observations))
    assert np.allclose(rollout(agent, observations)["h"][1:], outputs.detach().numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("core", CORES)
def test_a_row_does_not_depend_on_its_neighbours(core: str) -> None:
    """To the last bit, for step after step."""
    spec, space, actions = spec_of(agent_for(core, core_size=24)), gym_spaces.Box(-1, 1, (4,)), gym_spaces.Discrete(2)
    observations = np.random.default_rng(0).standard_normal((6, 37, 4)).astype(np.float32)

    def act(chosen: np.ndarray) -> list[bytes]:
        agent = build_agent(spec, space, actions, len(chosen))
        states = [np.repeat(state.initial[np.newaxis], len(chosen), 0) for state in agent.states]
        made = [b""] * len(chosen)
        for step in observations:
            _, infos = agent.act([step[chosen]], np.full((len(chosen), 1), 0.5), states)
            for row in range(len(chosen)):
                made[row] += infos["logits"][row].tobytes() + b"".join(state[row].tobytes() for state in states)
        return made

    expected = act(np.arange(37))
    assert len(set(expected)) == 37
    for num_rows in (1, 2, 5, 13, 36):
        chosen = np.random.default_rng(num_rows).permutation(37)[:num_rows]
        assert act(chosen) == [expected[row] for row in chosen], num_rows


async def test_any_number_of_workers_and_rows(backend: Backend) -> None:
    batches = []
    for num_workers, num_rows in ((1, 8), (3, 1)):
        async with pool_of(backend, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([spec_of(agent_for("lstm"))])
            batches.append(await sample(pool, AtLeast(600), seed=5, columns=ALL_STATES))
    assert equal(*batches)


@pytest.mark.parametrize("core", CORES)
def test_rows_that_are_stepped_together(sampler: rollserve.Sampler, core: str) -> None:
    """Rows whose episodes end begin anew with initial states, while those beside them go on."""
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=3))
    agent = agent_for(core)
    sampler.update_agent(agent)
    check_episodes(agent, sampler.obtain_samples(400, return_states=True))
    batch = sampler.obtain_fragments(600, return_states=True)
    check_beginnings(batch)
    check_episodes(agent, batch)  # the sequence is a new one


# What comes back.


@pytest.mark.parametrize("core", CORES)
def test_segments_begin_with_what_is_remembered_where_they_are_cut(
    sampler: rollserve.Sampler, server: LocalServer, core: str
) -> None:
    sampler.update_env("sample_envs:Ends", kwargs={"length": 120})
    sampler.update_agent(agent_for(core, 2, 8))
    whole = sampler.obtain_samples(300, seed=2, return_states=True)
    with rollserve.connect(server.address, max_message_bytes=1 << 12) as small:
        parts = list(small.stream_samples(300, seed=2, return_states=True))
        assert sum(map(check_beginnings, parts)) > 5
        assert equal(rollserve.EpisodeBatch.concatenate(*parts).joined(), whole)
        parts = list(small.stream_samples(300, seed=2))
        assert len(parts) > 5
        for part in parts:
            assert set(part.agent_infos) == {"log_prob", "logits"}
            for segment in part.split():
                step = 120 * int(segment.episode_indices[0]) + int(segment.first_steps[0])
                for name, state in segment.initial_states.items():
                    assert np.array_equal(state[0], whole.agent_infos[f"state/{name}"][step])
        joined = sampler.obtain_samples(300, seed=2)
        assert not joined.initial_states["h"].any()
        assert equal(rollserve.EpisodeBatch.concatenate(*parts).joined(), joined)
        assert equal(small.obtain_samples(300, seed=2, out=rollserve.EpisodeBuffer()), joined)


def test_a_broken_stream_goes_on(sampler: rollserve.Sampler, server: LocalServer) -> None:
    """Within an episode, of which only the server knows what was remembered there."""
    sampler.update_env("sample_envs:Ends", kwargs={"length": 2000})
    sampler.update_agent(agent_for("gru", 2, 8))
    expected = sampler.obtain_samples(6000, seed=1)
    with (
        cutting_proxy(server.address, num_cuts=2, max_bytes=200_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        batch = distant.obtain_samples(6000, seed=1)
    assert batch.account is not None
    assert batch.account.num_resumptions > 0
    assert equal(batch, expected)


async def test_for_asyncio_too(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_agent(agent_for("gru"))
    async with rollserve.aconnect(server.address) as asynchronous:
        batch = await asynchronous.obtain_fragments(80, seed=1, return_states=True)
    check_beginnings(batch)
    assert equal(batch, sampler.obtain_fragments(80, seed=1, return_states=True))


def test_messages_are_no_larger_than_they_may_be(sampler: rollserve.Sampler, server: LocalServer) -> None:
    """With 4800 bytes of states, which each segment has, and each step if that is asked for."""
    sampler.update_agent(agent_for("lstm", core_size=600))
    with rollserve.connect(server.address, max_message_bytes=1 << 13) as small:
        for obtain in (small.obtain_samples, small.obtain_fragments):
            batch = obtain(80, seed=1)
            assert batch.initial_states["c"].shape == (len(batch), 600)
            field, reason = "options.max_message_bytes", rollserve.Reason.MESSAGE_TOO_SMALL
            with raises(rollserve.LimitError, field=field, reason=reason, quotes="8192", match=r"\b1\d{4}\b"):
                obtain(80, seed=1, return_states=True)


def test_workers_some_of_which_remember_nothing(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(per_worker=[agent_for("gru"), agent_for(None)])
    batch = sampler.obtain_exact_episodes(2, return_states=True)
    assert batch.initial_states["_h"].tolist() == [True, True, False, False]
    assert np.array_equal(batch.agent_infos["_state/h"], np.repeat([True, True, False, False], batch.lengths))
    sampler.update_agent(agent_for(None))
    assert not sampler.obtain_samples(10, return_states=True).initial_states


def test_a_segment_without_its_first_steps() -> None:
    states = np.arange(10, dtype=np.float32).reshape(5, 2)
    batch = rollserve.EpisodeBatch(
        observations=np.zeros((5, 1)),
        last_observations=np.zeros((2, 1)),
        actions=np.zeros(5),
        rewards=np.zeros(5),
        lengths=np.array([3, 2]),
        terminated=np.array([True, True]),
        truncated=np.array([False, False]),
        initial_states={"h": states[[0, 3]]},
    )
    later = batch.without_first_steps(2)
    assert later.initial_states["h"].tolist() == [[0, 0], [6, 7]]
    assert later.initial_states["_h"].tolist() == [False, True]
    assert batch.without_first_steps(3).initial_states.keys() == {"h"}
    assert not batch.initial_states["h"][0, 0]
    told = dataclasses.replace(batch, agent_infos={"state/h": states}).without_first_steps(2)
    assert {name: column.tolist() for name, column in told.initial_states.items()} == {"h": [[4, 5], [6, 7]]}
    first = dataclasses.replace(
        batch.split()[0], lengths=np.array([2]), terminated=np.array([False]), **cut_steps(batch, 2)
    )
    joined = rollserve.EpisodeBatch.concatenate(first, later).joined()
    assert {name: column.tolist() for name, column in joined.initial_states.items()} == {"h": [[0, 1], [6, 7]]}


def cut_steps(batch: rollserve.EpisodeBatch, num_steps: int) -> dict[str, Any]:
    return {name: getattr(batch, name)[:num_steps] for name in ("observations", "actions", "rewards")}


# What goes on from call to call.


async def test_fragments_are_slices_of_true_episodes(backend: Backend) -> None:
    async with pool_of(backend, workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent_for("gru"))])
        truth, num_going_on = Truth(pool, seed=3, columns=ALL_STATES), 0
        for batch in await in_calls(pool, [7, 1, 40, 30], seed=3, columns=ALL_STATES):
            await truth.check(batch)
            num_going_on += check_beginnings(batch)
        assert num_going_on >= 8


@pytest.mark.parametrize("soft", [{}, {"max_episode_length": 6, "soft": True}], ids=["free", "soft"])
@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_however_many_calls_make_them(env: rollserve.EnvSpec, soft: dict[str, Any]) -> None:
    """An episode that begins without a reset begins with initial states too."""
    agent, options = agent_for("lstm"), {"seed": 3, "columns": ALL_STATES, **soft}
    async with pool_of(InProcessBackend(), env, workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent)])
        (batch,) = await in_calls(pool, [80], **options)
        check_beginnings(batch)
        check_episodes(agent, batch)
        whole = await of_episodes([batch])
        batches = await in_calls(pool, [1, 29, 34, 16], **options)
        assert sum(map(check_beginnings, batches)) >= 8
        parts = await of_episodes(batches)
        assert parts.keys() == whole.keys()
        for index, episode in whole.items():
            assert equal(parts[index], episode), index


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_whoever_is_killed(ray_backend: RayBackend, env: rollserve.EnvSpec) -> None:
    calls = [5, 30, 100]
    async with pool_of(ray_backend, env, workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent_for("lstm"))])
        options = {"seed": 9, "columns": ALL_STATES}
        expected = await in_calls(pool, calls, **options)
        source, clock, num_lost = random.Random(0), 0, 0
        for num_steps, wanted in zip(calls, expected, strict=True):
            batch = await fragments(pool, 4 * num_steps, clock or None, **options)
            assert equal(batch, wanted)
            assert batch.account is not None
            assert batch.account.num_broken_off_episodes == 0
            num_lost += batch.account.num_lost_steps
            clock += num_steps
            kill_one(pool, source)
        assert num_lost > 0


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_agents_that_follow_each_other(env: rollserve.EnvSpec) -> None:
    """What one remembers the next goes on with, if it remembers the like; also where a call is repeated."""

    async def act(pool: Pool, agent: rollserve.MlpAgent | None, clock: int) -> rollserve.EpisodeBatch:
        await pool.update_agent([spec_of(agent) if agent else RandomSpec()])
        options = {"seed": 1, "columns": ALL_STATES}
        batch = await fragments(pool, 2, clock or None, **options)
        assert batch.first_steps.tolist() == [clock] * 2
        assert equal(await fragments(pool, 2, clock, **options), batch)
        return batch

    async with pool_of(InProcessBackend(), env, workers=1, rows=2) as pool:
        before = await act(pool, agent_for("lstm"), 0)
        after = await act(pool, agent_for("lstm", seed=1), 1)
        for row, observation in enumerate(before.observations):
            expected = rollout(agent_for("lstm"), observation[np.newaxis])
            for name in NAMES["lstm"]:
                assert np.allclose(after.initial_states[name][row], expected[name][-1], atol=1e-5)
                assert after.initial_states[name][row].any()
        # Other names, other shapes, and nothing in between.
        others = [agent_for("gru"), agent_for("gru", core_size=7), None, agent_for("gru", core_size=7)]
        for clock, agent in enumerate(others, 2):
            batch = await act(pool, agent, clock)
            assert set(batch.initial_states) == ({"h"} if agent else set())
            assert not any(state.any() for state in batch.initial_states.values())


# Cores that are of no use.


@pytest.mark.parametrize(
    ("name", "value", "field", "quotes"),
    [
        ("core/bias_hh", None, "", ("'core/bias_hh'",)),
        ("core/weight_ih", np.zeros((18, 4), np.float32), "['core/weight_ih'].shape", ("(18, 4)", "(18, 8)")),
        ("core/bias_ih", np.zeros(24, np.float32), "['core/bias_ih'].shape", ("(24,)", "(18,)")),
        ("1/weight", np.zeros((2, 8), np.float32), "['1/weight'].shape", ("(2, 8)", "(2, 6)")),
        ("value/weight", np.zeros((1, 8), np.float32), "['value/weight'].shape", ("(1, 8)", "(1, 6)")),
        ("core/bias_hh", np.full(18, np.nan, np.float32), "['core/bias_hh'][0]", ("nan",)),
        ("core/more", np.zeros(1, np.float32), "", ("'core/more'",)),
    ],
    ids=["missing", "weights", "biases", "layer", "value", "NaN", "unknown"],
)
def test_parameters_that_are_refused(
    sampler: rollserve.Sampler, name: str, value: Any, field: str, quotes: tuple[str, ...]
) -> None:
    agent = agent_for("gru", value="shared")
    version = sampler.update_agent(agent)
    parameters = {**agent.parameters, name: value}
    if value is None:
        del parameters[name]
    whole = dataclasses.replace(agent, parameters=parameters)
    for path, update in (("all_workers.agent.mlp.parameters", whole), ("all_workers.parameters", parameters)):
        with raises(rollserve.InvalidArgumentError, field=f"{path}{field}", quotes=quotes):
            sampler.update_agent(update)
    assert sampler.status().policy_version == version


def test_cores_that_a_client_does_not_know() -> None:
    agent = agent_for("gru", hidden_sizes=())
    assert (agent.core, agent.layer_sizes) == ("gru", (4, 2))
    for name, value, quotes in (
        ("core/weight_hh", np.zeros((12, 6), np.float32), ("'core/weight_hh'", "(12, 6)")),
        ("core/weight_hh", None, ("parameters", "'core/weight_hh'")),
        ("core/weight_ih", None, ("parameters", "'core/weight_ih'")),
    ):
        parameters = {**agent.parameters, name: value}
        if value is None:
            del parameters[name]
        with raises(ValueError, quotes=quotes):
            _ = dataclasses.replace(agent, parameters=parameters).layer_sizes
    with raises(ValueError, field="core"):
        agent_for("rnn")
    with raises(ValueError, field="core_size"):
        agent_for("gru", core_size=0)
