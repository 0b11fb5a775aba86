"""Saving a sampler, and making another one that goes on as it would have."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server import __version__
from rollserve_server.agents import prepare_for_env
from rollserve_server.envs import RowSpecs, leaves_of_space, requested
from rollserve_server.errors import DomainError, InvalidValueError, NotReadyError, within
from rollserve_server.futures import in_own_thread
from rollserve_server.pool.accounts import Counters
from rollserve_server.pool.requests import Expectation, RowUpdates
from rollserve_server.pool.state.agent_version import AgentVersion
from rollserve_server.pool.state.saved_sampler import SavedAgents, SavedEnvs, SavedSampler
from rollserve_server.sampling import action_log_leaves
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import EnvUpdate
    from rollserve_server.pool.state.checkpoints import RowPoint
    from rollserve_server.pool.state.env_version import EnvVersion
    from rollserve_server.pool.state.saved_sampler import SavedRowSequence
    from rollserve_server.sampling import EnvDescription
    from rollserve_server.settings import PoolSettings

__all__ = ["restore_into", "save", "settings_of"]

_Column = tuple[np.dtype, tuple[int, ...]]
"""Dtype and shape of a column."""
_HINT = "start the server with the settings that the sampler was saved with"


async def save(parts: PoolParts) -> SavedSampler:
    """Return the sampler as it stands now. A call that runs counts as not begun.

    Agents are left out if they fit none of the environments: no call can use them, and no sampler would accept them.
    """
    saved = _usable(_snapshot(parts), parts.settings.versions.keep_versions)
    with contextlib.ExitStack() as using:  # an update meanwhile drops none of them
        for versions, numbers in ((parts.versions.envs, saved.envs), (parts.versions.agents, saved.agents)):
            for number in numbers:
                using.enter_context(versions.using(number))
        fitting = {number: agents for number, agents in saved.agents.items() if await _fits(parts, number, saved.envs)}
    return dataclasses.replace(saved, agents=fitting)


def _snapshot(parts: PoolParts) -> SavedSampler:
    """Return the sampler with everything that it keeps."""
    versions = parts.versions
    return SavedSampler(
        software=__version__,
        saved_seconds=time.time(),
        seed=parts.seed,
        num_workers=len(parts.workers.workforce),
        max_episode_length=parts.settings.worker.max_episode_length,
        counters=dataclasses.asdict(parts.counters),
        envs={number: _saved_envs(env) for number, env in versions.envs.items()},
        agents={number: SavedAgents(tuple(each), each.updated_seconds) for number, each in versions.agents.items()},
        policy_version=versions.agents.number,
        own=parts.sequences.save(),
        rows=parts.row_sequences.save(),
    )


def _usable(saved: SavedSampler, num_kept: int) -> SavedSampler:
    """Return a saved sampler without what no call can use, and no sampler would accept.

    Args:
        saved: the sampler.
        num_kept: number of versions of the environments that a sampler keeps. Others are only in use by calls, and
            rows can outlive their environments.
    """
    newest, alike = max(saved.envs, default=0), (1, saved.num_workers)
    envs = {
        number: envs
        for number, envs in saved.envs.items()
        # Older versions for each worker stay behind when the number of workers changes.
        if number == newest or (number > newest - num_kept and len(envs.specs) in alike)
    }
    agents = {
        number: agents
        for number, agents in saved.agents.items()
        if number == saved.policy_version or len(agents.agents) in alike
    }
    # Rows of an unknown version above the newest are no leftovers: they are refused.
    rows = [each for each in saved.rows.sequences if (of := each.state.kind.env_version) in envs or of > newest]
    return dataclasses.replace(saved, envs=envs, agents=agents, rows=saved.rows._replace(sequences=rows))


async def _fits(parts: PoolParts, policy_version: int, envs: Iterable[int]) -> bool:
    """Whether agents fit one of some environments."""
    for env in sorted(envs, reverse=True):
        if await parts.selection.misfit(policy_version, env) is None:
            return True
    return False


def settings_of(saved: SavedSampler, settings: PoolSettings) -> PoolSettings:
    """Return the settings of a server for a sampler that it restores.

    Raises:
        NotReadyError: the sampler was saved with another default of `max_episode_length`.
    """
    _check_equal("max_episode_length", saved.max_episode_length, settings.worker.max_episode_length)
    return settings.model_copy(update={"workers": saved.num_workers, "seed": saved.seed})


async def restore_into(parts: PoolParts, saved: SavedSampler, client_id: str = "") -> None:
    """Start the workers of a pool, and bring it to where a saved sampler stood.

    Args:
        parts: parts of a pool that has no workers, with the settings of `settings_of`.
        saved: the sampler.
        client_id: id of the client to whom the versions belong; empty for none in particular.

    Raises:
        NotReadyError: environments have other rows here.
        InvalidValueError: environments or agents are not accepted here, or rows do not fit their environments.
        NotFoundError, NotAllowedError, OverLimitError: environments, agents or so many workers are not accepted here.
        WorkerLostError: a worker did not start in time, or workers are lost.
    """
    if not saved.envs:
        raise InvalidValueError.of("environments", expected="at least one version", got="none")
    num_saved_envs = len(saved.envs)
    saved = _usable(saved, parts.settings.versions.keep_versions)
    parts.workers.check_number(saved.num_workers)
    await parts.workers.start(saved.num_workers)
    for number, envs in sorted(saved.envs.items()):
        with within(f"environments[{number}]"):
            await _install(parts, number, envs, client_id)
    for number, agents in sorted(saved.agents.items()):
        with within(f"agents[{number}]"):
            await _prepare(parts, number, agents, client_id, may_misfit=len(saved.envs) < num_saved_envs)
    if saved.policy_version > parts.versions.agents.number:
        parts.versions.agents.skip_to(saved.policy_version + 1)
    parts.versions.mark_restored()
    await parts.versions.take_over()
    for position, rows in enumerate(saved.rows.sequences):
        with within(f"rows[{position}]"):
            _check_rows(parts, rows)
    parts.sequences.restore(saved.own)
    parts.row_sequences.restore_saved(saved.own.seed, saved.rows)
    known = {field.name for field in dataclasses.fields(Counters)}
    parts.counters = Counters(**{name: value for name, value in saved.counters.items() if name in known})


def _saved_envs(env: EnvVersion) -> SavedEnvs:
    specs = [
        RowSpecs(tuple(map(requested, each.specs))) if isinstance(each, RowSpecs) else requested(each)
        for each in env.specs
    ]
    return SavedEnvs(specs, env.description.num_rows, env.description.num_episodes_per_row)


async def _install(parts: PoolParts, number: int, saved: SavedEnvs, client_id: str) -> None:
    """Make a version of the environments on all workers."""
    versions = parts.versions
    versions.envs.skip_to(number)
    updates, expected = list(map(_update_of, saved.specs)), Expectation(None, None, client_id)
    await parts.env_updates.update(updates, expected, per_worker=len(updates) > 1)
    made = versions.env_in_use(number).description
    _check_equal("row_count", saved.num_rows, made.num_rows)
    _check_equal("episodes_per_row", saved.num_episodes_per_row, made.num_episodes_per_row)


def _update_of(specs: WorkerSpecs) -> EnvUpdate:
    return RowUpdates(specs.specs) if isinstance(specs, RowSpecs) else specs


async def _prepare(parts: PoolParts, number: int, saved: SavedAgents, client_id: str, *, may_misfit: bool) -> None:
    """Add a version of the agents, which fits one of the environments: the newest that accepts it.

    Args:
        parts: parts of the pool.
        number: number of the version.
        saved: the agents.
        client_id: id of the client to whom the version belongs.
        may_misfit: whether agents that fit no environment are left out, because theirs may have been.
    """
    versions, settings = parts.versions, parts.settings.agents
    if len(saved.agents) not in (1, len(versions.workers)):
        expected = f"1 or {len(versions.workers)}, one for each worker"
        raise InvalidValueError.of("agents", expected=expected, got=len(saved.agents))
    failure: DomainError | None = None
    for _, env in sorted(versions.envs.items(), reverse=True):
        spaces = env.description.observation_space, env.description.action_space
        try:
            arguments = *spaces, settings, env.description.agents
            specs = [await in_own_thread(prepare_for_env, agent, *arguments) for agent in saved.agents]
        except InvalidValueError as error:
            failure = failure or error
        else:
            versions.agents.skip_to(number)
            versions.agents.add(AgentVersion.restored(specs, [client_id], saved.updated_seconds))
            return
    assert failure is not None  # noqa: S101  # there is an environment
    if not may_misfit:
        raise failure


def _check_rows(parts: PoolParts, saved: SavedRowSequence) -> None:
    """Raise InvalidValueError unless rows fit their environments: they are brought there by their actions."""
    state = saved.state
    env = parts.versions.envs.get(state.kind.env_version)
    if env is None:
        held = ", ".join(map(str, parts.versions.envs))
        raise InvalidValueError.of("environment_version", expected=f"one of {held}", got=state.kind.env_version)
    num_workers, num_rows = len(parts.workers.workforce), env.description.num_rows
    shape = [len(points) for points in state.current.workers]
    if shape != [num_rows] * num_workers:
        expected = f"{num_workers * num_rows}, {num_rows} of each of {num_workers} workers"
        raise InvalidValueError.of("rows", expected=expected, got=sum(shape))
    leaves = _logged(env.description)
    for row, point in enumerate(point for points in state.current.workers for point in points):
        with within(f"rows[{row}]"):
            _check_point(point, leaves)


def _logged(description: EnvDescription) -> list[_Column]:
    """Return dtype and shape of each column of a step's actions."""
    space, agents = description.action_space, description.agents
    if agents:
        leaves = action_log_leaves([leaves_of_space(space[agent], "actions") for agent in agents])  # type: ignore[index]
    else:
        leaves = list(leaves_of_space(space, "actions"))
    return [(leaf.dtype, leaf.shape) for leaf in leaves]


