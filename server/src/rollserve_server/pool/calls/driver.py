"""What all sampling calls have in common: workers that are kept at work beside a client that takes what they make."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rollserve import Reproducibility
    from rollserve_server.agents import Exploration
    from rollserve_server.errors import WorkerLostError
    from rollserve_server.pool.accounts.account import Account
    from rollserve_server.pool.backends.backend import RemoteBuffer, WorkerHandle
    from rollserve_server.pool.config import PoolConfig, SampleRequest
    from rollserve_server.pool.workers.workforce import Workforce
    from rollserve_server.sampling import ColumnFormat, Message, WorkOrder

__all__ = [
    "ORDERS_IN_FLIGHT",
    "CallDriver",
    "CallSettings",
    "Delivery",
    "Progress",
    "ignore_answer",
    "put_to_work",
]

_R = TypeVar("_R")

ORDERS_IN_FLIGHT = 2
"""For each worker: while it works on one, the next is already there."""
_SLICE_SECONDS = 0.02
"""How long a worker works on an order: it answers as often, and calls at the same time take turns as often."""
_LONGER = 4
"""How many times as long if no other call waits for its turn: an order costs a millisecond or two all in all."""


@dataclass(frozen=True)
class CallSettings:
    """How a call works.

    Attributes:
        max_message_bytes: the size that no message may exceed.
        window_bytes: how much may be on its way from the workers to the client.
        progress_seconds: how often to tell of progress when nothing is delivered.
        num_calls: asked for how many calls are running.
        columns: how columns may be written; None to throw away what is sampled.
        exploration: how freely the agent acts.
        skip_failed: whether it goes on without episodes whose environments fail again and again.
        env_retries: how often an episode runs again whose environment raised an error.
        straggler_factor: how many times as long as most episodes one may take before it is begun a second time; 0 for
            as long as it takes.
        unit_retries: how often the same work may be lost with its worker before it is taken to be the cause.
    """

    max_message_bytes: int
    window_bytes: int
    progress_seconds: float
    num_calls: Callable[[], int]
    columns: ColumnFormat | None
    exploration: Exploration
    unit_retries: int
    skip_failed: bool = False
    env_retries: int = 0
    straggler_factor: float = 0.0

    @classmethod
    def of(cls, request: SampleRequest, config: PoolConfig, num_calls: Callable[[], int]) -> CallSettings:
        """What a request and the pool's configuration say."""
        return cls(
            request.max_message_bytes,
            config.window_bytes,
            config.progress_seconds,
            num_calls,
            request.columns,
            request.exploration,
            config.unit_retries,
            request.skip_failed,
            config.env_retries,
            config.straggler_factor,
        )


@dataclass(frozen=True)
class Delivery:
    """Messages, in order, and the buffer that they stand in."""

    buffer: NDArray[np.uint8]
    messages: Sequence[Message]


@dataclass(frozen=True)
class Progress:
    """How many steps were made for the call so far."""

    num_simulated_steps: int


def put_to_work(worker: WorkerHandle, order: WorkOrder[_R]) -> tuple[asyncio.Future[_R], RemoteBuffer]:
    """See `WorkerHandle.work`. Nobody has to wait for the report: calls and pools may end before it comes."""
    report, payload = worker.work(order)
    report.add_done_callback(ignore_answer)
    return report, payload


def ignore_answer(answer: asyncio.Future[Any]) -> None:
    """Takes notice of an answer that nobody waits for, as asyncio wants."""
    if not answer.cancelled():
        answer.exception()


