"""Requests for new samplers, and their form in the directory of samplers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from rollserve_server.envs import identity_of
from rollserve_server.settings import Quota
from rollserve_wire.environments import env_spec_from_proto, env_spec_to_proto
from rollserve_wire.v1 import environment_pb2

if TYPE_CHECKING:
    from rollserve_wire.environments import EnvSpec

__all__ = ["Creation", "SamplerRequest", "creations_from_text", "creations_to_text"]


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
