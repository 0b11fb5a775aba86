"""Turns: calls of one client do not keep the workers from others, and pausing changes no bit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fragment_calls import MODULES
from pools import Reading, adds_up, evaluate, pool_of, sample, sample_request, until
from raw_calls import FOREVER
from support import equal

import rollserve
from rollserve import Reason
from rollserve_server.admission import Admission, Turn
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import CallTooLongError, DomainError, OverLimitError
from rollserve_server.pool import (
    AtLeast,
    EvaluationRequest,
    Exactly,
    Fragments,
    InProcessBackend,
    Pool,
    Progress,
    SamplingOptions,
)

ENDS = rollserve.EnvSpec("sample_envs:Ends", {"length": 10})


class Client:
    """A client whose calls are charged to it. Clients with names in upper case have one address."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.charged_to = ("shared" if peer.isupper() else peer,)
        self.stalled_since: float | None = None
        self.error: DomainError | None = None

    def end(self, error: DomainError) -> None:
        self.error = error


class Places:
    """Calls of clients in an admission, which hold their places until they leave."""

    def __init__(self, **options: Any) -> None:
        limits = {"max_running": 2, "max_stalled": 4, "max_waiting": 4, "turn_steps": 100} | options
        self.admission = Admission(tick_seconds=0.01, **limits)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, Turn] = {}
        self._admitted: set[str] = set()
        self.clients: dict[str, Client] = {}

    async def call(self, name: str) -> None:
        """Make a call, whose client is the first letter of its name."""

        async def run() -> None:
            async with contextlib.AsyncExitStack() as stack:
                async with self.admission.admitting(stack, self.clients[name], self._turns[name]) as ticks:
                    async for _ in ticks:
                        pass
                self._admitted.add(name)
                stack.callback(self._admitted.remove, name)
                await asyncio.sleep(60)

        self.clients[name], self._turns[name] = Client(name[0]), self.admission.new_turn()
        self._tasks[name] = asyncio.create_task(run())
        await asyncio.sleep(0.05)

    async def leave(self, name: str) -> None:
        """End a call."""
        self._tasks[name].cancel()
        await asyncio.sleep(0.05)

    def step(self, name: str, num_steps: int) -> None:
        """Record steps of a call."""
        self._turns[name].count(num_steps)

    def error_of(self, name: str) -> BaseException | None:
        """Return the error that a call failed with."""
        return self._tasks[name].exception() if self._tasks[name].done() else None

    @property
    def running(self) -> str:
        """Names of the running calls."""
        return " ".join(sorted(name for name in self._admitted if not self._turns[name].is_paused))

    @property
    def weights(self) -> dict[str, float]:
        """The running calls' weights."""
        return {name: self._turns[name].weight for name in self.running.split()}

    async def close(self) -> None:
        """End all calls."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@contextlib.asynccontextmanager
async def places(*names: str, **options: Any) -> AsyncIterator[Places]:
    held = Places(**options)
    try:
        for name in names:
            await held.call(name)
        yield held
    finally:
        await held.close()


async def test_call_pauses_for_a_client_with_fewer_calls() -> None:
    async with places("a1", "a2", "a3", "b1") as held:
        assert held.running == "a2 b1"
        await held.call("b2")  # each has its share
        assert held.running == "a2 b1"
        await held.leave("b1")
        assert held.running == "a2 b2"
        await held.leave("b2")
        assert held.running == "a1 a2"  # paused calls before others of their client
        await held.leave("a2")
        assert held.running == "a1 a3"


async def test_turns_of_clients_with_one_call_each_end_after_their_steps() -> None:
    async with places("a1", "b1", "c1") as held:
        assert held.running == "a1 b1"
        held.step("a1", 99)
        held.step("b1", 60)
        assert held.running == "a1 b1"
        held.step("a1", 1)
        await asyncio.sleep(0.05)
        assert held.running == "b1 c1"
        held.step("b1", 40)
        assert held.running == "a1 c1"
        held.step("c1", 100)
        assert held.running == "a1 b1"


async def test_weights_of_each_clients_calls_have_the_same_sum() -> None:
    async with places("a1", "a2", max_running=4) as held:
        assert held.weights == {"a1": 1, "a2": 1}
        await held.call("a3")
        await held.call("b1")
        assert held.weights == {"a1": 1, "a2": 1, "a3": 1, "b1": 3}
        await held.call("b2")  # in place of a call of the other client
        assert sorted(held.weights.values()) == [1, 1, 1, 1]
        await held.leave("b2")
        await held.leave("b1")
        assert held.weights == {"a1": 1, "a2": 1, "a3": 1}


async def test_queue_is_shared_among_clients() -> None:
    async with places("a1", "a2", "a3", "a4", "a5", "a6", max_stalled=0) as held:
        assert held.running == "a1 a2"
        await held.call("b1")
        error = held.error_of("a6")
        assert isinstance(error, OverLimitError)
        assert error.reason == Reason.TOO_MANY_CALLS
        await held.call("a7")
        assert isinstance(held.error_of("a7"), OverLimitError)
        await held.leave("a1")
        assert held.running == "a2 b1"


async def test_queue_is_shared_among_addresses() -> None:
    async with places("A1", "B1", "C1", "D1", "E1", "F1", max_stalled=0) as held:
        await held.call("a1")
        assert isinstance(held.error_of("F1"), OverLimitError)
        await held.call("G1")
        assert isinstance(held.error_of("G1"), OverLimitError)
        await held.leave("A1")
        await held.leave("B1")
        await held.leave("C1")
        assert held.running == "D1 E1"
        await held.leave("D1")
        assert held.running == "E1 a1"


async def test_paused_call_is_ended_for_a_client_with_fewer_calls() -> None:
    async with places("a1", "a2", "a3", "b1", max_stalled=1) as held:
        assert held.running == "a2 b1"
        held.step("b1", 100)
        await held.call("c1")
        error = held.clients["a1"].error
        assert isinstance(error, CallTooLongError)
        await held.leave("a1")
        assert "c1" in held.running


async def test_no_call_is_ended_for_a_client_with_one_call_less() -> None:
    async with places("a1", "b1", "c1", max_stalled=1) as held:
        for name in ("a1", "b1", "c1"):
            held.step(name, 100)
            await asyncio.sleep(0.05)
        await held.call("d1")
        assert all(client.error is None for client in held.clients.values())


async def test_paused_calls_stay_when_later_ones_are_refused() -> None:
    async with places("a1", "a2", "b1", "b2") as held:
        held.admission.refuse(OverLimitError("now"))
        await asyncio.sleep(0.05)
        assert held.running == "a2 b1"
        assert isinstance(held.error_of("b2"), OverLimitError)
        await held.leave("b1")
        assert held.running == "a1 a2"


async def endless(pool: Pool, peer: str, seed: int, *, is_evaluation: bool = False) -> None:
    """Sample, or evaluate, for ever, and deliver nothing."""
    if is_evaluation:
        request = EvaluationRequest(FOREVER, SamplingOptions(seed=seed))
        items: Any = pool.evaluate(request, Client(peer))
    else:
        items = pool.sample(sample_request(AtLeast(FOREVER), columns=None, seed=seed), Client(peer))
    async with contextlib.aclosing(items):
        async for _ in items:
            pass


@contextlib.asynccontextmanager
async def endless_calls(pool: Pool, number: int, *, is_evaluation: bool = False) -> AsyncIterator[None]:
    """Run endless calls of one client."""
    tasks = [asyncio.create_task(endless(pool, "greedy", seed, is_evaluation=is_evaluation)) for seed in range(number)]
    try:
        await until(lambda: pool._parts.num_calls >= (2 if is_evaluation else 4))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("number", [4, 40])
async def test_endless_calls_of_a_client_leave_turns_to_others(number: int) -> None:
    """Others' calls end after a bounded number of the endless calls' steps."""
    async with pool_of(InProcessBackend(), ENDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, AtLeast(100), seed=seed) for seed in range(5)]
        async with endless_calls(pool, number):
            for seed in range(5):
                before = pool.status().num_simulated_steps
                batch = await asyncio.wait_for(sample(pool, AtLeast(100), seed=seed), 60)
                assert equal(batch, expected[seed])
                assert pool.status().num_simulated_steps - before < 500_000


async def test_client_with_one_call_gets_half_of_the_steps_beside_a_client_with_three() -> None:
    async with pool_of(InProcessBackend(), ENDS, progress_seconds=0.1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        *greedy, other = await asyncio.gather(
            *(steps_within(pool, peer, seed, 3.0) for seed, peer in enumerate(["greedy"] * 3 + ["other"]))
        )
        assert 0.4 < other / (sum(greedy) + other) < 0.6  # 0.25 by calls


async def steps_within(pool: Pool, peer: str, seed: int, seconds: float) -> int:
    """Return the number of steps that an endless call makes within a time."""
    num_steps, end = 0, time.monotonic() + seconds
    request = sample_request(AtLeast(FOREVER), columns=None, seed=seed)
    async with contextlib.aclosing(pool.sample(request, Client(peer))) as items:
        async for item in items:
            if isinstance(item, Progress):
                num_steps = item.num_simulated_steps
            if time.monotonic() > end:
                break
    return num_steps


async def test_endless_evaluations_of_a_client_leave_turns_to_others() -> None:
    async with pool_of(InProcessBackend(), ENDS, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        async with endless_calls(pool, 10, is_evaluation=True):
            assert len((await asyncio.wait_for(evaluate(pool, 3), 60)).outcomes) == 3


@pytest.mark.parametrize("target", [AtLeast(10_000), Exactly(200), Fragments(8_000)], ids=["steps", "exact", "rows"])
async def test_paused_call_delivers_the_same(target: AtLeast | Exactly | Fragments) -> None:
    async with pool_of(InProcessBackend(), max_calls=1, turn_steps=500) as pool:
        await pool.update_agent([RandomSpec()])
        expected = await sample(pool, target, seed=3)
        clients = [asyncio.create_task(sample_as(pool, peer, target)) for peer in ("a", "b", "c")]
        for batch, num_pauses in await asyncio.gather(*clients):
            assert equal(batch, expected)
            assert adds_up(batch.account)
            assert num_pauses > 0


async def sample_as(pool: Pool, peer: str, target: AtLeast | Exactly | Fragments) -> tuple[rollserve.EpisodeBatch, int]:
    """Return the batch of a client's call, and how often it paused."""
    reading, num_pauses = Reading(), 0
    admission = pool._samplings.admission
    turn = Admission.new_turn(admission)  # not what another client has put there
    pause = turn.pause

    def count_and_pause() -> None:
        nonlocal num_pauses
        num_pauses += 1
        pause()

    turn.pause = count_and_pause  # type: ignore[method-assign]
    items = pool.sample(sample_request(target, seed=3), Client(peer))
    admission.new_turn = lambda: turn  # type: ignore[method-assign]  # taken before anything is awaited
    first = await anext(items)
    reading.add(first)
    async for item in items:
        reading.add(item)
    return reading.batch(), num_pauses


async def test_paused_call_reports_progress() -> None:
    """Clients give up calls that report nothing."""
    async with pool_of(InProcessBackend(), ENDS, max_calls=1, turn_steps=1, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        other = asyncio.create_task(endless(pool, "other", 1))
        began = time.monotonic()
        reports = 0
        request = sample_request(AtLeast(FOREVER), columns=None, seed=2)
        async with contextlib.aclosing(pool.sample(request, Client("own"))) as items:
            async for item in items:
                reports += isinstance(item, Progress)
                if time.monotonic() - began > 5:
                    break
        assert reports >= 2
        other.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await other
