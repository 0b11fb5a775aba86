"""The Ray backend: workers are actors, on a cluster of the server's own or an existing one."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rollserve_server import __version__
from rollserve_server.errors import SamplerLostError
from rollserve_server.pool.backends.ray import (
    cluster,  # imported before Ray, for the environment variables that it sets
)
from rollserve_server.pool.backends.ray.identity import ForgedMessageError, SamplerIdentity, Seal
from rollserve_server.pool.backends.ray.journal import RayJournal
from rollserve_server.pool.backends.ray.losses import ClusterWatch, KernelKills, putting
from rollserve_server.pool.backends.ray.names import WorkerNames, end_actors
from rollserve_server.pool.backends.ray.placement import position_of
from rollserve_server.pool.backends.ray.sampler_mark import read_directory, write_directory
from rollserve_server.pool.backends.ray.worker import CONCURRENCY, RayWorker, WorkerActor
from rollserve_server.pool.journal.journal import NoJournal
from rollserve_server.sampling import ORDERS_FORMAT

# isort: split
import ray
import ray._private.state
import ray._private.worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rollserve_server.envs import RelayPlace
    from rollserve_server.pool.journal.held_lease import HeldLease
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.state.saved_sampler import SavedSampler
    from rollserve_server.settings import RaySettings, WorkerSettings

__all__ = ["RayBackend"]

_log = logging.getLogger(__name__)

_R = TypeVar("_R")

_TAKEOVER_SECONDS = 30.0
"""Limit of the time in which a worker ends its work for an earlier server."""


@dataclass
class _Room:
    """Room for workers in a cluster of the server's own, for all of its samplers.

    Attributes:
        num_free: number of further workers that reserve their part; None on an existing cluster, where all do.
    """

    num_free: int | None = None


class RayBackend:
    """A maker of workers that are Ray actors. On an existing cluster, they and a journal outlive this process."""

    def __init__(
        self, settings: RaySettings, *, num_workers: int | None = None, takeover_seconds: float = _TAKEOVER_SECONDS
    ) -> None:
        """Connect to the cluster, or start one.

        Args:
            settings: the cluster, and what each worker takes of it.
            num_workers: number of workers that a cluster of the server's own has room for, whatever the number of
                cores; None for as many as there are cores.
            takeover_seconds: time in which a worker has to end its work for an earlier server; at most 30 s.

        Raises:
            OSError: there is no cluster at the address, or Ray does not start.
            InvalidValueError: this machine has less than the workers reserve.
        """
        self._settings = settings
        self._takeover_seconds = min(takeover_seconds, _TAKEOVER_SECONDS)
        # The server decides which cores and custom resources its own cluster has: as many workers as the cluster was
        # made for reserve them, and further workers run without. All workers reserve GPUs and memory, which are real.
        self._room = _Room()
        self._kills = KernelKills()
        self._watch: ClusterWatch | None = None
        self._secret = settings.sampler_secret()
        self.standing_by = asyncio.Event()
        self.relay: RelayPlace | None = None
        self._use("", adopt=settings.adopt)
        cluster.connect(settings, num_workers)
        if settings.ray_address is None:
            self._room.num_free = num_workers or self.default_num_workers()
            try:
                cluster.check_reserved(settings, self._room.num_free)
            except BaseException:
                cluster.end()
                raise

    def _use(self, sampler: str, *, adopt: bool) -> None:
        """Begin to make workers for a sampler."""
        self._adopts = adopt
        self._lease: HeldLease | None = None
        self._identity = SamplerIdentity.of(self._secret, self._settings.ray_namespace, sampler)
        self._names = WorkerNames(self._identity.tag, __version__)
        self._found: dict[int, RayWorker] = {}
        self._others: Sequence[Any] = ()
        self._directory = ""

    def own_address(self) -> str:
        """Return this machine's address in the cluster; one that only its own processes reach, if the cluster is."""
        if self._settings.ray_address is None:
            return "127.0.0.1"
        return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]

    def check_store(self, results_bytes: int) -> None:
        """Warn if results on their way to clients may not fit into the object store."""
        cluster.check_store(results_bytes)

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> RayWorker:
        """Return a new worker, which starts in the background.

        Raises:
            SamplerLostError: another server may have the sampler by now.
        """
        lease, lasting, epoch = self._lease, {}, 0
        self._check_lease()
        if lease is not None:
            epoch = lease.epoch
            lasting = {"name": self._names.new(worker_index, epoch), "lifetime": "detached"}
        remote: Any = ray.remote(concurrency_groups=CONCURRENCY)  # type: ignore[call-overload]
        has_room = self._room.num_free != 0
        actor = remote(WorkerActor).options(
            num_cpus=self._settings.worker_num_cpus if has_room else 0,
            num_gpus=self._settings.worker_num_gpus,
            memory=self._settings.worker_memory_bytes,
            resources=dict(self._settings.worker_resources) if has_room else {},
            scheduling_strategy=_scheduling_strategy(worker_index, self._settings),
            enable_task_events=False,  # nobody reads them
            **lasting,
        )
        worker = RayWorker(worker_index, actor.remote(worker_index, settings, epoch, self.relay), self._kills, lease)
        if has_room and self._room.num_free is not None:
            self._room.num_free -= 1
            worker.on_end = self._free
        worker.connect()
        return worker

    async def open_journal(self, check: Callable[[SavedSampler], object]) -> Journal:
        """Open the journal; take over the workers of the server before, if they understand this one's orders.

        Raises:
            SamplerLostError: another server has the sampler, or Ray does not start the journal.
            InvalidValueError: an earlier server left a journal that this version cannot read, or with another secret,
                or a state that this server cannot go on with.
        """
        if self._settings.ray_address is None:
            return NoJournal()
        if not self._adopts:  # opening discards it
            self._directory = await asyncio.to_thread(self._read_directory)
        may_wait = self._adopts and not self._identity.sampler  # others come with the server's first sampler
        journal = await RayJournal.open(
            self._identity,
            self._settings.orphan_seconds,
            check=check,
            discard=not self._adopts,
            on_wait=self.standing_by.set if may_wait else None,
        )
        self.standing_by.clear()
        if self._adopts:
            self._directory = await asyncio.to_thread(self._read_directory)
        self._lease = journal.lease
        state = journal.state
        # Workers of this server's format that are older than a server of another format hold what that server has
        # replaced.
        pool = None if state is None else state.header.pool
        num_workers = len(pool.workers) if pool is not None and pool.orders_format == ORDERS_FORMAT else 0
        found, self._others = await asyncio.to_thread(self._names.find, num_workers)
        workers = [
            RayWorker(index, worker.actor, self._kills, journal.lease, is_outdated=worker.is_outdated)
            for index, worker in found.items()
        ]
        taken = await asyncio.gather(*(worker.take_over(self._takeover_seconds, self.relay) for worker in workers))
        self._found = {worker.index: worker for worker, is_taken in zip(workers, taken, strict=True) if is_taken}
        if state is None:  # else they are of use to another server as long as this one may refuse the state
            await self.end_other_workers()
        return journal

    def of_sampler(self, name: str, *, adopt: bool) -> RayBackend:
        """Return the backend of another sampler on the cluster, whose room for workers both share."""
        backend = copy.copy(self)
        backend._use(name, adopt=adopt)
        return backend

    def directory(self) -> str:
        """Return what an earlier server has written with `write_directory`, as `open_journal` has found it."""
        return self._directory

    async def write_directory(self, directory: str) -> None:
        """Keep a directory of other samplers on an existing cluster.

        Raises:
            SamplerLostError: another server may have the sampler by now.
        """
        if self._lease is None:
            return
        self._check_lease()
        sealed = Seal(self._identity.key).sealed([directory.encode()])
        await asyncio.to_thread(write_directory, self._identity.tag, sealed)

    def _read_directory(self) -> str:
        sealed = read_directory(self._identity.tag)
        try:
            return bytes(Seal(self._identity.key).opened(sealed)).decode() if sealed else ""
        except (ForgedMessageError, UnicodeDecodeError) as error:  # another form, of a version before 0.2.0
            _log.error("directory of samplers not read", extra={"error": str(error)})
            return ""

    def find_worker(self, worker_index: int) -> RayWorker | None:
        """Return a worker that an earlier server left, and that is idle now; None if there is none."""
        return self._found.pop(worker_index, None)

    async def end_other_workers(self) -> None:
        """End the workers that understand no orders of this server, and those of samplers that this one replaces."""
        self._check_lease()
        others, self._others = self._others, ()
        await asyncio.to_thread(end_actors, others)

    def share(self, value: _R) -> _R:
        """Put a value into the object store; return its reference, which Ray replaces by the value for an actor."""
        with putting():
            reference: Any = ray.put(value)
        return reference  # type: ignore[no-any-return]

    def has_room(self) -> bool:
        """Return whether the cluster has room for one more worker, which no machine may have at once."""
        return _capacity(ray.available_resources(), self._settings) >= 1  # type: ignore[no-untyped-call]

    def leaving_nodes(self) -> Collection[str] | None:
        """Return the ids of machines that Ray drains, as before a shutdown; None for a cluster of one machine."""
        if self._settings.ray_address is None:
            return None
        return ray._private.state.state.get_draining_nodes()

    def default_num_workers(self) -> int:
        """Return how many workers the cluster has cores for."""
        cores = ray.cluster_resources().get("CPU", 1.0)  # type: ignore[no-untyped-call]
        num_cpus = self._settings.worker_num_cpus
        return max(int(cores / num_cpus), 1) if num_cpus else int(cores)

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Watch the cluster's head and its raylet on this machine."""
        node: Any = ray._private.worker._global_node
        if node is not None:  # else this process is a client of the cluster, not a part of it
            self._watch = ClusterWatch(node.gcs_address, node.raylet_socket_name, on_lost)

    def close(self) -> None:
        """Leave the cluster, or end it if it is the server's own, and remove its files unless it was lost."""
        is_lost = False
        if self._watch is not None:
            self._watch.close()
            is_lost = self._watch.has_reported
        if self._settings.ray_address is None and not is_lost:
            cluster.end()
        else:
            ray.shutdown()

    def _check_lease(self) -> None:
        """Raise SamplerLostError if another server may have the sampler."""
        if self._lease is not None and not self._lease.is_held:
            raise SamplerLostError("another server may have the sampler by now")

    def _free(self) -> None:
        """Record that a worker no longer reserves its part of the server's own cluster."""
        assert self._room.num_free is not None  # noqa: S101
        self._room.num_free += 1


