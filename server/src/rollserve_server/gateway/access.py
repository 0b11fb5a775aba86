"""Access: which scope each RPC needs, and whether the client of an RPC has it. Decided before the request is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from rollserve_server.errors import InvalidValueError, NotAllowedError
from rollserve_server.identity import ANONYMOUS
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.identity import Authentication, Principal, Scope

__all__ = ["SAMPLER_KEY", "Access", "Client", "check_scope"]

SAMPLER_KEY = "rollserve-sampler"
"""Key of the metadata that names the sampler, so that nobody has to read the request to know it."""


class Client(Protocol):
    """The client of an RPC before its request, as `grpc.aio.ServicerContext` has it."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None:
        """Return the metadata of the request."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the properties of the connection."""
        ...


class Access:
    """Decides which RPCs of a client are answered.

    Attributes:
        authentication: finds principals.
        own_sampler: name of the sampler that requests without a name are for.
    """

    def __init__(
        self,
        authentication: Authentication,
        own_sampler: str,
        scopes: Mapping[str, Scope],
        of_server: Collection[str] = (),
    ) -> None:
        """Decide by the principals that the authentication finds.

        Args:
            authentication: finds principals.
            own_sampler: name of the sampler that requests without a name are for.
            scopes: scope that each RPC needs on its sampler, by its name; any other RPC is refused, whoever asks.
            of_server: names of the RPCs of no sampler: whoever has the scope on any sampler may call them.
        """
        self.authentication = authentication
        self.own_sampler = own_sampler
        self._scopes = scopes
        self._of_server = of_server

    async def principal_of(self, client: Client) -> Principal:
        """Return who the client is; raise UnauthenticatedError if it does not prove that."""
        if not self.authentication.is_required:
            return ANONYMOUS
        authentication, authorization = self.authentication, _values(client, "authorization")
        await authentication.refresh(authorization)
        return authentication.principal_of(authorization, client.auth_context())

    def named_sampler(self, client: Client) -> str:
        """Return the sampler in the metadata, or an empty text; raise InvalidValueError if there are several."""
        values = _values(client, SAMPLER_KEY)
        if len(values) > 1:
            raise InvalidValueError.of(SAMPLER_KEY, expected="one value", got=len(values))
        return str(values[0]) if values else ""

    def check(self, principal: Principal, rpc: str, sampler: str) -> None:
        """Raise NotAllowedError unless a principal may call an RPC of a sampler, or one of the server."""
        scope = self._scopes.get(rpc)
        if rpc in self._of_server and scope is not None and principal.has_somewhere(scope):
            return
        check_scope(principal, scope, rpc, sampler)


def check_scope(principal: Principal, scope: Scope | None, what: str, sampler: str) -> None:
    """Raise NotAllowedError unless a principal has a scope on a sampler; nobody has None."""
    if scope is None:
        raise NotAllowedError.of("", expected="an RPC that has a scope", got=what, reason=Reason.SCOPE_MISSING)
    if not principal.has(scope, sampler):
        text = f"expected the scope {scope} on the sampler {sampler!r} for {what}, which {principal.name!r} lacks"
        raise NotAllowedError(text, reason=Reason.SCOPE_MISSING)


def _values(client: Client, key: str) -> list[str | bytes]:
    return [value for name, value in client.invocation_metadata() or () if name == key]
