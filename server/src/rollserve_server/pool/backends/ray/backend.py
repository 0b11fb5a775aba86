"""Workers as actors of Ray: the only module that knows Ray, with the others whose names begin with `ray_`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import logging
import math
import os
import pickle
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rollserve import give_back_memory, hold_on_to_memory
from rollserve_server.errors import DomainError, SamplerLostError, WorkerLostError, portable
from rollserve_server.pool.backends.ray.cluster_watch import ClusterWatch
from rollserve_server.pool.state.sampler_state import NoJournal
from rollserve_server.sampling import Worker

# Ray reads these when it is imported: it reports to nobody, leaves the way that Python was started alone, does not
# explain how it counts the cores of a container, nor log errors that the pool gets and logs itself.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # nor start a cluster of its own when it has lost this one

import ray
import ray._private.worker
import ray.exceptions

from rollserve_server.pool.backends.ray.journal import RayJournal
from rollserve_server.pool.backends.ray.losses import KernelKills, domain_error, putting
from rollserve_server.pool.backends.ray.names import WorkerNames, end_actors
from rollserve_server.pool.backends.ray.preflight import check_room, hint_of, small_store

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.pool.state.sampler_state import Journal
    from rollserve_server.sampling import WorkerConfig, WorkOrder

__all__ = ["DetachedOptions", "RayBackend", "RayOptions"]

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


@dataclasses.dataclass(frozen=True)
class DetachedOptions:
    """How a sampler outlives its server, on a cluster that does so.

    Attributes:
        namespace: of Ray's; each sampler has one for itself.
        orphan_seconds: how long it stays without a server.
        adopt: whether to go on with one that is there; else that is ended.
        adopt_seconds: how long a worker of an earlier server may take to end what it does for that.
    """

    namespace: str = "rollserve"
    orphan_seconds: float = 600.0
    adopt: bool = True
    adopt_seconds: float = 30.0


class RayBackend:
    """See Backend. Connects to a cluster, or starts one of its own in this machine, which ends with it."""

    def __init__(
        self,
        options: RayOptions,
        *,
        address: str | None = None,
        num_workers: int | None = None,
        object_store_bytes: int | None = None,
        detached: DetachedOptions | None = None,
    ) -> None:
        """Starts Ray.

        Args:
            options: what each worker takes.
            address: of an existing cluster, as `ray.init` takes it; None for one of our own.
            num_workers: for how many workers our own cluster is to have room, whatever cores there are; None for as
                many as there are cores.
            object_store_bytes: the size of our own cluster's object store; None for Ray's choice.
            detached: how workers on an existing cluster outlive this process; None if they end with it.

        Raises:
            OSError: there is no cluster at the address, or Ray does not start with these options.
        """
        self._options = options
        # In a cluster of our own, cores and custom resources are what we say they are: as many workers as it was made
        # for take some, and any more run without. What a machine really has, GPUs and memory, all of them take.
        self._num_free: int | None = None
        self._kills = KernelKills()
        self._watch: ClusterWatch | None = None
        self._detached = detached
        self._journal: RayJournal | None = None
        self._names = WorkerNames()
        self._found: dict[int, _RayWorker] = {}
        _quieten()
        if address is None:
            check_room()
        try:
            if address is None:
                _start_cluster(options, num_workers, object_store_bytes)
                self._num_free = num_workers or self.default_num_workers()
            else:
                namespace = detached.namespace if detached else None
                ray.init(address=address, namespace=namespace, log_to_driver=True, logging_level=logging.WARNING)
        except Exception as error:
            ray.shutdown()
            _log.debug("Ray does not start", exc_info=error)
            what = "Ray cannot be started" if address is None else f"ray_address: cannot connect to Ray at {address}"
            hint = hint_of(error) if address is None else " (does it ask for a token? See RAY_AUTH_MODE)"
            raise OSError(f"{what}: {' '.join(str(error).split())}{hint}") from error

    def check_store(self, results_bytes: int) -> None:
        """Warns if results that are on their way, so many bytes at a time, may not fit into the object store."""
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        small = small_store(int(resources.get("object_store_memory", 0)), results_bytes)
        if small is not None:
            _log.warning(
                "results may not fit into the object store: slow clients make it write to the disk", extra=small
            )

    def create_worker(self, worker_index: int, config: WorkerConfig) -> _RayWorker:
        """See Backend."""
        journal, lasting, epoch = self._journal, {}, 0
        if journal is not None:
            if not journal.is_held:
                raise SamplerLostError("the sampler may be another server's by now")
            epoch = journal.epoch
            lasting = {"name": self._names.new(worker_index, epoch), "lifetime": "detached"}
        # What stops a worker, or looks at it, has to reach it while it works.
        remote: Any = ray.remote(concurrency_groups={_CONTROL: 1})  # type: ignore[call-overload]
        has_room = self._num_free != 0
        actor = remote(_Actor).options(
            num_cpus=self._options.num_cpus if has_room else 0,
            num_gpus=self._options.num_gpus,
            memory=self._options.memory,
            resources=dict(self._options.resources) if has_room else {},
            enable_task_events=False,  # nobody asks Ray for them
            **lasting,
        )
        worker = _RayWorker(worker_index, actor.remote(worker_index, config, epoch), self._kills, journal)
        if has_room and self._num_free is not None:
            self._num_free -= 1
            worker.at_end = self._free
        return worker

    async def open_journal(self) -> Journal:
        """See Backend. Ends workers of earlier servers that are not to go on, and tells the others whose they are."""
        if self._detached is None:
            return NoJournal()
        options = self._detached
        self._journal = journal = await RayJournal.open(options.orphan_seconds, anew=not options.adopt)
        left = journal.state
        num_workers = len(left.snapshot.workers) if left else 0
        found, others = await asyncio.to_thread(self._names.find, num_workers)
        await asyncio.to_thread(end_actors, others)
        workers = [_RayWorker(index, actor, self._kills, journal) for index, actor in found.items()]
        adopted = await asyncio.gather(*(worker.adopt(options.adopt_seconds) for worker in workers))
        self._found = {
            worker.index: worker for worker, is_taken_over in zip(workers, adopted, strict=True) if is_taken_over
        }
        return journal

    def find_worker(self, worker_index: int) -> _RayWorker | None:
        """See Backend."""
        return self._found.pop(worker_index, None)

    def share(self, value: _R) -> _R:
        """See Backend."""
        with putting():
            reference: Any = ray.put(value)  # which an actor gets as the value itself
        return reference  # type: ignore[no-any-return]

    def default_num_workers(self) -> int:
        """See Backend."""
        cores = ray.cluster_resources().get("CPU", 1.0)  # type: ignore[no-untyped-call]
        return max(int(cores / self._options.num_cpus), 1) if self._options.num_cpus else int(cores)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """See Backend."""
        node: Any = ray._private.worker._global_node
        if node is not None:  # else this process has no part in the cluster, but one that speaks for it
            self._watch = ClusterWatch(node.gcs_address, node.raylet_socket_name, on_lost)

    def close(self) -> None:
        """See Backend."""
        if self._watch is not None:
            self._watch.close()
        ray.shutdown()

    def _free(self) -> None:
        """Takes in that a worker is gone which took its part of our own cluster."""
        assert self._num_free is not None  # noqa: S101
        self._num_free += 1


@dataclasses.dataclass(frozen=True)
class _Failure:
    error: Exception


class _Actor(Worker):
    """A worker in a process of Ray. Its errors are values: Ray ends the process when it cannot make text of one.

    It does nothing for a server of an earlier epoch than that of the one which it belongs to.
    """

    def __init__(self, worker_index: int, config: WorkerConfig, epoch: int = 0) -> None:
        (hold_on_to_memory if config.holds_memory else give_back_memory)()
        self._epoch = epoch
        super().__init__(worker_index, config)

    def fence(self, epoch: int) -> None:
        """Belongs to the server of that epoch from now on. May be called while it works: what it does ends soon."""
        self._epoch = max(epoch, self._epoch)
        self.stop_all()

    def ask(self, epoch: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """What the worker's method returns, or its failure."""
        if epoch < self._epoch:
            return _Failure(SamplerLostError("another server has the sampler"))
        try:
            with self.activity.at_work():
                return getattr(self, method)(*args, **kwargs)
        # Nothing that ends the process comes here: signals are the main thread's, and this is another one.
        except BaseException as error:
            return _Failure(portable(error))

    def ask_work(self, order: bytes) -> tuple[bytes, NDArray[np.uint8] | None]:
        """`work`, in two results: the pickled report or failure, with the buffer if that is small, and the buffer."""
        outcome = self.ask(*pickle.loads(order))  # noqa: S301  # it comes from the pool
        report, buffer = (outcome, None) if isinstance(outcome, _Failure) else outcome
        if buffer is None or buffer.nbytes <= _INLINE_BYTES:
            return pickle.dumps((report, buffer)), None
        return pickle.dumps((report, None)), buffer


