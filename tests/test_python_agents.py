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
from support import equal, server_environment

import rollserve
from rollserve_server.agents import (
    Exploration,
    InstalledFactory,
    OnnxSettings,
    PickledFactory,
    PythonSettings,
    PythonSource,
    PythonSpec,
    SandboxLimits,
    build_agent,
    check_exploration,
    prepare_agent,
    with_parameters,
)
from rollserve_server.errors import AgentFailedError, DomainError, InvalidValueError
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Backend

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
    settings: PythonSettings | None = None,
    observation_space: gymnasium.Space[Any] = BOX,
    action_space: gymnasium.Space[Any] = DISCRETE,
) -> PythonSpec:
    source = PythonSource(InstalledFactory(name, kwargs or {}), parameters or {})
    settings = settings or PythonSettings()
    spec = prepare_agent(source, observation_space, action_space, OnnxSettings(), settings)
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
    return {"PYTHONPATH": str(target)}


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
        with pytest.raises(rollserve.InvalidArgumentError, match="one of 'example-held', 'example-linear' was") as info:
            one.update_agent(rollserve.PythonAgent("matrix"))
        assert (info.value.code, info.value.reason) == (grpc.StatusCode.NOT_FOUND, "AGENT_NOT_FOUND")
        assert info.value.message.startswith("all_workers.agent.python.name: 'matrix' came")
        version = one.update_agent(agent)
        assert one.status().agent_kinds == ("python",)
        batch = one.obtain_samples(300, seed=1)
        mean = batch.agent_infos["mean"]
        assert np.allclose(mean, mean_of(batch.observations, LINEAR), rtol=0, atol=1e-9)
        is_best = batch.actions == mean.argmax(axis=1)
        assert 0.6 < is_best.mean() < 1
        best = one.obtain_samples(300, seed=1, deterministic=True)
        assert np.array_equal(best.actions, best.agent_infos["mean"].argmax(axis=1))
        with pytest.raises(rollserve.InvalidArgumentError, match=r"0\.5 came, none for an agent in Python was"):
            one.obtain_samples(1, temperature=0.5)

        assert one.update_agent({"bias": np.array([1, -1], np.float32)}) == version + 1
        changed = one.obtain_samples(100, seed=1)
        parameters = {**LINEAR, "bias": np.array([1, -1])}
        assert np.allclose(changed.agent_infos["mean"], mean_of(changed.observations, parameters), rtol=0, atol=1e-9)
        assert equal(batch, one.obtain_samples(300, seed=1, policy_version=version))
        with pytest.raises(rollserve.InvalidArgumentError, match=r"all_workers\.parameters: refused by set_p"):
            one.update_agent({"bias": np.zeros(3, np.float32)})
        with pytest.raises(rollserve.InvalidArgumentError, match=r"all_workers.parameters\['bias'\]\[0\]: nan came"):
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
    monkeypatch.syspath_prepend(installed["PYTHONPATH"])
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
        assert spec.form.batching.max_rows >= 8


async def test_determinism_over_workers_rows_and_backends(backend: Backend) -> None:
    batches = []
    for num_workers, num_rows in ((1, 3), (2, 5)):
        async with pool_of(backend, num_workers=num_workers, num_rows=num_rows) as pool:
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
        with pytest.raises(rollserve.PreconditionError, match="it was made for that one, send it again") as info:
            sampler.obtain_samples(1)
        assert info.value.reason == "AGENT_MISFIT"
        with pytest.raises(rollserve.InvalidArgumentError, match="all_workers: the observation space Box"):
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
    other = prepare_agent(with_parameters(spec, {"first": np.array(8, np.int32)}), BOX, DISCRETE, OnnxSettings())
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
    with pytest.raises(InvalidValueError, match=r"epsilons: 0\.5 came, none for an agent in Python"):
        check_exploration(spec, Exploration(epsilon=(0.5,)))


# Agents that are of no use.


