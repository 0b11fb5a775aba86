"""The audit log: a line of JSON for each RPC at its end."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from rollserve_server.agents import content_hash
from rollserve_server.errors import InvalidValueError
from rollserve_server.futures import in_request_thread

if TYPE_CHECKING:
    from rollserve_server.identity import Principal
    from rollserve_server.pool import AgentUpdated, EnvUpdated
    from rollserve_server.settings import Reload

__all__ = [
    "AuditLog",
    "AuditedRpc",
    "change",
    "check_audit_log",
    "note_agent_update",
    "note_env_update",
    "settings_changes",
]

_log = logging.getLogger(__name__)

_STDERR = Path("-")
_MODE = 0o600
_NUM_EARLIER = 9  # files
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
"""Statuses of RPCs that the client may not call, or not with this request."""
_COMPLAINT_SECONDS = 60.0


class AuditedRpc(Protocol):
    """An RPC as the audit log shows it; see `OpenRpc`."""

    name: str
    request_id: str
    connection: str
    principal: Principal | None
    began: float
    changes: dict[str, object]
    is_audited: bool

    @property
    def shown_sampler(self) -> str:
        """Name of the sampler, as far as the log shows it."""
        ...


class AuditLog:
    """Adds lines to the file, or to standard error."""

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        """Open the file.

        Args:
            path: path of the file; - for standard error.
            max_bytes: size of the file from which on another one is begun; None for any.

        Raises:
            OSError: it cannot be opened.
        """
        self._handler: logging.Handler
        if path == _STDERR:
            self._handler = _Stderr(sys.stderr)
        else:
            self._handler = _File(path) if max_bytes is None else _BoundedFile(path, max_bytes)

    def write(self, rpc: AuditedRpc, status: str, reason: str) -> None:
        """Write the line of an RPC that ends.

        Args:
            rpc: the RPC.
            status: name of its status.
            reason: reason of its error, or an empty text.
        """
        self._write(
            {
                "request_id": rpc.request_id,
                "principal": rpc.principal.name if rpc.principal is not None else None,
                "peer": rpc.connection,
                "rpc": rpc.name,
                "sampler": rpc.shown_sampler,
                "decision": "refused" if status in _REFUSED else "allowed",
                "status": status,
                "reason": reason,
                "seconds": round(time.monotonic() - rpc.began, 6),
                **rpc.changes,
            }
        )

    def write_signal(self, signal: str, changes: Mapping[str, object]) -> None:
        """Write the line of a signal that changed something."""
        self._write({"signal": signal, **changes})

    def _write(self, record: Mapping[str, object]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._handler.handle(logging.makeLogRecord({"msg": json.dumps({"time": now, **record})}))

    def close(self) -> None:
        """Close the file."""
        self._handler.close()


def check_audit_log(path: Path | None) -> None:
    """Raise InvalidValueError if lines cannot be added to a file."""
    if path is not None and path != _STDERR:
        try:
            _open(path).close()
        except OSError as error:
            hint = error.strerror or str(error)
            raise InvalidValueError.of("audit_log", expected="a file to add lines to", got=path, hint=hint) from None


def change(before: object, after: object) -> dict[str, object]:
    """Return what an RPC changed, as the log has it."""
    return {"before": before, "after": after}


def settings_changes(reload: Reload) -> dict[str, object]:
    """Return what a reload of the settings changed, and what a restart is needed for, as the log has it."""
    return {
        "settings": {name: each._asdict() for name, each in reload.changed.items()},
        "needs_restart": {name: each._asdict() for name, each in reload.needs_restart.items()},
    }


async def note_agent_update(rpc: AuditedRpc, updated: AgentUpdated) -> None:
    """Note an update of the agent among the changes of its RPC."""
    if rpc.is_audited:
        rpc.changes["agent"] = await in_request_thread(_agent_change, updated)


async def note_env_update(rpc: AuditedRpc, updated: EnvUpdated) -> None:
    """Note an update of the environment among the changes of its RPC."""
    if rpc.is_audited:
        rpc.changes["environment"] = await in_request_thread(_env_change, updated)


def _agent_change(updated: AgentUpdated) -> dict[str, object]:
    before, after = updated.replaced, updated.agents
    return change(
        None if before is None else {"version": updated.version - 1, "digest": _digest_of(before)},
        {"version": updated.version, "digest": _digest_of(after)},
    )


def _env_change(updated: EnvUpdated) -> dict[str, object]:
    return change(
        {"version": updated.version - 1, "digest": _digest_of(updated.replaced_specs)},
        {"version": updated.version, "digest": _digest_of(updated.specs)},
    )


def _digest_of(values: Iterable[object]) -> str:
    """Return a SHA-256 digest, in hex, of agents or environments: of one alone, or of one for each worker or row.

    The digest of a single agent is the content hash that `ListAgentVersions` tells.
    """
    digests = [content_hash(value) for value in values]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


class _Complaining(logging.Handler):
    """A handler that reports lines that cannot be written in the server's log, once a minute."""

    _complained = -_COMPLAINT_SECONDS

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        now = time.monotonic()
        if now - self._complained >= _COMPLAINT_SECONDS:
            self._complained = now
            _log.error("audit log not written", extra={"error": str(sys.exc_info()[1])})


class _Stderr(_Complaining, logging.StreamHandler[Any]):
    """Lines on standard error."""


class _File(_Complaining, logging.handlers.WatchedFileHandler):
    """A file that only the server's user reads. If it is renamed, as `logrotate` does, another one is begun."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")

    def _open(self) -> IO[str]:  # type: ignore[override]
        return _open(Path(self.baseFilename))


class _BoundedFile(_Complaining, logging.handlers.RotatingFileHandler):
    """A file that only the server's user reads. Once it is full, it is renamed, and the oldest of ten is removed."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, encoding="utf-8", maxBytes=max_bytes, backupCount=_NUM_EARLIER)

    def _open(self) -> IO[str]:  # type: ignore[override]
        return _open(Path(self.baseFilename))


def _open(path: Path) -> IO[str]:
    return open(  # closed by its owner
        path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, _MODE)
    )
