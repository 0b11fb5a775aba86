"""The probe of environments: a reset and a few steps, in every way that calls may step them."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gymnasium.vector.utils import batch_space

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.columns import leaves_of_batch
from rollserve_server.envs.determinism import Traces, digest, trace_name
from rollserve_server.envs.legal_actions import legal_columns, random_value
from rollserve_server.envs.many.many_envs import ManyEnvs
from rollserve_server.envs.probing.memory import check_observations_fit, naming_memory_limit, observation_bytes
from rollserve_server.envs.row_envs import RowEnvs
from rollserve_server.envs.row_specs import WorkerSpecs, identity_of
from rollserve_server.envs.vector_envs import VectorEnvs
from rollserve_server.envs.vectorization import make_rows, spaces_text, why_not_single
from rollserve_server.errors import EnvFailedError, InvalidValueError, at_row
from rollserve_wire.environments import EnvSpec
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from rollserve_server.settings import HealthSettings, WorkerSettings

__all__ = ["Probed", "probe"]

_Rows = TypeVar("_Rows", bound=RowEnvs | VectorEnvs | ManyEnvs)

_NUM_STEPS, _NUM_NATIVE_STEPS = 8, 64
_MAX_SECONDS = 1.0  # for the steps of one environment; a busy machine may let a process wait for some tenths of it
_MAX_ROWS_SECONDS = 1.0  # for all environments of rows that differ
_NUM_NATIVE_ROWS = 2
_MAX_TRIAL_SECONDS = 1.0  # for what comes before a trace, which takes about as long


class Probed(NamedTuple):
    """Findings of a probe.

    Attributes:
        observation_bytes: bytes that the observations of a call's rows take in a worker.
        traces: of the environments that workers step one by one, unless they are slow.
    """

    observation_bytes: int
    traces: Traces


def probe(specs: WorkerSpecs, settings: WorkerSettings, health: HealthSettings) -> Probed:
    """Make environments and step them as sampling does; return what is found out if sampling can begin.

    An environment that fails is made again, and has another seed, as often as an episode may be run again: some
    environments fail now and then. Of rows that differ, those are tried that can be within a second.

    Args:
        specs: environments of a worker.
        settings: settings of workers.
        health: has the limit for observations.

    Raises:
        OverLimitError: an environment needs more memory than it has here, or observations of all rows more than a
            worker has for them.
        NotFoundError, InvalidValueError: an environment cannot be made, see `make_rows`; fails in each attempt; or has
            other spaces when its rows reset in the same step. The error has the row.
    """
    if isinstance(specs, EnvSpec):
        with naming_memory_limit(specs.id, health):
            return _probe(specs, settings, health)
    until = time.perf_counter() + _MAX_ROWS_SECONDS
    probed: set[bytes] = set()
    num_bytes, traces = 0, dict[str, bytes]()
    for row, spec in enumerate(specs.specs):
        is_single = spec.vectorization in (None, "rows")  # `make_rows` refuses others
        if is_single and identity_of(spec) not in probed and (not probed or time.perf_counter() < until):
            probed.add(identity_of(spec))
            with at_row(row), naming_memory_limit(spec.id, health):
                single = dataclasses.replace(spec, vectorization="rows", num_rows=len(specs.specs))
                num_bytes, found = _probe(single, settings, health)
                traces.update(found)
    return Probed(num_bytes, traces)


def _probe(spec: EnvSpec, settings: WorkerSettings, health: HealthSettings) -> Probed:
    num_native_rows = spec.num_rows or settings.native_rows
    few = settings.model_copy(update={"rows": 1, "native_rows": min(num_native_rows, _NUM_NATIVE_ROWS)})
    num_rows, spec = spec.num_rows or settings.rows, dataclasses.replace(spec, num_rows=None)
    with _closing(make_rows(spec, few, max_episode_length=settings.max_episode_length)) as envs:
        num_rows = num_native_rows if isinstance(envs, VectorEnvs) else num_rows
        leaves = max(envs.raw_observation_leaves, envs.observation_leaves, key=lambda each: observation_bytes(each, 1))
        num_bytes = check_observations_fit(leaves, num_rows, health)
        began = time.perf_counter()
        _try(envs, settings.env_retries)
        is_slow = time.perf_counter() > began + _MAX_TRIAL_SECONDS
        traces = {} if isinstance(envs, VectorEnvs) or is_slow else _traces(envs, spec)
    # EnvPool's rows are stepped in one way only.
    if isinstance(envs, VectorEnvs) and spec.vectorization != "envpool":
        _probe_other_kinds(spec, envs, settings)
    return Probed(num_bytes, traces)


def _probe_other_kinds(spec: EnvSpec, envs: VectorEnvs, settings: WorkerSettings) -> None:
    """Try native rows as fragments and populations step them."""
    spaces, num_retries = (envs.observation_space, envs.action_space), settings.env_retries
    with _closing(VectorEnvs(spec, envs.num_rows, same_step=True, callbacks=settings.callbacks)) as same_step:
        if (same_step.observation_space, same_step.action_space) != spaces:
            expected = f"the same spaces with same-step reset, {spaces_text(*spaces)}"
            got = spaces_text(same_step.observation_space, same_step.action_space)
            raise InvalidValueError.of("vectorization", expected=expected, got=got, reason=Reason.ENV_REFUSED)
        if same_step.same_step:
            _try(same_step, num_retries)
    if not why_not_single(spec, *spaces):
        with _closing(RowEnvs(spec, 1, settings.callbacks)) as single:
            _try(single, num_retries)


def _try(envs: RowEnvs | VectorEnvs | ManyEnvs, num_retries: int) -> None:
    """Reset and step the rows; raise InvalidValueError if every attempt fails."""
    envs.check_precision()
    for seed in range(num_retries + 1):
        try:
            if isinstance(envs, RowEnvs):
                _try_row(envs, seed)
            elif isinstance(envs, VectorEnvs):
                envs.trace(seed, _NUM_NATIVE_STEPS, _MAX_SECONDS)
            else:
                envs.trace(seed, _NUM_STEPS, time.perf_counter() + _MAX_SECONDS)
                if envs.global_state_leaf is not None:
                    envs.global_state(0)
        except EnvFailedError as error:
            last = error
        else:
            return
    text = f"{last.text} (the last of {seed + 1} attempts to try it)"
    raise InvalidValueError(text, reason=Reason.ENV_REFUSED) from last.__cause__


def _traces(envs: RowEnvs | ManyEnvs, spec: EnvSpec) -> Traces:
    """Return the trace that workers compare with their own, in another process; none if the environment fails."""
    current_activity().begin(Phase.RESET)  # the limit of time for all of it
    with contextlib.suppress(EnvFailedError):
        return {trace_name(spec): digest(envs.trace(0, _NUM_STEPS, time.perf_counter() + _MAX_SECONDS))}
    return {}


def _try_row(envs: RowEnvs, seed: int) -> None:
    """Reset and step the only row; raise EnvFailedError if its environment fails."""
    infos = envs.reset(0, seed)
    space = batch_space(envs.action_space, 1)
    space.seed(seed)
    until = time.perf_counter() + _MAX_SECONDS
    for _ in range(_NUM_STEPS):
        sampled = leaves_of_batch(random_value(space), envs.action_leaves, 1)
        observed = {leaf.name: column for leaf, column in zip(envs.observation_leaves, envs.observations, strict=True)}
        infos = dict(envs.step([0], legal_columns(envs.action_space, sampled, observed, infos))).get(0, {})
        for failure in envs.failures:
            raise failure
        if envs.terminated[0] or envs.truncated[0]:
            infos = envs.reset(0, seed)
        if time.perf_counter() > until:
            return


@contextlib.contextmanager
def _closing(envs: _Rows) -> Iterator[_Rows]:
    try:
        yield envs
    finally:
        envs.close()
