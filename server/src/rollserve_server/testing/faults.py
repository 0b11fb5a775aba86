"""Faults: what a test can ask for, and what of it waits."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from rollserve_server.errors import InvalidValueError, shorten
from rollserve_wire.v1 import sampler_service_pb2

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["BreakStream", "Delay", "Faults", "KillWorker", "RefuseUpdate"]

_log = logging.getLogger(__name__)

_RPCS = sampler_service_pb2.DESCRIPTOR.services_by_name["SamplerService"].methods_by_name
_MAX_MADE = 1000
"""Number of faults that the report has."""


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    times: int = Field(default=1, ge=1)


class KillWorker(_Fault):
    """Lose a worker with its next order; without an index, the worker that has the next order."""

    fault: Literal["kill-worker"] = "kill-worker"
    worker_index: int | None = Field(default=None, ge=0)


class BreakStream(_Fault):
    """End the stream of a sampling call after some messages with steps."""

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
        if name and name not in _RPCS:
            raise ValueError(f"one of {', '.join(sorted(_RPCS))}")
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
