"""Single rows of environments that have native code: whether they are the same environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from rollserve_server.envs.making import close_env, make_env
from rollserve_server.envs.registry import find_env
from rollserve_server.envs.transforms.transforms import Transforms
from rollserve_server.errors import DomainError, shorten, show

if TYPE_CHECKING:
    from gymnasium import Space

    from rollserve_wire.environments import EnvSpec

__all__ = ["spaces_text", "why_not_single"]

_MAX_SHOWN = 200  # characters of a space in the text of an error


def why_not_single(spec: EnvSpec, observation_space: Space[Any], action_space: Space[Any]) -> str:
    """Return why single rows are not the environment that native code steps; empty if their spaces are equal.

    Only spaces are compared. ALE's, for example, differ: its native code preprocesses screens, and single rows do not.

    Args:
        spec: environment with native code.
        observation_space: observation space of a native row, with its transforms.
        action_space: action space of a native row, with its transforms.
    """
    named = find_env(spec.id)
    if isinstance(named, str) and gymnasium.spec(named).entry_point is None:
        return f"{spec.id} has no code for single rows"
    try:
        env = make_env(spec)
    except DomainError as error:
        return f"single rows cannot be made: {error.text}"
    close_env(env)
    try:
        single = Transforms(spec.transforms, env.observation_space, env.action_space)
    except DomainError as error:
        return f"the transforms do not fit single rows: {error.text}"
    spaces = single.observation_space, single.action_space
    return "" if spaces == (observation_space, action_space) else f"single rows have {spaces_text(*spaces)}"


def spaces_text(observation_space: Space[Any], action_space: Space[Any]) -> str:
    """Return both spaces for the text of an error."""
    observations, actions = (shorten(show(space), _MAX_SHOWN) for space in (observation_space, action_space))
    return f"observations {observations} and actions {actions}"
