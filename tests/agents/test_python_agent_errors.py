"""Agents in Python that are rejected by the sandbox, or fail in a call."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from typing import Any

import grpc
import numpy as np
import pytest
from odd_errors import TEXTS
from pools import pool_of, sample
from python_agents import WEIGHTS, prepared, prepared_for_cartpole
from support import agent_and_workers, equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.agents import InstalledFactory, PythonSource
from rollserve_server.errors import AgentFailedError, DomainError, InvalidValueError
from rollserve_server.local import LocalServer
from rollserve_server.pool import AtLeast, Backend
from rollserve_server.settings import AgentSettings, SandboxLimits

pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")


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
    "rows": ("", ("infos", "rows")),
    "random": ("", ("noise",)),
    "remembers": ("", ("noise",)),
    "raises": ("", ("act", "KeyError: 'nothing'")),
    "dies": ("", ("process", "3")),
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

TYPICAL = {"factory", "shape", "random", "raises", "dies", "exit in making"}
"""A fault of each kind. Each agent is tried in a process of its own, which takes seconds."""


@pytest.mark.parametrize("faults", [TYPICAL, pytest.param(REFUSED.keys() - TYPICAL, marks=pytest.mark.slow)])
def test_faulty_agent_is_rejected(cartpole: rollserve.Sampler, faults: set[str]) -> None:
    cartpole.update_agent(rollserve.RandomAgent())
    before = agent_and_workers(cartpole)
    for fault in sorted(faults):
        field, quotes = REFUSED[fault]
        path = ".".join(filter(None, ["all_workers.agent.python", field]))
        with raises(rollserve.InvalidArgumentError, field=path, reason=Reason.AGENT_REFUSED, quotes=quotes) as caught:
            cartpole.update_agent(rollserve.PythonAgent("faulty", {"fault": fault}))
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert agent_and_workers(cartpole) == before, fault
    cartpole.obtain_samples(10)


def test_invalid_names_arguments_and_parameters_are_rejected(cartpole: rollserve.Sampler) -> None:
    cartpole.update_agent(rollserve.RandomAgent())
    before = agent_and_workers(cartpole)
    wrong, nan = {"wrong": np.zeros(1)}, {"a": np.array([[0, np.nan]])}
    agent = rollserve.PythonAgent
    cases: list[tuple[rollserve.PythonAgent, Reason, str, tuple[str, ...]]] = [
        (agent("no"), Reason.AGENT_NOT_FOUND, ".name", ("'no'", "'broken-module', ", ", 'counting', ")),
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
    assert agent_and_workers(cartpole) == before
    with raises(TypeError, field="kwargs"):
        agent("matrix", [])  # type: ignore[arg-type]
    with raises(ValueError, quotes=("kwargs", "JSON")):
        cartpole.update_agent(rollserve.PythonAgent("matrix", {"x": np.zeros(1)}))


def test_arguments_that_are_no_json_are_rejected(server: LocalServer) -> None:
    from rollserve_wire.v1 import agent_pb2
    from rollserve_wire.v1 import sampler_service_pb2 as pb
    from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

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
def test_failing_agent_fails_the_call_with_its_position(
    cartpole: rollserve.Sampler, fault: str, quotes: tuple[str, ...]
) -> None:
    """CartPole's pole leans far enough after some steps."""
    # With several rows, the agent would also see the last observations of idle rows, and raise at once.
    cartpole.update_env(rollserve.EnvSpec("CartPole-v1", num_rows=1))
    cartpole.update_agent(rollserve.PythonAgent("faulty", {"fault": fault}))
    with raises(rollserve.PreconditionError, reason=Reason.AGENT_FAILED, quotes=quotes) as caught:
        cartpole.obtain_exact_episodes(1, seed=1)
    where = re.search(r"episode \d\b.*seed \d+\b\D*(\d+)", caught.value.message)
    assert where is not None
    assert int(where[1]) > 0  # steps


def test_sandbox_limits_time() -> None:
    settings = AgentSettings(python_sandbox=SandboxLimits(seconds=4, patience=1))
    with raises(InvalidValueError, reason=Reason.AGENT_REFUSED, quotes="4 s"):
        prepared("faulty", {"fault": "hangs"}, settings=settings)


async def test_agent_that_a_worker_cannot_make_is_rejected(backend: Backend) -> None:
    """The workers keep their agent."""
    spec = prepared_for_cartpole("matrix", parameters=WEIGHTS)
    async with pool_of(backend) as pool:
        await pool.update_agent([spec])
        before = await sample(pool, AtLeast(50), seed=1)
        update = PythonSource(InstalledFactory("faulty", {"fault": "made in a worker"}), {})
        reason, quotes, field = Reason.AGENT_REFUSED, "ValueError: not in a worker", "agent.python.kwargs_json"
        with raises(InvalidValueError, field=f"all_workers.{field}", reason=reason, quotes=quotes):
            await pool.update_agent([update])
        with raises(InvalidValueError, field=f"per_worker.updates[1].{field}", reason=reason, quotes=quotes):
            await pool.update_agent([spec, update], per_worker=True)
        assert pool.status().policy_version == 1
        assert equal(before, await sample(pool, AtLeast(50), seed=1))


async def test_worker_survives_any_error_of_an_agent(backend: Backend) -> None:
    """Agents raise in `act`, or when workers make them."""
    spec = prepared_for_cartpole("faulty", {"fault": ""})
    async with pool_of(backend, workers=1) as pool:
        await pool.update_agent([spec])
        (before,) = pool.status().workers
        for error, text in TEXTS.items():
            factory = InstalledFactory("faulty", {"fault": f"{error} in act later"})
            await pool.update_agent([dataclasses.replace(spec, factory=factory)])
            with raises(AgentFailedError, quotes=("act", text)) as failed:
                await asyncio.wait_for(sample(pool, AtLeast(1)), 60)
            assert len(failed.value.text) < 1100
            factory = InstalledFactory("faulty", {"fault": f"{error} in making later"})
            with raises(InvalidValueError, reason=Reason.AGENT_REFUSED, quotes=("faulty", text)) as refused:
                await asyncio.wait_for(pool.update_agent([dataclasses.replace(spec, factory=factory)]), 60)
            assert len(refused.value.text) < 1100
        (after,) = pool.status().workers
        assert (after.identity, after.num_restarts, after.healthy) == (before.identity, before.num_restarts, True)
        await pool.update_agent([spec])
        await sample(pool, AtLeast(10))


def test_sandbox_errors_are_logged_with_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
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
