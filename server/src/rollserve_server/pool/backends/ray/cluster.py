"""Connecting to a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import ipaddress
import logging
import math
import os
import re
import resource
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Ray reads these variables when it is imported. It then sends no usage statistics, does not start workers by `uv run`,
# does not explain how it counts the cores of a container, does not log errors that the pool logs itself, and does not
# start another cluster when it has lost this one.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import psutil
import ray
import ray._private.worker
from ray._private import ray_constants
from ray._private.node import Node
from ray._raylet import Config  # type: ignore[attr-defined]  # made by Cython

from rollserve_server.errors import InvalidValueError
from rollserve_wire.errors import mismatch
from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rollserve_server.settings import RaySettings

__all__ = ["check_reserved", "check_store", "connect", "end", "on_loopback_only"]

_log = logging.getLogger(__name__)

_SYSTEM_CONFIG = {"free_objects_period_milliseconds": 10}
"""Period in which Ray frees objects, 10 ms. With the default of 1 s, bulk data always goes into memory that was never
touched, which costs as much as copying the data, and counts as memory of every process that touches it."""
_SPILL_FRACTION = 0.8
"""Part of the object store that is in use when Ray begins to write objects to the disk."""
_TOKEN = secrets.token_hex(32)
"""Token of clusters that this process starts. Ray reads it once in a process."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_MAX_SHOWN = 5
"""Listeners in a message."""
_MIN_FREE_BYTES = 16 << 20
"""Room for Ray's logs, without which it does not start."""
_ELSEWHERE = "name another folder by the environment variable RAY_TMPDIR"
_HINTS = {
    errno.EAGAIN: "is there a limit on processes and threads, such as pids of the container or ulimit -u?",
    errno.EMFILE: "is there a limit on open files, such as ulimit -n?",
    errno.ENFILE: "is there a limit on open files, such as ulimit -n?",
    errno.ENOMEM: "is there a limit on memory?",
}


def connect(settings: RaySettings, num_workers: int | None) -> None:
    """Connect to the cluster of the settings, or start one on this machine that ends with this process.

    Args:
        settings: the cluster, and what each worker takes of it.
        num_workers: number of workers that a cluster of the server's own has room for, whatever the number of cores;
            None for as many as there are cores.

    Raises:
        OSError: there is no cluster at the address, or Ray does not start.
    """
    _quieten()
    address = settings.ray_address
    if address is None:
        _check_room()
    try:
        if address is None:
            _start(settings, num_workers)
        else:
            ray.init(
                address=address,
                namespace=settings.ray_namespace,
                log_to_driver=True,
                logging_level=logging.WARNING,
                runtime_env=_of_this_version(),
            )
    except Exception as error:
        ray.shutdown()
        _log.debug("Ray does not start", exc_info=error)
        failed = "Ray cannot be started" if address is None else f"ray_address: cannot connect to Ray at {address}"
        hint = _hint_of(error) if address is None else " (does it ask for a token? See RAY_AUTH_MODE)"
        raise OSError(f"{failed}: {' '.join(str(error).split())}{hint}") from error


def _of_this_version() -> dict[str, Any]:
    """Return the environment of this server's actors: its own code, whichever version a machine has installed.

    So workers are of the server's version in the middle of an upgrade, too, whatever is upgraded first. Ray copies the
    code to each machine once.
    """
    specs = map(importlib.util.find_spec, ("rollserve", "rollserve_server", "rollserve_wire"))
    modules = [folder for spec in specs if spec is not None for folder in spec.submodule_search_locations or ()]
    # Machines whose Python writes no bytecode would compile the copy for each worker again.
    return {"py_modules": modules, "env_vars": {HASH_SEED_NAME: HASH_SEED, "PYTHONDONTWRITEBYTECODE": ""}}


def end() -> None:
    """End the cluster that this process has started, and remove its folder."""
    node: Any = ray._private.worker._global_node
    folder = None if node is None else Path(node.get_session_dir_path())
    ray.shutdown()
    if folder is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    latest = folder.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def check_store(results_bytes: int) -> None:
    """Warn if results on their way to clients may not fit into the object store.

    Args:
        results_bytes: bytes of all calls that may be on their way at a time.
    """
    store_bytes = int(ray.cluster_resources().get("object_store_memory", 0))  # type: ignore[no-untyped-call]
    if results_bytes > _SPILL_FRACTION * store_bytes:
        event = "results may not fit into the object store: with slow clients, it spills to the disk"
        _log.warning(event, extra={"object_store_bytes": store_bytes, "results_bytes": results_bytes})


def check_reserved(settings: RaySettings, num_workers: int) -> None:
    """Raise InvalidValueError if the cluster has fewer GPUs, or less memory, than workers reserve: none would start."""
    found = ray.cluster_resources()  # type: ignore[no-untyped-call]
    for setting, kind in (("worker_num_gpus", "GPU"), ("worker_memory_bytes", "memory")):
        reserved, available = num_workers * (getattr(settings, setting) or 0), found.get(kind, 0)
        if reserved > available:
            expected = f"at most {available / num_workers:g} for each of {num_workers} workers on this machine"
            raise InvalidValueError.of(setting, expected=expected, got=f"{reserved / num_workers:g}")


