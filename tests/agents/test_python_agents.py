"""Agents in Python, installed and pickled: outputs, states, reproducibility, and agents that are rejected or fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from pools import pool_of, sample
from python_agents import BOX, DISCRETE, WEIGHTS, prepared
from support import HELPERS, equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import (
    Exploration,
    InstalledFactory,
    PythonSource,
    PythonSpec,
    build_agent,
    check_exploration,
    prepare_agent,
    with_parameters,
)
from rollserve_server.errors import InvalidValueError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Backend
from rollserve_server.settings import AgentSettings

EXAMPLE = Path(__file__).parents[2] / "examples" / "agents"
LINEAR = {"weight": np.array([[0, 0, -3, -1], [0, 0, 3, 1]], np.float32), "bias": np.array([0, 0.01], np.float32)}


pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")


# The example, installed with pip.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of processes that find the example's agents and none of the tests'."""
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--root-user-action", "ignore"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(EXAMPLE)]
    subprocess.run(command, check=True)
    elsewhere = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != HELPERS]
    return {"PYTHONPATH": os.pathsep.join([str(target), *elsewhere])}


def mean_of(observations: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    mean: np.ndarray = observations.astype(np.float64) @ parameters["weight"].T + parameters["bias"]
    return mean


@pytest.mark.slow
def test_example_agent_acts_on_a_server(installed: dict[str, str], tmp_path: Path) -> None:
    """Arguments, parameters, noise and errors work, and both backends give the same batch."""
    agent = rollserve.PythonAgent("example-linear", {"noise_scale": 0.5}, LINEAR)
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--workers")
    log = tmp_path / "server.log"
    with (
        local_server(*options, "2", log=log, environment=installed) as server,
        rollserve.connect(server.address) as one,
    ):
        field, quotes = "all_workers.agent.python.name", ("'matrix'", "'example-held', 'example-linear'")
        with raises(
            rollserve.InvalidArgumentError, field=field, reason=Reason.AGENT_NOT_FOUND, quotes=quotes
        ) as caught:
            one.update_agent(rollserve.PythonAgent("matrix"))
        assert caught.value.code is grpc.StatusCode.NOT_FOUND
        version = one.update_agent(agent)
        assert one.status().agent_kinds == ("python",)
        batch = one.obtain_samples(300, seed=1)
        mean = batch.agent_infos["mean"]
        assert np.allclose(mean, mean_of(batch.observations, LINEAR), rtol=0, atol=1e-9)
        is_best = batch.actions == mean.argmax(axis=1)
        assert 0.6 < is_best.mean() < 1
        best = one.obtain_samples(300, seed=1, deterministic=True)
        assert np.array_equal(best.actions, best.agent_infos["mean"].argmax(axis=1))
        with raises(rollserve.InvalidArgumentError, field="options.exploration.temperatures", match=r"(?i)python"):
            one.obtain_samples(1, temperature=0.5)

        assert one.update_agent({"bias": np.array([1, -1], np.float32)}) == version + 1
        changed = one.obtain_samples(100, seed=1)
        parameters = {**LINEAR, "bias": np.array([1, -1])}
        assert np.allclose(changed.agent_infos["mean"], mean_of(changed.observations, parameters), rtol=0, atol=1e-9)
        assert equal(batch, one.obtain_samples(300, seed=1, policy_version=version))
        with raises(rollserve.InvalidArgumentError, field="all_workers.parameters", reason=Reason.AGENT_REFUSED):
            one.update_agent({"bias": np.zeros(3, np.float32)})
        with raises(rollserve.InvalidArgumentError, field="all_workers.parameters['bias'][0]", quotes="nan"):
            one.update_agent({"bias": np.full(2, np.nan, np.float32)})
        per_worker = [{"bias": np.full(2, worker, np.float32)} for worker in range(2)]
        one.update_agent(per_worker=per_worker)
        for worker, episode in enumerate(one.obtain_exact_episodes(1).split()):
            expected = mean_of(episode.observations, {**LINEAR, **per_worker[worker]})
            assert np.allclose(episode.agent_infos["mean"], expected, rtol=0, atol=1e-9)
        assert one.status().policy_version == version + 2
    assert "Traceback" not in log.read_text()
    options = (*options, "1", "--rows", "3", "--backend", "in-process")
    with local_server(*options, log=log, environment=installed) as server, rollserve.connect(server.address) as other:
        other.update_agent(agent)
        assert equal(batch, other.obtain_samples(300, seed=1))


@pytest.mark.slow
def test_example_agent_holds_its_actions(installed: dict[str, str], tmp_path: Path) -> None:
    """States go from step to step, and are reset with each episode."""
    options = ("--env", "CartPole-v1", "--workers", "1", "--backend", "in-process", "--vectorization")
    for kind in ("rows", "native"):
        log = tmp_path / f"{kind}.log"
        with (
            local_server(*options, kind, log=log, environment=installed) as server,
            rollserve.connect(server.address) as sampler,
        ):
            sampler.update_agent(rollserve.PythonAgent("example-held", {"num_steps": 3}, LINEAR))
            for episode in sampler.obtain_samples(200, seed=1).split():
                steps = np.arange(episode.num_steps)
                assert np.array_equal(episode.agent_infos["is_new"], steps % 3 == 0)
                assert np.array_equal(episode.actions, episode.actions[steps - steps % 3])


def test_example_agent_updates_states_in_place(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are at different steps."""
    monkeypatch.setenv("PYTHONPATH", installed["PYTHONPATH"])
    monkeypatch.syspath_prepend(installed["PYTHONPATH"].partition(os.pathsep)[0])
    space = gym_spaces.Box(-1, 1, (2,), np.float32)
    parameters = {"weight": np.ones((2, 4)), "bias": np.zeros(2)}
    spec = prepared("example-held", {"num_steps": 3, "noise_scale": 0}, parameters, action_space=space)
    agent = build_agent(spec, BOX, space, 3)
    assert [state.name for state in agent.states] == ["action", "steps_left"]
    states = [np.repeat(state.initial[np.newaxis], 3, axis=0) for state in agent.states]
    states[1][:] = [0, 1, 2]
    states[0][:] = 0.25
    (actions,), infos = agent.act([np.full((3, 4), 0.1, np.float32)], np.zeros((3, 2)), states)
    assert np.allclose(actions, [[0.4, 0.4], [0.25, 0.25], [0.25, 0.25]])
    assert infos["is_new"].tolist() == [True, False, False]
    assert states[1].tolist() == [2, 0, 1]
    assert np.array_equal(states[0], actions)


# Reproducibility.


@pytest.mark.parametrize(("name", "parameters"), [("matrix", WEIGHTS), ("normalizing", {})])
def test_row_has_the_same_bits_beside_any_others(name: str, parameters: dict[str, Any]) -> None:
    """Matrix products are batched by at least 8 rows, agents that mix rows by 1, also with later parameters."""
    spec = prepared(name, parameters={each: np.zeros_like(value) for each, value in parameters.items()})
    spec = with_parameters(spec, parameters)
    assert isinstance(spec, PythonSpec)
    source = np.random.default_rng(0)
    observations, noise = source.uniform(-1, 1, (150, 4)).astype(np.float32), source.standard_normal((150, 2))

    def act(chosen: np.ndarray) -> list[bytes]:
        agent = build_agent(spec, BOX, DISCRETE, len(chosen))
        (actions,), infos = agent.act([observations[chosen]], noise[chosen][:, : agent.noise_width])
        assert not agent.failures()
        return [b"".join(column[row].tobytes() for column in (actions, *infos.values())) for row in range(len(chosen))]

    expected = act(np.arange(150))
    for num_rows in (1, 2, 7, 8, 13, 64, 65):
        chosen = np.random.default_rng(num_rows).permutation(150)[:num_rows]
        assert act(chosen) == [expected[row] for row in chosen], num_rows
    if name == "normalizing":
        assert spec.form.batching == (1, 1)
        together = build_agent(spec, BOX, DISCRETE, 150, together=True)
        _, infos = together.act([observations], noise[:, :0])
        assert np.allclose(infos["normalized"], observations - observations.mean(axis=0), atol=1e-6)
    else:
        assert spec.form.batching.max_rows >= 8


async def test_batch_does_not_depend_on_workers_or_rows(backend: Backend) -> None:
    batches = []
    for num_workers, num_rows in ((1, 3), (2, 5)):
        async with pool_of(backend, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([PythonSource(InstalledFactory("matrix", {}), WEIGHTS)])
            batches.append(await sample(pool, AtLeast(200), seed=5))
    assert equal(*batches)


def test_agent_acts_in_nested_spaces(server: LocalServer) -> None:
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("sample_envs:Nested")
        sampler.update_agent(rollserve.PythonAgent("nested"))
        batch = sampler.obtain_samples(40, seed=3)
        observations, actions, infos = batch.observations, batch.actions, batch.agent_infos
        assert np.array_equal(actions["turn"], (observations["pose/1"] - 1) % 3)
        assert len(np.unique(actions["push"])) == actions["push"].size
        assert np.allclose(infos["brightness"], observations["image"].mean(axis=(1, 2)))
        assert np.array_equal(infos["is_bright"], infos["brightness"] > 127)
        assert (infos["is_bright"].dtype, infos["brightness"].dtype) == (np.bool_, np.float64)
        best = sampler.obtain_samples(40, seed=3, deterministic=True)
        assert not best.actions["push"].any()
        sampler.update_env("CartPole-v1")
        with raises(rollserve.PreconditionError, reason=Reason.AGENT_MISFIT, quotes=("python", "Box(")):
            sampler.obtain_samples(1)
        with raises(rollserve.InvalidArgumentError, field="all_workers", quotes="Box("):
            sampler.update_agent({"x": np.zeros(1)})


def test_agent_acts_in_native_rows_and_fragments(cartpole: rollserve.Sampler) -> None:
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=6))
    cartpole.update_agent(rollserve.PythonAgent("matrix", parameters=WEIGHTS))
    for batch in (cartpole.obtain_samples(100), cartpole.obtain_fragments(120)):
        logits = np.tanh(batch.observations @ WEIGHTS["first"]) @ WEIGHTS["second"]
        assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


# States.


def test_act_updates_states_in_place() -> None:
    spec = prepared("counting", parameters={"first": np.array(5)})
    agent = build_agent(spec, BOX, DISCRETE, 70)
    assert [(state.name, state.initial.shape) for state in agent.states] == [("count", ()), ("sums", (2, 3))]
    states = [np.repeat(state.initial[np.newaxis], 70, axis=0) for state in agent.states]
    states[0][:] += np.arange(70)
    held = list(states)
    observations = np.linspace(-1, 1, 280, dtype=np.float32).reshape(70, 4)
    for step in range(1, 3):
        (actions,), infos = agent.act([observations], np.zeros((70, 0)), states)
        assert np.array_equal(infos["count"], 5 + np.arange(70) + step)
        assert np.array_equal(actions, infos["count"] % 2)
    assert all(column is before for column, before in zip(states, held, strict=True))
    assert np.array_equal(states[0], 7 + np.arange(70))
    assert np.allclose(states[1], 2 * observations[:, :1, np.newaxis] * np.ones((2, 3)))

    # The initial state may be a parameter; if its type changes, the agent is probed again.
    updated = build_agent(with_parameters(spec, {"first": np.array(8)}), BOX, DISCRETE, 1)
    assert updated.states[0].initial == 8
    other = prepare_agent(with_parameters(spec, {"first": np.array(8, np.int32)}), BOX, DISCRETE, AgentSettings())
    assert build_agent(other, BOX, DISCRETE, 1).states[0].initial.dtype == np.int32


def test_deterministic_agent_gets_no_noise() -> None:
    spec = prepared("matrix", parameters=WEIGHTS)
    best = Exploration(deterministic=True)
    check_exploration(spec, best)
    agent = build_agent(spec, BOX, DISCRETE, 5, exploration=best)
    noise = np.zeros((5, 2))
    agent.draw_noise(np.random.default_rng(0), noise)
    assert noise.all()
    (actions,), infos = agent.act([np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)], noise)
    assert np.array_equal(actions, infos["logits"].argmax(axis=1))
    with raises(InvalidValueError, field="epsilons", match=r"(?i)python"):
        check_exploration(spec, Exploration(epsilon=(0.5,)))
