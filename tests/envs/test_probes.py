"""Environments that UpdateEnv refuses, because a probe has shown that no call could step them."""

from __future__ import annotations

import asyncio
import pickle
import struct
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from charges import lay
from native_envs import ALLOWED
from pools import evaluate, pool_of, sample, until
from support import equal, raises, server_environment

import rollserve
from rollserve import EnvChange, EnvSpec, Reason, Wrapper
from rollserve_server.activity import Phase
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import FaultError, InvalidValueError
from rollserve_server.local import local_server
from rollserve_server.pool import AtLeast, Backend, InProcessBackend, RowUpdates

FIELD = "all_workers.environment"
UNFIT = {
    "resets without a seed": (EnvSpec("sample_envs:OldStyle"), ("TypeError", "'seed'")),
    "a text as the function of a wrapper": (
        EnvSpec("CartPole-v1", wrappers=[Wrapper("TransformReward", {"func": "lambda reward: 0"})]),
        ("TypeError", "'str' object is not callable"),
    ),
    "wider floats in a reset": (
        EnvSpec("sample_envs:Misfit", {"at": "reset", "dtype": "float64"}),
        ("reset", "float32", "float64"),
    ),
    "wider floats in a step": (
        EnvSpec("sample_envs:Misfit", {"at": "step", "dtype": "float64"}),
        ("step", "float32", "float64"),
    ),
    "another shape in a step": (EnvSpec("sample_envs:Misfit", {"at": "step", "size": 3}), ("(3,)", "(2,)")),
    "complex numbers": (EnvSpec("sample_envs:Misfit", {"at": "reset", "dtype": "complex64"}), ("complex64",)),
    "a process that ends": (EnvSpec("sample_envs:Crashing"), ("sample_envs:Crashing", "process", "step")),
    "wider floats of native code": (
        EnvSpec("sample_envs:WideRows-v0", vectorization="native", num_rows=3),
        ("'made'", "float32", "float64"),
    ),
}


