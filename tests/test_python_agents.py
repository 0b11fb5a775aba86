"""Agents in Python: installed ones and pickled ones act as they say, anywhere, and do no harm when they cannot."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import gymnasium
import numpy as np
import pytest
import sample_agents
from gymnasium import spaces as gym_spaces
from odd_errors import TEXTS
from pools import pool_of, sample
from support import TESTS, equal, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import (
    Exploration,
    InstalledFactory,
    PickledFactory,
    PythonSource,
    PythonSpec,
    build_agent,
    check_exploration,
    prepare_agent,
    with_parameters,
)
from rollserve_server.errors import AgentFailedError, DomainError, InvalidValueError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Backend
from rollserve_server.settings import AgentSettings, SandboxLimits

EXAMPLE = Path(__file__).parents[1] / "examples" / "agents"
BOX, DISCRETE = gym_spaces.Box(-1, 1, (4,), np.float32), gym_spaces.Discrete(2)
WEIGHTS = {
    "first": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32),
    "second": np.random.default_rng(1).standard_normal((64, 2)).astype(np.float32),
}
LINEAR = {"weight": np.array([[0, 0, -3, -1], [0, 0, 3, 1]], np.float32), "bias": np.array([0, 0.01], np.float32)}


@pytest.fixture(autouse=True)
def _find_test_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the processes of trials find them, too."""
    monkeypatch.setenv("PYTHONPATH", server_environment()["PYTHONPATH"])


@pytest.fixture
def cartpole(server: LocalServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(server.address) as sampler:
        sampler.update_env("CartPole-v1")
        yield sampler


def prepared(
    name: str,
    kwargs: dict[str, Any] | None = None,
    parameters: dict[str, Any] | None = None,
    settings: AgentSettings | None = None,
    observation_space: gymnasium.Space[Any] = BOX,
    action_space: gymnasium.Space[Any] = DISCRETE,
) -> PythonSpec:
    source = PythonSource(InstalledFactory(name, kwargs or {}), parameters or {})
    settings = settings or AgentSettings()
    spec = prepare_agent(source, observation_space, action_space, settings)
    assert isinstance(spec, PythonSpec)
    return spec


# The example, installed as a user would.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that find the example's agents, and no others."""
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--root-user-action", "ignore"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(EXAMPLE)]
    subprocess.run(command, check=True)
    elsewhere = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != TESTS]
    return {"PYTHONPATH": os.pathsep.join([str(target), *elsewhere])}


def mean_of(observations: np.ndarray, parameters: dict[str, np.ndarray]) -> np.ndarray:
    mean: np.ndarray = observations.astype(np.float64) @ parameters["weight"].T + parameters["bias"]
    return mean


def test_the_example_on_a_server(installed: dict[str, str], tmp_path: Path) -> None:
    """Sampling, arguments, parameters, noise and errors; and the same with one worker as with two, of either kind."""
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
        with raises(rollserve.InvalidArgumentError, field="options.exploration.temperatures", quotes="Python"):
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


def test_actions_that_are_held(installed: dict[str, str], tmp_path: Path) -> None:
    """States go from step to step, and begin anew with each episode."""
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