def _scheduling_strategy(worker_index: int, settings: RaySettings) -> NodeAffinitySchedulingStrategy | None:
    """Return Ray's strategy for the worker of a slot; None for Ray's own choice.

    A slot has the same machine whenever its worker is replaced, as long as the machines stay the same. The strategy is
    a preference: where the machine has no room, because something else uses it, Ray takes another one.

    Args:
        worker_index: index of the worker.
        settings: the cluster, and what each worker takes of it.
    """
    if settings.ray_address is None or settings.worker_placement == "any":
        return None
    own: str = ray.get_runtime_context().get_node_id()
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    # One order for all servers, except that each begins with its own machine, which needs no network.
    nodes = sorted(alive, key=lambda node: (node["NodeID"] != own, node["NodeID"]))
    position = position_of(
        worker_index, [_capacity(node["Resources"], settings) for node in nodes], settings.worker_placement
    )
    if position is None:
        return None
    strategy: Any = NodeAffinitySchedulingStrategy(nodes[position]["NodeID"], soft=True, _spill_on_unavailable=True)
    return strategy  # type: ignore[no-any-return]


def _capacity(resources: Mapping[str, float], settings: RaySettings) -> float:
    """Return the number of workers that a machine with these resources has room for."""
    needs = {
        "CPU": settings.worker_num_cpus,
        "GPU": settings.worker_num_gpus,
        "memory": settings.worker_memory_bytes or 0,
        **settings.worker_resources,
    }
    rooms = [resources.get(name, 0.0) / amount for name, amount in needs.items() if amount]
    return min((float(math.floor(room + 1e-6)) for room in rooms), default=math.inf)
