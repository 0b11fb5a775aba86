"""Verification of recorded episodes: replayed in plain gymnasium, without the server that sampled them."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve.data.agent_files import load_agent
from rollserve.data.log_probs import log_probs
from rollserve.data.reader import read
from rollserve.data.replaying import Replay, env_spec_of, make_env, replay
from rollserve.episode_batch import EpisodeBatch, put_together
from rollserve_wire.checks import check_type
from rollserve_wire.columns import ORIGINALS
from rollserve_wire.environments import EnvSpec
from rollserve_wire.errors import mismatch
from rollserve_wire.gymnasium_spaces import space_of_gymnasium
from rollserve_wire.receipts import HASH_SEED_NAME, Receipt, column_digests, hash_seed
from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from rollserve_wire.v1 import agent_pb2

__all__ = ["EpisodeCheck", "Verification", "verify"]

LOG_PROB_TOLERANCE = 1e-3
"""Largest accepted difference of log-probabilities, which the server computes in float32 and this module in float64."""


@briefly
@dataclass(frozen=True)
class EpisodeCheck:
    """Result for one episode.

    Attributes:
        episode_index: index of the episode.
        num_steps: number of its steps.
        replayed: whether the episode was replayed; those without a seed or their first steps cannot be.
        difference: where the replay first differs, or why there was none; empty if all is equal.
        log_prob_error: largest difference of the agent's log-probabilities; None without an agent.
    """

    episode_index: int
    num_steps: int
    replayed: bool
    difference: str
    log_prob_error: float | None = None

    @property
    def is_probable(self) -> bool:
        """Whether the agent would have acted so, as far as log-probabilities tell; true without an agent."""
        return self.log_prob_error is None or self.log_prob_error <= LOG_PROB_TOLERANCE

    @property
    def is_equal(self) -> bool:
        """Whether the replay is equal, and the agent would have acted so."""
        return self.replayed and not self.difference and self.is_probable


@briefly
@dataclass(frozen=True)
class Verification:
    """Result for a file.

    Attributes:
        episodes: results of the episodes, in the order of the file; of fragments, in the order of their indices.
        changed_columns: columns whose digest is not the receipt's.
        not_compared: what was not compared, with the reason, such as columns without a digest in the receipt.
        packages: versions of packages, and the hash seed, by name: the receipt's, and the one that is installed here,
            None if none is.
    """

    episodes: tuple[EpisodeCheck, ...]
    changed_columns: tuple[str, ...]
    not_compared: tuple[str, ...]
    packages: Mapping[str, tuple[str, str | None]]

    @property
    def num_equal(self) -> int:
        """Number of episodes that are equal."""
        return sum(each.is_equal for each in self.episodes)

    @property
    def is_equal(self) -> bool:
        """Whether all episodes are equal, and no column has changed."""
        return not self.changed_columns and self.num_equal == len(self.episodes)


def verify(
    path: str | os.PathLike[str],
    *,
    env: str | EnvSpec | None = None,
    agent: str | os.PathLike[str] | None = None,
    allowed_modules: Collection[str] = (),
    on_episode: Callable[[EpisodeCheck], None] = lambda _: None,
) -> Verification:
    """Replay the episodes of a file in plain gymnasium, and compare them with it bit by bit.

    >>> rollserve.data.verify("batch.npz").is_equal  # doctest: +SKIP
    True

    Args:
        path: files as `read` takes them, with receipts.
        env: id or specification of the environment, in place of the receipt's; needed without receipts.
        agent: file of `save_agent`: whether its digest is the receipt's, and the recorded log-probabilities its own.
        allowed_modules: modules that the receipt may name for environments and wrappers. Importing a module runs its
            code.
        on_episode: called with the result of each episode.

    Raises:
        ImportError: gymnasium is not installed.
        TypeError: an argument of the wrong type, such as an agent in place of its file.
        ValueError: files without receipts, an environment that cannot be replayed, or an agent that cannot be
            evaluated.
        OSError: no such file.
    """
    if agent is not None:
        check_type("agent", agent, str | os.PathLike, "the path of a file of save_agent")
    if env is not None:
        check_type("env", env, str | EnvSpec, "the id of an environment, or an EnvSpec")
    with read(path) as reader:
        batches = list(reader)
        if not batches:
            raise ValueError(f"{path}: {mismatch('at least one segment', 'none')}")
        batch = EpisodeBatch.concatenate(*batches)
        receipts = [Receipt.from_json(text) for text in reader.receipts]
    loaded = None if agent is None else load_agent(agent)
    changed: list[str] = []
    skipped: dict[str, None] = {}
    episodes: list[EpisodeCheck] = []
    for part, receipt in _parts(batch, receipts, env):
        if receipt is not None:
            changed += _changed(part, receipt, skipped)
            if loaded is not None and not receipt.agent:
                skipped["agent: the receipt has no digest of it"] = None
            elif loaded is not None and receipt.agent != loaded[1]:
                changed.append(f"agent: {mismatch(f'SHA-256 {receipt.agent}', loaded[1])}")
        spec = _spec(receipt, env)
        for check in _checks(part, spec, receipt, None if loaded is None else loaded[0], allowed_modules, skipped):
            on_episode(check)
            episodes.append(check)
    return Verification(tuple(episodes), tuple(changed), tuple(skipped), _packages(receipts))


def _parts(
    batch: EpisodeBatch, receipts: list[Receipt], env: str | EnvSpec | None
) -> Iterator[tuple[EpisodeBatch, Receipt | None]]:
    """Yield the segments of each receipt."""
    if not receipts:
        if env is None:
            hint = "files without one need the environment, as `env` or on the command line as --env"
            raise ValueError(f"receipt: {mismatch('a receipt in the files', 'none', hint)}")
        yield batch, None
        return
    total = sum(receipt.num_segments for receipt in receipts)
    if total != len(batch):
        raise ValueError(f"receipt: {mismatch(f'{total} segments, as the receipts say', len(batch))}")
    start = 0
    for receipt in receipts:
        yield batch.take(slice(start, start + receipt.num_segments)), receipt
        start += receipt.num_segments


def _spec(receipt: Receipt | None, env: str | EnvSpec | None) -> EnvSpec:
    if env is not None:
        return EnvSpec(env) if isinstance(env, str) else env
    if receipt is None:
        raise ValueError(f"receipt: {mismatch('a receipt', 'none')}")
    if receipt.reproducibility != "EPISODE":
        expected = "EPISODE, so that an episode is a function of its seed"
        hint = "native rows make whole blocks; `--vectorization rows` of the server or of EnvSpec makes episodes"
        is_block = receipt.reproducibility == "BLOCK"
        text = mismatch(expected, receipt.reproducibility, hint if is_block else "")
        raise ValueError(f"receipt.reproducibility: {text}")
    return env_spec_of(receipt.environment)


def _changed(batch: EpisodeBatch, receipt: Receipt, skipped: dict[str, None]) -> list[str]:
    """Return columns that have another digest than in the receipt, and note columns that one of both lacks."""
    found = column_digests(batch)
    expected = dict(receipt.digests)
    for name, own in ORIGINALS.items():  # Minari's datasets hold the environment's own values under these names
        if own in expected and own not in found:
            expected[name] = expected.pop(own)
    for name in sorted(expected.keys() - found.keys()):
        skipped[f"{name}: the file does not hold it"] = None
    for name in sorted(found.keys() - expected.keys()):
        skipped[f"{name}: the receipt has no digest of it"] = None
    return sorted(name for name in expected.keys() & found.keys() if found[name] != expected[name])


def _checks(
    batch: EpisodeBatch,
    spec: EnvSpec,
    receipt: Receipt | None,
    agent: agent_pb2.Agent | None,
    allowed_modules: Collection[str],
    skipped: dict[str, None],
) -> Iterator[EpisodeCheck]:
    observations = not any(type(transform).__name__.endswith("Observations") for transform in spec.transforms)
    if not observations:
        skipped["observations: transforms have changed them"] = None
    batch = put_together(batch)
    made = make_env(spec, allowed_modules)
    try:
        errors = None if agent is None else _log_prob_errors(agent, batch, made)
        longest = 0 if receipt is None else int(batch.lengths.max())  # without receipts, calls can differ in limits
        for segment, part in enumerate(batch.split()):
            difference = reason = _unplayable(part)
            if not reason:
                found = replay(made, part, dict(spec.reset_options) or None, observations=observations)
                difference = found.difference or _cut_difference(part, found, longest, skipped)
            error = None if errors is None else float(errors[segment])
            yield EpisodeCheck(int(part.episode_indices[0]), part.num_steps, not reason, difference, error)
    finally:
        made.close()


def _cut_difference(part: EpisodeBatch, found: Replay, longest: int, skipped: dict[str, None]) -> str:
    """Return the difference if the episode was truncated, but not by the environment; empty if there is none.

    A limit of the call on steps may have cut it, which receipts do not hold; but then no episode is longer.
    """
    num_steps = part.num_steps
    if not part.truncated[0] or found.truncated:
        return ""
    if num_steps < longest:
        recorded, replayed = (bool(part.terminated[0]), True), (bool(part.terminated[0]), False)
        return f"terminated, truncated: {recorded} at step {num_steps - 1}, replayed {replayed}"
    skipped[f"truncated: a limit of the call may have cut episodes after {num_steps} steps"] = None
    return ""


def _unplayable(segment: EpisodeBatch) -> str:
    """Return why a segment cannot be replayed; empty if it can."""
    if segment.first_steps[0]:
        return "a fragment that does not begin with its episode"
    return "no seed" if segment.env_seeds is None else ""


def _log_prob_errors(agent: agent_pb2.Agent, batch: EpisodeBatch, env: Any) -> np.ndarray:
    """Return the largest difference of log-probabilities in each segment, (N,)."""
    if "log_prob" not in batch.agent_infos:
        raise ValueError(f"agent_infos: {mismatch('log_prob', sorted(batch.agent_infos))}")
    spaces = space_of_gymnasium(env.observation_space), space_of_gymnasium(env.action_space)
    found = log_probs(agent, batch, *spaces)
    errors = np.abs(found - batch.agent_infos["log_prob"])
    largest: np.ndarray = np.maximum.reduceat(errors, np.cumsum(batch.lengths) - batch.lengths)
    return largest


def _packages(receipts: list[Receipt]) -> dict[str, tuple[str, str | None]]:
    found = {}
    for receipt in receipts:
        for name, version in receipt.packages.items():
            try:
                here: str | None = hash_seed() if name == HASH_SEED_NAME else importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                here = None
            found[name] = version, here
    return found
