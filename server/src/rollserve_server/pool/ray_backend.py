"""Workers as actors of Ray: the only module that knows Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import pickle
import re
import secrets
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rollserve import hold_on_to_memory
from rollserve_server.errors import DomainError, WorkerLostError
from rollserve_server.sampling import Worker

# Ray reads these when it is imported: it reports to nobody, leaves the way that Python was started alone, does not
# explain how it counts the cores of a container, nor log errors that the pool gets and logs itself.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")

import ray
import ray._private.worker
import ray.exceptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.sampling import WorkerConfig, WorkOrder

__all__ = ["RayBackend", "RayOptions"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_log = logging.getLogger(__name__)

_CONTROL = "control"
_SYSTEM_CONFIG = {"free_objects_period_milliseconds": 10}
"""Ray collects what is to be freed for a second. Bulk data then always goes into memory that nobody has touched yet,
which costs as much as to copy it, and counts for every process that touches it.
"""
_INLINE_BYTES = 64 << 10
"""Up to here, a buffer comes with its report: to wait for another object of Ray costs more than to copy it."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """What each worker takes of the cluster.

    Attributes:
        num_cpus: cores; may be a fraction.
        num_gpus: GPUs; may be a fraction.
        memory: bytes to reserve, or None.
        resources: custom resources, by name.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    memory: int | None = None
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)


class RayBackend:
    """See Backend. Connects to a cluster, or starts one of its own in this machine, which ends with it."""

    def __init__(
        self,
        options: RayOptions,
        *,
        address: str | None = None,
        num_workers: int | None = None,
        object_store_bytes: int | None = None,
    ) -> None:
        """Starts Ray.

        Args:
            options: what each worker takes.
            address: of an existing cluster, as `ray.init` takes it; None for one of our own.
            num_workers: for how many workers our own cluster is to have room, whatever cores there are; None for as
                many as there are cores.
            object_store_bytes: the size of our own cluster's object store; None for Ray's choice.

        Raises:
            OSError: there is no cluster at the address, or Ray does not start with these options.
        """
        self._options = options
        _quieten()
        try:
            if address is None:
                _start_cluster(options, num_workers, object_store_bytes)
            else:
                ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING)
        except Exception as error:
            ray.shutdown()
            _log.debug("Ray does not start", exc_info=error)
            what = "Ray cannot be started" if address is None else f"ray_address: cannot connect to Ray at {address}"
            hint = "" if address is None else " (does it ask for a token? See RAY_AUTH_MODE)"
            raise OSError(f"{what}: {' '.join(str(error).split())}{hint}") from error

    def create_worker(self, worker_index: int, config: WorkerConfig) -> _RayWorker:
        """See Backend."""
        # What stops a worker has to reach it while it works.
        remote: Any = ray.remote(concurrency_groups={_CONTROL: 1})  # type: ignore[call-overload]
        actor = remote(_Actor).options(
            num_cpus=self._options.num_cpus,
            num_gpus=self._options.num_gpus,
            memory=self._options.memory,
            resources=dict(self._options.resources),
            enable_task_events=False,  # nobody asks Ray for them
        )
        return _RayWorker(worker_index, actor.remote(worker_index, config))

    def share(self, value: _R) -> _R:
        """See Backend."""
        reference: Any = ray.put(value)  # which an actor gets as the value itself
        return reference  # type: ignore[no-any-return]

    def default_num_workers(self) -> int:
        """See Backend."""
        cores = ray.cluster_resources().get("CPU", 1.0)  # type: ignore[no-untyped-call]
        return max(int(cores / self._options.num_cpus), 1) if self._options.num_cpus else int(cores)

    def close(self) -> None:
        """See Backend."""
        ray.shutdown()


@dataclasses.dataclass(frozen=True)
class _Failure:
    error: Exception


