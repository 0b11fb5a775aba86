"""Limits of samplers that clients create: an operator's maxima, what a creator asks for below them, and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.errors import OverLimitError
from rollserve_server.settings import Quota
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.samplers.request import SamplerRequest
    from rollserve_server.settings import PoolSettings, SamplerSettings

__all__ = ["Limits"]


class Limits:
    """An operator's limits of samplers."""

    def __init__(self, settings: SamplerSettings, pool: PoolSettings) -> None:
        """Take the limits, and the settings of pools."""
        self._settings = settings
        self._pool = pool
        self._share_bytes = max(pool.calls.gateway_buffer_bytes // settings.max_samplers, 1)

    def default_settings(self) -> PoolSettings:
        """Return the settings of the default sampler: it has its share of the memory, and no quota."""
        calls = self._pool.calls.model_copy(update={"gateway_buffer_bytes": self._share_bytes})
        return self._pool.model_copy(update={"calls": calls})

    def default_quota(self, max_workers: int) -> Quota:
        """Return the limits that the default sampler has by its settings."""
        return Quota(max_workers, 0, self._share_bytes, self._pool.calls.max_calls)

    def quota(self, request: SamplerRequest) -> Quota:
        """Return the limits of a new sampler; raise OverLimitError if more is asked for than the operator allows."""
        settings, asked = self._settings, request.quota
        num_workers = asked.num_workers or request.num_workers
        _check("quota.worker_count", num_workers, settings.max_sampler_workers, "max-sampler-workers")
        if request.num_workers > num_workers:
            _check("worker_count", request.num_workers, num_workers, "")
        result_bytes = min(settings.max_sampler_bytes or self._share_bytes, self._share_bytes)
        num_calls = settings.max_sampler_calls or self._pool.calls.max_calls
        rate = settings.max_sampler_steps_per_second
        _check("quota.row_count", asked.num_rows, settings.max_sampler_rows, "max-sampler-rows")
        _check("quota.result_bytes", asked.result_bytes, result_bytes, "max-sampler-bytes")
        _check("quota.call_count", asked.num_calls, num_calls, "max-sampler-calls")
        _check("quota.steps_per_second", asked.steps_per_second, rate, "max-sampler-steps-per-second")
        return Quota(
            num_workers,
            asked.num_rows or settings.max_sampler_rows or 0,
            asked.result_bytes or result_bytes,
            asked.num_calls or num_calls,
            asked.steps_per_second or rate,
        )

    def lease_seconds(self, request: SamplerRequest) -> float:
        """Return the lease of a new sampler, 0 for ever; raise OverLimitError if it is longer than allowed."""
        maximum, asked = self._settings.max_sampler_lease_seconds, request.lease_seconds
        if asked is None:
            default = self._settings.sampler_lease_seconds
            return min(default or maximum, maximum) if maximum else default
        if maximum and not 0 < asked <= maximum:
            expected = f"at most {maximum:g} s, as --max-sampler-lease-seconds says"
            raise OverLimitError.of(
                "lease", expected=expected, got=f"{asked:g} s" if asked else "no end", reason=Reason.QUOTA_EXCEEDED
            )
        return asked

    def pool_settings(self, request: SamplerRequest, quota: Quota) -> PoolSettings:
        """Return the settings of a new sampler's pool; a later server makes the same."""
        pool = self._pool
        rows_each = max(quota.num_rows // request.num_workers, 1)
        rows = {name: min(getattr(pool.worker, name), rows_each) for name in ("rows", "native_rows")}
        min_healthy = min(pool.health.min_healthy_workers, request.num_workers)
        calls = {"max_calls": quota.num_calls, "gateway_buffer_bytes": quota.result_bytes}
        return pool.model_copy(
            update={
                "workers": request.num_workers,
                "max_workers": quota.num_workers,
                "seed": request.seed,
                "worker": pool.worker.model_copy(update=rows) if quota.num_rows else pool.worker,
                "health": pool.health.model_copy(update={"min_healthy_workers": min_healthy}),
                "calls": pool.calls.model_copy(update=calls),
                "quota": quota,
            }
        )


def _check(field: str, asked: float, maximum: float | None, setting: str) -> None:
    """Raise OverLimitError if more is asked for than there may be; a maximum of 0 or None is none."""
    if maximum and asked > maximum:
        whose = f"as --{setting} says" if setting else "as the quota in the request says"
        expected = f"at most {maximum}, {whose}"
        raise OverLimitError.of(field, expected=expected, got=asked, reason=Reason.QUOTA_EXCEEDED)