class _RayWorker:
    """See WorkerHandle.

    Attributes:
        index: its number.
        at_end: to be called once, when it is killed.
    """

    def __init__(self, worker_index: int, actor: Any, kills: KernelKills, journal: RayJournal | None = None) -> None:
        self.at_end: Callable[[], None] | None = None
        self.index = worker_index
        self._kills = kills
        self._actor = actor
        self._journal = journal
        self._epoch = journal.epoch if journal else 0
        self._ask_work = actor.ask_work.options(num_returns=2)
        self._lost: WorkerLostError | None = None

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with putting():
            reference = self._actor.ask.remote(self._epoch, method.__name__, *args, **kwargs)
        result: _R | _Failure = await self.fetch(reference)
        return _succeeded(result)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], _RayBuffer]:
        # Ray takes bytes as they are; of anything else it makes text by Python code of its own.
        with putting():
            report, buffer = self._ask_work.remote(pickle.dumps((self._epoch, "work", order)))
        payload = _RayBuffer(self, buffer)
        return asyncio.ensure_future(self._report(report, payload)), payload

    def stop(self, work_id: int) -> None:
        self._actor.stop.options(concurrency_group=_CONTROL).remote(work_id)

    async def heartbeat(self) -> Heartbeat:
        heartbeat: Heartbeat = await self.fetch(self._actor.heartbeat.options(concurrency_group=_CONTROL).remote())
        return heartbeat

    def kill(self, error: WorkerLostError | None = None) -> None:
        self._lost = self._lost or error
        if self._journal is None:
            _kill(self._actor)
        else:  # it may be another server's by now
            self._journal.when_held(lambda: _kill(self._actor))
        if self.at_end is not None:
            self.at_end()
            self.at_end = None

    async def adopt(self, most_seconds: float) -> bool:
        """Has it end all that it does for an earlier server; or ends it, if it does not answer in that time."""
        with contextlib.suppress(DomainError, TimeoutError):
            async with asyncio.timeout(most_seconds):
                await self.fetch(self._actor.fence.options(concurrency_group=_CONTROL).remote(self._epoch))
                await self.call(Worker.close_all_work)
                return True
        _log.warning("worker not adopted", extra={"worker": self.index})
        self.kill()
        return False

    async def fetch(self, reference: Any) -> Any:
        """What a task of the worker has returned; raises as `WorkerHandle.call` does."""
        try:
            return await reference
        except ray.exceptions.RayError as error:
            raise copy.copy(self._lost) or domain_error(error, self.index, self._kills) from error

    async def _report(self, reference: Any, payload: _RayBuffer) -> Any:
        report, payload.buffer = pickle.loads(await self.fetch(reference))  # noqa: S301  # it comes from our own code
        return _succeeded(report)


def _kill(actor: Any) -> None:
    with contextlib.suppress(ray.exceptions.RaySystemError):  # Ray is gone, and so is the actor
        ray.kill(actor)


class _RayBuffer:
    """See RemoteBuffer.

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
    """Makes events in the log of what Ray would print or log, with colours, and leaves signals to the server."""
    ray._private.worker.print_to_stdstream = _log_output
    own = logging.getLogger("ray")
    own.handlers.clear()
    own.propagate = True
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