REFUSED = {
    "factory": ("kwargs_json", "refused by faulty: ValueError: not today"),
    "methods": ("", "faulty made a Faulty without a method act"),
    "noise": ("", "noise_width: -1 came, an integer from 0 to 65536 was expected"),
    "states": ("", r"initial_states\['names'\]: dtype <U1 came"),
    "shape": ("", r"actions: shape \(80, 1\) came, \(80,\) was expected"),
    "dtype": ("", "actions: dtype float64 came, int64 was expected"),
    "list": ("", "act gave a list, a tuple of actions, infos and states was expected"),
    "infos": ("", "infos: int came, a mapping by name was expected"),
    "texts": ("", r"infos\['name'\]: dtype <U1 came, one of numbers was expected"),
    "next states": ("", r"states: \['x'\] came, \[\] was expected"),
    "rows": ("", "the types or shapes of its infos depend on the number of rows"),
    "random": ("", "it gives other results for the same input: all chance has to come from its noise"),
    "remembers": ("", "it gives other results for the same input"),
    "raises": ("", "act raised KeyError: 'nothing'"),
    "dies": ("", "it ended the process that tried it, with status 3"),
    "hoards": ("", "act raised .*MemoryError"),
    "exit in act": ("", "act raised SystemExit: 0"),
    "stop in states": ("", "initial_states raised StopIteration: 3"),
    "panic in parameters": ("parameters", "refused by set_parameters: Panic: index out of bounds"),
    "exit in making": ("kwargs_json", "refused by faulty: SystemExit: 0"),
    "wordless in making": ("kwargs_json", r"refused by faulty: WordlessError: \(no text"),
    "huge in act": ("", "act raised RuntimeError: xxxxx"),
    "cancelled in making later": ("kwargs_json", "refused by faulty: CancelledError: elsewhere"),
    "unpicklable in making later": ("kwargs_json", "refused by faulty: UnpicklableError: locked"),
    "made in a worker": ("kwargs_json", "refused by faulty: ValueError: not in a worker"),
}


def held(sampler: rollserve.Sampler) -> tuple[Any, ...]:
    """What acts, and in which processes."""
    status = sampler.status()
    return status.policy_version, status.agent_kinds, [worker.process_id for worker in status.workers]


def test_agents_that_are_refused(cartpole: rollserve.Sampler) -> None:
    """The message names the field where one is at fault, and nothing changes."""
    cartpole.update_agent(rollserve.RandomAgent())
    before = held(cartpole)
    for fault, (field, message) in REFUSED.items():
        path = ".".join(filter(None, ["all_workers.agent.python", field]))
        with pytest.raises(rollserve.InvalidArgumentError, match=f"^{re.escape(path)}: {message}") as info:
            cartpole.update_agent(rollserve.PythonAgent("faulty", {"fault": fault}))
        assert (info.value.code, info.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "AGENT_REFUSED")
        assert held(cartpole) == before, fault
    cartpole.obtain_samples(10)