def _check_point(point: RowPoint, leaves: Sequence[_Column]) -> None:
    numbers = point.reset_index, point.episode_index, point.first_step, point.num_steps
    if min(numbers) < 0 or point.first_step > point.num_steps or point.reset_index > point.episode_index:
        text = "numbers from 0, of an episode that begins neither before the reset nor behind the steps"
        raise InvalidValueError.of("", expected=text, got=numbers)
    if point.log is not None:
        got = [(column.dtype, column.shape) for column in point.log.columns]
        expected = [(dtype, (point.num_steps, *shape)) for dtype, shape in leaves]
        if len(got) != len(expected) or not all(map(_holds, got, expected)):
            raise InvalidValueError.of("actions", expected=_columns_text(expected), got=_columns_text(got))
    for name, value in point.recurrent_state:
        if value.dtype.kind not in "biuf" or not np.isfinite(value).all():
            raise InvalidValueError.of(f"recurrent_state[{name!r}]", expected="finite numbers", got=value.dtype)


def _holds(got: _Column, expected: _Column) -> bool:
    """Whether actions have the expected shape and kind of numbers: small integers are kept in less than their space."""
    is_narrow = got[0].kind in "iu" and expected[0].kind in "iu" and got[0].itemsize <= expected[0].itemsize
    return got[1] == expected[1] and (is_narrow or got[0] == expected[0])


def _columns_text(columns: Sequence[_Column]) -> str:
    return ", ".join(f"{dtype} of shape {shape}" for dtype, shape in columns) or "none"


def _check_equal(field: str, expected: int | None, got: int | None) -> None:
    """Raise NotReadyError unless this server gives what the sampler was saved with."""
    if got != expected:
        text = "none" if expected is None else expected
        raise NotReadyError.of(field, expected=text, got=got, hint=_HINT, reason=Reason.SAVED_SAMPLER)
