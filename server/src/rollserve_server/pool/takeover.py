"""Going on with the sampler of an earlier server: what has to agree, and which seeds are used up."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any

from rollserve_server import __version__
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool.sequences.root_seeds import derived_seed

if TYPE_CHECKING:
    from rollserve import EnvSpec
    from rollserve_server.pool.config import PoolConfig
    from rollserve_server.pool.state.sampler_state import SamplerState
    from rollserve_server.sampling import WorkerConfig

__all__ = ["own_seed", "reconcile_config"]

_log = logging.getLogger(__name__)

_KEY = (0, 0)
"""What the seeds of later servers derive from the pool's by, with their epoch behind it; no others do."""
_ADVICE = "which the sampler has that is there (--no-adopt ends it and begins anew),"


def reconcile_config(config: PoolConfig, worker_config: WorkerConfig, env: EnvSpec, state: SamplerState) -> PoolConfig:
    """What a pool is to go on with, given what it is told and what is there.

    What clients have set since goes before what the pool is told: how many workers there are, and the environment.

    Raises:
        InvalidValueError: the workers were made otherwise, or the sampler has another seed, or environment.
    """
    if state.software != __version__:
        raise InvalidValueError.of("software", expected=f"{state.software}, {_ADVICE}", got=__version__)
    if not config.seed_is_random and config.seed != state.seed:
        raise InvalidValueError.of("seed", expected=f"{state.seed}, {_ADVICE}", got=config.seed)
    there = _flat(state.worker_config)
    for name, came in _flat(worker_config).items():
        if came != there.get(name):
            raise InvalidValueError.of(name, expected=f"{there.get(name)}, {_ADVICE}", got=came)
    # What is equal in Python, such as 1 and 1.0, need not be so to an environment.
    if repr(env) != repr(state.first_env):
        if max(state.envs) == 1:
            raise InvalidValueError.of(
                "all_workers.environment", expected=f"{_text(state.first_env)}, {_ADVICE}", got=_text(env)
            )
        _log.warning("clients have replaced the environment", extra={"env": env.id, "env_version": max(state.envs)})
    num_workers = len(state.snapshot.workers)
    if config.num_workers not in (None, num_workers):
        _log.warning("the sampler has another number of workers", extra={"workers": num_workers})
    return dataclasses.replace(config, seed=state.seed, num_workers=num_workers)


def own_seed(seed: int, epoch: int) -> int:
    """The root seed of the sequences of calls that name none, of the server that has a sampler in an epoch.

    A client may still be going on with those of the server before.
    """
    return derived_seed(seed, (*_KEY, epoch))


def _flat(config: Any, prefix: str = "") -> dict[str, object]:
    """Its values by name, also those within it."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(config):
        name, value = f"{prefix}{field.name}", getattr(config, field.name)
        values.update(_flat(value, f"{name}.") if dataclasses.is_dataclass(value) else {name: value})
    return values


def _text(env: EnvSpec) -> str:
    kwargs = f" with {json.dumps(env.kwargs)}" if env.kwargs else ""
    wrappers = f" in {', '.join(wrapper.name for wrapper in env.wrappers)}" if env.wrappers else ""
    return f"{env.id}{kwargs}{wrappers}"
