"""Wrappers of one's own, `module:Class`, of modules that the operator allows."""

from __future__ import annotations

from typing import Any, Optional

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from pools import pool_of, sample
from support import raises

from rollserve import EnvSpec, Reason, Reproducibility, Wrapper
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.envs import RowEnvs
from rollserve_server.errors import DomainError, InvalidValueError, NotAllowedError, NotFoundError
from rollserve_server.pool import AtLeast, InProcessBackend, Pool

MODULE = "sample_wrappers"
pytestmark = pytest.mark.usefixtures("sandboxes_find_test_agents")


def wrapped(name: str, **kwargs: object) -> EnvSpec:
    return EnvSpec("CartPole-v1", wrappers=[Wrapper(name, kwargs)])


async def refused(pool: Pool, spec: EnvSpec, kind: type[DomainError], field: str, reason: str, quotes: str) -> None:
    """Check that an update fails, and changes nothing."""
    before = pool.status().env_version
    with raises(kind, field=f"all_workers.environment.{field}", reason=reason, quotes=quotes):
        await pool.update_env([spec])
    assert pool.status().env_version == before


async def test_wrappers_of_allowed_modules_wrap_the_environment() -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=(MODULE,)) as pool:
        spec = EnvSpec(
            "CartPole-v1", wrappers=[Wrapper(f"{MODULE}:Offset", {"offset": 2.5}), Wrapper("FlattenObservation")]
        )
        await pool.update_env([spec])
        await pool.update_agent([ConstantSpec({"": np.array(1)})])
        batch = await sample(pool, AtLeast(20), seed=1)
    assert batch.env_seeds is not None
    env = gymnasium.make("CartPole-v1")
    for episode in batch.split():
        observation, _ = env.reset(seed=int(episode.env_seeds[0]))  # type: ignore[index]
        for seen in np.array(episode.observations):
            assert (seen == observation + np.float32(2.5)).all()
            observation, *_ = env.step(1)


async def test_wrappers_that_remember_lower_the_reproducibility() -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=(MODULE,)) as pool:
        updated = await pool.update_env([wrapped(f"{MODULE}:Offset")])
        assert updated.description.reproducibility is Reproducibility.EPISODE
        updated = await pool.update_env([wrapped(f"{MODULE}:Remembers")])
        assert updated.description.reproducibility is Reproducibility.WORKER


async def test_wrappers_of_other_modules_are_not_allowed() -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=("sample_envs",)) as pool:
        reason = Reason.MODULE_NOT_ALLOWED
        await refused(pool, wrapped("os:system"), NotAllowedError, "wrappers[0].name", reason, "'os'")
        name = f"{MODULE}:Offset"
        await refused(pool, wrapped(name), NotAllowedError, "wrappers[0].name", reason, "--allow-module")


async def test_wrappers_that_cannot_be_used_are_refused_by_name() -> None:
    async with pool_of(InProcessBackend(), workers=1, allow_module=(MODULE, "nowhere")) as pool:
        name, arguments = "wrappers[0].name", "wrappers[0].kwargs_json"
        for each, reason, quotes in (
            ("nowhere:Offset", Reason.MODULE_NOT_FOUND, "'nowhere'"),
            (f"{MODULE}:Ofset", Reason.WRAPPER_NOT_FOUND, "'Offset'"),
            (f"{MODULE}:NOTHING", Reason.WRAPPER_NOT_FOUND, "'sample_wrappers'"),
        ):
            await refused(pool, wrapped(each), NotFoundError, name, reason, quotes)
        for each in ("function", "NormalizeReward"):
            quoted = "gymnasium.Wrapper"
            await refused(pool, wrapped(f"{MODULE}:{each}"), InvalidValueError, name, Reason.INVALID_VALUE, quoted)
        for spec, quotes in (
            (wrapped(f"{MODULE}:Offset", offset=-1), "is negative"),
            (wrapped(f"{MODULE}:Offset", shift=1), "shift"),
        ):
            await refused(pool, spec, InvalidValueError, arguments, Reason.ENV_REFUSED, quotes)
        spec = wrapped(f"{MODULE}:Spaceless")
        await refused(pool, spec, InvalidValueError, name, Reason.ENV_REFUSED, "observation_space")
        reason = Reason.WRAPPER_NOT_ALLOWED  # although the module has it, too
        await refused(pool, wrapped(f"{MODULE}:RecordVideo"), NotAllowedError, name, reason, "writes files")
        await pool.update_env([wrapped(f"{MODULE}:ClipReward", min_reward=0.5)])


async def test_profiles_have_wrappers_of_any_module() -> None:
    wrapper = {"name": f"{MODULE}:Offset", "kwargs": {"offset": 3}}
    profiles = {"shifted": {"env": "CartPole-v1", "wrappers": [wrapper]}}
    async with pool_of(InProcessBackend(), workers=1, profiles=profiles) as pool:
        await pool.update_env([EnvSpec("profile:shifted")])
        await pool.update_agent([RandomSpec()])
        batch = await sample(pool, AtLeast(20), seed=1)
    assert np.array(batch.observations).mean() > 2


def test_arrays_become_tuples_only_where_the_parameter_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(  # type: ignore[no-untyped-def]  # `size` has no annotation
        places: list[tuple[int, int]],
        either: list[int] | tuple[int, ...],
        span: tuple[int, int] | None = None,
        optional: Optional[tuple[int, int]] = None,  # noqa: UP045  # environments still write that
        numbers: int | np.ndarray = 0,
        size=(1, 1),
    ) -> gymnasium.Env[Any, Any]:
        taken.append((places, either, span, optional, numbers, size))
        return CartPoleEnv()

    taken: list[tuple[Any, ...]] = []
    registered = gymnasium.envs.registration.EnvSpec("Arguments-v0", entry_point=make)
    monkeypatch.setitem(gymnasium.registry, "Arguments-v0", registered)
    names = ("places", "either", "span", "optional", "numbers", "size")
    RowEnvs(EnvSpec("Arguments-v0", {name: [1, 2] for name in names}), 1)
    assert taken[0][:4] == ([1, 2], [1, 2], (1, 2), (1, 2))
    assert np.array_equal(taken[0][4], np.array([1, 2]))
    assert taken[0][5] == (1, 2)
