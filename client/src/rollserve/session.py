# Generated from async_session.py by `make blocking`.
"""Sessions in which the client acts, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import grpc

from rollserve._calls.base_session import BaseSession
from rollserve._calls.waiting import Queue, Waiting
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve._calls.base_session import SessionParts
    from rollserve.account import Account
    from rollserve.driven_step import DrivenStep
    from rollserve.episode_batch import EpisodeBatch
    from rollserve_wire.columns import Columns

__all__ = ["Session"]


class Session(BaseSession):
    """Acts in the rows of a sampler, step by step, in place of its agent. The server records what happens.

    At the end of its `with` block, or with `end`, the session ends and has an account; after an error in the
    block, it is cancelled.

    >>> with sampler.drive(seed=7, fragment_length=128) as session:  # doctest: +SKIP
    ...     step = session.observe()
    ...     for _ in range(128):
    ...         step = session.step(policy(step.observations))
    ...     learn(session.batch())
    >>> print(session.account)  # doctest: +SKIP

    Attributes:
        num_rows: number of rows of all workers, once the session has begun.
        observation_space, action_space: spaces of a row's observations and actions, once the session has begun.
    """

    def __init__(self, parts: SessionParts) -> None:
        super().__init__(parts)
        self._waiting = Waiting(parts.limits.timeout, "session")
        self._requests: Queue[pb.DriveEnvironmentsRequest | None] = Queue()
        self._requests.put_nowait(pb.DriveEnvironmentsRequest(spec=parts.spec))
        self._call = parts.method(_all_of(self._requests), timeout=parts.limits.remaining())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is None and not (self._has_ended or self._waiting.is_closed):
            self.end()
        self.close()

    def observe(self) -> DrivenStep:
        """Return the present step, with the observations that the next actions are for.

        Raises:
            RollserveError: the session failed.
        """
        while self._step is None:
            self._next()
        return self._step

    def step(
        self,
        actions: Columns,
        agent_infos: Mapping[str, Any] | None = None,
        idle: NDArray[np.bool_] | None = None,
    ) -> DrivenStep:
        """Act in all rows, and return what follows.

        Args:
            actions: (N, *A), or a mapping with such an array for each leaf of a nested space.
            agent_infos: an array (N, *I) for each of the infos that the session was begun with.
            idle: (N,), rows that make no step, whatever their actions are: only rows whose present episode has made
                none, and not where rows are stepped at once. By default, all rows make a step.

        Raises:
            InvalidArgumentError: actions or infos of another form, or outside the action space. No row has stepped.
            RollserveError: the session failed.
        """
        self.observe()
        self._requests.put_nowait(self._actions(actions, agent_infos or {}, idle))
        while not self._next():
            pass
        return self.observe()

    def batch(self) -> EpisodeBatch:
        """End the present fragments, and return all that was recorded since the last call.

        Raises:
            PreconditionError: nothing was.
            RollserveError: the session failed.
        """
        if self._has_unrecorded:
            self._requests.put_nowait(pb.DriveEnvironmentsRequest(fragment_end=pb.FragmentEnd()))
            while self._has_unrecorded:
                self._next()
        return self._taken()

    def end(self) -> Account:
        """End the session, and return its account. `batch` then has what was recorded and not taken.

        Raises:
            RollserveError: the session failed.
        """
        self._requests.put_nowait(None)
        while not self._has_ended:
            self._next()
        return self.account

    def close(self) -> None:
        """Cancel the session unless it has ended."""
        self._waiting.close(self._call)
        self._requests.put_nowait(None)

    def _next(self) -> bool:
        """Wait for a message and read it; return whether it is a step."""
        try:
            message = self._waiting.message(self._call)
        except TimeoutError:
            self.close()
            raise self._interruptions.silence_error() from None
        except grpc.RpcError as error:
            raise self._interruptions.final_error(error) from None
        if message is None:
            self._has_ended = True
            return False
        return self._read(message)


def _all_of(requests: Queue[pb.DriveEnvironmentsRequest | None]) -> Iterator[pb.DriveEnvironmentsRequest]:
    while (request := requests.get()) is not None:
        yield request
