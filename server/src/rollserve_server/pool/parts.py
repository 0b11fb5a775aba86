"""The parts of a pool: made for a new run, or from what an earlier server left; and their workers, started."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from typing import TYPE_CHECKING

from rollserve_server.envs import worker_observation_bytes
from rollserve_server.errors import InvalidValueError, NotReadyError
from rollserve_server.pool.accounts import Counters
from rollserve_server.pool.episode_log import EpisodeLog
from rollserve_server.pool.sequences.row_sequences import RowSequences
from rollserve_server.pool.sequences.sequences import Sequences
from rollserve_server.pool.takeover import own_seed
from rollserve_server.pool.versions.agent_updates import AgentUpdates
from rollserve_server.pool.versions.env_updates import EnvUpdates
from rollserve_server.pool.versions.selection import Selection
from rollserve_server.pool.versions.versions import Versions
from rollserve_server.uses import Uses
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollserve_server.pool.backends.backend import Backend
    from rollserve_server.pool.journal.journal import Journal
    from rollserve_server.pool.requests import SamplingOptions
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["PoolParts", "decide", "reloaded"]

_DEFAULT_FACTOR = 4
"""Workers per core that clients may ask for by default: more would fill a machine that has no cores for them."""
_EPOCH_BITS = 40
"""Bits of the numbers that name work; the epoch stands above them, so that servers of one sampler use different
names."""
_SEED_BITS = 53
"""Bits of a random root seed: as many as an integer has in JavaScript."""
_MAX_BURST_SECONDS = 0.25
"""Time whose steps may be made at once: orders are as short as that asks for, and unused time counts no longer."""
_MIN_SLICE_SECONDS = 0.0005


def decide(settings: PoolSettings, default: int) -> PoolSettings:
    """Return settings with a seed, numbers of workers and a sampler's memory; `default` is a worker for each core."""
    num_workers = settings.workers or settings.min_workers or min(default, settings.max_workers or default)
    max_workers = settings.max_workers or max(_DEFAULT_FACTOR * default, num_workers)
    seed = secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed
    health = settings.health
    if health.sampler_observation_bytes is None:
        num_bytes = _DEFAULT_FACTOR * default * worker_observation_bytes(health)
        health = health.model_copy(update={"sampler_observation_bytes": num_bytes})
    changes = {"workers": num_workers, "max_workers": max_workers, "seed": seed, "health": health}
    return settings.model_copy(update=changes)


def reloaded(used: PoolSettings, new: PoolSettings) -> PoolSettings:
    """Return settings in use with the reloadable ones of new settings."""
    groups = ("calls", "agents", "allow", "profiles", "rendering")
    return used.model_copy(update={name: getattr(new, name) for name in groups})


