"""Environments of a worker's rows: the same for all, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollserve_server.envs.profiles import ProfileEnv
from rollserve_wire.environments import EnvSpec, env_spec_to_proto

__all__ = ["RowSpecs", "WorkerSpecs", "identity_of", "specs_of_rows"]


@dataclass(frozen=True)
class RowSpecs:
    """Environments that may differ between the rows of a worker, so that each episode belongs to a row.

    Attributes:
        specs: environment of each row, in the order of rows.
    """

    specs: tuple[EnvSpec, ...]


WorkerSpecs = EnvSpec | RowSpecs
"""Environments of a worker: the same for all rows, or one for each."""


def identity_of(specs: WorkerSpecs) -> bytes:
    """Return bytes that tell environments apart; values that are equal in Python, such as 1 and 1.0, may differ."""
    kind = b"rows" if isinstance(specs, RowSpecs) else b"all"
    parts = [kind]
    for each in specs_of_rows(specs, 1):
        message = env_spec_to_proto(each).SerializeToString(deterministic=True)
        host = each.host.to_json().encode() if isinstance(each, ProfileEnv) and each.host is not None else b""
        parts += [len(message).to_bytes(4), message, len(host).to_bytes(4), host]
    return b"".join(parts)


def specs_of_rows(specs: WorkerSpecs, num_rows: int) -> Sequence[EnvSpec]:
    """Return the environment of each row."""
    return specs.specs if isinstance(specs, RowSpecs) else (specs,) * num_rows
