"""Workers as Ray actors: the actor, and the pool's handle of it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import itertools
import logging
import pickle
import resource
import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import ray
import ray.exceptions

from rollserve_server.activity import Phase
from rollserve_server.errors import DomainError, FaultError, SamplerLostError, WorkerLostError, portable
from rollserve_server.futures import ignore_result, in_background
from rollserve_server.machine import data_bytes, memory_bytes, num_cores, private_bytes
from rollserve_server.pool.backends.ray.line import Line, LineEndedError, Listener, WorkerLine
from rollserve_server.pool.backends.ray.losses import KernelKills, domain_error
from rollserve_server.sampling import Worker, WorkerIdentity, new_array
from rollserve_wire.memory import give_back_memory, hold_on_to_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from rollserve_server.activity import Heartbeat
    from rollserve_server.envs import RelayPlace
    from rollserve_server.pool.backends.backend import RemoteBuffer
    from rollserve_server.pool.backends.ray.line import Answer
    from rollserve_server.pool.journal.held_lease import HeldLease
    from rollserve_server.sampling import WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["CONCURRENCY", "RayWorker", "WorkerActor"]

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

_CONTROL, _ASIDE = "control", "aside"
CONCURRENCY = {_CONTROL: 1, _ASIDE: 2}
"""Concurrency groups of methods that run while the worker works: short ones, and others, where one may end another."""
_INLINE_BYTES = 64 << 10
"""Size up to which a buffer travels in its report: waiting for another Ray object costs more than copying it."""
_LOST_FRAME_SECONDS = 10.0
"""How long a worker may be seen doing nothing, while nothing moves on its line, before an unanswered call is lost."""
_MIN_WORKER_BYTES = 4 << 30
"""Memory that a worker may take at least by default, unless that is more than three quarters of the machine's."""
_ROOM_BYTES = 1 << 30
"""Room for memory that libraries with many threads reserve and do not use."""


@dataclasses.dataclass(frozen=True)
class _Failure:
    error: Exception


@dataclasses.dataclass(frozen=True)
class _Held:
    """Stands for an argument that came through Ray's object store."""

    number: int


