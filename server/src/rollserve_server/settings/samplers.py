"""Samplers that clients create: how many, how large, and for how long."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from rollserve_server.settings.groups import Group

__all__ = ["SamplerSettings"]

_NAME = re.compile(r"[a-z0-9-]{1,63}")


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
    max_sampler_workers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of workers of a sampler that a client creates. Without it, what --max-workers leaves.",
    )
    max_sampler_rows: int | None = Field(
        default=None,
        ge=1,
        description="Number of rows that all workers of such a sampler may have together, for a call. Without it, any "
        "number.",
    )
    max_sampler_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Bytes of results of such a sampler that may be on their way from the workers to clients. Without "
        "it, an equal share of --gateway-buffer-bytes.",
    )
    max_sampler_calls: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Number of calls that sample at the same time in such a sampler. Without it, --max-calls.",
    )
    max_sampler_steps_per_second: float = Field(
        default=0.0,
        ge=0,
        description="Steps per second of all calls of such a sampler together; faster ones are slowed down. With 0, "
        "any number.",
    )
    sampler_lease_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=1e9,
        description="How long such a sampler may be without a call before it is deleted, where its creator does not "
        "say. With 0, for ever, as far as --max-sampler-lease-seconds permits.",
    )
    max_sampler_lease_seconds: float = Field(
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
