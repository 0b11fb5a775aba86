"""Takeover: a server continues the sampler of an earlier one, if both agree about what it is."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from rollserve_server import __version__
from rollserve_server.envs import identity_of
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool.sequences.sequences import derived_seed

if TYPE_CHECKING:
    from rollserve_server.pool.state.saved_sampler import SavedSampler
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["check_left", "own_seed", "reconcile"]

_log = logging.getLogger(__name__)

_KEY = (0, 0)
"""Key that derives the seeds of later servers from the pool's seed, with their epoch behind it; no other seeds do."""
_HINT = "the sampler in the cluster has this value; --no-adopt ends it and starts a new one"


def check_left(settings: PoolSettings, env: EnvSpec, state: SavedSampler) -> None:
    """Check that this server may take over a sampler.

    Raises:
        InvalidValueError: the sampler's workers were made with other settings, or it has another seed or environment.
    """
    header, run = state.header, state.run
    assert run is not None  # noqa: S101  # a journal has one
    if settings.seed is not None:
        _check("seed", settings.seed, header.seed)
    given = settings.worker.model_dump(mode="json")
    for name, value in run.worker_settings.items():
        if name in given:  # else another version has the setting
            _check(name, given[name], value)
    if identity_of(env) != identity_of(run.first_env) and max(state.envs) == 1:
        _check("all_workers.environment", _describe(env), _describe(run.first_env))


def reconcile(settings: PoolSettings, env: EnvSpec, state: SavedSampler) -> PoolSettings:
    """Return this server's settings, reconciled with the state of the sampler that it takes over.

    What clients have changed since takes precedence over the settings: the number of workers, and the environment.

    Raises:
        InvalidValueError: as of `check_left`.
    """
    check_left(settings, env, state)
    header, run = state.header, state.run
    if run is not None and identity_of(env) != identity_of(run.first_env):
        _log.warning("clients have replaced the environment", extra={"env": env.id, "env_version": max(state.envs)})
    if header.software != __version__:
        extra = {"software": header.software, "workers": header.num_workers}
        _log.warning("the workers of another version are replaced", extra=extra)
    if settings.workers not in (None, header.num_workers):
        _log.warning("the sampler has another number of workers", extra={"workers": header.num_workers})
    return settings.model_copy(update={"seed": header.seed, "workers": header.num_workers})


def own_seed(seed: int, epoch: int) -> int:
    """Return the root seed for calls that name none, of the server that has a sampler in an epoch.

    Each epoch has another one, because a client may still be resuming calls of the previous server. Epochs go on when a
    sampler is lost with its journal, so that the next run delivers none of its episodes again.
    """
    return derived_seed(seed, (*_KEY, epoch))


def _check(field: str, value: object, expected: object) -> None:
    if value != expected:
        raise InvalidValueError.of(field, expected=expected, got=value, hint=_HINT)


def _describe(env: EnvSpec) -> str:
    kwargs = f" with {json.dumps(env.kwargs)}" if env.kwargs else ""
    wrappers = f" in {', '.join(wrapper.name for wrapper in env.wrappers)}" if env.wrappers else ""
    transforms = f" through {', '.join(map(repr, env.transforms))}" if env.transforms else ""
    return f"{env.id}{kwargs}{wrappers}{transforms}"