class WorkerActor(Worker):
    """A worker in a Ray process. It refuses servers of an earlier epoch than its own.

    Calls come on a line from the server where it is on this machine, else as tasks of Ray. Methods return errors as
    values, because Ray ends the process if it cannot turn an error into text.
    """

    _line: WorkerLine | None = None

    def __init__(
        self, worker_index: int, settings: WorkerSettings, epoch: int = 0, relay: RelayPlace | None = None
    ) -> None:
        (hold_on_to_memory if settings.hold_memory else give_back_memory)()
        self._keeps_memory = settings.hold_memory
        self._epoch = epoch
        self._held: dict[int, Any] = {}
        self._max_memory_bytes = _max_memory_bytes_of(settings)
        _limit_allocations(self._max_memory_bytes)
        super().__init__(worker_index, settings, self._new_buffer, relay)

    def identity(self) -> WorkerIdentity:
        """Return where the worker runs."""
        return dataclasses.replace(super().identity(), node=ray.get_runtime_context().get_node_id())

    def heartbeat(self) -> Heartbeat:
        """Return what the worker is doing now, and its process's memory. May be called while another method runs."""
        heartbeat, max_bytes = super().heartbeat(), self._max_memory_bytes
        return dataclasses.replace(heartbeat, memory_bytes=private_bytes(), max_memory_bytes=max_bytes)

    def fence(self, epoch: int) -> None:
        """Belong to the server of an epoch from now on, and stop all work. May be called while the worker works."""
        self._epoch = max(epoch, self._epoch)
        self.stop_all()
        if self._line is not None:
            self._line.end()

    def serve(self, name: str) -> bool:
        """Answer calls on a line until it ends; return False if the server cannot be reached by one.

        Args:
            name: name of the server's socket.
        """
        try:
            line = self._line = WorkerLine.connect(name, keeps_memory=self._keeps_memory)
        except OSError:
            return False
        try:
            while (call := line.next_call()) is not None:
                epoch, method, arguments, options = call
                given = (self._held.pop(each.number) if isinstance(each, _Held) else each for each in arguments)
                outcome = self.ask(epoch, method, *given, **options)
                is_result = method == Worker.work.__name__ and not isinstance(outcome, _Failure)
                line.answer(*(outcome if is_result else (outcome,)))
                del call, given, outcome  # they may be large
        except ConnectionError:
            pass  # the server is gone
        finally:
            self._line = None
            line.close()
        return True

    def hold(self, number: int, value: Any) -> None:
        """Keep a large argument for a call that comes on the line. May be called while the worker works."""
        self._held[number] = value

    def ask(self, epoch: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the worker; return its result or its failure."""
        if epoch < self._epoch:
            return _Failure(SamplerLostError("another server has the sampler"))
        try:
            with self.at_work():
                return getattr(self, method)(*args, **kwargs)
        # Also SystemExit and KeyboardInterrupt: signals go to the main thread, so that these come from the method.
        except BaseException as error:
            return _Failure(portable(error))

    def ask_aside(self, epoch: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method that may run while the worker works; return its result or its failure."""
        if epoch < self._epoch:
            return _Failure(SamplerLostError("another server has the sampler"))
        try:
            return getattr(self, method)(*args, **kwargs)
        except BaseException as error:
            return _Failure(portable(error))

    def ask_work(self, order: bytes) -> tuple[bytes, NDArray[np.uint8] | None]:
        """Work on a pickled order; return the pickled report or failure, and the buffer.

        A small buffer travels within the pickled report.
        """
        outcome = self.ask(*pickle.loads(order))  # noqa: S301  # from the pool
        report, buffer = (outcome, None) if isinstance(outcome, _Failure) else outcome
        if buffer is None or buffer.nbytes <= _INLINE_BYTES:
            return pickle.dumps((report, buffer)), None
        return pickle.dumps((report, None)), buffer

    def _new_buffer(self, num_bytes: int) -> NDArray[np.uint8]:
        return new_array(num_bytes) if self._line is None else self._line.results.new_buffer(num_bytes)


class RayWorker:
    """The handle of a worker's actor.

    Attributes:
        index: index of the worker.
        is_outdated: whether a server of another version has made the worker.
        on_end: called once, when the worker is killed.
    """

    def __init__(
        self,
        worker_index: int,
        actor: Any,
        kills: KernelKills,
        lease: HeldLease | None = None,
        *,
        is_outdated: bool = False,
    ) -> None:
        """Take an actor, which is called through Ray until `connect` is called."""
        self.is_outdated = is_outdated
        self.on_end: Callable[[], None] | None = None
        self.index = worker_index
        self._kills = kills
        self._actor = actor
        self._lease = lease
        self._epoch = lease.epoch if lease else 0
        self._ask_work = actor.ask_work.options(num_returns=2)
        self._lost: WorkerLostError | None = None
        self._line: asyncio.Future[Line | None] | None = None
        self._numbers = itertools.count()
        self._urgent_numbers = itertools.count(1)
        self._num_orders = 0
        # What an idle worker with unanswered calls was last seen at, and since when (`time.monotonic`).
        self._seen_waiting: tuple[tuple[int, int], float] | None = None

    def connect(self) -> None:
        """Have the worker answer calls on a line, if it runs on this machine. No call may be in progress."""
        self._line = asyncio.ensure_future(self._connected())

    def disconnect(self) -> None:
        """End the line, if there is one. No call may be in progress."""
        self._end_line()
        self._line = None

    async def call(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a method of the worker; return its result."""
        result: _R = await self._call(method.__name__, args, kwargs)
        return result

    async def call_urgently(
        self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Call a method of the worker, whose orders before it make no more than a step; return its result."""
        number = next(self._urgent_numbers)
        announce = functools.partial(self._announce, number)
        given = (number, method.__name__, *args)
        result: _R = await self._call(Worker.answer_urgently.__name__, given, kwargs, announce)
        return result

    async def aside(self, method: Callable[Concatenate[Worker, _P], _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call a method that may run while the worker works; return its result."""
        with self._translating_errors():
            ask = self._actor.ask_aside.options(concurrency_group=_ASIDE)
            reference = ask.remote(self._epoch, method.__name__, *args, **kwargs)
        result: _R | _Failure = await self.fetch(reference)
        return self._succeeded(result)

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        """Send an order to the worker; return its report and its buffer. `call` has returned before."""
        line = None if self._line is None else self._line.result()
        if line is not None:
            answer = line.ask(self._epoch, Worker.work.__name__, (order,), {})
            self._num_orders += 1
            on_line = self._report_on_line(answer)
            on_line.add_done_callback(self._end_order)
            return on_line, _LineBuffer(answer)
        # Ray sends bytes as they are; anything else goes through its own serializer, which is Python code.
        with self._translating_errors():
            report, buffer = self._ask_work.remote(pickle.dumps((self._epoch, "work", order)))
        self._num_orders += 1
        remote_buffer = _RayBuffer(self, buffer)
        future = asyncio.ensure_future(self._report(report, remote_buffer))
        future.add_done_callback(self._end_order)
        return future, remote_buffer

    def stop(self, work_id: int) -> None:
        """Stop the work of this name at once."""
        with contextlib.suppress(ray.exceptions.RaySystemError):  # Ray has ended, and the actor with it
            self._actor.stop.options(concurrency_group=_CONTROL).remote(work_id)

    async def heartbeat(self) -> Heartbeat:
        """Return the worker's activity now."""
        with self._translating_errors():
            reference = self._actor.heartbeat.options(concurrency_group=_CONTROL).remote()
        heartbeat: Heartbeat = await self.fetch(reference)
        self._check_answers(heartbeat)
        return heartbeat

    def kill(self, error: WorkerLostError | None = None) -> None:
        """End the worker at once, or as soon as it is sure to be this server's."""
        self._lost = self._lost or error
        self._end_line()
        if self._lease is None:
            _kill(self._actor)
        else:
            self._lease.when_held(lambda: _kill(self._actor))
        if self.on_end is not None:
            self.on_end()
            self.on_end = None

    async def take_over(self, max_seconds: float, relay: RelayPlace | None) -> bool:
        """Have the worker end its work for an earlier server; return whether it has, else kill it.

        Args:
            max_seconds: time in which the worker has to answer.
            relay: where it reaches the hosts of this server's gateway.
        """
        with contextlib.suppress(DomainError, TimeoutError):
            async with asyncio.timeout(max_seconds):
                await self.fetch(self._actor.fence.options(concurrency_group=_CONTROL).remote(self._epoch))
                self.connect()
                if not self.is_outdated:
                    await self.call(Worker.use_relay, relay)
                await self.call(Worker.close_all_work)
                return True
        _log.warning("worker not taken over", extra={"worker": self.index})
        self.kill()
        return False

    async def fetch(self, reference: Any) -> Any:
        """Return the value of a Ray reference from the worker; errors as of `WorkerHandle.call`."""
        with self._translating_errors():
            return await reference

    async def _call(
        self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], on_sent: Callable[[], None] = lambda: None
    ) -> Any:
        line = None if self._line is None else await asyncio.shield(self._line)
        if line is None:
            with self._translating_errors():
                reference = self._actor.ask.remote(self._epoch, method, *args, **kwargs)
            on_sent()
            result = await self.fetch(reference)
        else:
            given = [await self._handed_over(each) for each in args]
            answer = line.ask(self._epoch, method, given, kwargs)
            on_sent()
            result, _ = await self._answered(answer)
        return self._succeeded(result)

    def _announce(self, number: int) -> None:
        """Announce an urgent call that has been sent, unless no order is before it."""
        if self._num_orders:
            with contextlib.suppress(ray.exceptions.RaySystemError):  # Ray has ended, and the actor with it
                self._actor.announce.options(concurrency_group=_CONTROL).remote(number)

    def _end_order(self, _: asyncio.Future[Any]) -> None:
        self._num_orders -= 1

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Turn Ray's errors in the block into errors of `WorkerHandle.call`."""
        try:
            yield
        except ray.exceptions.RayError as error:
            raise copy.copy(self._lost) or domain_error(error, self.index, self._kills) from error

    def _end_line(self) -> None:
        if self._line is None:
            return
        if self._line.done():
            _close_line(self._line)
        else:
            self._line.add_done_callback(_close_line)

    async def _connected(self) -> Line | None:
        """Have the worker connect to a line, and return it; None if it cannot."""
        try:
            listener = Listener()
        except OSError:
            return None
        with contextlib.closing(listener):
            self._served = asyncio.ensure_future(self._serve(listener.name))
            self._served.add_done_callback(ignore_result)
            try:
                await asyncio.wait((listener.line, self._served), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                _close_line(listener.line)
                raise
            is_connected = listener.line.done() and listener.line.exception() is None
            return listener.line.result() if is_connected else None

    async def _serve(self, name: str) -> None:
        """Wait until the worker has ended its line; errors as of `call`."""
        with self._translating_errors():
            reference = self._actor.serve.remote(name)
        await self.fetch(reference)

    async def _handed_over(self, argument: Any) -> Any:
        """Return an argument as it may travel on a line: values in Ray's object store are passed by Ray."""
        if not isinstance(argument, ray.ObjectRef):
            return argument
        held = _Held(next(self._numbers))
        with self._translating_errors():
            reference = self._actor.hold.options(concurrency_group=_CONTROL).remote(held.number, argument)
        await self.fetch(reference)
        return held

    async def _answered(self, answer: asyncio.Future[Answer]) -> Answer:
        """Return an answer from the line; errors as of `call`."""
        try:
            return await answer
        except LineEndedError as error:
            if error.cause:
                self.kill(WorkerLostError(f"worker {self.index} is lost: its line broke: {error.cause}", self.index))
            else:
                try:
                    await asyncio.shield(self._served)
                except WorkerLostError as loss:
                    self.kill(loss)  # its process may live
                    raise
            # A worker that is killed may still notice the end of its line, and leave it as for another server.
            raise copy.copy(self._lost) or SamplerLostError("another server has the sampler") from None

    def _check_answers(self, heartbeat: Heartbeat) -> None:
        """End the line if a frame was lost on it: the worker does nothing, and calls wait for its answers."""
        line = self._line.result() if self._line is not None and self._line.done() else None
        if line is None or not line.num_unanswered or heartbeat.phase is not Phase.IDLE:
            self._seen_waiting = None
            return
        at, now = (heartbeat.number, line.progress), time.monotonic()
        if self._seen_waiting is None or self._seen_waiting[0] != at:
            self._seen_waiting = at, now
        elif now - self._seen_waiting[1] > _LOST_FRAME_SECONDS:
            line.close("the worker does nothing, but has not answered a call")

    def _succeeded(self, outcome: _R | _Failure) -> _R:
        """Return an outcome, or raise its error. A worker that failed in a way that nobody foresaw is killed."""
        if not isinstance(outcome, _Failure):
            return outcome
        error = outcome.error
        if isinstance(error, FaultError) and not error.is_of_child:
            _log.error("worker failed", extra={"worker": self.index, "traceback": str(error)})
            error = error.loss_of(self.index)
            self.kill(error)
        raise error

    def _report_on_line(self, answer: asyncio.Future[Answer]) -> asyncio.Future[Any]:
        """Return the report of an answer, without a task that waits for it: such hops delay short calls."""
        report: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(functools.partial(self._take_answer, report))
        return report

    def _take_answer(self, report: asyncio.Future[Any], answer: asyncio.Future[Answer]) -> None:
        """Set the report of an answer."""
        if answer.exception() is not None:
            in_background(self._fail(report, answer))
        elif not report.done():  # else nobody waits for it any more
            outcome, _ = answer.result()
            try:
                report.set_result(self._succeeded(outcome))
            except Exception as error:
                report.set_exception(error)

    async def _fail(self, report: asyncio.Future[Any], answer: asyncio.Future[Answer]) -> None:
        """Set the error of a report whose line has ended."""
        try:
            await self._answered(answer)
        except BaseException as error:
            if not report.done():
                report.set_exception(portable(error))

    async def _report(self, reference: Any, remote_buffer: _RayBuffer) -> Any:
        pickled = await self.fetch(reference)
        try:
            report, remote_buffer.inline = pickle.loads(pickled)  # noqa: S301  # from the worker
        except Exception as error:
            report = _Failure(portable(error))
        return self._succeeded(report)


def _close_line(line: asyncio.Future[Any]) -> None:
    """Close a line if the worker has connected to it."""
    if line.done() and not line.cancelled() and line.exception() is None and line.result() is not None:
        line.result().close()


class _LineBuffer:
    """A buffer that comes with the report on a line."""

    def __init__(self, answer: asyncio.Future[Answer]) -> None:
        self._answer = answer

    async def get(self) -> NDArray[np.uint8]:
        _, buffer = await asyncio.shield(self._answer)
        assert buffer is not None  # noqa: S101  # reports that succeed have one
        return buffer


class _RayBuffer:
    """A buffer in Ray's object store, or in the report.

    Attributes:
        inline: the buffer if it was in the report, else None.
    """

    def __init__(self, worker: RayWorker, reference: Any) -> None:
        self.inline: NDArray[np.uint8] | None = None
        self._worker = worker
        self._reference = reference

    async def get(self) -> NDArray[np.uint8]:
        if self.inline is not None:
            return self.inline
        buffer: NDArray[np.uint8] = await self._worker.fetch(self._reference)
        return buffer


def _kill(actor: Any) -> None:
    with contextlib.suppress(ray.exceptions.RaySystemError):  # Ray has ended, and the actor with it
        ray.kill(actor)


def _max_memory_bytes_of(settings: WorkerSettings) -> int:
    """Return the memory that a worker of this machine may take for itself; 0 for any."""
    if settings.worker_max_memory_bytes is not None:
        return settings.worker_max_memory_bytes
    return min(max(memory_bytes() // num_cores(), _MIN_WORKER_BYTES), memory_bytes() // 4 * 3)


def _limit_allocations(max_bytes: int) -> None:
    """Let allocations of this process fail that would take it far beyond its memory before the pool looks at it.

    Args:
        max_bytes: memory that the process may take; 0 for any.
    """
    # Only the soft limit: child processes have limits of their own, which may be higher.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = data_bytes() + max_bytes + max_bytes // 4 + _ROOM_BYTES if max_bytes else hard
    resource.setrlimit(resource.RLIMIT_DATA, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
