"""The parts of a server, made from its settings."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.envs import (
    CONNECTED,
    ProfileEnv,
    Profiles,
    is_connected,
    module_of,
    names_host,
    paths_in,
    requested,
)
from rollserve_server.errors import DomainError, within
from rollserve_server.gateway import Gateway
from rollserve_server.pool import InProcessBackend
from rollserve_server.samplers import Samplers
from rollserve_server.serving.save_file import SaveFile
from rollserve_wire.environments import EnvSpec, Wrapper
from rollserve_wire.transforms import transform_from_json

if TYPE_CHECKING:
    from pathlib import Path

    from rollserve_server.gateway import Interceptor, Relay
    from rollserve_server.pool import ServerBackend
    from rollserve_server.serving.parent import Answer
    from rollserve_server.settings import PoolSettings, Settings

__all__ = [
    "Extras",
    "allowed_paths",
    "env_spec",
    "host_names",
    "make_backend",
    "make_gateway",
    "naming_settings",
    "pool_settings",
    "start_samplers",
    "warn_of_settings",
]

_log = logging.getLogger(__name__)
_SETTING_NAMES = {"": "env", "id": "env", "kwargs_json": "env_kwargs"}
"""Names of settings, by the fields of the environment in errors of the pool's start. Other fields have the names of
their settings."""


def make_backend(settings: Settings) -> ServerBackend:
    """Start the backend."""
    if settings.process.backend == "in-process":
        return InProcessBackend()
    # Imported here because importing Ray takes about a second.
    from rollserve_server.pool.backends.ray.backend import RayBackend

    pool = settings.pool
    backend = RayBackend(settings.ray, num_workers=pool.workers, takeover_seconds=pool.health.start_seconds)
    backend.check_store(pool.calls.max_calls * pool.calls.call_window_bytes * settings.samplers.max_samplers)
    return backend


@dataclass(frozen=True)
class Extras:
    """Parts that a program adds to a server.

    Attributes:
        make_backend: starts the backend.
        interceptors: see each RPC before the services do.
        answers: answers to further requests on the control socket, by their names.
    """

    make_backend: Callable[[Settings], ServerBackend] = make_backend
    interceptors: Sequence[Interceptor] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)


async def start_samplers(backend: ServerBackend, settings: Settings) -> Samplers:
    """Start the samplers. Errors about the environment of the default one name the settings at fault."""
    saved = SaveFile.of(settings).read(allowed_paths(settings)) if settings.ray.adopt else None
    with naming_settings() if saved is None else within("save_path"):
        return await Samplers.start(
            backend,
            settings.samplers,
            pool_settings(settings),
            env_spec(settings),
            adopt=settings.ray.adopt,
            saved=saved,
        )


def pool_settings(settings: Settings) -> PoolSettings:
    """Return the pool's settings. The host, or the modules, of an environment of no profile are allowed.

    Clients may request the environment again.

    Raises:
        DomainError: as of `env_spec`.
    """
    env = env_spec(settings)
    allow = settings.pool.allow
    if names_host(env.id):
        allow = allow.model_copy(update={"allow_host": (*allow.allow_host, env.id)})
        return settings.pool.model_copy(update={"allow": allow})
    names = () if isinstance(env, ProfileEnv) else (env.id, *(wrapper.name for wrapper in env.wrappers))
    modules = [module for module in map(module_of, names) if module]
    if not modules:
        return settings.pool
    allow = allow.model_copy(update={"allow_module": (*allow.allow_module, *modules)})
    return settings.pool.model_copy(update={"allow": allow})


@contextlib.contextmanager
def naming_settings() -> Iterator[None]:
    """Have errors about the environment name the settings at fault, instead of fields of a request."""
    try:
        yield
    except DomainError as error:
        field = error.field.removeprefix("all_workers.environment").removeprefix(".")
        name = _SETTING_NAMES.get(field, field.replace("kwargs_json", "kwargs"))
        name = f"env_{name}" if name.startswith("kwargs.") else name
        error.field = name if error.field else ""
        raise


def host_names(settings: Settings) -> Collection[str]:
    """Return the names that hosts which open streams to the gateway may have: of allowed ids, and of profiles."""
    profiles = settings.pool.profiles.profiles.values()
    ids = (*settings.pool.allow.allow_host, *(profile.env for profile in profiles))
    return {each.removeprefix(CONNECTED) for each in ids if is_connected(each)}


def make_gateway(
    settings: Settings, samplers: Samplers, relay: Relay, interceptors: Sequence[Interceptor] = ()
) -> Gateway:
    """Return the gateway, not started. The interceptors see each RPC first.

    Raises:
        OSError: the settings ask for shared memory, which this system does not have.
    """
    env = env_spec(settings)
    allow_free_env = settings.pool.profiles.allow_free_env
    return Gateway(
        settings.gateway,
        samplers,
        env,
        relay,
        allowed_paths(settings),
        allow_free_env=allow_free_env,
        interceptors=interceptors,
    )


def allowed_paths(settings: Settings) -> Sequence[Path]:
    """Return the paths that arguments of requests may have: clients may request the environment again."""
    return *settings.pool.allow.allow_path, *paths_in(requested(env_spec(settings)))


def warn_of_settings(settings: Settings) -> None:
    """Log warnings about settings that are unlikely to be meant, or dangerous."""
    allow, gateway = settings.pool.allow, settings.gateway
    for name in allow.allow_module:
        if not _exists(name):
            _log.warning("module not found", extra={"allow_module": name})
    for path in allow.allow_path:
        if not path.exists():
            _log.warning("path not found", extra={"allow_path": path})
    if gateway.data_dir is not None and not _exists("minari"):
        event = "datasets cannot be recorded: install rollserve-server[data]"
        _log.warning(event, extra={"data_dir": gateway.data_dir})
    if settings.pool.agents.allow_pickle and not gateway.identity.is_required:
        _log.warning("pickled agents are allowed: clients can run code here", extra={"listen": gateway.listen})
    if gateway.insecure and gateway.tls.tls_cert is None:
        event = "connections are not encrypted, nor are tokens" if gateway.identity.is_required else ""
        _log.warning(event or "connections are not encrypted", extra={"listen": gateway.listen})


def env_spec(settings: Settings) -> EnvSpec:
    """Return the environment to start with, which a profile may describe.

    Raises:
        NotFoundError: there is no such profile.
        InvalidValueError: the profile does not accept the arguments, wrappers or transforms.
    """
    environment = settings.environment
    wrappers = tuple(Wrapper(wrapper.name, wrapper.kwargs) for wrapper in environment.wrappers)
    transforms = tuple(map(transform_from_json, environment.transforms))
    spec = EnvSpec(
        environment.env,
        environment.env_kwargs,
        wrappers,
        transforms=transforms,
        text_info_bytes=environment.text_info_bytes,
        multi_agent=environment.multi_agent,
        global_state=environment.global_state,
    )
    return Profiles(settings.pool.profiles.profiles).resolved(spec)


def _exists(module: str) -> bool:
    """Whether Python finds a module, or its top-level package: looking further would import the package."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False
