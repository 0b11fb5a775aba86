"""The log's lines about RPCs that end with errors: a client that is refused all the time does not fill a disk."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rollserve_server.errors import DomainError, shorten

if TYPE_CHECKING:
    from rollserve_server.identity import Principal

__all__ = ["FailedRpc", "RefusalLog"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_BURST = 10
"""Lines at once, so that the log has the requests of a client that only now and then makes a mistake."""
_MAX_SOURCES = 1000
"""Pairs of peer and reason that are counted for themselves; all further ones are one peer together."""
_OTHERS = ("others",)


class FailedRpc(Protocol):
    """An RPC that ends with an error, as the log and the client name it; see `OpenRpc`."""

    name: str
    request_id: str
    connection: str
    charged_to: tuple[str, ...]
    principal: Principal | None

    @property
    def sees_all(self) -> bool:
        """Whether the client may learn folders of the server."""
        ...


class _Line(NamedTuple):
    """A line of the log, with the traceback of the error if there is one."""

    level: int
    event: str
    fields: dict[str, Any]
    error: Exception | None = None


@dataclass
class _Source:
    """A peer with a reason: how many lines it may have now, and what it lacks.

    Attributes:
        num_lines: number of lines that it may have now.
        num_suppressed: number of RPCs without a line since the last line.
        last: the line that the last of them would have had.
    """

    num_lines: int = _BURST
    num_suppressed: int = 0
    last: _Line | None = None


class RefusalLog:
    """Logs RPCs that end with errors: of each peer and reason, ten at once, and then one line each second.

    A line that stands for others, too, has their number as `suppressed`.
    """

    def __init__(self) -> None:
        """Start with an empty log; the event loop runs by the first line."""
        self._sources: dict[tuple[tuple[str, ...], str], _Source] = {}

    def add(self, rpc: FailedRpc, error: Exception, code: str, reason: str) -> None:
        """Log that an RPC ends with an error, now or together with others of its peer and reason."""
        fields: dict[str, Any] = {"rpc": rpc.name, "peer": rpc.connection, "request_id": rpc.request_id}
        if rpc.principal is not None and rpc.principal.is_known:
            fields["principal"] = rpc.principal.name
        if isinstance(error, DomainError):
            fields |= {"code": code, "reason": reason, "error": shorten(error.message)}
            line = _Line(logging.INFO, "call refused", fields)
        else:
            line = _Line(logging.ERROR, "call failed", fields, error)
        key = rpc.charged_to, reason
        if key not in self._sources and len(self._sources) >= _MAX_SOURCES:
            key = _OTHERS, ""
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source()
            self._tick_later(key)
        if source.num_lines:
            source.num_lines -= 1
            _write(line)
        else:
            source.num_suppressed += 1
            source.last = line

    def _tick(self, key: tuple[tuple[str, ...], str]) -> None:
        """Give a source the line of a second: for what it lacks, or for later. Forget it once it has all lines."""
        source = self._sources[key]
        if source.last is not None:
            _write(source.last, source.num_suppressed - 1)
            source.num_suppressed, source.last = 0, None
        else:
            source.num_lines += 1
        if source.num_lines < _BURST:
            self._tick_later(key)
        else:
            del self._sources[key]

    def _tick_later(self, key: tuple[tuple[str, ...], str]) -> None:
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick, key)


def _write(line: _Line, num_suppressed: int = 0) -> None:
    extra = {**line.fields, "suppressed": num_suppressed} if num_suppressed else line.fields
    _log.log(line.level, line.event, exc_info=line.error, extra=extra)
