"""What a call that samples fragments asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from rollserve_server.pool.config import SampleRequest

__all__ = ["Fragments", "check_fragments"]


@dataclass(frozen=True)
class Fragments:
    """Exactly so many steps, of all rows alike, whose episodes go on from call to call.

    Attributes:
        num_steps: how many.
        num_skipped_steps: how many at the beginning are not delivered.
        soft_horizon: whether episodes that reach the limit of their length end without a reset.
        row_step_count: how many steps each row has made in the sequence of the seed; None for its beginning.
        fraction_of_workers: which part of the workers has to make all their steps, over 0 and up to 1: once so many
            have, the others stop at what they have.
    """

    num_steps: int
    num_skipped_steps: int = 0
    soft_horizon: bool = False
    row_step_count: int | None = None
    fraction_of_workers: float = 1.0


def check_fragments(request: SampleRequest, target: Fragments, num_rows: int, max_episode_length: int | None) -> None:
    """Raises unless a pool can do what is asked for.

    Args:
        request: what is asked for.
        target: the same.
        num_rows: how many rows all workers have.
        max_episode_length: how many steps an episode may have if the request does not say.

    Raises:
        InvalidValueError: the steps are not for all rows alike, or one of the options needs another.
    """
    num_steps = target.num_steps
    if num_steps % num_rows:
        below = num_steps // num_rows * num_rows
        nearest = f"{below} or {below + num_rows}" if below else f"{num_rows}"
        expected = f"a multiple of {num_rows}, the number of rows of all workers, such as {nearest}"
        raise InvalidValueError.of("step_count", expected=expected, got=num_steps)
    if target.num_skipped_steps > num_steps:
        expected = f"at most the number of all, {num_steps}"
        raise InvalidValueError.of("fragments.skip_step_count", expected=expected, got=target.num_skipped_steps)
    if target.num_skipped_steps and target.fraction_of_workers < 1:
        expected = "none beside fragments.fraction_of_workers, with which no call comes again"
        raise InvalidValueError.of("fragments.skip_step_count", expected=expected, got=target.num_skipped_steps)
    if target.soft_horizon and (request.max_episode_length or max_episode_length) is None:
        expected = "options.max_episode_length beside it, or a server with a limit"
        raise InvalidValueError.of("fragments.soft_horizon", expected=expected, got="a soft horizon without a limit")
    if request.skip_failed:
        expected = "false for fragments, whose rows go on from call to call"
        raise InvalidValueError.of("options.skip_failed_episodes", expected=expected, got="true")
    if target.row_step_count is not None and request.seed is None:
        raise InvalidValueError.of(
            "fragments.row_step_count", expected="options.seed beside it", got="a count without a seed"
        )
