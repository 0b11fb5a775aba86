"""A sampler's state: written, and brought into another pool, which goes on as the sampler would have."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server import __version__
from rollserve_server.agents import check_unpickled, prepare_for_env
from rollserve_server.envs import RowSpecs, leaves_of_space
from rollserve_server.errors import DomainError, InvalidValueError, NotReadyError, within
from rollserve_server.futures import in_own_thread
from rollserve_server.pool.accounts import Counters
from rollserve_server.pool.requests import Expectation, RowUpdates
from rollserve_server.pool.state.saved_sampler import (
    SavedAgents,
    SavedEnvs,
    SavedHeader,
    SavedPool,
    SavedRun,
    SavedSampler,
)
from rollserve_server.pool.state.versions import AgentSpaces, AgentVersion
from rollserve_server.sampling import ORDERS_FORMAT, action_log_leaves
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rollserve_server.agents import AgentSpec
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.pool.parts import PoolParts
    from rollserve_server.pool.requests import EnvUpdate
    from rollserve_server.pool.state.checkpoints import RowPoint
    from rollserve_server.pool.state.saved_sampler import SavedRowSequence
    from rollserve_server.sampling import EnvDescription
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["journal_header", "journal_state", "restore_into", "save", "settings_of", "take_over"]

_log = logging.getLogger(__name__)

_Column = tuple[np.dtype, tuple[int, ...]]
"""Dtype and shape of a column."""
_HINT = "start the server with the settings that the sampler was saved with"
_NOT_ACCEPTED = (
    "start the server with the settings and packages that the sampler was left with, or with --no-adopt, which ends it"
)


async def save(parts: PoolParts) -> SavedSampler:
    """Return the sampler as it stands now. A call that runs counts as not begun.

    Agents are left out if they fit none of the environments: no call can use them, and no sampler would accept them.

    Raises:
        NotReadyError: an agent is a pickle.
    """
    own = parts.sequences.save(parts.row_sequences.num_seeds)
    header = dataclasses.replace(_header(parts), own=own)
    saved = _usable(
        SavedSampler(header, *_versions(parts), parts.row_sequences.save()), parts.settings.versions.keep_versions
    )
    with contextlib.ExitStack() as using:  # an update meanwhile drops none of them
        for versions, numbers in ((parts.versions.envs, saved.envs), (parts.versions.agents, saved.agents)):
            for number in numbers:
                using.enter_context(versions.using(number))
        fitting = {number: agents for number, agents in saved.agents.items() if await _fits(parts, number, saved.envs)}
    for number, agents in fitting.items():
        for agent in agents.agents:
            with within(f"agents[{number}]"):
                check_unpickled(agent)
    return dataclasses.replace(saved, agents=fitting)


def journal_state(parts: PoolParts, first_env: EnvSpec, started_seconds: float) -> SavedSampler:
    """Return all of the state that outlives the server.

    Args:
        parts: parts of the pool.
        first_env: environment that the sampler was started with.
        started_seconds: when it was started, in seconds since 1970.
    """
    run = SavedRun(parts.run, started_seconds, parts.settings.worker.model_dump(mode="json"), first_env)
    return SavedSampler(journal_header(parts), *_versions(parts), parts.row_sequences.states(), run)


def journal_header(parts: PoolParts) -> SavedHeader:
    """Return the small part of the state that outlives the server."""
    workers, kept = parts.workers, parts.versions.kept()
    pool = SavedPool(
        [slot.totals for slot in workers],
        workers.departed.plus(*(slot.totals for slot in workers.leaving)),
        sorted(kept.agents),
        sorted(kept.envs),
        parts.row_sequences.numbers(),
        ORDERS_FORMAT,
    )
    return dataclasses.replace(_header(parts), pool=pool)


def _header(parts: PoolParts) -> SavedHeader:
    return SavedHeader(
        software=__version__,
        saved_seconds=time.time(),
        seed=parts.seed,
        num_workers=len(parts.workers),
        max_episode_length=parts.settings.worker.max_episode_length,
        counters=dict(vars(parts.counters)),
        policy_version=parts.versions.agents.number,
        number_is_set=parts.number_is_set,
    )


def _versions(parts: PoolParts) -> tuple[dict[int, SavedEnvs], dict[int, SavedAgents]]:
    """Return the versions of environments and agents that are kept."""
    envs = {number: SavedEnvs.of(env) for number, env in parts.versions.envs.items()}
    return envs, {number: SavedAgents.of(agents) for number, agents in parts.versions.agents.items()}


def _usable(saved: SavedSampler, num_kept: int) -> SavedSampler:
    """Return a saved sampler without what no call can use, and no sampler would accept.

    Args:
        saved: the sampler.
        num_kept: number of versions of the environments that a sampler keeps. Others are only in use by calls, and
            rows can outlive their environments.
    """
    newest, alike = max(saved.envs, default=0), (1, saved.header.num_workers)
    envs = {
        number: envs
        for number, envs in saved.envs.items()
        # Older versions for each worker stay behind when the number of workers changes.
        if number == newest or (number > newest - num_kept and len(envs.specs) in alike)
    }
    agents = {
        number: agents
        for number, agents in saved.agents.items()
        if number == saved.header.policy_version or len(agents.agents) in alike
    }
    # Rows of an unknown version above the newest are no leftovers: they are refused.
    rows = [each for each in saved.rows if (of := each.state.kind.env_version) in envs or of > newest]
    return dataclasses.replace(saved, envs=envs, agents=agents, rows=rows)


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
    header = saved.header
    _check_equal("max_episode_length", header.max_episode_length, settings.worker.max_episode_length)
    return settings.model_copy(update={"workers": header.num_workers, "seed": header.seed})


async def restore_into(parts: PoolParts, saved: SavedSampler, client_id: str = "") -> None:
    """Start the workers of a pool, and bring it to where a saved sampler stood.

    Args:
        parts: parts of a pool that has no workers, with the settings of `settings_of`.
        saved: the sampler, from a file.
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
    parts.workers.check_number(saved.header.num_workers)
    await parts.workers.start(saved.header.num_workers)
    for number, envs in sorted(saved.envs.items()):
        with within(f"environments[{number}]"):
            await _install(parts, number, envs, client_id)
    for number, agents in sorted(saved.agents.items()):
        with within(f"agents[{number}]"):
            may_misfit = len(saved.envs) < num_saved_envs
            await _restore_agents(parts, number, agents, client_id, may_misfit=may_misfit)
    _skip_to_current(parts, saved)
    parts.versions.mark_restored()
    await parts.versions.take_over()
    for position, rows in enumerate(saved.rows):
        with within(f"rows[{position}]"):
            _check_rows(parts, rows)
    assert saved.header.own is not None  # noqa: S101  # a file has them
    parts.sequences.restore(saved.header.own)
    _go_on(parts, saved)


