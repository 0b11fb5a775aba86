"""A case: what the adapter does, what the server does meanwhile, and what has to come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Case", "Json"]

Json = Mapping[str, Any]
"""An object as JSON has it."""


@dataclass(frozen=True)
class Case:
    """A case.

    Attributes:
        name: unique, for the command line.
        about: what the case is about, as one phrase.
        operations: what the adapter performs.
        connect: how it connects, beside the address; the values `@NAME` stand for `ConformanceServer.others`.
        secure: whether the server has TLS and asks for tokens.
        scripts: answers in place of the server's; see `Recorder`.
        faults: what the server does wrong; see `FaultyServer`.
        recorded: recordings that operations receive, by the operation's position.
        expected: values that results must have, by the operation's position, beside what the server sent.
        client_errors: errors that the client makes itself: values that they must have, by the operation's position.
        stops: whether the client ends the last RPC itself.
        resumes: whether the client has to resume a stream, at least once.
        seconds: time limit for the answer.
    """

    name: str
    about: str
    operations: Sequence[Json]
    connect: Json = field(default_factory=dict)
    secure: bool = False
    scripts: Sequence[Json] = ()
    faults: Sequence[Json] = ()
    recorded: Mapping[int, str] = field(default_factory=dict)
    expected: Mapping[int, Json] = field(default_factory=dict)
    client_errors: Mapping[int, Json] = field(default_factory=dict)
    stops: bool = False
    resumes: bool = False
    seconds: float = 60.0
