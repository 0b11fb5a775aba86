"""Sessions whose rounds another client reads."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from principals import Tokens
from support import equal, raises

import rollserve
from rollserve import EpisodeBatch
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub

OPTIONS: dict[str, Any] = {"seed": 5, "fragment_length": 8}
READ: dict[str, Any] = {**OPTIONS, "to_reader": True, "lease_seconds": 30}
NUM_STEPS = 100


@pytest.fixture(scope="module")
def server(light_server: LocalServer) -> LocalServer:
    return light_server


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """A thread, whose tasks end with the test."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def act(session: rollserve.Session, num_steps: int = NUM_STEPS) -> None:
    """Make so many steps more, with actions that depend on row and step alone."""
    for _ in range(num_steps):
        step = session.observe()
        session.step((np.arange(session.num_rows) * 7 + step.number * 3 + step.number // 5) % 2)


def driven(sampler: rollserve.Sampler[Any], num_steps: int = NUM_STEPS) -> tuple[EpisodeBatch, rollserve.Account]:
    """Return what a client gets that acts itself."""
    with sampler.drive(**OPTIONS) as session:
        act(session, num_steps)
    return session.batch(), session.account


def joined(rounds: list[EpisodeBatch]) -> EpisodeBatch:
    """Return rounds as the client of a session gets them, once they turn out to be in order, and each there once."""
    assert [batch.round.number for batch in rounds if batch.round] == list(range(len(rounds)))
    return EpisodeBatch.concatenate(*rounds)


def without_spaces(batch: EpisodeBatch) -> EpisodeBatch:
    return dataclasses.replace(batch, observation_space=None, action_space=None)


def same(one: EpisodeBatch, other: EpisodeBatch) -> bool:
    return equal(without_spaces(one), without_spaces(other))


def read_by(thread: ThreadPoolExecutor, sampler: rollserve.Sampler[Any], token: str) -> Future[list[EpisodeBatch]]:
    return thread.submit(lambda: list(sampler.session_rounds(token)))


def test_reader_gets_the_rounds_of_the_session(
    cartpole: rollserve.Sampler[Any], thread: ThreadPoolExecutor, server: LocalServer
) -> None:
    batch, account = driven(cartpole)
    with rollserve.connect(server.address) as other, cartpole.drive(**READ) as session:
        session.observe()
        rounds = other.session_rounds(session.token)
        found = thread.submit(list[EpisodeBatch], rounds)
        act(session)
        session.end()
        assert same(joined(found.result()), batch)
        assert len(found.result()) == 13
        with raises(rollserve.PreconditionError, field="batch"):
            session.batch()
        assert rounds.account.num_steps == account.num_steps == session.account.num_steps
        with raises(rollserve.InvalidArgumentError, reason="SESSION_NOT_FOUND"):
            next(other.session_rounds(session.token))


@pytest.mark.parametrize("cut", ["reader", "both"])
def test_each_round_comes_once_over_connections_that_are_cut(
    cartpole: rollserve.Sampler[Any], thread: ThreadPoolExecutor, server: LocalServer, cut: str
) -> None:
    batch, _ = driven(cartpole)
    with (
        cutting_proxy(server.address, num_cuts=12, max_bytes=4000, seed=3) as proxy,
        rollserve.connect(proxy.address, timeout=20) as cut_off,
    ):
        cut_off.status()
        with (cut_off if cut == "both" else cartpole).drive(**READ) as session:
            session.observe()
            found = read_by(thread, cut_off, session.token)
            act(session)
        assert same(joined(found.result()), batch)
        assert proxy.num_cuts >= 4


def test_another_reader_gets_what_none_has_taken(cartpole: rollserve.Sampler[Any], thread: ThreadPoolExecutor) -> None:
    batch, _ = driven(cartpole)
    with cartpole.drive(**READ) as session:
        act(session, 24)
        with cartpole.session_rounds(session.token) as first:
            rounds = [next(first) for _ in range(3)]  # and has taken two of them
        again = cartpole.session_rounds(session.token)
        assert same(next(again), rounds.pop())
        again.close()
        found = read_by(thread, cartpole, session.token)
        act(session, NUM_STEPS - 24)
    assert same(joined(rounds + found.result()), batch)


def test_rounds_outlast_the_session_for_its_reader(cartpole: rollserve.Sampler[Any]) -> None:
    batch, _ = driven(cartpole, 12)
    with cartpole.drive(**READ) as session:
        act(session, 12)
    with cartpole.session_rounds(session.token) as rounds:
        next(rounds)
        with raises(rollserve.PreconditionError, field="account"):
            _ = rounds.account
    rounds = cartpole.session_rounds(session.token)
    assert same(joined(list(rounds)), batch)
    assert rounds.account.num_steps == 8 * 12


def test_session_waits_for_its_reader_and_ends_without_one(tmp_path: Path) -> None:
    options = "--env", "CartPole-v1", "--backend", "in-process", "--client-stall-seconds", "1"
    with local_server(*options, log=tmp_path / "server.log") as running, rollserve.connect(running.address) as sampler:
        session = sampler.drive(**READ)
        with raises(rollserve.UnavailableError, reason="CLIENT_STALLED", quotes="no reader took rounds"):
            act(session)
        assert 16 <= session.observe().number <= 24
        rounds = sampler.session_rounds(session.token)
        assert [next(rounds).round.number for _ in range(2)] == [0, 1]  # type: ignore[union-attr]
        with raises(rollserve.UnavailableError, reason="CLIENT_STALLED", quotes="no reader took rounds"):
            next(rounds)


def test_rounds_belong_to_the_last_reader(cartpole: rollserve.Sampler[Any], thread: ThreadPoolExecutor) -> None:
    with cartpole.drive(**READ) as session:
        session.observe()
        first = cartpole.session_rounds(session.token)
        waiting = thread.submit(next, first)
        act(session, 8)
        assert waiting.result().num_steps == 64
        waiting = thread.submit(next, first)
        act(session, 8)
        assert waiting.result().num_steps == 64
        waiting = thread.submit(next, first)
        with cartpole.session_rounds(session.token) as other:
            act(session, 8)
            assert next(other).num_steps == 64
            with raises(rollserve.PreconditionError, reason="SESSION_TAKEN"):
                waiting.result()
        session.close()


def test_reader_learns_why_a_session_has_failed(thread_sampler: rollserve.Sampler[Any]) -> None:
    thread_sampler.update_env("CartPole-v1")
    with raises(rollserve.PreconditionError, reason="WORKER_COUNT"), thread_sampler.drive(**READ) as session:
        act(session, 2)
        thread_sampler.resize(3)
        act(session, 8)
    with (
        thread_sampler.session_rounds(session.token) as rounds,
        raises(rollserve.PreconditionError, reason="WORKER_COUNT"),
    ):
        assert next(rounds).num_steps == 64
        next(rounds)
    thread_sampler.resize(2)


def test_asyncio_reads_a_session_with_many_agents(thread_sampler: rollserve.Sampler[Any]) -> None:
    thread_sampler.update_env(rollserve.EnvSpec("classic/connect_four-v3", multi_agent="aec"))

    async def run() -> tuple[int, int]:
        address = thread_sampler.__reduce__()[1][0].target  # type: ignore[index]
        async with rollserve.aconnect(address) as sampler, sampler.multi_agent.drive(**READ) as session:
            await session.observe()

            async def read() -> int:
                return sum([batch.num_steps async for batch in sampler.multi_agent.session_rounds(session.token)])

            reading = asyncio.create_task(read())
            for _ in range(40):
                masks = {
                    agent: its.observations["action_mask"] for agent, its in (await session.observe()).turns.items()
                }
                await session.step({agent: mask.argmax(axis=1) for agent, mask in masks.items()})
            await session.end()
            return await reading, session.account.num_steps

    num_read, num_steps = asyncio.run(run())
    assert num_read == num_steps > 0


def test_rounds_are_their_principals(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    options = "--env", "CartPole-v1", "--backend", "in-process", *tokens.options
    with local_server(*options, log=tmp_path / "server.log") as running:
        texts = [tokens.create(name, "drive") for name in ("one", "other")]
        texts.append(tokens.create("one", "sample"))
        one, other, unfit = (rollserve.connect(running.address, token=text) for text in texts)
        with one, other, unfit, one.drive(**READ) as session:
            act(session, 8)
            with raises(rollserve.InvalidArgumentError, reason="SESSION_NOT_FOUND"):
                next(other.session_rounds(session.token))
            with pytest.raises(rollserve.AccessError):
                next(unfit.session_rounds(session.token))
            assert next(one.session_rounds(session.token)).num_steps


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"lease_seconds": 0.0}, "spec.lease_seconds"),
        ({"dataset": "a-v0"}, "spec.dataset"),
    ],
)
def test_options_that_do_not_go_with_a_reader(
    cartpole: rollserve.Sampler[Any], options: dict[str, Any], field: str
) -> None:
    with raises(rollserve.InvalidArgumentError, field=field):
        cartpole.drive(**{**READ, **options}).observe()