class PoolParts:
    """The parts of a pool that calls work with.

    Attributes:
        settings: settings that calls begin with.
        run: name of the sampler's run.
        seed: root seed that all seeds of calls without a seed derive from.
        ids: names for workers' work; none comes twice in the life of a sampler.
        workers: the workers.
        versions: versions that all workers hold.
        selection: chooses versions for calls.
        agent_updates: makes versions of agents.
        env_updates: makes environments, also for evaluations.
        sequences: sequences of whole episodes.
        row_sequences: sequences of rows, for fragments.
        journal: keeps what outlives the server.
        episode_log: the ended episodes.
        counters: totals of calls.
        num_calls: number of calls that run now, evaluations included.
        number_is_set: whether a client has set the number of workers, so that it does not follow the load.
        number_uses: uses of the number of workers, by calls whose results depend on it.
        step_rate: limit of the steps per second of all calls; None without one.
    """

    def __init__(self, backend: Backend, settings: PoolSettings, journal: Journal, run: str | None = None) -> None:
        """Make the parts, without workers.

        Args:
            backend: creates workers.
            settings: settings of `decide`.
            journal: keeps what outlives the server.
            run: name of the run that an earlier server left; None for a new one.
        """
        assert settings.seed is not None  # noqa: S101  # `decide` has set it
        self.settings = settings
        self.run = run or secrets.token_hex(8)
        self.seed = settings.seed
        self.ids: Iterator[int] = itertools.count((journal.epoch - 1 << _EPOCH_BITS) + 1)
        self.versions = Versions(backend, settings)
        self.workers = self.versions.workers
        self.selection = Selection(self.versions, settings.agents)
        self.agent_updates = AgentUpdates(self.versions, self.selection, journal, settings.agents)
        self.env_updates = EnvUpdates(self.versions, journal, settings)
        is_first = run is None and not journal.follows_loss
        seed, max_kept = self.seed if is_first else own_seed(self.seed, journal.epoch), settings.calls.max_calls
        self.sequences = Sequences(seed, max_kept, self.ids)
        self.row_sequences = RowSequences(seed, max_kept, self.ids)
        self.journal = journal
        self.episode_log = EpisodeLog(settings.metrics)
        self.counters = Counters()
        self.num_calls = 0
        self.number_is_set = False
        self.number_uses = Uses()
        steps_per_second = settings.quota.steps_per_second
        self.step_rate = _StepRate(steps_per_second) if steps_per_second else None

    def use(self, settings: PoolSettings) -> None:
        """Use the reloadable ones of the settings from now on; what runs goes on with the former ones."""
        self.settings = reloaded(self.settings, settings)
        self.selection.settings = self.agent_updates.settings = settings.agents
        self.env_updates.use(settings)
        self.sequences.max_kept = self.row_sequences.max_kept = settings.calls.max_calls

    def free_rows(self) -> None:
        """Give up rows that no call uses, so that their environments are free for other calls."""
        self.sequences.drop_kept()
        self.row_sequences.free_rows()

    def check_run(self, expected: str | None) -> None:
        """Raise NotReadyError if a request is about another run of the sampler than the present one."""
        if expected not in (None, self.run):
            got = f"{self.run!r}, in which the sampler is since it has started again"
            hint = "update the environment, then the agent, and call again"
            field, reason = "options.sampler_run", Reason.SAMPLER_RUN
            raise NotReadyError.of(field, expected=repr(expected), got=got, hint=hint, reason=reason)

    def max_episode_length(self, options: SamplingOptions) -> int | None:
        """Return the number of steps after which a call's episodes are truncated; None for no limit."""
        return options.max_episode_length or self.settings.worker.max_episode_length

    async def begin(self, env: EnvSpec) -> None:
        """Start the workers, and make the first environment; raises as `start_workers` and `EnvUpdates.update`."""
        await self.start_workers()
        await self.env_updates.update([env], per_worker=False)

    async def start_workers(self) -> None:
        """Start the workers, or take over the workers that an earlier server left.

        Raises:
            WorkerLostError: a worker did not start in time, or none did.
            InvalidValueError: more healthy workers are required than there are.
        """
        num_workers, min_healthy = self.settings.workers, self.settings.health.min_healthy_workers
        assert num_workers is not None  # noqa: S101  # `decide` has set it
        if min_healthy > num_workers:
            expected = f"at most {num_workers}, the number of workers"
            raise InvalidValueError.of("min_healthy_workers", expected=expected, got=min_healthy)
        await self.workers.start(num_workers)


class _StepRate:
    """A limit of a pool's steps per second: a token bucket over the steps of all calls.

    Steps are counted when a worker has reported them. Orders wait until the steps so far are paid for, so the mean rate
    is kept, and single orders may exceed it.
    """

    def __init__(self, steps_per_second: float) -> None:
        """Start with all steps paid for."""
        self._steps_per_second = steps_per_second
        self._paid_at = 0.0

    @property
    def is_exhausted(self) -> bool:
        """Whether orders have to wait."""
        return self._paid_at > time.monotonic()

    def count(self, num_steps: int) -> None:
        """Record steps."""
        start = max(self._paid_at, time.monotonic() - _MAX_BURST_SECONDS)
        self._paid_at = start + num_steps / self._steps_per_second

    async def paid(self) -> None:
        """Wait until an order may be given, unless other orders exceed the rate meanwhile."""
        await asyncio.sleep(max(self._paid_at - time.monotonic(), 0.0))

    def slice_seconds(self, seconds: float, num_workers: int, worker_steps_per_second: float) -> float:
        """Return how long an order may take.

        Args:
            seconds: time without a limit.
            num_workers: number of workers that have orders at the same time.
            worker_steps_per_second: speed of the worker; 0 if it is not known.
        """
        share = self._steps_per_second * _MAX_BURST_SECONDS / num_workers
        allowed = share / worker_steps_per_second if worker_steps_per_second else 0.0
        return min(seconds, max(allowed, _MIN_SLICE_SECONDS))
