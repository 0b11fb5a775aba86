"""What agents get beside observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_wire.checks import check_text, check_type
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly
from rollserve_wire.v1 import agent_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["ActionMask", "check_mask", "mask_from_proto", "mask_to_proto"]


@briefly
@dataclass(frozen=True)
class ActionMask:
    """The source of an agent's action mask: which actions are legal at a step.

    A mask has a zero or one for each action of a Discrete space, or for each value of each element of a MultiDiscrete
    action, one element after the other. For a MultiBinary space, it has a number for each element: 0 or 1 if that is
    the only legal value, 2 if both are. For a Dict or Tuple space, it has the structure of the space, as
    `gymnasium.Space.sample` takes it: a mapping or tuple of masks. Those of Box leaves do not matter.

    Batches have it as the info `agent_infos["action_mask"]`, (T, S) bool, with a truth value for each value of each
    element; of a Dict or Tuple space, as an info for each leaf, such as `agent_infos["action_mask/turn"]`.

    >>> agent = rollserve.RandomAgent(action_mask=rollserve.ActionMask(info="action_mask"))  # doctest: +SKIP

    Attributes:
        info: name of an info that the environment returns with each observation; nested names are joined by `/`.
        observation: name of a leaf of the observation space, or of a Dict or Tuple of such leaves. An MLP or a model
            does not get these as observations.

    Raises:
        TypeError: a name that is not a string.
        ValueError: not exactly one of the two.
        InvalidArgumentError: a name that UTF-8 cannot encode.
    """

    info: str | None = None
    observation: str | None = None

    def __post_init__(self) -> None:
        if (self.info is None) == (self.observation is None):
            raise ValueError(f"info: {mismatch('either info or observation', f'{self.info!r}, {self.observation!r}')}")
        for name in ("info", "observation"):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name))


def check_mask(mask: ActionMask | None) -> None:
    """Raise TypeError unless an agent's `action_mask` is one, or None."""
    if mask is not None:
        check_type("action_mask", mask, ActionMask, "a rollserve.ActionMask, or None")


def mask_to_proto(mask: ActionMask | None) -> agent_pb2.ActionMask | None:
    """Return the mask as a message; None without a mask."""
    if mask is None:
        return None
    if mask.info is not None:
        return agent_pb2.ActionMask(info=mask.info)
    return agent_pb2.ActionMask(observation=mask.observation or "")


def mask_from_proto(agent: Message) -> ActionMask | None:
    """Return the mask of an agent's message; None without a mask. Raises ValueError for a mask without a source."""
    if not agent.HasField("action_mask"):
        return None
    mask: agent_pb2.ActionMask = agent.action_mask  # type: ignore[attr-defined]  # of all kinds of agents
    source = mask.WhichOneof("source")
    return ActionMask(**{source: getattr(mask, source)}) if source else ActionMask()