async def take_over(parts: PoolParts, left: SavedSampler) -> None:
    """Take over the workers that an earlier server left, or start others, and go on where the server stood.

    Nothing is lost with an error before the workers are started. Superseded versions of the agents that are not
    accepted here are left out.

    Args:
        parts: parts of a pool that has no workers, with the settings of `reconcile`.
        left: the sampler, from a journal.

    Raises:
        InvalidValueError: the current agents are not accepted here, or more healthy workers are required than there
            are.
        NotFoundError, NotAllowedError, OverLimitError: the current agents are not accepted here.
        WorkerLostError: a worker did not start in time, or workers are lost.
    """
    left = _usable(left, parts.settings.versions.keep_versions)
    pool = left.header.pool
    assert pool is not None  # noqa: S101  # a journal has it
    parts.versions.envs.restore({number: each.version for number, each in left.envs.items() if each.version})
    for number, agents in sorted(left.agents.items()):
        with within(f"agents[{number}]"):
            try:
                await _adopt_agents(parts, number, agents)
            except DomainError as error:
                if number == left.header.policy_version:
                    error.text = f"{error.text}; {_NOT_ACCEPTED}"
                    raise
                _log.warning("agents left out", extra={"policy_version": number, "error": error.message})
    _skip_to_current(parts, left)
    await parts.start_workers()
    await parts.versions.take_over()
    parts.workers.resume_totals(pool.workers, pool.departed)
    _go_on(parts, left)


async def _adopt_agents(parts: PoolParts, number: int, left: SavedAgents) -> None:
    """Add a version of the agents for the spaces that an earlier server has accepted it for.

    Whether it fits environments is found out when a call asks for both, as for every version.
    """
    spaces = left.spaces
    assert spaces is not None  # noqa: S101  # a journal has them
    specs = await _prepared(parts, left, spaces)
    parts.versions.agents.skip_to(number)
    parts.versions.agents.add(AgentVersion.restored(specs, spaces, left.clients, left.updated_seconds))


def _go_on(parts: PoolParts, saved: SavedSampler) -> None:
    """Begin with the row sequences and counters of a saved sampler."""
    parts.row_sequences.restore(saved.rows, saved.header.own)
    parts.number_is_set = saved.header.number_is_set
    known = {field.name for field in dataclasses.fields(Counters)}
    parts.counters = Counters(**{name: value for name, value in saved.header.counters.items() if name in known})


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


async def _restore_agents(
    parts: PoolParts, number: int, saved: SavedAgents, client_id: str, *, may_misfit: bool
) -> None:
    """Add a version of the agents for the newest environments that accept it.

    Args:
        parts: parts of the pool.
        number: number of the version.
        saved: the agents, from a file.
        client_id: id of the client to whom the version belongs.
        may_misfit: whether agents that fit no environment are left out, because theirs may have been.
    """
    versions = parts.versions
    failure: DomainError | None = None
    for _, env in sorted(versions.envs.items(), reverse=True):
        spaces = AgentSpaces.of(env.description)
        try:
            specs = await _prepared(parts, saved, spaces)
        except InvalidValueError as error:
            failure = failure or error
        else:
            versions.agents.skip_to(number)
            versions.agents.add(AgentVersion.restored(specs, spaces, [client_id], saved.updated_seconds))
            return
    assert failure is not None  # noqa: S101  # there is an environment
    if not may_misfit:
        raise failure
    _log.warning("agents left out", extra={"policy_version": number, "error": failure.message})


async def _prepared(parts: PoolParts, saved: SavedAgents, spaces: AgentSpaces) -> list[AgentSpec]:
    """Return agents once they are accepted for spaces; raises as `prepare_for_env`."""
    num_workers = parts.settings.workers
    if len(saved.agents) not in (1, num_workers):
        expected = f"1 or {num_workers}, one for each worker"
        raise InvalidValueError.of("agents", expected=expected, got=len(saved.agents))
    arguments = spaces.observation_space, spaces.action_space, parts.settings.agents, spaces.agents
    return [await in_own_thread(prepare_for_env, agent, *arguments) for agent in saved.agents]


def _skip_to_current(parts: PoolParts, saved: SavedSampler) -> None:
    """Count versions of the agents on from the current one, which may be left out."""
    if saved.header.policy_version > parts.versions.agents.number:
        parts.versions.agents.skip_to(saved.header.policy_version + 1)


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
