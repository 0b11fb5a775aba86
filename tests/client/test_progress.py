"""The option `progress` of calls: a function that is called, or a display on standard error."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from scripted_server import scripted_server
from support import equal, raises
from terminals import run_on_a_terminal

import rollserve
from rollserve import CallProgress
from rollserve_server.local import LocalServer
from rollserve_wire.tensors import named_tensors_to_proto, tensor_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.episode_batch_pb2 import Beginning, EpisodeBatch, Progress

CALLS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "samples": ("obtain_samples", 3000, {}),
    "exact episodes": ("obtain_exact_episodes", 40, {}),
    "fragments": ("obtain_fragments", 4000, {}),
    "evaluation": ("evaluate", 40, {}),
    "evaluation with episodes": ("evaluate", 40, {"return_episodes": True}),
}


async def awaited(address: str, method: str, *arguments: Any, **options: Any) -> Any:
    async with rollserve.aconnect(address) as sampler:
        return await getattr(sampler, method)(*arguments, **options)


def check_reports(reports: list[CallProgress], name: str, result: Any, size: int) -> None:
    """Check that the reports lead to the result of the call."""
    for before, after in itertools.pairwise(reports):
        assert before.num_steps <= after.num_steps
        assert before.num_episodes <= after.num_episodes
        assert before.num_ended_episodes <= after.num_ended_episodes
        assert before.num_simulated_steps <= after.num_simulated_steps
        assert before.seconds < after.seconds
    assert all(after.seconds - before.seconds > 0.09 for before, after in itertools.pairwise(reports[:-1]))
    assert all(report.num_simulated_steps >= report.num_steps for report in reports)
    assert all(report.num_ended_episodes >= report.num_episodes for report in reports)
    last = reports[-1]
    assert last.fraction == 1.0
    assert last.waiting_for == ""
    if name.startswith("evaluation"):
        assert last.num_episodes == last.num_requested_episodes == size == len(result)
        assert last.num_steps == (result.episodes.num_steps if result.episodes else 0)
        assert last.num_simulated_steps == result.account.num_simulated_steps
        return
    assert last.num_steps == result.num_steps
    assert last.num_episodes == int((result.terminated | result.truncated).sum())
    if name == "exact episodes":
        assert (last.num_requested_steps, last.num_requested_episodes) == (None, 2 * size)
        assert last.num_episodes == 2 * size
    else:
        assert (last.num_requested_steps, last.num_requested_episodes) == (size, None)
        assert last.num_simulated_steps >= max(result.account.num_simulated_steps, result.num_steps)


@pytest.mark.parametrize("name", CALLS)
def test_function_learns_how_far_a_call_has_come(sampler: rollserve.Sampler, name: str) -> None:
    method, size, options = CALLS[name]
    reports: list[CallProgress] = []
    threads = set()

    def look(progress: CallProgress) -> None:
        reports.append(progress)
        threads.add(threading.get_ident())

    result = getattr(sampler, method)(size, progress=look, **options)
    check_reports(reports, name, result, size)
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("name", CALLS)
def test_function_learns_how_far_a_call_for_asyncio_has_come(
    sampler: rollserve.Sampler, server: LocalServer, name: str
) -> None:
    method, size, options = CALLS[name]
    reports: list[CallProgress] = []
    result = asyncio.run(awaited(server.address, method, size, progress=reports.append, **options))
    check_reports(reports, name, result, size)


def test_population_reports_the_episodes_of_all_members(sampler: rollserve.Sampler) -> None:
    members = {name: value[None].repeat(3, 0) for name, value in sampler.agent_parameters().items()}
    reports: list[CallProgress] = []
    sampler.evaluate_population(members, 2, progress=reports.append)
    assert (reports[-1].num_episodes, reports[-1].num_requested_episodes) == (6, 6)


def test_stream_reports_while_it_is_read(sampler: rollserve.Sampler) -> None:
    reports: list[CallProgress] = []
    with sampler.stream_samples(8000, progress=reports.append) as stream:
        first = next(stream)
        assert all(report.num_steps in (0, first.num_steps) for report in reports)
        num_steps = first.num_steps + sum(batch.num_steps for batch in stream)
    assert reports[-1].num_steps == num_steps


def test_interruptions_lead_to_no_step_that_is_counted_twice(sampler: rollserve.Sampler, server: LocalServer) -> None:
    reports: list[CallProgress] = []
    with (
        cutting_proxy(server.address, num_cuts=3, max_bytes=150_000, seed=0) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=20_000) as distant,
    ):
        distant.status()
        batch = distant.obtain_samples(6000, seed=3, progress=reports.append)
        result = distant.evaluate(125, return_episodes=True, progress=reports.append)
        assert proxy.num_cuts > 0
    assert batch.account.num_resumptions > 0
    calls = [list(group) for _, group in itertools.groupby(reports, lambda report: report.num_requested_steps)]
    check_reports(calls[0], "samples", batch, 6000)
    assert calls[1][-1].num_steps == result.episodes.num_steps


def test_progress_changes_no_result(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(500, seed=3, progress=lambda _: None)
    for option in (False, None):
        assert equal(batch, sampler.obtain_samples(500, seed=3, progress=option))


class OwnError(Exception):
    """An error of the function."""


ERRORS = {
    "its own": OwnError("enough"),
    "of gRPC": grpc.RpcError("enough"),  # no interruption of this call
    "of the clock": TimeoutError("enough"),
    "the interrupt": KeyboardInterrupt("enough"),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("name", CALLS)
def test_error_of_the_function_ends_the_call(sampler: rollserve.Sampler, name: str, error: BaseException) -> None:
    method, size, options = CALLS[name]
    num_cancelled = sampler.status().counters.num_cancelled_calls

    def fail(_: CallProgress) -> None:
        raise error

    with pytest.raises(type(error), match="enough"):
        getattr(sampler, method)(1000 * size, progress=fail, **options)
    if method != "evaluate":  # which the counters leave out
        wait_until(lambda: sampler.status().counters.num_cancelled_calls == num_cancelled + 1)
    wait_until(lambda: sampler.status().num_running_calls == 0)
    assert sampler.obtain_samples(10).num_steps >= 10


@pytest.mark.parametrize("name", CALLS)
def test_error_of_the_function_ends_a_call_for_asyncio(
    sampler: rollserve.Sampler, server: LocalServer, name: str
) -> None:
    method, size, options = CALLS[name]

    def fail(_: CallProgress) -> None:
        raise TimeoutError("enough")

    with raises(TimeoutError, quotes="enough"):
        asyncio.run(awaited(server.address, method, 1000 * size, progress=fail, **options))
    wait_until(lambda: sampler.status().num_running_calls == 0)


def test_function_that_raises_stop_iteration_does_not_end_a_stream_in_silence(sampler: rollserve.Sampler) -> None:
    def stop(_: CallProgress) -> None:
        raise StopIteration

    with raises(RuntimeError, field="progress"):
        list(sampler.stream_samples(100, progress=stop))


@pytest.mark.parametrize("value", ["yes", 1, 0.5, [], "coroutine function"])
def test_other_values_are_refused(sampler: rollserve.Sampler, value: Any) -> None:
    async def report(_: CallProgress) -> None: ...

    value = report if value == "coroutine function" else value
    for method in ("obtain_samples", "evaluate"):
        with raises(TypeError, field="progress"):
            getattr(sampler, method)(10, progress=value)


WAITING = "worker 2: no license\x1b[31m\non this machine"


def waiting(context: grpc.ServicerContext) -> Iterator[bytes]:
    """Script a call in which a worker is missing for a while, and that fails at last."""
    yield pb.ObtainSamplesResponse(beginning=Beginning(worker_count=3)).SerializeToString()
    for num_steps in (10, 20, 30, 40):
        yield pb.ObtainSamplesResponse(progress=Progress(simulated_step_count=num_steps)).SerializeToString()
    time.sleep(0.2)
    response = pb.ObtainSamplesResponse(progress=Progress(simulated_step_count=50, waiting_for=WAITING))
    yield response.SerializeToString()
    time.sleep(0.2)
    context.abort(grpc.StatusCode.INTERNAL, "it is over")


@pytest.mark.parametrize("method", ["obtain_samples", "obtain_exact_episodes"])
def test_function_learns_what_the_call_waits_for(method: str) -> None:
    reports: list[CallProgress] = []
    with (
        scripted_server(ObtainSamples=waiting, ObtainExactEpisodes=waiting) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.ServerError),
    ):
        getattr(sampler, method)(100, progress=reports.append)
    assert len(reports) < 5  # of a burst, only the first
    assert (reports[0].waiting_for, reports[-1].waiting_for) == ("", WAITING)
    assert reports[-1].num_simulated_steps == 50
    assert reports[-1].fraction == (0.5 if method == "obtain_samples" else None)
    assert reports[-1].num_requested_episodes == (None if method == "obtain_samples" else 300)


def delivering(context: grpc.ServicerContext) -> Iterator[bytes]:
    """Script a call that delivers three episodes of two steps, reports seven steps before the last, and fails."""
    episode = EpisodeBatch(
        lengths=[2],
        terminated=[True],
        truncated=[False],
        policy_versions=[1],
        environment_seeds=[1],
        episode_indices=[0],
        first_steps=[0],
        rewards=tensor_to_proto(np.zeros(2)),
        observations=named_tensors_to_proto({"": np.zeros((2, 1))}),
        last_observations=named_tensors_to_proto({"": np.zeros((1, 1))}),
        actions=named_tensors_to_proto({"": np.zeros(2)}),
    )
    batch = pb.ObtainSamplesResponse(batch=episode)
    report = pb.ObtainSamplesResponse(progress=Progress(simulated_step_count=7))
    for response in (pb.ObtainSamplesResponse(beginning=Beginning(worker_count=1)), batch, batch, report, batch):
        yield response.SerializeToString()
        time.sleep(0.15)
    context.abort(grpc.StatusCode.INTERNAL, "it is over")


def reports_of(call: Callable[..., object], **scripts: Any) -> list[CallProgress]:
    """Return what a scripted call, which fails in the end, reports; `call` gets the sampler and the function."""
    reports: list[CallProgress] = []
    with (
        scripted_server(**scripts) as address,
        rollserve.connect(address) as sampler,
        raises(rollserve.ServerError),
    ):
        call(sampler, reports.append)
    return reports


def test_delivered_steps_count_as_simulated() -> None:
    reports = reports_of(lambda sampler, report: sampler.obtain_samples(6, progress=report), ObtainSamples=delivering)
    assert [report.num_simulated_steps for report in reports] == [0, 2, 4, 7, 7]


def evaluating(context: grpc.ServicerContext) -> Iterator[bytes]:
    """Script an evaluation that reports ended episodes, then fewer because a worker was lost, and fails."""
    for num_ended in (0, 3, 2, 15):
        progress = Progress(simulated_step_count=10 * num_ended, ended_episode_count=num_ended)
        yield pb.EvaluateResponse(progress=progress).SerializeToString()
        time.sleep(0.15)
    context.abort(grpc.StatusCode.INTERNAL, "it is over")


def test_function_learns_how_many_episodes_of_an_evaluation_have_ended() -> None:
    reports = reports_of(lambda sampler, report: sampler.evaluate(10, progress=report), Evaluate=evaluating)
    assert [report.num_ended_episodes for report in reports] == [0, 3, 3, 15]
    assert [report.fraction for report in reports] == [None, 0.3, 0.3, 1.0]
    assert {report.num_episodes for report in reports} == {0}


def test_terminal_shows_how_many_episodes_of_an_evaluation_have_ended() -> None:
    with scripted_server(Evaluate=evaluating) as address:
        output, drawn = run_on_a_terminal(sys.executable, "-c", SHOWING, address, "evaluate", "10", "rich,tqdm")
    assert output == "it is over\ndone\n"
    assert f"{'█' * 9}{'░' * 21} 3/10 episodes, 30 steps" in drawn
    assert f"{'█' * 30} 10/10 episodes" in drawn


SHOWING = """\
import importlib.util, sys
import rich.live, rich.progress, tqdm  # which takes longer than the calls
import rollserve