def test_session_without_rounds_for_a_reader(cartpole: rollserve.Sampler[Any]) -> None:
    with cartpole.drive(lease_seconds=30) as session:
        session.observe()
        with raises(rollserve.InvalidArgumentError, field="reading.token"):
            next(cartpole.session_rounds(session.token))
        session.close()


def test_wrong_receipts_are_refused(cartpole: rollserve.Sampler[Any], server: LocalServer) -> None:
    with cartpole.drive(**READ) as session:
        session.observe()
        requests = [
            [pb.DriveEnvironmentsRequest(reading=pb.SessionReading(token=session.token, round_count=1))],
            [
                pb.DriveEnvironmentsRequest(reading=pb.SessionReading(token=session.token)),
                pb.DriveEnvironmentsRequest(receipt=pb.StreamReceipt(round_count=1)),
            ],
            [
                pb.DriveEnvironmentsRequest(reading=pb.SessionReading(token=session.token)),
                pb.DriveEnvironmentsRequest(fragment_end=pb.FragmentEnd()),
            ],
        ]
        texts = [
            "reading.round_count: expected at most 0",
            "receipt.round_count: expected at most 0",
            "content: expected",
        ]
        with grpc.insecure_channel(server.address) as channel:
            for each, text in zip(requests, texts, strict=True):
                with pytest.raises(grpc.RpcError, match=text):
                    list(SamplerServiceStub(channel).DriveEnvironments(iter(each)))
        assert session.observe().number == 0
        session.close()
