"""Changes of a Python agent's settings, which keep its code and its other parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sample_agents import Still
from support import raises, server_environment

import rollserve
from rollserve import AgentChange, PythonAgent, Reason
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb

ONES, TWOS = {"scale": np.ones(3)}, {"scale": np.full(3, 2.0)}


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with two workers that allows pickles."""
    log: Path = tmp_path_factory.mktemp("changes") / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "2", "--backend", "in-process", "--allow-pickle")
    with local_server(*options, log=log, environment=server_environment()) as server:
        yield server


@pytest.fixture
def pair(two_workers: LocalServer) -> Iterator[rollserve.Sampler]:
    """The server's sampler, as it was at its start."""
    two_workers.reset()
    with rollserve.connect(two_workers.address) as sampler:
        yield sampler


def seen(sampler: rollserve.Sampler) -> tuple[list[int], tuple[int, ...], list[float]]:
    """Return each worker's action, the shape of the info, and each worker's sum."""
    batch = sampler.obtain_exact_episodes(1, seed=1)
    first = np.cumsum(batch.lengths) - batch.lengths
    sums = batch.agent_infos["sum"]
    return batch.actions[first].tolist(), sums.shape[1:], sums[first, 0].tolist()


def test_change_keeps_other_settings_and_parameters(pair: rollserve.Sampler) -> None:
    version = pair.update_agent(PythonAgent("tunable", {"action": 1}, ONES))
    assert pair.update_agent(AgentChange({"width": 2})) == version + 1
    assert seen(pair) == ([1, 1], (2,), [3, 3])
    pair.update_agent(AgentChange({"action": 0, "width": 1}, TWOS))
    assert seen(pair) == ([0, 0], (1,), [6, 6])
    assert pair.obtain_samples(1, policy_version=version).actions[0] == 1
    assert pair.status().agent_kinds == ("python",)
    # As if the whole agent had been sent.
    same = PythonAgent("tunable", {"action": 0, "width": 1}, TWOS)
    assert pair.update_agent(same, skip_if_identical=True) == version + 2


def test_change_can_change_shapes_of_parameters(pair: rollserve.Sampler) -> None:
    pair.update_agent(PythonAgent("tunable", {}, ONES))
    pair.update_agent(AgentChange(parameters={"scale": np.ones((2, 4))}))
    assert seen(pair) == ([0, 0], (1,), [8, 8])


def test_worker_can_be_changed_alone(pair: rollserve.Sampler) -> None:
    pair.update_agent(PythonAgent("tunable", {}, ONES))
    pair.update_agent(per_worker=[None, AgentChange({"action": 1})])
    assert seen(pair) == ([0, 1], (1,), [3, 3])
    # A change of all workers goes into the agent of each.
    pair.update_agent(AgentChange(parameters=TWOS))
    assert seen(pair) == ([0, 1], (1,), [6, 6])


def test_call_can_bring_a_change(pair: rollserve.Sampler) -> None:
    version = pair.update_agent(PythonAgent("tunable", {}, ONES))
    batch = pair.obtain_samples(1, agent=AgentChange({"action": 1}))
    assert batch.actions[0] == 1
    assert batch.policy_versions[0] == version + 1


def test_identical_change_is_skipped_on_request(pair: rollserve.Sampler) -> None:
    version = pair.update_agent(PythonAgent("tunable", {"action": 1}, ONES))
    assert pair.update_agent(AgentChange({"action": 1}), skip_if_identical=True) == version
    assert pair.update_agent(AgentChange({"action": 0}), skip_if_identical=True) == version + 1


async def test_asynchronous_client_sends_a_change(pair: rollserve.Sampler, two_workers: LocalServer) -> None:
    async with rollserve.aconnect(two_workers.address) as sampler:
        await sampler.update_agent(PythonAgent("tunable", {}, ONES))
        await sampler.update_agent(AgentChange({"action": 1}))
    assert seen(pair) == ([1, 1], (1,), [3, 3])


def test_changed_agent_is_probed_again(pair: rollserve.Sampler) -> None:
    version = pair.update_agent(PythonAgent("tunable", {}, ONES))
    error = rollserve.InvalidArgumentError
    with raises(error, field="all_workers.change.kwargs_json", reason=Reason.AGENT_REFUSED, quotes="a width of at"):
        pair.update_agent(AgentChange({"width": 0}))
    with raises(error, field="per_worker.updates[1].change.kwargs_json", reason=Reason.AGENT_REFUSED, quotes="colour"):
        pair.update_agent(per_worker=[None, AgentChange({"colour": 1})])
    with raises(error, field="all_workers.change.parameters['scale'][0]", quotes="nan"):
        pair.update_agent(AgentChange(parameters={"scale": np.full(1, np.nan)}))
    assert pair.status().policy_version == version
    assert seen(pair) == ([0, 0], (1,), [3, 3])


@pytest.mark.parametrize(
    ("agent", "kind"),
    [(rollserve.RandomAgent(), "random"), (rollserve.PickledAgent(Still), "pickled")],
    ids=["random", "pickled"],
)
def test_agent_without_settings_is_not_changed(pair: rollserve.Sampler, agent: rollserve.Agent, kind: str) -> None:
    version = pair.update_agent(agent)
    with raises(rollserve.InvalidArgumentError, field="all_workers.change", quotes=("python", kind)):
        pair.update_agent(AgentChange({"action": 1}))
    assert pair.status().policy_version == version


def test_change_needs_an_agent(pair: rollserve.Sampler) -> None:
    with raises(rollserve.PreconditionError, field="all_workers", reason=Reason.NO_AGENT, quotes="a change"):
        pair.update_agent(AgentChange({"action": 1}))


def test_change_of_another_clients_agent_is_refused(pair: rollserve.Sampler, two_workers: LocalServer) -> None:
    pair.update_agent(PythonAgent("tunable", {}, ONES))
    with rollserve.connect(two_workers.address) as other:
        other.update_agent(PythonAgent("tunable", {"action": 1}, ONES))
    with raises(rollserve.PreconditionError, reason=Reason.UNEXPECTED_VERSION):
        pair.update_agent(AgentChange({"width": 2}))


@pytest.mark.parametrize(
    ("text", "reason"), [("{", Reason.INVALID_VALUE), ('{"path": "/etc/passwd"}', Reason.PATH_NOT_ALLOWED)]
)
def test_malformed_or_forbidden_settings_are_refused(pair: rollserve.Sampler, text: str, reason: Reason) -> None:
    pair.update_agent(PythonAgent("tunable", {}, ONES))
    request = pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(change=pb.AgentChange(kwargs_json=text)))
    with raises(rollserve.RollserveError, reason=reason, match="change.kwargs_json"):
        pair._call(pair._stub.UpdateAgent, request, None)
