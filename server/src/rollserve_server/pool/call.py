"""One sampling call: keeps its workers busy, and delivers what they write in the order of the episodes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rollserve_server.pool.plan import Plan
from rollserve_server.sampling import Claim, Order

if TYPE_CHECKING:
    from rollserve_server.pool.backend import Payload, WorkerHandle
    from rollserve_server.pool.plan import Ledger, LengthEstimate, Placement, Target
    from rollserve_server.sampling import Message, Parcel, Report, Stream

__all__ = ["Account", "Call", "CallSettings", "Delivery", "OpenStream", "Progress", "WorkerAccount"]

_ORDERS_IN_FLIGHT = 2
"""For each worker: while it works on one, the next is already there."""
_SLICE_SECONDS = 0.02
"""How long a worker works on an order: it answers as often, and hears of a call's end as late."""
_PARCELS_WAITING = 2
"""Of a claim too large for one report, how much is fetched before it can be delivered."""


class _InFlight(NamedTuple):
    """An order, and what is to come of it."""

    order: Order
    report: asyncio.Future[Report]
    payload: Payload


@dataclass(eq=False)
class OpenStream:
    """A stream, and what is known of its episodes from call to call.

    Attributes:
        stream: its name and what its episodes are a function of.
        placement: where its episodes run.
        ledger: those that were begun and not claimed.
        in_flight: of each worker, orders that have not been answered, with their answers to come.
        num_held_steps: steps that were made and not delivered.
    """

    stream: Stream
    placement: Placement
    ledger: Ledger
    in_flight: list[deque[_InFlight]]
    num_held_steps: int = 0


@dataclass(frozen=True)
class CallSettings:
    """How a call works.

    Attributes:
        max_message_bytes: the size that no message may exceed.
        bind_workers: whether messages tell the index of the worker.
        window_bytes: how much may be on its way from the workers to the client.
        progress_seconds: how often to tell of progress when nothing is delivered.
    """

    max_message_bytes: int
    bind_workers: bool
    window_bytes: int
    progress_seconds: float


@dataclass(frozen=True)
class Delivery:
    """Messages, in order, in a buffer that is to be fetched."""

    payload: Payload
    messages: Sequence[Message]


@dataclass(frozen=True)
class Progress:
    """How many steps were made for the call so far."""

    num_simulated_steps: int


@dataclass
class WorkerAccount:
    """One worker's share in a call: what was simulated and delivered, and its time."""

    num_simulated_steps: int = 0
    num_steps: int = 0
    num_episodes: int = 0
    sampling_seconds: float = 0.0
    encoding_seconds: float = 0.0


@dataclass
class Account:
    """What became of everything that was simulated; see Account in `protos/rollserve/v1/episode_batch.proto`."""

    seed: int
    first_episode_index: int
    policy_version: int
    env_version: int
    workers: list[WorkerAccount]
    num_dropped_steps: int = 0
    num_kept_steps: int = 0
    message_bytes: int = 0
    dropped_infos: Counter[str] = field(default_factory=Counter)
    queued_seconds: float = 0.0
    elapsed_seconds: float = 0.0

    @property
    def num_simulated_steps(self) -> int:
        """Steps simulated while the call ran."""
        return sum(worker.num_simulated_steps for worker in self.workers)

    @property
    def num_steps(self) -> int:
        """Steps delivered."""
        return sum(worker.num_steps for worker in self.workers)

    @property
    def num_episodes(self) -> int:
        """Episodes delivered."""
        return sum(worker.num_episodes for worker in self.workers)


@dataclass(eq=False)
class _OpenClaim:
    """A claim on its way.

    Attributes:
        claim: what its worker is told.
        worker: which one that is.
        num_bytes: its approximate bytes.
        asked: whether an order that names it is with the worker.
        written: whether its last message has come.
        parcels: what has come and is to be delivered.
    """

    claim: Claim
    worker: int
    num_bytes: int
    asked: bool = False
    written: bool = False
    parcels: deque[tuple[Payload, Parcel]] = field(default_factory=deque)


