"""The parts of a server, made from its settings."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

from rollserve import EnvSpec, Wrapper
from rollserve_server.envs import module_of, paths_in
from rollserve_server.errors import DomainError
from rollserve_server.gateway import DEFAULT_SAMPLER, Gateway
from rollserve_server.pool import InProcessBackend, Pool

if TYPE_CHECKING:
    from rollserve_server.pool import Backend
    from rollserve_server.settings import AllowSettings, Settings

__all__ = ["make_backend", "make_gateway", "start_pool", "warn_of_settings"]

_log = logging.getLogger(__name__)

_SETTING_NAMES = {"": "env", "id": "env", "kwargs_json": "env_kwargs"}
"""Names of settings, by the fields of the environment in errors of the pool's start. Other fields have the names of
their settings."""


def make_backend(settings: Settings) -> Backend:
    """Start the backend."""
    if settings.process.backend == "in-process":
        return InProcessBackend()
    # Imported here because importing Ray takes about a second.
    from rollserve_server.pool.backends.ray.backend import RayBackend

    pool = settings.pool
    backend = RayBackend(settings.ray, num_workers=pool.workers, takeover_seconds=pool.health.start_seconds)
    backend.check_store(pool.calls.max_calls * pool.calls.call_window_bytes)
    return backend


async def start_pool(backend: Backend, settings: Settings) -> Pool:
    """Start the pool. Errors about its environment name the settings at fault."""
    module = module_of(settings.environment.env)
    pool_settings = settings.pool
    if module:  # clients may request the operator's own environment again
        allow = pool_settings.allow
        allow = allow.model_copy(update={"allow_module": (*allow.allow_module, module)})
        pool_settings = pool_settings.model_copy(update={"allow": allow})
    try:
        return await Pool.start(backend, pool_settings, _env_spec(settings))
    except DomainError as error:
        field = error.field.removeprefix("all_workers.environment").removeprefix(".")
        name = _SETTING_NAMES.get(field, field.replace("kwargs_json", "kwargs"))
        error.field = name if error.field else ""
        raise


def make_gateway(settings: Settings, pool: Pool) -> Gateway:
    """Return the gateway, not started.

    Raises:
        OSError: the settings ask for shared memory, which this system does not have.
    """
    allowed_paths = (*settings.pool.allow.allow_path, *paths_in(_env_spec(settings)))
    return Gateway(settings.gateway, {DEFAULT_SAMPLER: pool}, allowed_paths)


def warn_of_settings(allow: AllowSettings, *, allow_pickle: bool, listen: str) -> None:
    """Log warnings about settings that are unlikely to be meant, or dangerous."""
    for name in allow.allow_module:
        if not _exists(name):
            _log.warning("module not found", extra={"allow_module": name})
    if allow_pickle:
        _log.warning("pickled agents are allowed: clients can run code here", extra={"listen": listen})


def _env_spec(settings: Settings) -> EnvSpec:
    environment = settings.environment
    wrappers = tuple(Wrapper(wrapper.name, wrapper.kwargs) for wrapper in environment.wrappers)
    return EnvSpec(environment.env, environment.env_kwargs, wrappers)


def _exists(module: str) -> bool:
    """Whether Python finds a module, or its top-level package: looking further would import the package."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
