"""The journal's actor as a server sees it: starts it, and sends it messages that prove the secret."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import ray

from rollserve_server import __version__
from rollserve_server.pool.backends.ray.identity import ForgedMessageError, SamplerIdentity, Seal, journal_name
from rollserve_server.pool.backends.ray.journal_actor import JournalActor
from rollserve_server.pool.backends.ray.names import end_actors, journals
from rollserve_server.pool.state.files import framed, frames
from rollserve_wire.v1 import journal_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from rollserve_server.pool.state.records import Record

__all__ = ["JournalHandle"]

_NONCE_BYTES = 16
_ON_HEAD = {"node:__internal_head__": 0.001}
"""A resource that each head of a cluster has 1 of. Without its head a cluster is lost in any case. On another machine
the journal could be lost with the server's, or with workers."""


class JournalHandle:
    """The actor of a sampler's journal."""

    def __init__(self, actor: Any, identity: SamplerIdentity, name: str) -> None:
        self._actor = actor
        self._seal = Seal(identity.key)
        self._identity = identity
        self._name = name

    @classmethod
    def find_or_start(cls, identity: SamplerIdentity) -> JournalHandle:
        """Return the sampler's journal in this process's namespace, which is started if there is none.

        Raises:
            ValueError: the journal has just ended.
        """
        found = journals(identity.tag, is_created=bool(identity.sampler))
        if found:
            return cls(ray.get_actor(found[-1]), identity, found[-1])
        name = journal_name(identity.tag, is_created=bool(identity.sampler))
        return cls(_start(name, identity), identity, name)

    @classmethod
    def replace(cls, identity: SamplerIdentity, request: pb.JournalRequest, records: Iterable[Record]) -> JournalHandle:
        """Start another journal of this version, which keeps a state from its start, or ends at once.

        Until then, the sampler's journal is the present one. A server that comes meanwhile uses either: they have the
        same state.

        Args:
            identity: identity of the sampler.
            request: a request to restore the state.
            records: the state.
        """
        name = journal_name(identity.tag, is_created=bool(identity.sampler), epoch=request.epoch)
        sealed = Seal(identity.key).sealed(_framed(request, records))
        return cls(_start(name, identity, sealed), identity, name)

    def end_others(self) -> None:
        """End the journals of the sampler that this one has replaced."""
        identity = self._identity
        names = set(journals(identity.tag, is_created=bool(identity.sampler))) - {self._name}
        for name in names:
            with contextlib.suppress(ValueError):  # it has just ended
                end_actors([ray.get_actor(name)])

    def sealed(self, records: Iterable[Record]) -> bytes:
        """Return records that `call` can send beside its request."""
        return self._seal.sealed(framed(records))

    def call(
        self, request: pb.JournalRequest, records: Iterable[Record] = (), more: Any = None
    ) -> Awaitable[tuple[pb.JournalAnswer, Sequence[memoryview]]]:
        """Send a request to the journal.

        Args:
            request: the request, without its nonce.
            records: records behind it.
            more: further records, sealed, or Ray's reference to them; None for none.

        Returns:
            The answer and the records behind it, once they are there. Awaiting them raises a RayError if the journal is
            lost or refuses the request, and a ForgedMessageError if the actor does not know the secret.
        """
        request.nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            reference = self._actor.call.remote(self._seal.sealed(_framed(request, records)), more)
        except AttributeError as error:
            raise ForgedMessageError("an actor of another class") from error
        return self._result(reference, request.nonce)

    def kill(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    async def _result(self, reference: Any, nonce: bytes) -> tuple[pb.JournalAnswer, Sequence[memoryview]]:
        sealed = await reference
        if not isinstance(sealed, bytes):
            raise ForgedMessageError("an answer that is not sealed")
        head, *records = frames(self._seal.opened(sealed))
        answer = pb.JournalAnswer.FromString(bytes(head))
        if answer.nonce != nonce:
            raise ForgedMessageError("an answer to another request")
        return answer, records


def _start(name: str, identity: SamplerIdentity, restoring: bytes | None = None) -> Any:
    """Return the actor of a name, which is started unless it exists."""
    remote: Any = ray.remote(JournalActor)
    options = remote.options(
        name=name,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources=_ON_HEAD,
        enable_task_events=False,
    )
    return options.remote(identity.tag, identity.key, __version__, restoring)


def _framed(request: pb.JournalRequest, records: Iterable[Record]) -> Record:
    """Return a request and the records behind it as one message, in parts."""
    return framed([[request.SerializeToString()], *records])
