"""Ray: the cluster, what each worker takes of it, and samplers that outlive their server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from rollserve_server.settings.groups import Group, parse_json

__all__ = ["RaySettings", "WorkerPlacement"]

WorkerPlacement = Literal["any", "spread", "pack"]
"""Ways to place workers on the machines of a cluster."""

_MIN_AMOUNT = 0.0001  # Ray counts no smaller parts of a resource
_FLAGS = {
    "CPU": "worker-num-cpus",
    "GPU": "worker-num-gpus",
    "memory": "worker-memory-bytes",
    "object_store_memory": "object-store-bytes",
}
"""Flags for resources that Ray does not take as custom ones."""


_MIN_SECRET_BYTES, _MAX_SECRET_BYTES = 16, 4096


class RaySettings(Group):
    """The cluster that workers run on, and what each takes of it."""

    ray_address: str | None = Field(
        default=None,
        description="An existing Ray cluster to run the workers on, such as auto or 10.0.0.1:6379. Without it, the "
        "server starts Ray on this machine, and ends it.",
    )
    ray_namespace: str = Field(
        default="rollserve",
        min_length=1,
        max_length=255,
        description="Namespace of an existing Ray cluster for the sampler, its workers and its journal. The sampler "
        "outlives a server that is killed; the next server in the same namespace takes it over.",
    )
    sampler_secret_file: Path | None = Field(
        default=None,
        description="File with a secret of at least 16 bytes that is the same for all servers of the sampler on an "
        "existing Ray cluster. A server with another secret, or without, neither takes the sampler over nor ends it.",
    )
    adopt: bool = Field(
        default=True,
        description="Whether to take over a sampler that an earlier server left in the namespace. With false, it is "
        "ended and a new one is started.",
    )
    keep_workers: bool = Field(
        default=False,
        description="Whether to leave the sampler to the next server on SIGTERM or Ctrl-C, too, on an existing Ray "
        "cluster.",
    )
    orphan_seconds: float = Field(
        default=600.0,
        gt=0,
        description="How long a sampler without a server stays on a Ray cluster before its workers are ended.",
    )
    worker_num_cpus: float = Field(default=1.0, ge=0, description="Cores that Ray reserves for each worker.")
    worker_num_gpus: float = Field(default=0.0, ge=0, description="GPUs that Ray reserves for each worker.")
    worker_memory_bytes: int | None = Field(
        default=None, ge=1, lt=2**63, description="Memory that Ray reserves for each worker."
    )
    worker_resources: Annotated[dict[str, float], BeforeValidator(parse_json)] = Field(
        default={},
        description='Custom resources that Ray reserves for each worker, as JSON: {"name": amount}.',
    )
    worker_placement: WorkerPlacement = Field(
        default="any",
        description="Where workers run on an existing Ray cluster: spread, evenly on all machines with room; pack, on "
        "the server's machine as long as it has room, then on one after the other; any, where Ray chooses.",
    )
    object_store_bytes: int | None = Field(
        default=None,
        ge=80 << 20,
        le=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        description="Size of the object store, where Ray is started here. Without it, Ray chooses.",
    )

    def sampler_secret(self) -> bytes:
        """Return the sampler's secret, without blanks around it; empty if there is none.

        Raises:
            ValueError: the file cannot be read, or has fewer than 16 bytes, or more than 4096.
        """
        return b"" if self.sampler_secret_file is None else _read_secret(self.sampler_secret_file)

    @field_validator("sampler_secret_file")
    @classmethod
    def _check_secret(cls, value: Path | None) -> Path | None:
        if value is not None:
            _read_secret(value)
        return value

    @field_validator("worker_num_cpus", "worker_num_gpus")
    @classmethod
    def _check_amount(cls, value: float) -> float:
        if 0 < value < _MIN_AMOUNT:
            raise ValueError(f"expected 0 or at least {_MIN_AMOUNT}")
        return value

    @field_validator("worker_num_gpus")
    @classmethod
    def _check_gpus(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("expected a whole number, or a part of one GPU")
        return value

    @field_validator("worker_resources")
    @classmethod
    def _check_resources(cls, value: dict[str, float]) -> dict[str, float]:
        for name, amount in value.items():
            if not name or name in _FLAGS:
                expected = f"--{_FLAGS[name]} instead" if name else "a name"
                raise ValueError(f"{name!r}: expected {expected}")
            if amount < _MIN_AMOUNT:
                raise ValueError(f"{name!r}: expected an amount of at least {_MIN_AMOUNT}")
        return value


def _read_secret(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            secret = stream.read(_MAX_SECRET_BYTES + 1).strip()
    except OSError as error:
        raise ValueError(f"expected a file that can be read, got {str(file)!r}: {error.strerror}") from None
    if not _MIN_SECRET_BYTES <= len(secret) <= _MAX_SECRET_BYTES:
        raise ValueError(f"expected a file of {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes, got {len(secret)}")
    return secret