@pytest.mark.parametrize(("spec", "quotes"), UNFIT.values(), ids=UNFIT)
async def test_update_refuses_what_no_call_can_step(spec: EnvSpec, quotes: tuple[str, ...]) -> None:
    async with pool_of(InProcessBackend(), **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        before = await sample(pool, AtLeast(20), seed=1)
        with raises(InvalidValueError, field=FIELD, reason=Reason.ENV_REFUSED, quotes=(spec.id, *quotes)):
            await pool.update_env([spec])
        with raises(InvalidValueError, field="options.environment", reason=Reason.ENV_REFUSED, quotes=quotes):
            await evaluate(pool, 1, env=spec)
        assert pool.status().env_version == 1
        assert equal(await sample(pool, AtLeast(20), seed=1), before)


SCRIBBLES = {
    "a truncated message": struct.pack("!i", 1000) + b"abcd",
    "a message of a size that none has": struct.pack("!iQ", -1, 1 << 60),
    "a message that is no pickle": struct.pack("!i", 4) + b"abcd",
    "an error": struct.pack("!i", len(pickle.dumps(OSError("by design")))) + pickle.dumps(OSError("by design")),
    "an end without a result": struct.pack("!i", len(pickle.dumps(Phase.IDLE))) + pickle.dumps(Phase.IDLE),
}


@pytest.mark.parametrize("scribble", SCRIBBLES.values(), ids=SCRIBBLES)
async def test_update_ends_when_an_environment_writes_to_the_connection_of_its_probe(scribble: bytes) -> None:
    async with pool_of(InProcessBackend(), **ALLOWED, step_seconds=1.0, reset_seconds=4.0) as pool:
        async with asyncio.timeout(30):
            with pytest.raises((InvalidValueError, FaultError)):
                await pool.update_env([EnvSpec("sample_envs:Scribbling", {"what": scribble.hex()})])
        assert [worker.num_restarts for worker in pool.status().workers] == [0, 0]


@pytest.mark.parametrize("at", ["reset", "step"])
async def test_update_refuses_an_environment_that_hangs(tmp_path: Path, at: str) -> None:
    limits = {"step_seconds": 1.0, "reset_seconds": 4.0}  # which the start of a process has, too
    async with pool_of(InProcessBackend(), **ALLOWED, **limits) as pool:
        hanging = EnvSpec("sample_envs:Hanging", {"folder": str(tmp_path)})
        lay(tmp_path, f"probed {at}")
        quotes = ("sample_envs:Hanging", at, f"{limits[f'{at}_seconds']:g} s")
        with raises(InvalidValueError, field=FIELD, reason=Reason.ENV_REFUSED, quotes=quotes):
            await pool.update_env([hanging])
        assert [worker.num_restarts for worker in pool.status().workers] == [0, 0]
        assert (await pool.update_env([hanging])).version == 2  # the charge has gone off


async def test_calls_and_updates_of_the_agent_go_on_while_an_environment_hangs_in_its_probe(
    backend: Backend, tmp_path: Path
) -> None:
    async with pool_of(backend, workers=1, **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        lay(tmp_path, "probed reset")
        hanging = EnvSpec("sample_envs:Hanging", {"folder": str(tmp_path)})
        update = asyncio.create_task(pool.update_env([hanging]))
        async with asyncio.timeout(60):
            process = await hung_process(tmp_path)
            assert (await pool.update_agent([RandomSpec()])).version == 2
            assert (await sample(pool, AtLeast(20))).num_steps >= 20
            # Nobody waits for the probe any more once the client has left.
            update.cancel()
            await until(lambda: not process.is_running())
            assert (await pool.update_env([hanging])).version == 2
        assert [worker.num_restarts for worker in pool.status().workers] == [0]


async def test_calls_go_on_while_the_environment_of_an_evaluation_hangs_in_its_probe(tmp_path: Path) -> None:
    async with pool_of(InProcessBackend(), workers=1, **ALLOWED) as pool:
        await pool.update_agent([RandomSpec()])
        lay(tmp_path, "probed reset")
        hanging = EnvSpec("sample_envs:Hanging", {"folder": str(tmp_path)})
        evaluation = asyncio.create_task(evaluate(pool, 1, env=hanging))
        async with asyncio.timeout(60):
            process = await hung_process(tmp_path)
            assert (await sample(pool, AtLeast(20))).num_steps >= 20
            evaluation.cancel()
            await until(lambda: not process.is_running())


async def hung_process(folder: Path) -> psutil.Process:
    """Return the process in which a `Hanging` hangs, once it does."""
    file = folder / "pid"
    await until(lambda: file.exists() and bool(file.read_text()))
    return psutil.Process(int(file.read_text()))


async def test_update_of_rows_names_the_row_that_cannot_be_stepped() -> None:
    async with pool_of(InProcessBackend(), EnvSpec("sample_envs:Misfit", {"at": "nowhere"}), **ALLOWED) as pool:
        rows = RowUpdates((None, None, EnvChange(kwargs={"at": "step", "dtype": "float64"}), *[None] * 13))
        field = "all_workers.per_row.updates[2].change"
        with raises(InvalidValueError, field=field, reason=Reason.ENV_REFUSED, quotes="float64"):
            await pool.update_env([rows])
        assert pool.status().env_version == 1


async def test_pool_does_not_start_with_an_environment_that_no_call_can_step() -> None:
    with raises(InvalidValueError, reason=Reason.ENV_REFUSED, quotes="sample_envs:OldStyle"):
        async with pool_of(InProcessBackend(), EnvSpec("sample_envs:OldStyle"), **ALLOWED):
            pass


async def test_environment_that_fails_now_and_then_is_accepted() -> None:
    """An eighth of the episodes fail, by their seeds; the probe has as many attempts as an episode."""
    async with pool_of(InProcessBackend(), EnvSpec("sample_envs:FailsForSomeSeeds"), **ALLOWED) as pool:
        assert pool.status().env_version == 1


class Late(gymnasium.Env[np.ndarray, int]):
    """An environment that this process alone knows."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, *, size: int = 2) -> None:
        self._size = size

    def reset(self, **_: object) -> tuple[np.ndarray, dict[str, object]]:
        return np.zeros(self._size, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        return np.zeros(self._size, np.float32), 0.0, True, False, {}


async def test_environment_that_only_the_worker_knows_is_tried_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    gymnasium.register("Late-v0", Late)
    async with pool_of(InProcessBackend()) as pool:
        assert (await pool.update_env([EnvSpec("Late-v0")])).version == 2
        with raises(InvalidValueError, field=FIELD, reason=Reason.ENV_REFUSED, quotes=("Late-v0", "(3,)", "(2,)")):
            await pool.update_env([EnvSpec("Late-v0", {"size": 3})])


async def test_id_that_an_earlier_update_has_registered_is_tried_in_a_child_process(ray_backend: Backend) -> None:
    async with pool_of(ray_backend, workers=1, **ALLOWED) as pool:
        await pool.update_env([EnvSpec("sample_envs:Ends")])
        worker = pool.status().workers[0].identity
        with raises(InvalidValueError, field=FIELD, reason=Reason.ENV_REFUSED, quotes=("Crashing-v0", "process")):
            await pool.update_env([EnvSpec("Crashing-v0")])
        assert pool.status().workers[0].identity == worker
        assert (await pool.update_env([EnvSpec("Nested-v0")])).version == 3


def test_client_learns_why_an_environment_cannot_be_stepped(sampler: rollserve.Sampler) -> None:
    version = sampler.status().env_version
    quotes = ("sample_envs:OldStyle", "'seed'")
    with raises(rollserve.InvalidArgumentError, field=FIELD, reason=Reason.ENV_REFUSED, quotes=quotes):
        sampler.update_env("sample_envs:OldStyle")
    with raises(rollserve.InvalidArgumentError, field=FIELD, reason=Reason.ENV_REFUSED, quotes="process"):
        sampler.update_env("sample_envs:Crashing")
    assert sampler.status().env_version == version


def test_client_waits_longer_than_its_timeout_while_the_server_makes_an_environment(tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "1", "--workers", "1")
    options += ("--backend", "in-process", "--allow-module", "sample_envs", "--reset-seconds", "4")
    with local_server(*options, log=tmp_path / "log", environment=server_environment()) as server:
        with rollserve.connect(server.address, timeout=1.0) as sampler:
            assert sampler.update_env("sample_envs:SlowToMake", kwargs={"make_seconds": 1.2}).env_version == 2
            quotes = "closing an environment took more than 4 s"
            with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_REFUSED, quotes=quotes):
                sampler.update_env("sample_envs:SlowToMake", kwargs={"close_seconds": 60.0})
            quotes = ("still at work after 0.", "--reset-seconds", "longer timeout")
            with raises(rollserve.DeadlineError, reason=Reason.NO_PROGRESS, quotes=quotes):
                sampler.update_env("sample_envs:SlowToMake", kwargs={"make_seconds": 60.0}, timeout=1.0)
            assert sampler.status().env_version == 2
        asyncio.run(_wait_async(server.address))


async def _wait_async(address: str) -> None:
    async with rollserve.aconnect(address, timeout=1.0) as sampler:
        updated = await sampler.update_env("sample_envs:SlowToMake", kwargs={"make_seconds": 1.3})
        assert updated.env_version == 3
