"""Environments that are no functions of their seeds are found out, and nothing pretends otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import server_environment

import rollserve
from rollserve_server.envs import RowEnvs

EPISODE, WORKER = rollserve.Reproducibility.EPISODE, rollserve.Reproducibility.WORKER

ENVS = {
    "CartPole-v1": ((), EPISODE, ""),
    "sample_envs:Nested": ((), EPISODE, ""),
    "HalfCheetah-v5": (("NormalizeObservation",), WORKER, "observations"),
    "Pendulum-v1": (("NormalizeReward",), WORKER, "rewards"),
    "sample_envs:Unseeded": ((), WORKER, "observations"),
    "sample_envs:Clock": ((), WORKER, "observations"),
    "sample_envs:Curriculum": ((), WORKER, "observations"),
}


@pytest.mark.parametrize("env_id", ENVS)
def test_a_quick_look_tells_the_class(sampler: rollserve.Sampler, env_id: str) -> None:
    wrappers, expected, _ = ENVS[env_id]
    updated = sampler.update_env(env_id, wrappers=[rollserve.Wrapper(name) for name in wrappers])
    assert updated.reproducibility is expected
    assert sampler.status().reproducibility is expected


@pytest.mark.parametrize("env_id", ["Unseeded", "Clock", "Curriculum", "OneOrThousand"])
def test_a_quick_look_at_one_row_tells_it_too(env_id: str) -> None:
    spec = rollserve.EnvSpec(f"sample_envs:{env_id}")
    expected = "episode" if env_id == "OneOrThousand" else "worker"
    assert RowEnvs(spec, 1).classify().value == expected


def check_env(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("rollserve-server"), "check-env", *arguments]
    environment = {**server_environment(), "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("env_id", ENVS)
def test_a_long_look_tells_what_differs(env_id: str) -> None:
    wrappers, expected, name = ENVS[env_id]
    texts = ", ".join(f'{{"name": "{wrapper}"}}' for wrapper in wrappers)
    options = ("--vectorization", "rows", "--episodes", "3", "--steps", "50")
    shown = check_env(env_id, "--wrappers", f"[{texts}]", *options)
    assert not shown.stderr
    if expected is EPISODE:
        assert shown.returncode == 0
        assert "different" not in shown.stdout
        assert "class EPISODE" in shown.stdout.splitlines()[-1]
    else:
        assert shown.returncode == 3
        assert f"    {name}: " in shown.stdout
        assert "class WORKER" in shown.stdout.splitlines()[-1]


def test_blocks_of_rows_that_are_stepped_together() -> None:
    shown = check_env("CartPole-v1", "--episodes", "3", "--steps", "50")
    assert shown.returncode == 0
    assert shown.stdout.startswith("CartPole-v1: 3 blocks of 8 rows that are stepped together, 150 steps each time")
    assert "class BLOCK" in shown.stdout.splitlines()[-1]
    forgetful = ("sample_envs:Coins-v0", "--env-kwargs", '{"remembers": true}', "--vectorization", "native")
    shown = check_env(*forgetful, "--episodes", "3")
    assert shown.returncode == 3
    assert "different in another process" in shown.stdout
    assert "    observations/length: " in shown.stdout


def test_it_tells_memory_from_chance() -> None:
    remembers = check_env("sample_envs:Curriculum", "--episodes", "3").stdout
    assert "the same on fresh environments again" in remembers
    assert "different on one that ran the others before: something that it remembers" in remembers
    assert "different in another process: a generator" not in remembers
    assert (
        "different on fresh environments again: something that no seed governs"
        in check_env("sample_envs:Unseeded", "--episodes", "3").stdout
    )


def test_infos_that_tell_the_time_are_named_and_do_not_count() -> None:
    shown = check_env("CartPole-v1", "--wrappers", '[{"name": "RecordEpisodeStatistics"}]', "--steps", "500")
    assert shown.returncode == 0
    assert "the same but for infos on fresh environments again" in shown.stdout
    assert shown.stdout.count("environment_infos/episode/t: ") == 1


@pytest.mark.parametrize(
    ("arguments", "quotes"),
    [
        (("Nope-v0",), ("id: ", "'Nope-v0'")),
        (("CartPole-v1", "--env-kwargs", "{"), ("--env-kwargs", "JSON")),
        (("CartPole-v1", "--env-kwargs", '{"nope": 1}'), ("CartPole-v1", "'nope'")),
        (("CartPole-v1", "--wrappers", "[3]"), ("wrappers",)),
        (("sample_envs:Odd", "--env-kwargs", '{"error": "exit"}'), ("SystemExit: 0",)),
    ],
    ids=["id", "JSON", "arguments", "wrappers", "error"],
)
def test_what_cannot_be_checked_is_said_in_one_line(arguments: tuple[str, ...], quotes: tuple[str, ...]) -> None:
    shown = check_env(*arguments)
    assert shown.returncode in (1, 2)
    last_line = shown.stderr.splitlines()[-1]
    assert all(quote in last_line for quote in quotes), last_line


def test_a_broken_stream_of_such_an_environment_is_not_taken_up(sampler: rollserve.Sampler) -> None:
    """It would go on with other episodes."""
    from rollserve._calls.resumption import Resumption
    from rollserve.v1 import episode_batch_pb2
    from rollserve.v1 import sampler_service_pb2 as pb

    resumption = Resumption(pb.ObtainSamplesRequest(step_count=10))
    assert not resumption.possible
    resumption.begin(episode_batch_pb2.Beginning(reproducibility=episode_batch_pb2.REPRODUCIBILITY_WORKER))
    assert not resumption.possible
