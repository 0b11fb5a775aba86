"""Recurrent agents: states per row, across steps, calls, messages and lost workers."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from fragment_calls import fragments, in_calls, of_episodes
from fragment_truth import Truth
from gymnasium import spaces as gym_spaces
from mlp_agents import spec_of
from pools import CARTPOLE, kill_one, pool_of, sample
from recurrent_truth import NAMES, agent_for, check_beginnings, check_episodes, rollout
from support import equal, raises

import rollserve
from rollserve_server.agents import RandomSpec, build_agent
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend, InProcessBackend, Pool
from rollserve_server.sampling import ColumnFormat

CORES = ("gru", "lstm")
ALL_STATES = ColumnFormat(all_states=True)
NATIVE = rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=2)


# Formulas.


@pytest.mark.parametrize("hidden_sizes", [(), (8, 5)])
@pytest.mark.parametrize("core", CORES)
def test_core_equals_plain_formulas(sampler: rollserve.Sampler, core: str, hidden_sizes: tuple[int, ...]) -> None:
    agent, other = (
        agent_for(core, hidden_sizes=hidden_sizes, layer_norm=False, value="shared", seed=seed) for seed in range(2)
    )
    sampler.update_agent(agent)
    check_episodes(agent, sampler.obtain_samples(300, return_states=True))
    sampler.update_agent(other.parameters)
    check_episodes(other, sampler.obtain_exact_episodes(4, return_states=True))


@pytest.mark.parametrize("core", CORES)
def test_separate_value_does_not_use_the_core(sampler: rollserve.Sampler, core: str) -> None:
    agent = agent_for(core, value="separate")
    sampler.update_agent(agent)
    batch = sampler.obtain_samples(100, return_states=True)
    check_episodes(agent, batch)
    hidden = np.tanh(batch.observations @ agent.parameters["value/0/weight"].T + agent.parameters["value/0/bias"])
    values = hidden @ agent.parameters["value/1/weight"].T + agent.parameters["value/1/bias"]
    assert np.allclose(batch.agent_infos["value"], values[:, 0], atol=1e-5)


@pytest.mark.parametrize("core", CORES)
def test_plain_formulas_equal_torch(core: str) -> None:
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
def test_row_has_the_same_bits_beside_any_others(core: str) -> None:
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


async def test_batch_does_not_depend_on_workers_or_rows(backend: Backend) -> None:
    batches = []
    for num_workers, num_rows in ((1, 8), (3, 1)):
        async with pool_of(backend, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([spec_of(agent_for("lstm"))])
            batches.append(await sample(pool, AtLeast(600), seed=5, columns=ALL_STATES))
    assert equal(*batches)


@pytest.mark.parametrize("core", CORES)
def test_native_rows_reset_their_states_one_by_one(sampler: rollserve.Sampler, core: str) -> None:
    """Rows whose episodes end reset their states, while the others keep theirs."""
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=3))
    agent = agent_for(core)
    sampler.update_agent(agent)
    check_episodes(agent, sampler.obtain_samples(400, return_states=True))
    batch = sampler.obtain_fragments(600, return_states=True)
    check_beginnings(batch)
    check_episodes(agent, batch)  # the call starts a new sequence


# States in batches.


@pytest.mark.parametrize("core", CORES)
def test_segments_have_the_states_of_their_first_steps(
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


def test_broken_stream_is_resumed_within_an_episode(sampler: rollserve.Sampler, server: LocalServer) -> None:
    """Only the server knows the state at the step where the stream broke."""
    sampler.update_env("sample_envs:Ends", kwargs={"length": 2000})
    sampler.update_agent(agent_for("gru", 2, 8))
    expected = sampler.obtain_samples(6000, seed=1)
    with (
        cutting_proxy(server.address, num_cuts=2, max_bytes=200_000, seed=1) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
    ):
        distant.status()
        batch = distant.obtain_samples(6000, seed=1)
    assert batch.account.num_resumptions > 0
    assert equal(batch, expected)


async def test_async_client_returns_states(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.update_agent(agent_for("gru"))
    async with rollserve.aconnect(server.address) as asynchronous:
        batch = await asynchronous.obtain_fragments(80, seed=1, return_states=True)
    check_beginnings(batch)
    assert equal(batch, sampler.obtain_fragments(80, seed=1, return_states=True))


def test_states_count_towards_the_size_of_messages(sampler: rollserve.Sampler, server: LocalServer) -> None:
    """A segment has 4800 bytes of states; with `return_states`, each step has."""
    sampler.update_agent(agent_for("lstm", core_size=600))
    with rollserve.connect(server.address, max_message_bytes=1 << 13) as small:
        for obtain in (small.obtain_samples, small.obtain_fragments):
            batch = obtain(80, seed=1)
            assert batch.initial_states["c"].shape == (len(batch), 600)
            field, reason = "options.max_message_bytes", rollserve.Reason.MESSAGE_TOO_SMALL
            with raises(rollserve.LimitError, field=field, reason=reason, quotes="8192", match=r"\b1\d{4}\b"):
                obtain(80, seed=1, return_states=True)


def test_workers_may_have_agents_with_and_without_states(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(per_worker=[agent_for("gru"), agent_for(None)])
    batch = sampler.obtain_exact_episodes(2, return_states=True)
    assert batch.initial_states["_h"].tolist() == [True, True, False, False]
    assert np.array_equal(batch.agent_infos["_state/h"], np.repeat([True, True, False, False], batch.lengths))
    sampler.update_agent(agent_for(None))
    assert not sampler.obtain_samples(10, return_states=True).initial_states


def test_without_first_steps_has_gaps_in_initial_states() -> None:
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
    with_states = dataclasses.replace(batch, agent_infos={"state/h": states}).without_first_steps(2)
    assert {name: column.tolist() for name, column in with_states.initial_states.items()} == {"h": [[4, 5], [6, 7]]}
    first = dataclasses.replace(
        batch.split()[0], lengths=np.array([2]), terminated=np.array([False]), **cut_steps(batch, 2)
    )
    joined = rollserve.EpisodeBatch.concatenate(first, later).joined()
    assert {name: column.tolist() for name, column in joined.initial_states.items()} == {"h": [[0, 1], [6, 7]]}


def cut_steps(batch: rollserve.EpisodeBatch, num_steps: int) -> dict[str, Any]:
    return {name: getattr(batch, name)[:num_steps] for name in ("observations", "actions", "rewards")}


# States across calls.


async def test_fragments_are_slices_of_episodes(backend: Backend) -> None:
    async with pool_of(backend, workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent_for("gru"))])
        truth, num_going_on = Truth(pool, seed=3, columns=ALL_STATES), 0
        for batch in await in_calls(pool, [7, 1, 40, 30], seed=3, columns=ALL_STATES):
            await truth.check(batch)
            num_going_on += check_beginnings(batch)
        assert num_going_on >= 8


@pytest.mark.parametrize("soft", [{}, {"max_episode_length": 6, "soft": True}], ids=["free", "soft"])
@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_fragments_do_not_depend_on_the_calls(env: rollserve.EnvSpec, soft: dict[str, Any]) -> None:
    """An episode that begins without a reset begins with initial states, too."""
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


@pytest.mark.slow
@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_fragments_are_the_same_when_workers_are_killed(ray_backend: Backend, env: rollserve.EnvSpec) -> None:
    calls = [5, 30, 100]
    async with pool_of(ray_backend, env, workers=2, rows=2) as pool:
        await pool.update_agent([spec_of(agent_for("lstm"))])
        options = {"seed": 9, "columns": ALL_STATES}
        expected = await in_calls(pool, calls, **options)
        source, clock, num_lost = random.Random(0), 0, 0
        for num_steps, expected_batch in zip(calls, expected, strict=True):
            batch = await fragments(pool, 4 * num_steps, clock or None, **options)
            assert equal(batch, expected_batch)
            assert batch.account.num_broken_off_episodes == 0
            num_lost += batch.account.num_lost_steps
            clock += num_steps
            kill_one(pool, source)
        assert num_lost > 0


@pytest.mark.parametrize("env", [CARTPOLE, NATIVE], ids=["rows", "native"])
async def test_new_agent_continues_with_fitting_states(env: rollserve.EnvSpec) -> None:
    """States with the same names and shapes are kept, also when a call is repeated; others begin at 0."""

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
        # The next agents have states of other names and shapes, or none.
        others = [agent_for("gru"), agent_for("gru", core_size=7), None, agent_for("gru", core_size=7)]
        for clock, agent in enumerate(others, 2):
            batch = await act(pool, agent, clock)
            assert set(batch.initial_states) == ({"h"} if agent else set())
            assert not any(state.any() for state in batch.initial_states.values())


# Invalid cores.


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
def test_invalid_parameter_is_rejected(
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


def test_client_rejects_invalid_cores() -> None:
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