def test_names_arguments_and_parameters_that_are_refused(cartpole: rollserve.Sampler) -> None:
    cartpole.update_agent(rollserve.RandomAgent())
    before = held(cartpole)
    wrong, nan = {"wrong": np.zeros(1)}, {"a": np.array([[0, np.nan]])}
    cases: list[tuple[rollserve.PythonAgent, str, str]] = [
        (rollserve.PythonAgent("no"), "AGENT_NOT_FOUND", "name: 'no' came, one of 'broken-module', 'counting', "),
        (
            rollserve.PythonAgent("missing-module"),
            "MODULE_NOT_FOUND",
            "name: 'missing-module' is installed, but 'no_such_module:Agent' cannot be imported: ModuleNotFoundError",
        ),
        (rollserve.PythonAgent("broken-module"), "MODULE_NOT_FOUND", "RuntimeError: no licence for this machine"),
        (rollserve.PythonAgent("named"), "AGENT_REFUSED", "name: 'named' stands for 'sample_agents:NAMES', which is a"),
        (rollserve.PythonAgent("matrix", {"x": 1}), "AGENT_REFUSED", "kwargs_json: refused by matrix: TypeError"),
        (rollserve.PythonAgent("matrix", {"x": "/etc/passwd"}), "PATH_NOT_ALLOWED", "kwargs_json: '/etc/passwd' came"),
        (rollserve.PythonAgent("matrix"), "AGENT_REFUSED", "python: act raised KeyError: 'first'"),
        (rollserve.PythonAgent("faulty", {"fault": ""}, wrong), "AGENT_REFUSED", "parameters: refused by set_param"),
        (rollserve.PythonAgent("faulty", {"fault": ""}, nan), "INVALID_VALUE", "['a'][0, 1]: nan came, a finite"),
    ]
    for agent, reason, message in cases:
        with pytest.raises(rollserve.InvalidArgumentError, match=re.escape(message)) as info:
            cartpole.update_agent(agent)
        assert info.value.reason == reason
        assert info.value.message.startswith("all_workers.agent.python")
    assert held(cartpole) == before
    with pytest.raises(TypeError, match="kwargs: list came"):
        rollserve.PythonAgent("matrix", [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kwargs of matrix cannot be written as JSON"):
        cartpole.update_agent(rollserve.PythonAgent("matrix", {"x": np.zeros(1)}))


def test_arguments_are_json(server: LocalServer) -> None:
    from rollserve.v1 import agent_pb2
    from rollserve.v1 import sampler_service_pb2 as pb
    from rollserve.v1.sampler_service_pb2_grpc import SamplerServiceStub

    with grpc.insecure_channel(server.address) as channel:
        for text, message in (("[]", "'[]' came, a JSON object"), ('{"x": 1e999}', "finite"), ("{" * 99, "came")):
            python = agent_pb2.PythonAgent(name="matrix", kwargs_json=text)
            update = pb.AgentUpdate(agent=agent_pb2.Agent(python=python))
            with pytest.raises(grpc.RpcError, match=r"agent\.python\.kwargs_json") as info:
                SamplerServiceStub(channel).UpdateAgent(pb.UpdateAgentRequest(all_workers=update))
            assert info.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert message in info.value.details()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan later", r"infos\['value'\]: nan came, a number was expected"),
        ("no action later", "actions: 7 came, one in the action space was expected"),
        ("raises later", "act raised KeyError: 'nothing'"),
    ],
)
def test_agents_that_fail_later(cartpole: rollserve.Sampler, fault: str, message: str) -> None:
    """The pole falls after some steps to the left."""
    cartpole.update_agent(rollserve.PythonAgent("faulty", {"fault": fault}))
    with pytest.raises(rollserve.PreconditionError, match=message) as info:
        cartpole.obtain_exact_episodes(1, seed=1)
    assert info.value.reason == "AGENT_FAILED"
    where = re.match(r"episode (\d) \(environment seed \d+\), after (\d+) steps: ", info.value.message)
    assert where is not None
    assert int(where[2]) > 0


def test_a_trial_has_limits() -> None:
    settings = PythonSettings(sandbox=SandboxLimits(seconds=4, patience=1))
    with pytest.raises(InvalidValueError, match="it did not end its trial within 4 s"):
        prepared("faulty", {"fault": "hangs"}, settings=settings)


async def test_an_agent_that_a_worker_cannot_make(backend: Backend) -> None:
    """No worker takes it, and what is there goes on."""
    async with pool_of(backend) as pool:
        await pool.update_agent([PythonSource(InstalledFactory("matrix", {}), WEIGHTS)])
        before = await sample(pool, AtLeast(50), seed=1)
        update = PythonSource(InstalledFactory("faulty", {"fault": "made in a worker"}), {})
        with pytest.raises(InvalidValueError, match="not in a worker") as info:
            await pool.update_agent([update])
        assert (info.value.reason, info.value.field) == ("AGENT_REFUSED", "all_workers.agent.python.kwargs_json")
        with pytest.raises(InvalidValueError, match="not in a worker") as info:
            await pool.update_agent([pool._versions.agents.current[0], update], per_worker=True)  # type: ignore[index]
        assert info.value.field == "per_worker.updates[1].agent.python.kwargs_json"
        assert pool.status().policy_version == 1
        assert equal(before, await sample(pool, AtLeast(50), seed=1))


