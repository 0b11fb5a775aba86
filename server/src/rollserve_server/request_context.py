"""The request that the present task works for, whose id log lines have until the request has ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["RequestIdFilter", "working_for"]


@dataclass
class _Request:
    """A request, which tasks that outlive it may refer to.

    Attributes:
        id: its id; None once it has ended.
    """

    id: str | None


_request: ContextVar[_Request | None] = ContextVar("request", default=None)


@contextmanager
def working_for(request_id: str) -> Iterator[None]:
    """Have the log lines of the block name a request, those of tasks and threads that it starts included."""
    request = _Request(request_id)
    token = _request.set(request)
    try:
        yield
    finally:
        request.id = None
        _request.reset(token)


class RequestIdFilter(logging.Filter):
    """A filter of a handler that adds `request_id` to the events that belong to a request, and drops none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the id, unless the event names a request itself."""
        request = _request.get()
        if request is not None and request.id is not None and not hasattr(record, "request_id"):
            record.request_id = request.id
        return True
