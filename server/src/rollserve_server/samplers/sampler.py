"""A sampler of a server, its lease, and the request that it was created by, as the directory of samplers has it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf import json_format

from rollserve_server.envs import identity_of
from rollserve_server.settings import Quota
from rollserve_server.uses import Uses
from rollserve_wire.environments import env_spec_from_proto, env_spec_to_proto
from rollserve_wire.v1 import environment_pb2

if TYPE_CHECKING:
    from rollserve_server.errors import DomainError
    from rollserve_server.pool import Pool
    from rollserve_wire.environments import EnvSpec

__all__ = ["Creation", "Lease", "Sampler", "SamplerRequest", "User", "creations_from_text", "creations_to_text"]


@dataclass(frozen=True)
class SamplerRequest:
    """A request for a new sampler.

    Attributes:
        name: name of the sampler.
        env: environment to start with.
        num_workers: number of workers.
        seed: root seed of calls that name none; None for a random one.
        lease_seconds: time without a call after which the sampler is deleted; 0 for never, None for the operator's.
        quota: limits below the operator's; 0 for the operator's.
    """

    name: str
    env: EnvSpec
    num_workers: int
    seed: int | None = None
    lease_seconds: float | None = None
    quota: Quota = field(default_factory=Quota)

    def equals(self, other: SamplerRequest) -> bool:
        """Whether both ask for the same."""
        return identity_of(self.env) == identity_of(other.env) and replace(self, env=other.env) == other


@dataclass(frozen=True)
class Creation:
    """The creation of a sampler, as a later server needs to know it.

    Attributes:
        request: what was asked for.
        owner: principal that asked.
        created_seconds: when, since 1970.
    """

    request: SamplerRequest
    owner: str
    created_seconds: float


def creations_to_text(creations: Iterable[Creation]) -> str:
    """Return creations as JSON."""
    return json.dumps([_to_json(creation) for creation in creations])


def creations_from_text(text: str) -> Sequence[Creation]:
    """Return the creations that `creations_to_text` has written; none for an empty text."""
    return [_from_json(value) for value in json.loads(text)] if text else []


def _to_json(creation: Creation) -> dict[str, Any]:
    request = creation.request
    return {
        **vars(request),
        "env": json_format.MessageToDict(env_spec_to_proto(request.env)),
        "quota": asdict(request.quota),
        "owner": creation.owner,
        "created_seconds": creation.created_seconds,
    }


def _from_json(value: dict[str, Any]) -> Creation:
    env = env_spec_from_proto(json_format.ParseDict(value.pop("env"), environment_pb2.Environment()))
    quota = Quota(**value.pop("quota"))
    owner, created_seconds = value.pop("owner"), value.pop("created_seconds")
    return Creation(SamplerRequest(env=env, quota=quota, **value), owner, created_seconds)


class Lease(Uses):
    """A lease that each use renews, and that does not run out during a use.

    Attributes:
        seconds: how long it lasts without a use.
    """

    def __init__(self, seconds: float) -> None:
        """Start with a lease that was renewed just now."""
        super().__init__(time.monotonic())
        self.seconds = seconds

    @property
    def seconds_left(self) -> float:
        """Time until the lease runs out; all of it during a use."""
        return max(self.seconds - self.idle_seconds, 0.0)

    async def expired(self) -> None:
        """Wait until the lease has run out."""
        # An event for each use would cost more than to look again.
        while seconds := self.seconds_left:  # noqa: ASYNC110
            await asyncio.sleep(seconds)


class User(Protocol):
    """An RPC that uses a sampler."""

    def end(self, error: DomainError) -> None:
        """End the RPC with an error. May be called more than once."""
        ...


class Sampler:
    """A sampler of a server.

    Attributes:
        name: its name.
        pool: its workers, and the calls that use them.
        quota: its limits.
        created_seconds: when it was created, since 1970.
        creation: its owner and the request that created it; None for the default sampler.
        lease: how long it may be without a call; None for ever.
    """

    def __init__(
        self,
        name: str,
        pool: Pool,
        quota: Quota,
        created_seconds: float,
        creation: Creation | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.name = name
        self.pool = pool
        self.quota = quota
        self.created_seconds = created_seconds
        self.creation = creation
        self.lease = lease
        self._users: set[User] = set()
        self._unused = asyncio.Event()

    @property
    def owner(self) -> str:
        """The principal that created the sampler; empty for the default one."""
        return "" if self.creation is None else self.creation.owner

    @contextlib.contextmanager
    def in_use(self, user: User) -> Iterator[None]:
        """Keep the lease for the duration of the block, which `end_users` ends."""
        self._users.add(user)
        try:
            with contextlib.nullcontext() if self.lease is None else self.lease.using():
                yield
        finally:
            self._users.discard(user)
            if not self._users:
                self._unused.set()

    async def end_users(self, error: DomainError, seconds: float) -> None:
        """End all uses with copies of an error; wait until they have ended, or for so many seconds."""
        for user in list(self._users):
            user.end(copy.copy(error))
        self._unused.clear()
        if self._users:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._unused.wait(), seconds)
