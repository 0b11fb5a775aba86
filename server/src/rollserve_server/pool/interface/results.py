"""Items that a call yields: its beginning, deliveries and progress, and the account or evaluation at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import Space
    from numpy.typing import NDArray

    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.sampling import Message, Outcome
    from rollserve_wire.environments import Reproducibility

__all__ = ["Beginning", "Delivery", "Evaluation", "Progress"]


@dataclass(frozen=True)
class Beginning:
    """Inputs that determine a call's episodes, so that the call can be repeated, or resumed after an interruption.

    Attributes:
        seed: root seed of the episodes.
        first_episode_index: index of the first episode in the sequence of the seed.
        policy_version: version of the agent that acts.
        env_version: version of the environment that it acts in; 0 for one that the request brought.
        reproducibility: which unit of work the same seed gives again.
        run: name of the sampler's run.
        num_rows: of fragments, the number of rows of all workers; 0 else.
        row_step_count: of fragments, the number of steps that each row had made before.
        num_workers: number of workers, on which exact episodes and fragments depend; others are the same with any
            number.
        agent_updated: whether the call has updated the agent.
        spaces: spaces of the observations and of the actions, if the request asks for them.
    """

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    reproducibility: Reproducibility
    run: str
    num_rows: int = 0
    row_step_count: int = 0
    num_workers: int = 0
    agent_updated: bool = False
    spaces: tuple[Space[Any], Space[Any]] | None = None


@dataclass(frozen=True)
class Delivery:
    """Messages on their way to the client, in order, and the buffer that holds them."""

    buffer: NDArray[np.uint8]
    messages: Sequence[Message]


@dataclass(frozen=True)
class Progress:
    """A sign of life.

    Attributes:
        num_simulated_steps: number of steps simulated for the call so far.
        num_ended_episodes: number of episodes of the call that have ended so far.
        warning: something about the call that its client should know, in one sentence; usually empty.
        waiting_for: missing worker that the call waits for, and why it is missing; usually empty. Of a stream, also
            its client or an update of the agent.
        num_rounds, num_stale_steps, num_overflow_steps, lag_step_counts, worker_idle_seconds: of a stream, as in its
            account, so far.
        num_ahead_steps, ahead_bytes: of a stream, what is sampled and not sent.
    """

    num_simulated_steps: int
    num_ended_episodes: int = 0
    warning: str = ""
    waiting_for: str = ""
    num_rounds: int = 0
    num_stale_steps: int = 0
    num_overflow_steps: int = 0
    num_ahead_steps: int = 0
    ahead_bytes: int = 0
    lag_step_counts: Sequence[int] = ()
    worker_idle_seconds: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes.

    Attributes:
        outcomes: one for each episode, in the order of the indices; of a population, in the order of its units.
        account: what was simulated for it.
        reproducibility: which unit of work the same seed gives again.
        num_members: number of members of a population; 1 else.
        agents: names of the possible agents of an environment with many agents; none else.
    """

    outcomes: Sequence[Outcome]
    account: Account
    reproducibility: Reproducibility
    num_members: int = 1
    agents: Sequence[str] = ()