address, method, size, without = sys.argv[1:]
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in without.split(",") else find_spec(name, *rest)
with rollserve.connect(address) as sampler:
    try:
        getattr(sampler, method)(int(size), progress=True)
        getattr(sampler, method)(int(size), progress=True)
    except rollserve.ServerError as error:
        print(error)
print("done")
"""


BARS = {"rich": "", "tqdm": "rich", "text": "rich,tqdm"}
"""Packages that are not installed, by what shows the bar then."""


@pytest.mark.parametrize("kind", BARS)
def test_terminal_has_a_bar_that_is_removed(sampler: rollserve.Sampler, server: LocalServer, kind: str) -> None:
    output, drawn = run_on_a_terminal(
        sys.executable, "-c", SHOWING, server.address, "obtain_samples", "5000", BARS[kind]
    )
    assert output == "done\n"
    assert re.search(r"5000/5000 steps, \d+ steps/s", drawn), drawn
    assert {"rich": "━" * 30, "tqdm": "█" * 30, "text": "█" * 30}[kind] in re.sub(r"\x1b\[[0-9;]*m", "", drawn)
    if kind == "rich":
        assert re.split(r"\x1b\[[0-2]?K", drawn)[-1] == "", drawn
    else:
        *_, blanks, rest = drawn.split("\r")
        assert blanks.isspace(), drawn
        assert rest == "", drawn
    assert drawn.count("neither rich nor tqdm is installed") == (kind == "text")  # said once, of two calls


@pytest.mark.parametrize("kind", BARS)
def test_terminal_shows_what_the_call_waits_for_and_is_clean_after_an_error(kind: str) -> None:
    with scripted_server(ObtainSamples=waiting) as address:
        output, drawn = run_on_a_terminal(sys.executable, "-c", SHOWING, address, "obtain_samples", "100", BARS[kind])
    assert output == "it is over\ndone\n"
    assert "50/100 steps" in drawn
    assert "waits for worker 2: no license" in drawn
    assert "license\x1b[31m" not in drawn
    if kind == "rich":
        assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h")  # the cursor is there again


def test_lines_are_shown_without_a_terminal(
    sampler: rollserve.Sampler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler.obtain_samples(500, progress=True)
    assert capsys.readouterr() == ("", "")  # a line is due every 10 seconds
    monkeypatch.setattr("rollserve.progress_displays.LINE_SECONDS", 0.0)
    sampler.obtain_samples(500, progress=True)
    sampler.obtain_exact_episodes(3, progress=True)
    sampler.evaluate(3, progress=True)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert any(re.fullmatch(r"rollserve: 500/500 steps, \d+ steps/s", line) for line in lines), lines
    assert any(re.fullmatch(r"rollserve: 6/6 episodes, \d+ steps, \d+ steps/s", line) for line in lines), lines
    assert any(re.fullmatch(r"rollserve: 3/3 episodes, \d+ steps, \d+ steps/s", line) for line in lines), lines


def test_process_without_standard_error_shows_nothing(
    sampler: rollserve.Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert sampler.obtain_samples(100, progress=True).num_steps >= 100


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
