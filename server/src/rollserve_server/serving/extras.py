"""Extra parts of a test server, which make faults on demand. No ordinary server has any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollserve_server.serving.build import make_backend

if TYPE_CHECKING:
    from rollserve_server.gateway import Interceptor
    from rollserve_server.pool import ServerBackend
    from rollserve_server.serving.control import Answer
    from rollserve_server.settings import Settings

__all__ = ["Extras"]


@dataclass(frozen=True)
class Extras:
    """Parts that a program adds to a server.

    Attributes:
        make_backend: starts the backend.
        interceptors: see each RPC before the services do.
        answers: answers to further requests on the control socket, by their names.
    """

    make_backend: Callable[[Settings], ServerBackend] = make_backend
    interceptors: Sequence[Interceptor] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