async def test_agents_raise_whatever_they_like(backend: Backend) -> None:
    """Where they act, and where workers make them; all goes on."""
    source = PythonSource(InstalledFactory("faulty", {"fault": ""}), {})
    async with pool_of(backend, num_workers=1) as pool:
        await pool.update_agent([source])
        (tried,) = pool._versions.agents.current
        assert isinstance(tried, PythonSpec)
        (before,) = pool.status().workers
        for error, text in TEXTS.items():
            factory = InstalledFactory("faulty", {"fault": f"{error} in act later"})
            await pool.update_agent([dataclasses.replace(tried, factory=factory)])
            with pytest.raises(AgentFailedError, match=re.escape(f"after 0 steps: act raised {text}")) as failed:
                await asyncio.wait_for(sample(pool, AtLeast(1)), 60)
            assert len(failed.value.text) < 1100
            factory = InstalledFactory("faulty", {"fault": f"{error} in making later"})
            with pytest.raises(InvalidValueError, match=re.escape(f"refused by faulty: {text}")) as refused:
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
        with pytest.raises(rollserve.InvalidArgumentError, match=r"--allow-pickle\): to read a pickle is") as info:
            cartpole.update_agent(rollserve.PickledAgent(data))
        assert (info.value.code, info.value.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PICKLE_NOT_ALLOWED")
        assert info.value.message.startswith("all_workers.agent.pickled.data: ")
    assert held(cartpole) == before
    assert not (tmp_path / "read").exists()


async def test_a_pickle_is_read_by_its_trial_and_the_workers(ray_backend: Backend, tmp_path: Path) -> None:
    allowed, read = PythonSettings(allow_pickle=True), tmp_path / "read"
    async with pool_of(ray_backend, python=allowed) as pool:
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
        refused: list[tuple[bytes, str]] = [
            (b"no pickle", r"pickled\.data: it cannot be read: "),
            (b"", r"pickled\.data: it cannot be read: EOFError"),
            (pickle.dumps(3), r"pickled\.data: a pickled int came, a factory was expected"),
            (pickle.dumps(len), r"pickled\.data: refused by the pickled factory: TypeError"),
            (pickle.dumps(Leaving()), r"pickled\.data: it cannot be read: SystemExit: 0"),
            (pickle.dumps(Deadly()), "pickled: it ended the process that tried it, with status 4"),
        ]
        for data, message in refused:
            with pytest.raises(rollserve.InvalidArgumentError, match=message) as info:
                sampler.update_agent(rollserve.PickledAgent(data))
            assert info.value.reason == "AGENT_REFUSED"
        with pytest.raises(rollserve.LimitError, match=r"20001 bytes came, at most 20000 \(--max-model-b") as limit:
            sampler.update_agent(rollserve.PickledAgent(b"0" * 20001))
        assert limit.value.reason == "MODEL_TOO_LARGE"
        assert held(sampler) == before
    text = log.read_text()
    assert "WARNING pickled agents are allowed: clients can run code here" in text
    assert "Traceback" not in text


def test_without_cloudpickle_the_client_uses_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    assert rollserve.PickledAgent(b"as it is").factory == b"as it is"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rollserve.PickledAgent(sample_agents.Still).factory == pickle.dumps(sample_agents.Still)
    with pytest.raises(TypeError, match="factory: int came, a callable or its pickle was expected"):
        rollserve.PickledAgent(3)


def test_errors_of_trials_come_with_their_place_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DomainError, match="not today"):
        prepared("faulty", {"fault": "factory"})
    with pytest.raises(DomainError, match="refused by faulty: RecursionError"):
        prepared("faulty", {"fault": "recursion"})
    records: list[Any] = [record for record in caplog.records if record.message == "agent failed"]
    assert len(records) == 2
    for record in records:
        assert record.agent == "faulty"
        assert "sample_agents.py" in record.trace
        assert len(record.trace) <= 8000
