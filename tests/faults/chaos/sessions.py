"""Sessions whose actions are a function of their seed and of what they show."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import rollserve

if TYPE_CHECKING:
    from rollserve.session import Session

__all__ = ["act", "drive"]

_INFOS = {"number": np.float32(0), "pair": np.zeros(2)}


def drive(sampler: rollserve.Sampler, request: Mapping[str, Any], **options: Any) -> Session:
    """Begin the session of a request with the fields of `calls.Call`."""
    names = ("fragment_length", "infos")
    known = {name: request["extras"][name] for name in names}
    return sampler.drive(seed=request["seed"], agent_infos=_INFOS, **known, **request["options"], **options)


def act(session: Session, request: Mapping[str, Any]) -> Iterator[rollserve.DrivenStep | rollserve.EpisodeBatch]:
    """Make all steps of a session and end it; yield what it shows and, at the request's intervals, what it recorded."""
    step = session.observe()
    yield step
    number, every = 0, request["extras"]["batch_every"]
    for number in range(1, request["number"] + 1):
        step = session.step(_actions(session, request["seed"], step), _infos(step))
        yield step
        if number % every == 0:
            yield session.batch()
    session.end()
    if number % every:
        yield session.batch()


def _actions(session: Session, seed: int, step: rollserve.DrivenStep) -> np.ndarray:
    """Return actions that depend on every bit that a row shows, so that a wrong one changes all that follow."""
    space = session.action_space
    assert isinstance(space, rollserve.spaces.Discrete)
    assert isinstance(step.observations, np.ndarray)
    rows = zip(step.observations, step.episode_indices.tolist(), step.rewards.tolist(), strict=True)
    texts = (f"{seed} {index} {reward} ".encode() + row.tobytes() for row, index, reward in rows)
    return np.array([zlib.crc32(text) % space.n for text in texts], np.int64)


def _infos(step: rollserve.DrivenStep) -> Mapping[str, np.ndarray]:
    episodes = step.episode_indices.astype(np.float64)
    return {
        "number": np.full(len(episodes), step.number, np.float32),
        "pair": np.stack([episodes, step.rewards], axis=1),
    }
