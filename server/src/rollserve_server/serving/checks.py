"""Checks of settings before Ray starts, which takes seconds, so that a typo is reported within one."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from rollserve_server.agents import check_providers
from rollserve_server.envs import (
    Profiles,
    check_allowed,
    find_env,
    find_turn_env,
    find_turn_wrapper,
    find_wrapper,
    is_connected,
    is_hosted,
    module_of,
    run_probe,
    with_envpool,
)
from rollserve_server.errors import InvalidValueError, within
from rollserve_server.gateway import check_audit_log, check_certificates
from rollserve_server.identity import Authentication
from rollserve_server.serving.build import env_spec, naming_settings, pool_settings
from rollserve_server.tracing import check_tracing
from rollserve_wire.environments import EnvSpec
from rollserve_wire.errors import mismatch

if TYPE_CHECKING:
    from pathlib import Path

    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.settings import AllowSettings, Settings

__all__ = ["check_environment", "check_reloadable", "check_settings", "find_profiles"]

_UNKNOWN_HERE = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
"""Errors of addresses of a family that this machine lacks: gRPC may know a way."""


def check_settings(settings: Settings) -> None:
    """Check what takes no time: addresses, certificates, numbers of workers, and what `check_reloadable` does.

    Raises:
        OSError: the server cannot listen at an address.
        DomainError: another setting is invalid.
    """
    gateway, may_be_used = settings.gateway, settings.ray.ray_address is not None  # by the server that this one follows
    addresses = {"listen": gateway.listen, "health_listen": gateway.health_listen}
    for name, address in {**addresses, "metrics_listen": settings.process.metrics_listen}.items():
        if address is not None:
            _check_address(name, address, may_be_used=may_be_used)
    _check_save_path(settings.process.save_path)
    check_certificates(settings.gateway.tls)
    check_tracing(settings.gateway.tracing)
    if settings.process.backend == "in-process" and settings.pool.worker.worker_max_memory_bytes:
        expected = "0 with --backend in-process, whose workers have no memory of their own"
        got = settings.pool.worker.worker_max_memory_bytes
        raise InvalidValueError.of("worker_max_memory_bytes", expected=expected, got=got)
    if settings.ray.ray_address is None:  # else workers may have others
        check_providers(settings.pool.agents.onnx_providers)
    num_workers, min_healthy = settings.pool.workers, settings.pool.health.min_healthy_workers
    # A sampler on an existing cluster may have another number of workers.
    if settings.ray.ray_address is None and num_workers is not None and min_healthy > num_workers:
        expected = f"at most {num_workers}, the number of workers"
        raise InvalidValueError.of("min_healthy_workers", expected=expected, got=min_healthy)
    check_reloadable(settings)


def check_reloadable(settings: Settings) -> None:
    """Check what new contents of the configuration file may change: tokens, the audit log, names of environments.

    Raises:
        DomainError: a setting is invalid.
    """
    Authentication(settings.gateway.identity)  # raises if a file cannot be used
    check_audit_log(settings.gateway.audit_log)
    with naming_settings():
        env = env_spec(settings)
        if is_connected(env.id):
            expected = "an environment that workers have at the start, because hosts connect to a server that runs"
            raise InvalidValueError.of("id", expected=expected, got=repr(env.id))
        _check_spec(env, pool_settings(settings).allow)
    for name, profile in Profiles(settings.pool.profiles.profiles).specs():
        with within(f"profiles.{name}"), naming_settings():
            _check_spec(profile, settings.pool.allow)


def _check_spec(spec: EnvSpec, allow: AllowSettings) -> None:
    """Check what of an environment takes no time."""
    check_allowed(spec, allow.allow_module, allow.allow_method, allow.allow_host)
    find = find_wrapper if spec.multi_agent is None else find_turn_wrapper
    for position, wrapper in enumerate(spec.wrappers):
        if module_of(wrapper.name) is None:  # on a cluster, only the workers may have the module
            with within(f"wrappers[{position}]"):
                find(wrapper.name)


def check_environment(settings: Settings) -> None:
    """Make the environment once in a child process, where workers share this machine.

    On an existing cluster, only the workers may have what the environment needs. Workers in this process make it soon.

    Raises:
        DomainError: the environment cannot be made or stepped.
    """
    if settings.ray.ray_address is not None or settings.process.backend == "in-process":
        return
    worker = settings.pool.worker
    with naming_settings():
        spec = with_envpool(env_spec(settings), worker)
        _find(spec)
        run_probe(spec, worker, settings.pool.health)
    find_profiles(settings)


def find_profiles(settings: Settings) -> None:
    """Raise NotFoundError for a profile of an unknown environment, where workers share this machine."""
    if settings.ray.ray_address is not None:
        return
    for name, profile in Profiles(settings.pool.profiles.profiles).specs():
        with within(f"profiles.{name}"), naming_settings():
            _find(with_envpool(profile, settings.pool.worker))


def _find(spec: WorkerSpecs) -> None:
    """Raise NotFoundError for an unknown id, without a child process, which takes a second to start on a busy machine.

    An id of a module, of EnvPool or of a host is not looked for.
    """
    if not isinstance(spec, EnvSpec) or is_hosted(spec):
        return
    if spec.vectorization == "envpool" or module_of(spec.id) is not None:
        return
    if spec.multi_agent is None:
        find_env(spec.id)
    else:
        find_turn_env(spec.id, spec.multi_agent)


def _check_save_path(path: Path | None) -> None:
    """Raise InvalidValueError if there cannot be a file of that path."""
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK)):
        raise InvalidValueError.of("save_path", expected="a file in a folder that can be written to", got=path)


def _check_address(setting: str, address: str, *, may_be_used: bool) -> None:
    """Raise OSError if the server cannot listen at a setting's address, as far as that is known without gRPC.

    Args:
        setting: the setting.
        address: the address.
        may_be_used: whether another process may listen there for now.
    """
    host, _, port = address.rpartition(":")
    if int(port) == 0:
        return
    errors = []
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found:
            error = _why_not_bound(family, kind, protocol, place)
            if error is None or (may_be_used and error.errno == errno.EADDRINUSE):
                return
            errors.append(error)
    except OSError as error:
        errors.append(error)
    text = mismatch("an address to listen at", address, errors[0].strerror or str(errors[0]))
    raise OSError(f"{setting}: {text}")


def _why_not_bound(family: int, kind: int, protocol: int, place: tuple[object, ...]) -> OSError | None:
    """Return the error of binding a socket to a place; None if there is none, or if gRPC may do better."""
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            probe.bind(place)
    except OSError as error:
        return None if error.errno in _UNKNOWN_HERE else error
    return None
