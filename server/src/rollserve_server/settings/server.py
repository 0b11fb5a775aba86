"""Settings of a server: its samplers, its cluster, its process, and all other groups."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from rollserve_server.settings.environment import EnvironmentSettings
from rollserve_server.settings.gateway import GatewaySettings
from rollserve_server.settings.groups import Address, Group, Reloadable, parse_json
from rollserve_server.settings.pool import PoolSettings

__all__ = ["ProcessSettings", "RaySettings", "SamplerSettings", "Settings", "WorkerPlacement"]

_NAME = re.compile(r"[a-z0-9-]{1,63}")
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


class SamplerSettings(Group):
    """Settings of samplers: the default one's name, and limits of the others. Each maximum is for one sampler."""

    sampler_name: str = Field(
        default="default",
        description="Name of the default sampler, for clients that look for it among several gateways. Requests "
        "without a name are for it, too.",
    )
    max_samplers: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="Number of samplers, the default one included: clients may create the others, each with workers of "
        "its own. Memory for results is shared out evenly. With 1, clients create none.",
    )
    max_sampler_workers: Reloadable[int | None] = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of workers of a sampler that a client creates. Without it, what --max-workers leaves.",
    )
    max_sampler_rows: Reloadable[int | None] = Field(
        default=None,
        ge=1,
        description="Number of rows that all workers of such a sampler may have together, for a call. Without it, any "
        "number.",
    )
    max_sampler_bytes: Reloadable[int | None] = Field(
        default=None,
        ge=1,
        description="Bytes of results of such a sampler that may be on their way from the workers to clients. Without "
        "it, an equal share of --gateway-buffer-bytes.",
    )
    max_sampler_calls: Reloadable[int | None] = Field(
        default=None,
        ge=1,
        le=64,
        description="Number of calls that sample at the same time in such a sampler. Without it, --max-calls.",
    )
    max_sampler_steps_per_second: Reloadable[float] = Field(
        default=0.0,
        ge=0,
        description="Steps per second of all calls of such a sampler together; faster ones are slowed down. With 0, "
        "any number.",
    )
    sampler_lease_seconds: Reloadable[float] = Field(
        default=3600.0,
        ge=0,
        le=1e9,
        description="How long such a sampler may be without a call before it is deleted, where its creator does not "
        "say. With 0, for ever, as far as --max-sampler-lease-seconds permits.",
    )
    max_sampler_lease_seconds: Reloadable[float] = Field(
        default=86_400.0,
        ge=0,
        le=1e9,
        description="The longest such time that a creator may ask for. With 0, any, also for ever.",
    )

    @field_validator("sampler_name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("expected 1 to 63 characters of a to z, 0 to 9 and -")
        return value


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
        description="Whether to go on with a sampler that an earlier server left, in the namespace or in the file of "
        "--save-path. With false, it is ended and a new one is started.",
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
    worker_num_cpus: float = Field(
        default=1.0, ge=0, description="Cores that Ray reserves for each worker, or a fraction of one."
    )
    worker_num_gpus: float = Field(
        default=0.0,
        ge=0,
        description="GPUs that Ray reserves for each worker: an integer, or a fraction of one. A "
        "machine with fewer is refused at the start.",
    )
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
        description="Size of the object store, where Ray is started here, of at least 80 MiB. Without it, Ray chooses.",
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


class ProcessSettings(Group):
    """The server process and its log."""

    backend: Literal["ray", "in-process"] = Field(
        default="ray",
        description="What runs the workers: processes of Ray, or threads of the server itself, which share one core.",
    )
    port_file: Path | None = Field(
        default=None, description="A file to write the port to once the server is ready; removed when the server ends."
    )
    end_with_parent: int | None = Field(
        default=None,
        ge=1,
        description="Id of the process that starts the server: when that process has ended, the server stops as on "
        "SIGTERM.",
    )
    control_fd: int | None = Field(
        default=None,
        ge=3,
        description="File descriptor of a stream socket on which the process that starts the server can reset its "
        "sampler: each line reset is answered by a line, done or failed: and the reason.",
    )
    watchdog_seconds: float = Field(
        default=60.0,
        ge=0,
        le=1e6,
        description="How long the server may do nothing, because it is stopped or its event loop hangs, before it is "
        "killed, with the stacks of its threads in the log, so that a supervisor starts another one. Time in which the "
        "whole machine or container is suspended does not count. With 0, for ever, as debuggers need it.",
    )
    save_path: Path | None = Field(
        default=None,
        description="A file to save the default sampler to, every --save-every seconds and when the server ends. A "
        "server that starts goes on with the sampler in the file, if there is one and no sampler in the cluster.",
    )
    save_every: float = Field(
        default=60.0, gt=0.0, le=1e6, allow_inf_nan=False, description="Seconds between two saves to --save-path."
    )
    metrics_listen: Address | None = Field(
        default=None,
        description="Where to serve metrics for Prometheus, over HTTP at /metrics, as HOST:PORT: without encryption, "
        "so not where clients connect from. Without it, nowhere.",
    )
    log_level: Reloadable[Literal["DEBUG", "INFO", "WARNING", "ERROR"]] = Field(
        default="INFO", description="The least important events to log. DEBUG adds one for each RPC, with its figures."
    )
    log_json: bool = Field(
        default=False,
        description="Write the log as JSON objects, one a line: events, and what libraries and child processes print.",
    )


class Settings(Group):
    """Settings of a server."""

    environment: EnvironmentSettings
    gateway: GatewaySettings = Field(default_factory=GatewaySettings)
    pool: PoolSettings = Field(default_factory=PoolSettings)
    samplers: SamplerSettings = Field(default_factory=SamplerSettings)
    ray: RaySettings = Field(default_factory=RaySettings)
    process: ProcessSettings = Field(default_factory=ProcessSettings)
