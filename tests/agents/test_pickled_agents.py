"""Pickled agents in Python, which servers reject by default."""

from __future__ import annotations

import os
import pickle
import posix
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import sample_agents
from pools import pool_of, sample
from support import agent_and_workers, raises, server_environment

import rollserve
from rollserve import Reason
from rollserve_server.agents import PickledFactory, PythonSource
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, Backend

pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")


class Recorded:
    """A pickle that records the process in which it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return sample_agents.recorded, (self._path,)


class Leaving:
    """A pickle that raises SystemExit when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (0,)


class Deadly:
    """A pickle that ends the process in which it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return posix._exit, (4,)  # os._exit is another function while coverage is measured


def test_pickle_is_rejected_without_being_loaded(cartpole: rollserve.Sampler, tmp_path: Path) -> None:
    cartpole.update_agent(rollserve.RandomAgent())
    before = agent_and_workers(cartpole)
    for data in (pickle.dumps(Recorded(tmp_path / "read")), pickle.dumps(Deadly()), b"no pickle", b""):
        field, reason = "all_workers.agent.pickled.data", Reason.PICKLE_NOT_ALLOWED
        with raises(rollserve.InvalidArgumentError, field=field, reason=reason, quotes="--allow-pickle") as caught:
            cartpole.update_agent(rollserve.PickledAgent(data))
        assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED
    assert agent_and_workers(cartpole) == before
    assert not (tmp_path / "read").exists()


async def test_pickle_is_loaded_in_the_sandbox_and_by_workers(ray_backend: Backend, tmp_path: Path) -> None:
    read = tmp_path / "read"
    async with pool_of(ray_backend, allow_pickle=True) as pool:
        await pool.update_agent([PythonSource(PickledFactory(pickle.dumps(Recorded(read))), {})])
        assert not (await sample(pool, AtLeast(20), seed=1)).actions.any()
        processes = {int(line) for line in read.read_text().split()}
        workers = {worker.identity.process_id for worker in pool.status().workers}
        assert len(processes) == 3
        assert processes > workers
        assert os.getpid() not in processes


@pytest.mark.slow
def test_pickled_agent_acts_on_a_server_that_allows_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    options = ("--env", "CartPole-v1", "--workers", "1", "--allow-pickle", "--max-model-bytes", "20000")
    environment = {**server_environment(), "ROLLSERVE_BACKEND": "in-process"}

    def factory(observation_space: Any, action_space: Any) -> Any:
        class Leaning:
            """An agent that pushes to the side to which the pole falls."""

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
        before = agent_and_workers(sampler)
        refused: list[tuple[bytes, str, str]] = [
            (b"no pickle", ".data", "UnpicklingError"),
            (b"", ".data", "EOFError"),
            (pickle.dumps(3), ".data", "int"),
            (pickle.dumps(len), ".data", "TypeError"),
            (pickle.dumps(Leaving()), ".data", "SystemExit: 0"),
            (pickle.dumps(Deadly()), "", "4"),
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
        assert agent_and_workers(sampler) == before
    text = log.read_text()
    assert "WARNING pickled agents are allowed" in text
    assert "Traceback" not in text


def test_client_uses_pickle_without_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    assert rollserve.PickledAgent(b"as it is").factory == b"as it is"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert rollserve.PickledAgent(sample_agents.Still).factory == pickle.dumps(sample_agents.Still)
    with raises(TypeError, field="factory"):
        rollserve.PickledAgent(3)
