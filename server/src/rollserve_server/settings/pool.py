"""The pool: all groups of settings that it passes on to its parts."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from rollserve_server.settings.agents import AgentSettings, VersionSettings
from rollserve_server.settings.calls import CallSettings
from rollserve_server.settings.environment import AllowSettings
from rollserve_server.settings.groups import Group
from rollserve_server.settings.metrics import MetricsSettings
from rollserve_server.settings.profiles import ProfileSettings
from rollserve_server.settings.quota import Quota
from rollserve_server.settings.rendering import RenderSettings
from rollserve_server.settings.workers import HealthSettings, WorkerSettings

__all__ = ["PoolSettings"]


class PoolSettings(Group):
    """Settings of a pool."""

    workers: int | None = Field(
        default=None, ge=1, le=10_000, description="Number of workers. Without it, one for each core."
    )
    max_workers: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of workers that clients may ask for with ResizePool. Without it, four for each core, or "
        "as many as there are at the start if that is more.",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**64,
        description="Root seed of the episodes of calls that name none. Without it, a random one.",
    )
    worker: WorkerSettings = WorkerSettings()
    health: HealthSettings = HealthSettings()
    calls: CallSettings = CallSettings()
    versions: VersionSettings = VersionSettings()
    agents: AgentSettings = AgentSettings()
    allow: AllowSettings = AllowSettings()
    metrics: MetricsSettings = MetricsSettings()
    profiles: ProfileSettings = ProfileSettings()
    rendering: RenderSettings = RenderSettings()
    quota: Quota = Quota()
    """Limits of a sampler that a client has created."""

    @field_validator("max_workers")
    @classmethod
    def _check_max_workers(cls, value: int | None, info: ValidationInfo) -> int | None:
        num_workers = info.data.get("workers")
        if value is not None and num_workers is not None and value < num_workers:
            raise ValueError(f"expected at least {num_workers}, the number of workers")
        return value