def test_the_example_with_states(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at different steps; the states are written over with what they are afterwards."""
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


# Everywhere the same.


@pytest.mark.parametrize(("name", "parameters"), [("matrix", WEIGHTS), ("normalizing", {})])
def test_a_row_does_not_depend_on_its_neighbours(name: str, parameters: dict[str, Any]) -> None:
    """To the last bit, with later parameters too: products of matrices take eight rows, what mixes rows takes one."""
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
        assert spec.form.batching.most >= 8


async def test_determinism_over_workers_rows_and_backends(backend: Backend) -> None:
    batches = []
    for num_workers, num_rows in ((1, 3), (2, 5)):
        async with pool_of(backend, workers=num_workers, rows=num_rows) as pool:
            await pool.update_agent([PythonSource(InstalledFactory("matrix", {}), WEIGHTS)])
            batches.append(await sample(pool, AtLeast(200), seed=5))
    assert equal(*batches)


def test_all_kinds_of_observations_and_actions(server: LocalServer) -> None:
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


def test_native_rows_and_fragments(cartpole: rollserve.Sampler) -> None:
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native", num_rows=6))
    cartpole.update_agent(rollserve.PythonAgent("matrix", parameters=WEIGHTS))
    for batch in (cartpole.obtain_samples(100), cartpole.obtain_fragments(120)):
        logits = np.tanh(batch.observations @ WEIGHTS["first"]) @ WEIGHTS["second"]
        assert np.allclose(batch.agent_infos["logits"], logits, rtol=0, atol=1e-5)


# States.


def test_states_are_written_over() -> None:
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

    # What it remembers at first may be a parameter; if that has another form, it is tried again.
    updated = build_agent(with_parameters(spec, {"first": np.array(8)}), BOX, DISCRETE, 1)
    assert updated.states[0].initial == 8
    other = prepare_agent(with_parameters(spec, {"first": np.array(8, np.int32)}), BOX, DISCRETE, AgentSettings())
    assert build_agent(other, BOX, DISCRETE, 1).states[0].initial.dtype == np.int32


def test_exploration() -> None:
    spec = prepared("matrix", parameters=WEIGHTS)
    best = Exploration(deterministic=True)
    check_exploration(spec, best)
    agent = build_agent(spec, BOX, DISCRETE, 5, exploration=best)
    noise = np.zeros((5, 2))
    agent.draw_noise(np.random.default_rng(0), noise)
    assert noise.all()
    (actions,), infos = agent.act([np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)], noise)
    assert np.array_equal(actions, infos["logits"].argmax(axis=1))
    with raises(InvalidValueError, field="epsilons", quotes="Python"):
        check_exploration(spec, Exploration(epsilon=(0.5,)))


# Agents that are of no use.


REFUSED = {
    "factory": ("kwargs_json", ("faulty", "ValueError: not today")),
    "methods": ("", ("faulty", "Faulty", "act")),
    "noise": ("", ("noise_width", "-1", "65536")),
    "states": ("", ("initial_states['names']", "<U1")),
    "shape": ("", ("actions", "(80, 1)", "(80,)")),
    "dtype": ("", ("actions", "float64", "int64")),
    "list": ("", ("act", "list", "tuple")),
    "infos": ("", ("infos", "int")),
    "texts": ("", ("infos['name']", "<U1")),
    "next states": ("", ("states", "['x']", "[]")),
    "rows": ("", ("infos", "number of rows")),
    "random": ("", ("same input", "noise")),
    "remembers": ("", ("same input", "noise")),
    "raises": ("", ("act", "KeyError: 'nothing'")),
    "dies": ("", ("process", "status 3")),
    "hoards": ("", ("act", "MemoryError")),
    "exit in act": ("", ("act", "SystemExit: 0")),
    "stop in states": ("", ("initial_states", "StopIteration: 3")),
    "panic in parameters": ("parameters", ("set_parameters", "Panic: index out of bounds")),
    "exit in making": ("kwargs_json", ("faulty", "SystemExit: 0")),
    "wordless in making": ("kwargs_json", ("faulty", "WordlessError")),
    "huge in act": ("", ("act", "RuntimeError: xxxxx")),
    "cancelled in making later": ("kwargs_json", ("faulty", "CancelledError: elsewhere")),
    "unpicklable in making later": ("kwargs_json", ("faulty", "UnpicklableError: locked")),
    "made in a worker": ("kwargs_json", ("faulty", "ValueError: not in a worker")),
}
"""Faults, the field below `python` that is at fault, and what the message has to quote."""


def held(sampler: rollserve.Sampler) -> tuple[Any, ...]:
    """What acts, and in which processes."""
    status = sampler.status()
    return status.policy_version, status.agent_kinds, [worker.process_id for worker in status.workers]


def test_agents_that_are_refused(cartpole: rollserve.Sampler) -> None:
    """The message names the field where one is at fault, and nothing changes."""
    cartpole.update_agent(rollserve.RandomAgent())
    before = held(cartpole)
    for fault, (field, quotes) in REFUSED.items():
        path = ".".join(filter(None, ["all_workers.agent.python", field]))
        with raises(rollserve.InvalidArgumentError, field=path, reason=Reason.AGENT_REFUSED, quotes=quotes) as caught:
            cartpole.update_agent(rollserve.PythonAgent("faulty", {"fault": fault}))
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert held(cartpole) == before, fault
    cartpole.obtain_samples(10)


def test_names_arguments_and_parameters_that_are_refused(cartpole: rollserve.Sampler) -> None:
    cartpole.update_agent(rollserve.RandomAgent())
    before = held(cartpole)
    wrong, nan = {"wrong": np.zeros(1)}, {"a": np.array([[0, np.nan]])}
    agent = rollserve.PythonAgent
    cases: list[tuple[rollserve.PythonAgent, Reason, str, tuple[str, ...]]] = [
        (agent("no"), Reason.AGENT_NOT_FOUND, ".name", ("'no'", "'broken-module', 'counting', ")),
        (
            agent("missing-module"),
            Reason.MODULE_NOT_FOUND,
            ".name",
            ("'missing-module'", "'no_such_module:Agent'", "ModuleNotFoundError"),
        ),
        (
            agent("broken-module"),
            Reason.MODULE_NOT_FOUND,
            ".name",
            ("'broken-module'", "RuntimeError: no licence for this machine"),
        ),
        (agent("named"), Reason.AGENT_REFUSED, ".name", ("'named'", "'sample_agents:NAMES'", "tuple")),
        (agent("matrix", {"x": 1}), Reason.AGENT_REFUSED, ".kwargs_json", ("matrix", "TypeError")),
        (agent("matrix", {"x": "/etc/passwd"}), Reason.PATH_NOT_ALLOWED, ".kwargs_json", ("'/etc/passwd'",)),
        (agent("matrix"), Reason.AGENT_REFUSED, "", ("act", "KeyError: 'first'")),
        (agent("faulty", {"fault": ""}, wrong), Reason.AGENT_REFUSED, ".parameters", ("ValueError: wrong",)),
        (agent("faulty", {"fault": ""}, nan), Reason.INVALID_VALUE, ".parameters['a'][0, 1]", ("nan",)),
    ]
    for refused, reason, field, quotes in cases:
        path = f"all_workers.agent.python{field}"
        with raises(rollserve.InvalidArgumentError, field=path, reason=reason, quotes=quotes):
            cartpole.update_agent(refused)
    assert held(cartpole) == before
    with raises(TypeError, field="kwargs"):
        agent("matrix", [])  # type: ignore[arg-type]
    with raises(ValueError, quotes=("kwargs", "matrix", "JSON")):
        cartpole.update_agent(rollserve.PythonAgent("matrix", {"x": np.zeros(1)}))


def test_arguments_are_json(server: LocalServer) -> None:
    from rollserve.v1 import agent_pb2
    from rollserve.v1 import sampler_service_pb2 as pb
    from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub

    with grpc.insecure_channel(server.address) as channel:
        for text, quote in (("[]", "'[]'"), ('{"x": 1e999}', "float64"), ("{" * 99, "'{{")):
            python = agent_pb2.PythonAgent(name="matrix", kwargs_json=text)
            update = pb.AgentUpdate(agent=agent_pb2.Agent(python=python))
            field = "all_workers.agent.python.kwargs_json"
            with raises(grpc.RpcError, field=field, reason=Reason.INVALID_VALUE, quotes=quote) as caught:
                SamplerServiceStub(channel).UpdateAgent(pb.UpdateAgentRequest(all_workers=update))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("fault", "quotes"),
    [
        ("nan later", ("infos['value']", "nan")),
        ("no action later", ("actions", "7")),
        ("raises later", ("act", "KeyError: 'nothing'")),
    ],
)
def test_agents_that_fail_later(cartpole: rollserve.Sampler, fault: str, quotes: tuple[str, ...]) -> None:
    """The pole falls after some steps to the left."""
    cartpole.update_agent(rollserve.PythonAgent("faulty", {"fault": fault}))
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, quotes=quotes) as caught:
        cartpole.obtain_exact_episodes(1, seed=1)
    where = re.search(r"episode \d\b.*seed \d+\b\D*(\d+)", caught.value.message)
    assert where is not None
    assert int(where[1]) > 0  # steps


def test_a_trial_has_limits() -> None:
    settings = AgentSettings(python_sandbox=SandboxLimits(seconds=4, patience=1))
    with raises(InvalidValueError, reason=Reason.AGENT_REFUSED, quotes="4 s"):
        prepared("faulty", {"fault": "hangs"}, settings=settings)


async def test_an_agent_that_a_worker_cannot_make(backend: Backend) -> None:
    """No worker takes it, and what is there goes on."""
    async with pool_of(backend) as pool:
        await pool.update_agent([PythonSource(InstalledFactory("matrix", {}), WEIGHTS)])
        before = await sample(pool, AtLeast(50), seed=1)
        update = PythonSource(InstalledFactory("faulty", {"fault": "made in a worker"}), {})
        reason, quotes, field = Reason.AGENT_REFUSED, "ValueError: not in a worker", "agent.python.kwargs_json"
        with raises(InvalidValueError, field=f"all_workers.{field}", reason=reason, quotes=quotes):
            await pool.update_agent([update])
        with raises(InvalidValueError, field=f"per_worker.updates[1].{field}", reason=reason, quotes=quotes):
            await pool.update_agent([pool._parts.versions.agents.current[0], update], per_worker=True)  # type: ignore[index]
        assert pool.status().policy_version == 1
        assert equal(before, await sample(pool, AtLeast(50), seed=1))


async def test_agents_raise_whatever_they_like(backend: Backend) -> None:
    """Where they act, and where workers make them; all goes on."""
    source = PythonSource(InstalledFactory("faulty", {"fault": ""}), {})
    async with pool_of(backend, workers=1) as pool:
        await pool.update_agent([source])
        (tried,) = pool._parts.versions.agents.current
        assert isinstance(tried, PythonSpec)
        (before,) = pool.status().workers
        for error, text in TEXTS.items():
            factory = InstalledFactory("faulty", {"fault": f"{error} in act later"})
            await pool.update_agent([dataclasses.replace(tried, factory=factory)])
            with raises(AgentFailedError, quotes=("act", text)) as failed:
                await asyncio.wait_for(sample(pool, AtLeast(1)), 60)
            assert len(failed.value.text) < 1100
            factory = InstalledFactory("faulty", {"fault": f"{error} in making later"})
            with raises(InvalidValueError, reason=Reason.AGENT_REFUSED, quotes=("faulty", text)) as refused:
                await asyncio.wait_for(pool.update_agent([dataclasses.replace(tried, factory=factory)]), 60)
            assert len(refused.value.text) < 1100
        (after,) = pool.status().workers
        assert (after.identity, after.num_restarts, after.healthy) == (before.identity, before.num_restarts, True)
        await pool.update_agent([tried])
        await sample(pool, AtLeast(10))


# Pickles.


class Recorded:
    """When it is read, takes down where."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return sample_agents.recorded, (self._path,)


class Leaving:
    """Raises SystemExit when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (0,)


class Deadly:
    """Ends the process in which it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (4,)


def test_pickles_are_refused(cartpole: rollserve.Sampler, tmp_path: Path) -> None:
    """Unless the operator says otherwise. Nobody reads them."""
    cartpole.update_agent(rollserve.RandomAgent())
    before = held(cartpole)
    for data in (pickle.dumps(Recorded(tmp_path / "read")), pickle.dumps(Deadly()), b"no pickle", b""):
        field, reason = "all_workers.agent.pickled.data", Reason.PICKLE_NOT_ALLOWED
        with raises(rollserve.InvalidArgumentError, field=field, reason=reason, quotes="--allow-pickle") as caught:
            cartpole.update_agent(rollserve.PickledAgent(data))
        assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert held(cartpole) == before
    assert not (tmp_path / "read").exists()


async def test_a_pickle_is_read_by_its_trial_and_the_workers(ray_backend: Backend, tmp_path: Path) -> None:
    read = tmp_path / "read"
    async with pool_of(ray_backend, allow_pickle=True) as pool:
        await pool.update_agent([PythonSource(PickledFactory(pickle.dumps(Recorded(read))), {})])
        assert not (await sample(pool, AtLeast(20), seed=1)).actions.any()
        processes = {int(line) for line in read.read_text().split()}
        workers = {worker.identity.process_id for worker in pool.status().workers}
        assert len(processes) == 3
        assert processes > workers
        assert os.getpid() not in processes


def test_pickles_on_a_server_that_allows_them(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "1", "--allow-pickle", "--max-model-bytes", "20000")
    environment = {**server_environment(), "ROLLSERVE_BACKEND": "in-process"}

    def factory(observation_space: Any, action_space: Any) -> Any:
        class Leaning:
            """Pushes to the side that the pole falls to."""

            def set_parameters(self, parameters: Any) -> None:
                self.gain = float(parameters.get("gain", 1))

            def initial_states(self) -> Any:
                return {}

            def act(self, observations: Any, noise: Any, states: Any) -> Any:
                lean = self.gain * (observations[:, 2] + observations[:, 3])
                return (lean > 0).astype(int), {"lean": lean}, {}

        return Leaning()

    with (
        local_server(*options, log=log, environment=environment) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.PickledAgent(factory))
        assert sampler.status().agent_kinds == ("pickled",)
        batch = sampler.obtain_samples(500, seed=1)
        assert np.array_equal(batch.actions, batch.observations[:, 2] + batch.observations[:, 3] > 0)
        sampler.update_agent({"gain": np.float32(-1)})
        lean = sampler.obtain_samples(20, seed=1)
        assert np.array_equal(lean.actions, lean.observations[:, 2] + lean.observations[:, 3] < 0)
        before = held(sampler)
        refused: list[tuple[bytes, str, str]] = [
            (b"no pickle", ".data", "UnpicklingError"),
            (b"", ".data", "EOFError"),
            (pickle.dumps(3), ".data", "int"),
            (pickle.dumps(len), ".data", "TypeError"),
            (pickle.dumps(Leaving()), ".data", "SystemExit: 0"),
            (pickle.dumps(Deadly()), "", "status 4"),
        ]
        path = "all_workers.agent.pickled"
        for data, field, quote in refused:
            with raises(
                rollserve.InvalidArgumentError, field=f"{path}{field}", reason=Reason.AGENT_REFUSED, quotes=quote
            ):
                sampler.update_agent(rollserve.PickledAgent(data))
        quotes = ("20001", "20000", "--max-model-bytes")
        with raises(rollserve.LimitError, field=f"{path}.data", reason=Reason.MODEL_TOO_LARGE, quotes=quotes):
            sampler.update_agent(rollserve.PickledAgent(b"0" * 20001))
        assert held(sampler) == before
    text = log.read_text()
    assert "WARNING pickled agents are allowed" in text
    assert "Traceback" not in text


def test_without_cloudpickle_the_client_uses_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    assert rollserve.PickledAgent(b"as it is").factory == b"as it is"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rollserve.PickledAgent(sample_agents.Still).factory == pickle.dumps(sample_agents.Still)
    with raises(TypeError, field="factory"):
        rollserve.PickledAgent(3)


def test_errors_of_trials_come_with_their_place_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with raises(DomainError, quotes="not today"):
        prepared("faulty", {"fault": "factory"})
    with raises(DomainError, quotes=("faulty", "RecursionError")):
        prepared("faulty", {"fault": "recursion"})
    records: list[Any] = [record for record in caplog.records if record.message == "agent failed"]
    assert len(records) == 2
    for record in records:
        assert record.agent == "faulty"
        assert "sample_agents.py" in record.trace
        assert len(record.trace) <= 8000
