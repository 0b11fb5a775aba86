"""Evaluations through the server: rejected requests, broken calls, the asyncio client, the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from rejections import Rejection, check_status, rejection_of, rejections
from support import equal, raises

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer
from rollserve_wire.v1 import evaluation_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


def request(**fields: Any) -> pb.EvaluateRequest:
    return pb.EvaluateRequest(**{"episode_count": 1, **fields})


def options(**fields: Any) -> pb.EvaluateRequest:
    return request(options=fields)


def environment(**fields: Any) -> pb.EvaluateRequest:
    return options(environment=fields)


REJECTIONS = {
    "no episodes": Rejection(request(episode_count=0), "episode_count", ("0", "131072")),
    "too many episodes": Rejection(request(episode_count=1 << 18), "episode_count", (str(1 << 18),)),
    "huge first index": Rejection(
        options(seed=1, first_episode_index=1 << 63), "options.first_episode_index", (str(1 << 63),)
    ),
    "length of 0": Rejection(options(max_episode_length=0), "options.max_episode_length", ("0",)),
    "unknown policy version": Rejection(
        options(policy_version=10**6), "options.policy_version", (str(10**6),), Reason.POLICY_VERSION
    ),
    "unknown environment version": Rejection(
        options(environment_version=-1), "options.environment_version", ("-1",), Reason.ENVIRONMENT_VERSION
    ),
    "no run": Rejection(options(sampler_run=""), "options.sampler_run", ("Beginning",)),
    "expectation beside an environment": Rejection(
        options(environment={"id": "CartPole-v1"}, expected_environment_version=1),
        "options.expected_environment_version",
        ("1", "environment"),
    ),
    "other run": Rejection(options(sampler_run="x"), "options.sampler_run", ("'x'",), Reason.SAMPLER_RUN),
    "environment and its version": Rejection(
        options(environment={"id": "CartPole-v1"}, environment_version=1), "options.environment_version", ("1",)
    ),
    "unknown id": Rejection(environment(id="Nope-v0"), "options.environment.id", ("'Nope-v0'",), Reason.ENV_NOT_FOUND),
    "module that is not allowed": Rejection(
        environment(id="os:Nope"), "options.environment.id", ("'os'",), Reason.MODULE_NOT_ALLOWED
    ),
    "no JSON": Rejection(environment(id="CartPole-v1", kwargs_json="{"), "options.environment.kwargs_json", ("'{'",)),
    "unknown argument": Rejection(
        environment(id="CartPole-v1", kwargs_json='{"nope": 1}'),
        "options.environment.kwargs_json",
        ("CartPole-v1", "'nope'"),
        Reason.ENV_REFUSED,
    ),
    "epsilon without meaning": Rejection(
        options(exploration={"epsilons": [0.5]}), "options.exploration.epsilons", ("0.5",)
    ),
    "temperature of 0": Rejection(
        options(exploration={"temperatures": [0]}), "options.exploration.temperatures[0]", ("0.0",)
    ),
    "small messages": Rejection(request(episodes={"max_message_bytes": 1}), "episodes.max_message_bytes", ("1",)),
    "unset compression": Rejection(request(episodes={"accept_compression": [0]}), "episodes.accept_compression[0]"),
    "unknown sampler": Rejection(request(sampler="x"), "sampler", ("'x'",), Reason.SAMPLER_NOT_FOUND),
}


@rejections(REJECTIONS)
def test_evaluation_request_is_rejected(
    sampler: rollserve.Sampler, stub: SamplerServiceStub, rejection: Rejection
) -> None:
    before = sampler.status()
    error = rejection_of(stub.Evaluate, rejection.request)
    check_status(error, rejection.reason, field=rejection.field, quotes=rejection.quotes)
    after = sampler.status()
    assert (after.env_version, after.policy_version) == (before.env_version, before.policy_version)
    assert after.counters.num_failed_calls == before.counters.num_failed_calls


def test_invalid_argument_is_rejected_by_the_client(sampler: rollserve.Sampler) -> None:
    with raises(TypeError, quotes="prefetch"):
        sampler.evaluate(1, prefetch=True)  # type: ignore[call-arg]
    with raises(TypeError, field="env"):
        sampler.evaluate(1, env=3)  # type: ignore[arg-type]
    with raises(TypeError, field="num_episodes"):
        sampler.evaluate("1")  # type: ignore[arg-type]
    with raises(rollserve.InvalidArgumentError, field="seed"):
        sampler.evaluate(1, seed=-1)


def test_broken_evaluation_is_repeated(sampler: rollserve.Sampler, server: LocalServer) -> None:
    expected = sampler.evaluate(300, return_episodes=True, env="CartPole-v1")
    with (
        cutting_proxy(server.address, num_cuts=1, max_bytes=100_000, seed=2) as proxy,
        rollserve.connect(proxy.address) as distant,
    ):
        distant.status()
        result = distant.evaluate(300, return_episodes=True, env="CartPole-v1")
        assert proxy.num_cuts > 0
    assert np.array_equal(result.returns, expected.returns)
    assert result.episodes is not None
    assert expected.episodes is not None
    assert equal(result.episodes, expected.episodes)


async def test_async_client_evaluates_and_cancels(sampler: rollserve.Sampler, server: LocalServer) -> None:
    expected = sampler.evaluate(9, deterministic=True)
    async with rollserve.aconnect(server.address) as asynchronous:
        result = await asynchronous.evaluate(9, deterministic=True)
        assert np.array_equal(result.returns, expected.returns)
        with raises(rollserve.InvalidArgumentError, field="episode_count"):
            await asynchronous.evaluate(0)
        sampler.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.1, "length": 1000})
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.DeadlineError, reason=Reason.NO_PROGRESS):
            await asynchronous.evaluate(1, timeout=0.4)
        task = asyncio.create_task(asynchronous.evaluate(1))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with raises(rollserve.DeadlineError, reason=Reason.NO_PROGRESS):
        sampler.evaluate(1, timeout=0.4)
    assert sampler.evaluate(2, max_episode_length=1).lengths.tolist() == [1, 1]


def test_command_line_prints_the_summaries(sampler: rollserve.Sampler, server: LocalServer) -> None:
    rollserve_command = Path(sys.executable).with_name("rollserve")
    command = [rollserve_command, "evaluate", server.address, "--episodes", "20", "--deterministic"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    result = sampler.evaluate(20, deterministic=True)
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"return {result.return_summary}, min {result.returns.min():g}, ")
    assert lines[1].startswith(f"length {result.length_summary}, ")
    assert lines[2].startswith(f"20 episodes, policy version {result.policy_version}, ")


def test_population_message_without_all_returns_is_rejected() -> None:
    message = evaluation_pb2.PopulationEvaluation(returns=[1, 2, 3], lengths=[1, 2, 3], member_count=2, episode_count=2)
    with pytest.raises(ValueError, match="reshape"):
        rollserve.evaluation.population_evaluation_from_proto(message)