class Call:
    """Runs one call, which has its stream for itself meanwhile.

    Attributes:
        stream: what it delivers a part of.
        account: what was done so far; whole at the end.
    """

    def __init__(
        self,
        target: Target,
        stream: OpenStream,
        workers: Sequence[WorkerHandle],
        num_rows: int,
        estimate: LengthEstimate,
        settings: CallSettings,
    ) -> None:
        self.stream = stream
        self._workers = workers
        self._num_rows = num_rows
        self._estimate = estimate
        self._settings = settings
        ledger, placement = stream.ledger, stream.placement
        self._plan = Plan(target, placement, ledger, estimate, len(workers))
        # So that one gateway hears of many workers as often as of few.
        self._slice_seconds = _SLICE_SECONDS * max(1.0, len(workers) / 8)
        self._claims: dict[int, _OpenClaim] = {}
        self._num_claims = 0
        self._num_finished_last = [0] * len(workers)
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._began = time.monotonic()
        self.account = Account(
            seed=stream.stream.root_seed,
            first_episode_index=ledger.next_index,
            policy_version=stream.stream.policy_version,
            env_version=stream.stream.env_version,
            workers=[WorkerAccount() for _ in workers],
        )

    async def run(self) -> AsyncGenerator[Delivery | Progress, None]:
        """What is to be sent, in order. The account is whole after the last.

        Raises:
            EnvFailedError: an environment raised an error.
            OverLimitError: a step does not fit into a message.
            WorkerLostError: a worker's process is gone.
        """
        self._advance_claims()
        drivers = [asyncio.create_task(self._drive(worker)) for worker in range(len(self._workers))]
        try:
            told_at, told_steps = time.monotonic(), 0
            while not self._is_over():
                delivery = self._next_delivery()
                if delivery is not None:
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
        finally:
            for driver in drivers:
                driver.cancel()
            await asyncio.gather(*drivers, return_exceptions=True)
            self.account.num_kept_steps = self.stream.num_held_steps
            self.account.elapsed_seconds = time.monotonic() - self._began

    def _is_over(self) -> bool:
        return self._plan.complete and not self._claims

    async def _drive(self, worker: int) -> None:
        """Keeps a worker at work."""
        in_flight = self.stream.in_flight[worker]
        stuck = False
        try:
            while True:
                while len(in_flight) < _ORDERS_IN_FLIGHT and (order := self._next_order(worker, stuck)):
                    in_flight.append(_InFlight(order, *self._workers[worker].work(order)))
                if not in_flight:
                    await self._wait()
                    stuck = False
                    continue
                # If the call ends meanwhile, the answer is the next call's.
                order, coming, payload = in_flight[0]
                report = await asyncio.shield(coming)
                in_flight.popleft()
                self._take(worker, order, report, payload)
                stuck = not (report.num_simulated_steps or report.parcels)
                # A worker whose buffer is full may be waiting for just what would be claimed with its next episode.
                if self._advance_claims(at_once=stuck) or not stuck:
                    self._notify()
        except Exception as error:  # it is raised where the call is awaited
            self._failure = error
            self._notify()

    def _next_order(self, worker: int, stuck: bool) -> Order | None:
        """What a worker is to do next, or None if there is nothing now.

        Args:
            worker: which one.
            stuck: whether it had nothing to do with its last order, and so would have nothing now unless it is given
                something: its buffer is full, or all its episodes have ended.
        """
        plan, settings = self._plan, self._settings
        lookahead = 2 * self._num_finished_last[worker]
        begin = plan.begin(worker, self._num_rows + lookahead - plan.num_open[worker])
        deliver = self._claims_to_ask(worker)
        samples = not plan.complete and plan.num_open[worker] > 0
        if not (begin or deliver or (samples and not stuck)):
            return None
        return Order(
            stream=self.stream.stream,
            begin=tuple(begin),
            deliver=tuple(deliver),
            max_message_bytes=settings.max_message_bytes,
            bind_worker=settings.bind_workers,
            seconds=self._slice_seconds if samples else 0.0,
        )

    def _claims_to_ask(self, worker: int) -> list[Claim]:
        """The claims that a worker is to write now: in order, as far as the window reaches."""
        claims, num_bytes = [], 0
        for claim in self._claims.values():
            if num_bytes >= self._settings.window_bytes:
                break
            num_bytes += claim.num_bytes
            waits = not (claim.asked or claim.written) and len(claim.parcels) < _PARCELS_WAITING
            if waits and claim.worker == worker:
                claim.asked = True
                claims.append(claim.claim)
        return claims

    def _take(self, worker: int, order: Order, report: Report, payload: Payload) -> None:
        """Takes in what came of an order."""
        share = self.account.workers[worker]
        share.sampling_seconds += report.sampling_seconds
        share.encoding_seconds += report.encoding_seconds
        share.num_simulated_steps += report.num_simulated_steps
        self.account.dropped_infos.update(report.dropped_infos)
        self.stream.num_held_steps += report.num_simulated_steps
        self._estimate.observe(report.num_simulated_steps, len(report.finished))
        self._num_finished_last[worker] = len(report.finished)
        for index, num_steps, num_bytes in report.finished:
            self._plan.finish(index, num_steps, num_bytes)
        for asked in order.deliver:
            self._claims[asked.claim_id].asked = False
        for parcel in report.parcels:
            claim = self._claims[parcel.claim_id]
            claim.parcels.append((payload, parcel))
            claim.written = parcel.complete
        if report.failure is not None:
            raise report.failure

    def _advance_claims(self, *, at_once: bool = False) -> bool:
        """Claims what can be delivered next; returns whether there was anything."""
        planned_claims = self._plan.claim(at_once=at_once)
        for planned in planned_claims:
            claim = Claim(self._num_claims, planned.start, planned.stop)
            self._claims[self._num_claims] = _OpenClaim(claim, planned.worker, planned.num_bytes)
            self._num_claims += 1
        return bool(planned_claims)

    def _next_delivery(self) -> Delivery | None:
        """What of the first claim is there."""
        if not self._claims:
            return None
        claim_id, claim = next(iter(self._claims.items()))
        if not claim.parcels:
            return None
        payload, parcel = claim.parcels.popleft()
        if claim.written and not claim.parcels:
            del self._claims[claim_id]
        share = self.account.workers[claim.worker]
        num_steps = sum(message.num_steps for message in parcel.messages)
        share.num_steps += num_steps
        share.num_episodes += sum(message.num_episodes for message in parcel.messages)
        self.account.message_bytes += sum(message.size for message in parcel.messages)
        self.stream.num_held_steps -= num_steps
        return Delivery(payload, parcel.messages)

    async def _wait(self, seconds: float | None = None) -> None:
        """Waits until something has changed, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
