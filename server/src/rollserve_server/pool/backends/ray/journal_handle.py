"""The journal's actor as a server sees it: starts it, and calls its methods by messages that prove the secret."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import ray

from rollserve_server.pool.backends.ray.identity import ForgedMessageError, SamplerIdentity, Seal
from rollserve_server.pool.backends.ray.journal_actor import JournalActor
from rollserve_server.pool.backends.ray.names import journal_name

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["JournalHandle"]

_NONCE_BYTES = 16
_ON_HEAD = {"node:__internal_head__": 0.001}
"""A resource of which each head of a cluster has 1. Without its head a cluster is lost in any case. On another machine
the journal could be lost with the server's, or with workers."""


class JournalHandle:
    """The actor of a sampler's journal."""

    def __init__(self, actor: Any, identity: SamplerIdentity) -> None:
        self._actor = actor
        self._seal = Seal(identity.key)

    @classmethod
    def find_or_start(cls, identity: SamplerIdentity) -> JournalHandle:
        """Return the sampler's journal in this process's namespace, which is started if there is none."""
        remote: Any = ray.remote(JournalActor)
        options = remote.options(
            name=journal_name(identity.tag, is_created=bool(identity.sampler)),
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources=_ON_HEAD,
            enable_task_events=False,
        )
        return cls(options.remote(identity.tag, identity.key), identity)

    def sealed(self, value: Any) -> bytes:
        """Return a value that `call` can send as its last argument."""
        return self._seal.sealed(value)

    def call(self, method: str, *arguments: object, last: Any = None) -> Awaitable[Any]:
        """Call a method of `JournalKeeper`.

        Args:
            method: name of the method.
            arguments: its arguments.
            last: one more argument, sealed, or Ray's reference to it; None for none.

        Returns:
            The result, once it is there. Awaiting it raises a RayError if the journal is lost or refuses the request,
            and a ForgedMessageError if the actor does not know the secret.
        """
        nonce = secrets.token_bytes(_NONCE_BYTES)
        try:
            reference = self._actor.call.remote(self._seal.sealed((nonce, method, arguments)), last)
        except AttributeError as error:
            raise ForgedMessageError("an actor of another class") from error
        return self._result(reference, nonce)

    def kill(self) -> None:
        """End the actor."""
        ray.kill(self._actor)

    async def _result(self, reference: Any, nonce: bytes) -> Any:
        answer = await reference
        if not isinstance(answer, bytes):
            raise ForgedMessageError("an answer that is not sealed")
        echo, result = self._seal.opened(answer)
        if echo != nonce:
            raise ForgedMessageError("an answer to another request")
        return result
