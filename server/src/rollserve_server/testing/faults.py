"""Faults that a test can ask for, what of them waits, and the RPCs and workers that they befall."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import grpc.aio
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from rollserve._calls.responses import responses_of
from rollserve_server.errors import InvalidValueError, StoppingError, WorkerLostError, shorten
from rollserve_server.pool import InProcessBackend, RemoteBuffer, ThreadWorker
from rollserve_server.testing.rpcs import WrappedRpcs
from rollserve_wire.protobuf import keys_of
from rollserve_wire.reasons import Reason
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from rollserve_server.envs import RelayPlace
    from rollserve_server.sampling import WorkOrder
    from rollserve_server.settings import WorkerSettings

__all__ = ["Faults", "FaultyBackend", "FaultyRpcs"]

_log = logging.getLogger(__name__)
_SERVICE = pb.DESCRIPTOR.services_by_name["SamplerService"]
_MAX_MADE = 1000
"""Number of faults that the report has."""
_UPDATES = {"UpdateAgent": "agent", "UpdateEnv": "environment"}
_BATCH_STREAMS = ("ObtainSamples", "ObtainExactEpisodes", "StreamSamples", "DriveEnvironments")
_SAMPLING: dict[str, type[pb.ObtainSamplesRequest | pb.ObtainExactEpisodesRequest]] = {
    "ObtainSamples": pb.ObtainSamplesRequest,
    "ObtainExactEpisodes": pb.ObtainExactEpisodesRequest,
}
_REASONS = {"agent": Reason.AGENT_REFUSED, "environment": Reason.ENV_REFUSED}
_KEYS = keys_of(pb.ObtainSamplesResponse.DESCRIPTOR)
_DRIVEN_STEP = keys_of(pb.DriveEnvironmentsResponse.DESCRIPTOR)["step"]
_WITH_STEPS, _ACCOUNT = (_KEYS["batch"], _KEYS["shared"], _DRIVEN_STEP), _KEYS["account"]
_ASKED = "a test has asked for it"
_R = TypeVar("_R")


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    times: int = Field(default=1, ge=1)


class KillWorker(_Fault):
    """Lose a worker with an order, the next one or a later one; without an index, the worker that has the order."""

    fault: Literal["kill-worker"] = "kill-worker"
    worker_index: int | None = Field(default=None, ge=0)
    after_orders: int = Field(default=0, ge=0)


class BreakStream(_Fault):
    """End the stream of a sampling call or of a session after some messages with steps."""

    fault: Literal["break-stream"] = "break-stream"
    after_messages: int = Field(default=1, ge=0)


class RefuseUpdate(_Fault):
    """Refuse an update of the agent or the environment."""

    fault: Literal["refuse-update"] = "refuse-update"
    update: Literal["agent", "environment"] = "agent"


class Delay(_Fault):
    """Begin to answer an RPC late; without a name, any RPC."""

    fault: Literal["delay"] = "delay"
    seconds: float = Field(gt=0, allow_inf_nan=False)
    rpc: str = ""

    @field_validator("rpc")
    @classmethod
    def _is_rpc(cls, name: str) -> str:
        if name and name not in _SERVICE.methods_by_name:
            raise ValueError(f"one of {', '.join(sorted(_SERVICE.methods_by_name))}")
        return name


_Any = Annotated[KillWorker | BreakStream | RefuseUpdate | Delay, Field(discriminator="fault")]


_ANY: TypeAdapter[KillWorker | BreakStream | RefuseUpdate | Delay] = TypeAdapter(_Any)


_F = TypeVar("_F", bound=_Fault)


class Faults:
    """Waiting faults, in the order in which they were asked for, and made ones."""

    def __init__(self) -> None:
        self._waiting: list[_Fault] = []
        self._made: deque[_Fault] = deque(maxlen=_MAX_MADE)

    def add(self, text: str) -> None:
        """Have a fault wait, given as a JSON object.

        Raises:
            InvalidValueError: there is no such fault.
        """
        try:
            self._waiting.append(_ANY.validate_json(text))
        except ValidationError as error:
            raise _explained(error.errors()[0]) from None

    def waits(self, kind: type[_Fault]) -> bool:
        """Whether a fault of a kind waits."""
        return any(isinstance(fault, kind) for fault in self._waiting)

    def take(self, kind: type[_F], is_due: Callable[[_F], bool] = lambda _: True) -> _F | None:
        """Return the first fault of a kind that is due, which the caller makes now; None if there is none."""
        for position, fault in enumerate(self._waiting):
            if isinstance(fault, kind) and is_due(fault):
                again = [fault.model_copy(update={"times": fault.times - 1})] if fault.times > 1 else []
                self._waiting[position : position + 1] = again
                made = fault.model_copy(update={"times": 1})
                self._made.append(made)
                _log.info("fault made", extra={"fault": made.model_dump_json()})
                return made
        return None

    def take_worker(self, index: int) -> bool:
        """Return whether a worker is lost with the order that it has got now, which is counted."""
        if self.take(KillWorker, lambda fault: fault.worker_index in (None, index) and not fault.after_orders):
            return True
        for position, fault in enumerate(self._waiting):
            if isinstance(fault, KillWorker) and fault.worker_index in (None, index):
                self._waiting[position] = fault.model_copy(update={"after_orders": fault.after_orders - 1})
        return False

    def clear(self) -> None:
        """Forget all faults."""
        self._waiting.clear()
        self._made.clear()

    def report(self) -> str:
        """Return waiting faults as `waiting` and made ones as `made`, as a JSON object."""
        shown: dict[str, list[Any]] = {
            "waiting": [fault.model_dump() for fault in self._waiting],
            "made": [fault.model_dump() for fault in self._made],
        }
        return json.dumps(shown)


def _explained(error: ErrorDetails) -> InvalidValueError:
    """Return the error for an invalid fault."""
    expected, got = error["msg"].removeprefix("Value error, ").removeprefix("Input should be "), error["input"]
    if error["type"] == "extra_forbidden":
        expected = "none of this name"
    elif error["type"].startswith("union_tag"):
        expected = "a fault: kill-worker, break-stream, refuse-update or delay"
    elif error["type"] == "missing":
        expected, got = "a value", "none"
    field = ".".join(str(part) for part in error["loc"][1:]) or "fault"
    return InvalidValueError.of(field, expected=expected, got=shorten(repr(got)))


class FaultyRpcs(WrappedRpcs):
    """Makes the faults of the sampler service's RPCs."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def answer(
        self, name: str, handle: Callable[[object, Any], Awaitable[bytes]], requests: object, context: Any
    ) -> bytes:
        """Return the response of an RPC, late or not at all if a fault is due."""
        await self._delay(name)
        return await handle(requests, _FaultyContext(context, name, self._faults))

    async def stream(
        self, name: str, handle: Callable[[object, Any], Awaitable[None]], requests: object, context: Any
    ) -> None:
        """Send the responses of an RPC, late or not all of them if a fault is due."""
        await self._delay(name)
        faulty = _FaultyContext(context, name, self._faults)
        # What was written in the background may be the last for long, so that nobody notices a broken stream.
        handling, breaking = asyncio.ensure_future(handle(requests, faulty)), asyncio.create_task(faulty.broken.wait())
        try:
            await asyncio.wait({handling, breaking}, return_when=asyncio.FIRST_COMPLETED)
            if not faulty.is_broken:
                await handling
        finally:
            handling.cancel()
            breaking.cancel()
            await asyncio.wait({handling})
        if faulty.is_broken and not faulty.is_aborted:
            await faulty.abort()

    async def _delay(self, name: str) -> None:
        fault = self._faults.take(Delay, lambda fault: fault.rpc in ("", name))
        if fault is not None:
            await asyncio.sleep(fault.seconds)


