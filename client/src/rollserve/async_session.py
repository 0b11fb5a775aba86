"""Sessions in which the client acts, step by step, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Self

import grpc

from rollserve._calls.async_waiting import Queue, Waiting
from rollserve._calls.base_session import FRAGMENT_END, SESSION_END, BaseSession
from rollserve._calls.session_forms import Step
from rollserve.multi_agent_batch import Batch
from rollserve_wire.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve._calls.base_session import SessionParts
    from rollserve.account import Account
    from rollserve.recordings import Recording
    from rollserve_wire.columns import Columns
    from rollserve_wire.v1 import sampler_service_pb2 as pb

__all__ = ["AsyncSession"]


class AsyncSession(BaseSession[Batch, Step], Generic[Batch, Step]):
    """Acts in the rows of a sampler, step by step, in place of its agent. The server records what happens.

    At the end of its `async with` block, or with `end`, the session ends and has an account; after an error in the
    block, it is cancelled.

    >>> async with sampler.drive(seed=7, fragment_length=128) as session:  # doctest: +SKIP
    ...     step = await session.observe()
    ...     for _ in range(128):
    ...         step = await session.step(policy(step.observations))
    ...     learn(await session.batch())
    >>> print(session.account)  # doctest: +SKIP

    Attributes:
        num_rows: number of rows of all workers, once the session has begun.
        token: what takes a session with a lease up again; see `AsyncSampler.resume_session`.
        has_joint_rows: whether each worker steps its rows at once, once the session has begun.
        observation_space, action_space: spaces of a row's observations and actions, once the session has begun.
        agents: names of the agents that the client acts for, in an environment with many, once the session has begun.
        in_turn: whether the environment's agents act one after the other, once the session has begun.
    """

    def __init__(self, parts: SessionParts) -> None:
        super().__init__(parts)
        self._waiting = Waiting(parts.limits.timeout, "session")
        self._open()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *exception: object) -> None:
        if kind is None and not (self._has_ended or self._waiting.is_closed):
            await self.end()
        self.close()

    @property
    def recording(self) -> Recording | None:
        """What the server has recorded into the session's dataset, after its end; None without one."""
        from rollserve.recordings import recording_from_proto

        return None if self._recorded is None else recording_from_proto(self._recorded)

    async def observe(self) -> Step:
        """Return the present step, with the observations that the next actions are for.

        Raises:
            RollserveError: the session failed.
        """
        return self._step or await self.recv()

    async def step(
        self,
        actions: Columns | Mapping[str, Columns],
        agent_infos: Mapping[str, Any] | None = None,
        idle: NDArray[np.bool_] | None = None,
    ) -> Step:
        """Act in all rows, and return what follows.

        Args:
            actions: (N, *A), or a mapping with such an array for each leaf of a nested space. With many agents, a
                mapping with these of each agent that acts, (A, *A), in the rows of its `turns`.
            agent_infos: an array (N, *I) for each of the infos that the session was begun with; with many agents, such
                a mapping for each agent that acts.
            idle: (N,), rows that make no step, whatever their actions are: only rows whose present episode has made
                none, and not where rows are stepped at once, or have many agents. By default, all rows make a step.

        Raises:
            InvalidArgumentError: actions or infos of another form, or outside the action space. No row has stepped.
            RollserveError: the session failed.
        """
        if self._parts.min_ready:
            expected = "a session whose rows step together"
            raise InvalidArgumentError.of("step", expected=expected, got="min_ready", hint="call send() and recv()")
        await self._send(actions, None, agent_infos, idle)
        return await self.recv()

    async def send(
        self,
        actions: Columns | Mapping[str, Columns],
        rows: NDArray[np.integer[Any]] | None = None,
        agent_infos: Mapping[str, Any] | None = None,
    ) -> None:
        """Act in rows that wait for it, without waiting for what follows: `recv` returns that.

        Args:
            actions: (K, *A), or a mapping with such an array for each leaf of a nested space.
            rows: (K,), the rows that act, of a session with `min_ready`. By default, those of the last step.
            agent_infos: an array (K, *I) for each of the infos that the session was begun with.

        Raises:
            InvalidArgumentError: rows, actions or infos of another form.
            RollserveError: the session failed.
        """
        await self._send(actions, rows, agent_infos, None)

    async def recv(self) -> Step:
        """Wait for the next step, and return it: of a session with `min_ready`, as soon as so many rows are ready.

        Raises:
            RollserveError: the session failed; also because of actions that were sent.
        """
        while not self._unread:
            await self._next()
        return self._next_step()

    async def batch(self) -> Batch:
        """End the present fragments, and return all that was recorded since the last call, as one round.

        Raises:
            PreconditionError: nothing was.
            RollserveError: the session failed.
        """
        if self._has_unrecorded:
            self._wants_end_of_fragment = True
            self._requests.put_nowait(FRAGMENT_END)
            while self._has_unrecorded:
                await self._next()
        return self._taken()

    async def end(self) -> Account:
        """End the session, and return its account. `batch` then has what was recorded and not taken.

        Raises:
            RollserveError: the session failed.
        """
        self._wants_end = True
        self._requests.put_nowait(SESSION_END if self._lasts else None)
        while not self._has_ended:
            await self._next()
        return self.account

    def close(self) -> None:
        """Cancel the session unless it has ended."""
        self._waiting.close(self._call)
        self._requests.put_nowait(None)

    def _open(self) -> None:
        """Begin a stream: of a new session, or of one that goes on."""
        self._requests: Queue[pb.DriveEnvironmentsRequest | None] = Queue()
        for request in self._first_requests():
            self._requests.put_nowait(request)
        self._call = self._parts.method(_all_of(self._requests), timeout=self._parts.limits.remaining())

    async def _send(
        self,
        actions: Columns | Mapping[str, Columns],
        rows: NDArray[np.integer[Any]] | None,
        agent_infos: Mapping[str, Any] | None,
        idle: NDArray[np.bool_] | None,
    ) -> None:
        await self.observe()
        self._requests.put_nowait(self._actions(actions, rows, agent_infos or {}, idle))

    async def _next(self) -> None:
        """Wait for a message and read it, or take the session up again where its stream is lost."""
        self._check_goes_on()
        try:
            message = await self._waiting.message(self._call)
        except TimeoutError:
            self.close()
            raise self._interruptions.silence_error() from self._interruptions.last
        except grpc.RpcError as error:
            if self._reader.has_ended:
                self._has_ended = True
                return
            seconds = self._pause(error)
            if seconds is None:
                raise self._interruptions.final_error(error) from self._interruptions.cause_of(error)
            self._requests.put_nowait(None)  # ends the iterator of the stream before
            await self._waiting.pause(seconds)
            self._open()
            return
        if message is None:
            self._has_ended = True
        elif (answer := self._read(message)) is not None:
            self._requests.put_nowait(answer)


async def _all_of(requests: Queue[pb.DriveEnvironmentsRequest | None]) -> AsyncIterator[pb.DriveEnvironmentsRequest]:
    while (request := await requests.get()) is not None:
        yield request