class CallDriver(ABC):
    """The deliveries of one call, in order, while a driver keeps each worker at work.

    Attributes:
        account: what was done so far; whole at the end.
        reproducibility: what of the call comes again.
    """

    def __init__(
        self, workforce: Workforce, settings: CallSettings, account: Account, reproducibility: Reproducibility
    ) -> None:
        self.account = account
        self.reproducibility = reproducibility
        self._workforce = workforce
        self._settings = settings
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._num_losses: Counter[int] = Counter()
        self._began = time.monotonic()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[AsyncGenerator[Delivery | Progress, None], None]:
        """Has the workers begin, and gives what is to be sent, in order. The account is whole at the block's end.

        Raises:
            EnvFailedError: an environment raised errors in every attempt at an episode.
            AgentFailedError: an agent did, or gave something of no use.
            OverLimitError: a step does not fit into a message, or the call is too large for a worker.
            WorkerLostError: workers are lost again and again, or for long.
        """
        self._begin()
        drivers = [asyncio.create_task(self._keep_driving(worker)) for worker in range(len(self._workforce))]
        try:
            async with contextlib.aclosing(self._items()) as items:
                yield items
        finally:
            for driver in drivers:
                driver.cancel()
            await asyncio.gather(*drivers, return_exceptions=True)
            self._end()
            account = self.account
            account.elapsed_seconds = time.monotonic() - self._began
            account.waiting_seconds = account.elapsed_seconds - account.sending_seconds

    def count_simulated(self) -> None:
        """Counts for each worker what it simulated. To be called once, when the call has ended."""
        self._workforce.count_simulated(self.account)

    async def _items(self) -> AsyncGenerator[Delivery | Progress, None]:
        told_at, told_steps = time.monotonic(), 0
        while not self._is_complete():
            delivery = await self._next_delivery()
            if delivery is not None:
                if delivery.messages:
                    with self._sending():
                        yield delivery
                    told_at = time.monotonic()
                self._notify()
                continue
            if self._failure is not None:
                raise self._failure
            await self._wait(self._settings.progress_seconds)
            num_steps = self.account.num_simulated_steps
            if num_steps > told_steps and time.monotonic() - told_at >= self._settings.progress_seconds:
                yield Progress(num_steps)
                told_at, told_steps = time.monotonic(), num_steps

    @abstractmethod
    def _begin(self) -> None:
        """Prepares the first orders."""

    @abstractmethod
    async def _drive(self, worker: int) -> None:
        """Keeps whoever is in a worker's place at work, for as long as the call runs."""

    @abstractmethod
    def _is_complete(self) -> bool:
        """Whether everything is delivered."""

    @abstractmethod
    async def _next_delivery(self) -> Delivery | None:
        """What can be delivered now."""

    @abstractmethod
    def _end(self) -> None:
        """Completes the account's steps."""

    async def _keep_driving(self, worker: int) -> None:
        try:
            await self._drive(worker)
        except Exception as error:  # it is raised where the call is awaited
            self._failure = error
            self._notify()

    def _count_losses(self, lost: Sequence[int], error: WorkerLostError, name_of: Callable[[int], str]) -> None:
        """Takes in that work is to be done again. Raises the error if that has happened too often.

        What all workers were asked beside it, such as to make environments, is taken to be the cause if there was any.

        Args:
            lost: what it is.
            error: why.
            name_of: says for texts what a piece of it is.
        """
        if not self._workforce[error.worker_index].lost_in_broadcast:
            self._num_losses.update(lost)
        self.account.count_retried(error.reason.lower(), len(lost))
        worst, num_losses = max(self._num_losses.items(), key=lambda item: item[1], default=(0, 0))
        if num_losses > self._settings.unit_retries:
            text = f"{error.text}; it ran {name_of(worst)}, which {num_losses - 1} workers were lost with before"
            raise error.again(text)

    def _deliver(self, worker: int, messages: Sequence[Message], buffer: NDArray[np.uint8]) -> Delivery:
        """What is to be sent of messages that a worker wrote. Enters them into the account."""
        account, share = self.account, self.account.workers[worker]
        num_steps = sum(message.num_steps for message in messages)
        num_episodes = sum(message.num_episodes for message in messages)
        if self._settings.columns is None:
            account.num_discarded_steps += num_steps
            account.num_discarded_episodes += num_episodes
            return Delivery(buffer, ())
        share.num_steps += num_steps
        share.num_episodes += num_episodes
        account.message_bytes += sum(message.size for message in messages)
        return Delivery(buffer, messages)

    def _slice_seconds(self, *, has_answered: bool) -> float:
        """How long a worker is to work on an order, so that one gateway hears of many workers as often as of few.

        Args:
            has_answered: whether it has answered in this call: the first answer is to come soon.
        """
        seconds = _SLICE_SECONDS * max(1.0, len(self._workforce) / 8)
        return seconds * _LONGER if has_answered and self._settings.num_calls() == 1 else seconds

    @contextlib.contextmanager
    def _sending(self) -> Iterator[None]:
        """Counts the time that the client takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.account.sending_seconds += time.monotonic() - began

    async def _wait(self, seconds: float | None = None) -> None:
        """Waits until something has changed, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