def _start(settings: RaySettings, num_workers: int | None) -> None:
    # Whoever can connect to the cluster can run code in it. So a token is needed, whatever the environment says, and
    # only this process and its children know it.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=_TOKEN)
    os.environ[HASH_SEED_NAME] = HASH_SEED  # of the workers, which inherit it
    Config.initialize("")  # Ray has read the mode when it was imported
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it warns of a token that is set
    # Ray replaces 127.0.0.1 by the machine's other address, and then listens on all interfaces, except where it knows
    # that the cluster has no other machines.
    ray_constants.ENABLE_RAY_CLUSTER = False
    # Without a number of workers, Ray counts the cores, because it knows how many a container may use.
    num_cpus = None if num_workers is None else math.ceil(settings.worker_num_cpus * num_workers) or 1
    max_workers = num_workers or len(os.sched_getaffinity(0))
    resources: dict[str, float] = {
        name: math.ceil(amount * max_workers) for name, amount in settings.worker_resources.items()
    }
    with on_loopback_only(), _without_helpers():
        ray.init(
            address="local",
            num_cpus=num_cpus,
            resources=resources or None,
            object_store_memory=settings.object_store_bytes,
            include_dashboard=False,
            log_to_driver=True,
            logging_level=logging.WARNING,
            _node_ip_address="127.0.0.1",
            _system_config=_SYSTEM_CONFIG,
        )


@contextlib.contextmanager
def _without_helpers() -> Iterator[None]:
    """Start Ray without its dashboard, which `include_dashboard` only makes smaller, and its scaler of clusters.

    Nothing here asks them. They take 1.4 s of processor time, and Ray waits for the dashboard.
    """
    helpers = ("start_api_server", "start_monitor")
    with contextlib.ExitStack() as stack:
        for name in helpers:
            stack.callback(setattr, Node, name, getattr(Node, name))
            setattr(Node, name, lambda *_, **__: None)
        yield


def _quieten() -> None:
    """Turn what Ray prints and logs into log events without colours."""
    ray._private.worker.print_to_stdstream = _log_output
    own = logging.getLogger("ray")
    own.handlers.clear()
    own.propagate = True
    # The server handles SIGTERM, and starts Ray in another thread, which cannot set a handler.
    logger = logging.getLogger("ray._private.worker")
    logger.addFilter(lambda record: "SIGTERM handler is not set" not in record.getMessage())


def _log_output(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    """Log lines that a process of the cluster has printed: an environment in a worker, or Ray itself."""
    source = str(data["pid"])
    for line in data["lines"]:
        text = _COLOURS.sub("", line).strip()
        if source.isdecimal():
            _log.info("worker output", extra={"pid": source, "text": text})
        elif source == "raylet":
            _log.warning("Ray message", extra={"text": text})


class _Listener(NamedTuple):
    process: str
    address: str
    port: int


@contextlib.contextmanager
def on_loopback_only() -> Iterator[None]:
    """Check that listeners that the block starts, in this process or its children, are on loopback addresses.

    Raises:
        OSError: another network interface leads to a listener.
    """
    before = _listeners()
    yield
    exposed = sorted(each for each in _listeners() - before if not _is_loopback(each.address))
    if exposed:
        shown = ", ".join(f"{each.process} on {each.address}:{each.port}" for each in exposed[:_MAX_SHOWN])
        advice = "install the version of Ray that constraints.txt names"
        raise OSError(f"Ray's listeners: {mismatch('loopback addresses only', shown, advice)}")


def _listeners() -> set[_Listener]:
    found = set()
    process = psutil.Process()
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # the process has ended
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add(_Listener(each.name(), *connection.laddr))
    return found


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _check_room() -> None:
    """Check the folder that Ray writes to.

    Raises:
        OSError: the folder cannot be written to, has less than 16 MiB of room, or a name that Ray cannot write.
    """
    # Ray chooses the folder in the same way.
    folder = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray")  # noqa: S108
    advice = f"make room there, or {_ELSEWHERE}"
    if not str(folder).isascii():
        raise _mismatch(folder, "a path of ASCII characters", repr(str(folder)), _ELSEWHERE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        room = os.statvfs(folder)
    except OSError as error:
        raise OSError(f"Ray's folder {folder} cannot be written to: {error.strerror}: {advice}") from None
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < _MIN_FREE_BYTES:
        raise _mismatch(folder, f"at least {_MIN_FREE_BYTES} free bytes", str(free_bytes), advice)
    if room.f_files and not room.f_favail:
        raise _mismatch(folder, "room for more files", "none", advice)


def _hint_of(error: Exception) -> str:
    """Return the likely cause of an error at Ray's start, in parentheses; empty if none is known."""
    hint = _HINTS.get(getattr(error, "errno", None) or 0)
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if hint is None and limit_bytes != resource.RLIM_INFINITY:
        hint = f"addresses are limited to {limit_bytes} bytes, ulimit -v; Ray reserves far more than it uses"
    return f" ({hint})" if hint else ""


def _mismatch(folder: Path, expected: str, got: str, advice: str) -> OSError:
    return OSError(f"Ray's folder {folder}: {mismatch(expected, got, advice)}")