class _Actor(Worker):
    """A worker in a process of Ray. Its errors are values: Ray ends the process when it cannot make text of one."""

    def __init__(self, worker_index: int, config: WorkerConfig) -> None:
        if config.holds_memory:
            hold_on_to_memory()
        super().__init__(worker_index, config)

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the worker's method returns, or its failure."""
        try:
            return getattr(self, method)(*args, **kwargs)
        except DomainError as error:
            return _Failure(error)
        except Exception:
            # The text is all that is sure to get through; it is for the server's log.
            return _Failure(RuntimeError(traceback.format_exc().encode(errors="backslashreplace").decode()))

    def ask_work(self, order: bytes) -> tuple[bytes, NDArray[np.uint8] | None]:
        """`work`, in two results: the pickled report or failure, with the buffer if that is small, and the buffer."""
        outcome = self.ask("work", pickle.loads(order))  # noqa: S301  # it comes from the pool
        report, buffer = (outcome, None) if isinstance(outcome, _Failure) else outcome
        if buffer is None or buffer.nbytes <= _INLINE_BYTES:
            return pickle.dumps((report, buffer)), None
        return pickle.dumps((report, None)), buffer


class _RayWorker:
    def __init__(self, worker_index: int, actor: Any) -> None:
        self._index = worker_index
        self._actor = actor
        self._ask_work = actor.ask_work.options(num_returns=2)

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        result: _R | _Failure = await self.fetch(self._actor.ask.remote(method.__name__, *args, **kwargs))
        return _succeeded(result)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], _RayPayload]:
        # Ray takes bytes as they are; of anything else it makes text by Python code of its own.
        report, buffer = self._ask_work.remote(pickle.dumps(order))
        payload = _RayPayload(self, buffer)
        return asyncio.ensure_future(self._report(report, payload)), payload

    def stop(self, stream_id: int) -> None:
        self._actor.stop.options(concurrency_group=_CONTROL).remote(stream_id)

    def kill(self) -> None:
        ray.kill(self._actor)

    async def fetch(self, reference: Any) -> Any:
        """What a task of the worker has returned; raises as `WorkerHandle.call` does."""
        try:
            return await reference
        except ray.exceptions.RayError as error:
            message = f"worker {self._index} is lost: {type(error).__name__}"
            raise WorkerLostError(message, self._index) from error

    async def _report(self, reference: Any, payload: _RayPayload) -> Any:
        report, payload.buffer = pickle.loads(await self.fetch(reference))  # noqa: S301  # it comes from our own code
        return _succeeded(report)


class _RayPayload:
    """See Payload.

    Attributes:
        buffer: the buffer, if it came with the report.
    """

    def __init__(self, worker: _RayWorker, reference: Any) -> None:
        self.buffer: NDArray[np.uint8] | None = None
        self._worker = worker
        self._reference = reference

    async def get(self) -> NDArray[np.uint8]:
        if self.buffer is not None:
            return self.buffer
        buffer: NDArray[np.uint8] = await self._worker.fetch(self._reference)
        return buffer


def _succeeded(outcome: _R | _Failure) -> _R:
    """The outcome, unless it is a failure: that is raised."""
    if isinstance(outcome, _Failure):
        raise outcome.error
    return outcome


def _quieten() -> None:
    """Makes events in the log of what Ray would print, with colours, and leaves signals to the server."""
    ray._private.worker.print_to_stdstream = _log_output
    logger = logging.getLogger("ray._private.worker")
    logger.addFilter(lambda record: "SIGTERM handler is not set" not in record.getMessage())


def _log_output(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    """Logs what a process of the cluster has printed: an environment in a worker, or Ray itself."""
    source = str(data["pid"])
    for line in data["lines"]:
        text = _COLOURS.sub("", line).strip()
        if source.isdecimal():
            _log.info("worker output", extra={"pid": source, "text": text})
        elif source == "raylet":
            _log.warning("message of Ray", extra={"text": text})


def _start_cluster(options: RayOptions, num_workers: int | None, object_store_bytes: int | None) -> None:
    # Whoever can talk to the cluster can run code in it: only this process and its children know the token.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it warns that all is well
    # Ray knows how many cores a container may use.
    num_cpus = None if num_workers is None else math.ceil(options.num_cpus * num_workers) or 1
    at_most = num_workers or len(os.sched_getaffinity(0))
    resources: dict[str, float] = {name: math.ceil(amount * at_most) for name, amount in options.resources.items()}
    ray.init(
        address="local",
        num_cpus=num_cpus,
        resources=resources or None,
        object_store_memory=object_store_bytes,
        include_dashboard=False,
        log_to_driver=True,
        logging_level=logging.WARNING,
        _node_ip_address="127.0.0.1",
        _system_config=_SYSTEM_CONFIG,
    )