class _FaultyContext:
    """An RPC as gRPC has it, whose requests may be refused, and whose stream may break.

    Attributes:
        broken: set once the stream is broken.
        is_aborted: whether the RPC was aborted, which gRPC allows once.
    """

    def __init__(self, context: Any, name: str, faults: Faults) -> None:
        self.broken = asyncio.Event()
        self.is_aborted = False
        self._context = context
        self._name = name
        self._faults = faults
        self._num_messages = 0

    @property
    def is_broken(self) -> bool:
        """Whether the stream is broken."""
        return self.broken.is_set()

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._context, attribute)

    async def read(self) -> Any:
        request = await self._context.read()
        if self._faults.waits(RefuseUpdate):
            update = _update_in(self._name, request)
            if self._faults.take(RefuseUpdate, lambda fault: fault.update == update):
                raise InvalidValueError(f"the {update} is refused: {_ASKED}", reason=_REASONS[update])
        return request

    async def write(self, message: bytes) -> None:
        if self._name not in _BATCH_STREAMS:
            await self._context.write(message)
        elif self.is_broken or self._faults.waits(BreakStream):
            for response in responses_of(message):
                await self._write_unless_broken(bytes(response))
        else:
            self._num_messages += sum(response[0] in _WITH_STEPS for response in responses_of(message))
            await self._context.write(message)

    async def _write_unless_broken(self, response: bytes) -> None:
        has_steps = response[0] in _WITH_STEPS
        is_last = response[0] == _ACCOUNT
        if not self.is_broken and (has_steps or is_last):
            due = self._faults.take(BreakStream, lambda fault: is_last or self._num_messages >= fault.after_messages)
            if due is not None:
                self.broken.set()
        if self.is_broken:
            raise StoppingError(f"the stream is broken: {_ASKED}")
        self._num_messages += has_steps
        await self._context.write(response)

    async def abort(
        self, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN, details: str = "", metadata: Any = ()
    ) -> None:
        if self.is_broken:  # a lost connection has no reason either
            code, details, metadata = grpc.StatusCode.UNAVAILABLE, f"the stream is broken: {_ASKED}", ()
        self.is_aborted = True
        await self._context.abort(code, details, metadata)


def _update_in(name: str, request: Any) -> str:
    """Return what a request updates; empty for nothing."""
    if name in _SAMPLING and isinstance(request, bytes):
        sampling = _SAMPLING[name].FromString(request)
        return "agent" if sampling.options.HasField("agent_update") else ""
    return _UPDATES.get(name, "")


class FaultyBackend(InProcessBackend):
    """A maker of workers that are threads, and that `KillWorker` ends."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def create_worker(self, worker_index: int, settings: WorkerSettings) -> ThreadWorker:
        """Return a new worker, which starts in its thread."""
        return _MortalWorker(worker_index, settings, self.relay, self._faults)

    def of_sampler(self, name: str, *, adopt: bool) -> FaultyBackend:
        """Return the backend itself, which has no state."""
        return self


class _MortalWorker(ThreadWorker):
    def __init__(self, worker_index: int, settings: WorkerSettings, relay: RelayPlace | None, faults: Faults) -> None:
        super().__init__(worker_index, settings, relay)
        self._faults = faults

    def work(self, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
        answer = super().work(order)
        if self._faults.take_worker(self.index):
            self.kill(WorkerLostError(f"worker {self.index} is lost: {_ASKED}", self.index))
        return answer
