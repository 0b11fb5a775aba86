"""Reproducibility classes: the first look at an environment, and the command `check-env`."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from click.testing import CliRunner
from cutting_proxy import cutting_proxy
from raw_calls import soon
from support import equal, raises, server_environment

import rollserve
from rollserve import EnvSpec, Reproducibility
from rollserve_server.cli import main
from rollserve_server.envs import RowEnvs, RowSpecs
from rollserve_server.local import LocalServer
from rollserve_server.testing import faulty_server

EPISODE, WORKER = rollserve.Reproducibility.EPISODE, rollserve.Reproducibility.WORKER

ENVS = {
    "CartPole-v1": ((), EPISODE, ""),
    "sample_envs:Nested": ((), EPISODE, ""),
    "HalfCheetah-v5": (("NormalizeObservation",), WORKER, "observations"),
    "Pendulum-v1": (("NormalizeReward",), WORKER, "rewards"),
    "sample_envs:Unseeded": ((), WORKER, "observations"),
    "sample_envs:Clock": ((), WORKER, "observations"),
    "sample_envs:Curriculum": ((), WORKER, "observations"),
    "sample_envs:Ordered": ((), EPISODE, ""),
    "sample_envs:OrderedByAddress": ((), WORKER, "observations"),
}


@pytest.mark.parametrize("env_id", ENVS)
def test_update_classifies_the_environment(sampler: rollserve.Sampler, env_id: str) -> None:
    wrappers, expected, _ = ENVS[env_id]
    updated = sampler.update_env(env_id, wrappers=[rollserve.Wrapper(name) for name in wrappers])
    assert updated.reproducibility is expected
    assert sampler.status().reproducibility is expected


@pytest.mark.parametrize("env_id", ["Unseeded", "Clock", "Curriculum", "OneOrThousand"])
def test_one_row_is_enough_to_classify_the_environment(env_id: str) -> None:
    spec = rollserve.EnvSpec(f"sample_envs:{env_id}")
    expected = "episode" if env_id == "OneOrThousand" else "worker"
    assert RowEnvs(spec, 1).classify().value == expected


def test_workers_have_one_hash_seed_which_receipts_name(sampler: rollserve.Sampler) -> None:
    sampler.update_env("sample_envs:Ordered")
    sampler.update_agent(rollserve.RandomAgent())
    first = sampler.obtain_samples(500, seed=3)
    assert all(equal(sampler.obtain_samples(500, seed=3), first) for _ in range(4))
    assert sampler.status().packages["PYTHONHASHSEED"] == "0"
    receipt = sampler.with_receipt(first).receipt
    assert receipt is not None
    assert receipt.packages["PYTHONHASHSEED"] == "0"


def test_server_with_another_hash_seed_says_so(tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--allow-module", "sample_envs")
    environment = {**server_environment(), "PYTHONHASHSEED": "5"}
    log = tmp_path / "log"
    with (
        faulty_server(*options, environment=environment, log=log) as server,
        rollserve.connect(server.address) as sampler,
    ):
        assert sampler.status().packages["PYTHONHASHSEED"] == "5"
        assert sampler.update_env("sample_envs:Ordered").reproducibility is WORKER
    assert "another hash seed" in log.read_text()
    assert "other episodes in another process" in log.read_text()


COMMAND = [Path(sys.executable).with_name("rollserve-server")]


@pytest.mark.parametrize(
    ("start", "seed"),
    [(COMMAND, "random"), ([sys.executable, "-m", "rollserve_server"], "7")],
    ids=["command", "module"],
)
def test_command_line_starts_again_with_the_hash_seed(start: list[str], seed: str) -> None:
    environment = {**server_environment(), "PYTHONHASHSEED": seed}
    shown = check_env("sample_envs:Ordered", "--episodes", "2", start=start, environment=environment)
    assert shown.exit_code == 0, shown.stdout
    assert all(comparisons(shown))


class Shown(NamedTuple):
    """Output of the command, and its exit status."""

    exit_code: int
    stdout: str
    stderr: str


def check_env(
    *arguments: str, start: Sequence[str | Path] = COMMAND, environment: Mapping[str, str] = server_environment()
) -> Shown:
    """Run `check-env` in a process of its own."""
    command, environment = [*start, "check-env", *arguments], {**environment, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return Shown(done.returncode, done.stdout, done.stderr)


def check_here(*arguments: str) -> Shown:
    """Run `check-env` in this process, which has imported already what takes a process of its own a second."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, ["check-env", *arguments])
    return Shown(done.exit_code, done.stdout, done.stderr)


def comparisons(shown: Shown) -> list[bool]:
    """Return whether the episodes were the same on fresh environments, in another process, and on a used environment.

    The last element is for a used environment that ran the episodes in another order.
    """
    return [line.startswith("  the same") for line in shown.stdout.splitlines() if re.match(r"  \w", line)]


# This process may have another hash seed, on which the order in `Ordered` depends; the command starts again with it.
@pytest.mark.parametrize("env_id", [name for name in ENVS if name != "sample_envs:Ordered"])
def test_check_env_names_what_differs(env_id: str) -> None:
    wrappers, expected, name = ENVS[env_id]
    texts = ", ".join(f'{{"name": "{wrapper}"}}' for wrapper in wrappers)
    options = ("--vectorization", "rows", "--episodes", "3", "--steps", "50")
    shown = check_here(env_id, "--wrappers", f"[{texts}]", *options)
    assert not shown.stderr
    if expected is EPISODE:
        assert shown.exit_code == 0
        assert all(comparisons(shown))
        assert "class EPISODE" in shown.stdout.splitlines()[-1]
    else:
        assert shown.exit_code == 3
        assert f"    {name}: " in shown.stdout
        assert "class WORKER" in shown.stdout.splitlines()[-1]


def test_check_env_compares_blocks_of_native_environments() -> None:
    shown = check_here("CartPole-v1", "--episodes", "3", "--steps", "50")
    assert shown.exit_code == 0
    assert re.match(r"CartPole-v1: 3 blocks of 8 rows.* 150 steps", shown.stdout)
    assert all(comparisons(shown))
    assert "class BLOCK" in shown.stdout.splitlines()[-1]
    forgetful = ("sample_envs:Coins-v0", "--env-kwargs", '{"remembers": true}', "--vectorization", "native")
    shown = check_here(*forgetful, "--episodes", "3")
    assert shown.exit_code == 3
    assert not any(comparisons(shown))
    assert "    observations/length: " in shown.stdout


def test_check_env_distinguishes_memory_from_chance() -> None:
    assert comparisons(check_here("sample_envs:Curriculum", "--episodes", "3")) == [True, True, False, False]
    assert comparisons(check_here("sample_envs:Unseeded", "--episodes", "3")) == [False] * 4


def test_check_env_names_infos_that_differ_without_counting_them() -> None:
    shown = check_here("CartPole-v1", "--wrappers", '[{"name": "RecordEpisodeStatistics"}]', "--steps", "500")
    assert shown.exit_code == 0
    assert all(comparisons(shown))
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
def test_check_env_reports_an_error_in_one_line(arguments: tuple[str, ...], quotes: tuple[str, ...]) -> None:
    shown = check_here(*arguments)
    assert shown.exit_code in (1, 2)
    last_line = shown.stderr.splitlines()[-1]
    assert all(quote in last_line for quote in quotes), last_line


def test_check_env_leaves_no_process_when_it_is_killed() -> None:
    command = [Path(sys.executable).with_name("rollserve-server"), "check-env", "CartPole-v1", "--episodes", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=server_environment()) as parent:
        found: list[psutil.Process] = []

        def finds_child() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(parent.pid).children():
                    arguments = child.cmdline()
                    is_launched = not any(each.endswith("launcher.py") for each in arguments)
                    if is_launched and "rollserve_server.check_env.checking" in arguments:
                        found.append(child)
            return bool(found)

        try:
            assert soon(finds_child, 60)
            found[0].suspend()  # it does not end by itself
            parent.kill()
            assert soon(lambda: not found[0].is_running() or found[0].status() == psutil.STATUS_ZOMBIE, 30)
        finally:
            parent.kill()
            for child in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()


def test_broken_stream_is_not_resumed_when_episodes_are_unreproducible(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer
) -> None:
    """A resumed stream would continue with other episodes."""
    thread_sampler.update_env("sample_envs:Unseeded")
    thread_sampler.update_agent(rollserve.RandomAgent())
    with (
        cutting_proxy(thread_server.address, num_cuts=0, max_bytes=0, seed=0) as proxy,
        rollserve.connect(proxy.address, max_message_bytes=1 << 14) as distant,
        distant.stream_samples(200_000) as stream,
    ):
        next(stream)
        proxy.cut()
        with raises(rollserve.UnavailableError):
            list(stream)


def test_rows_whose_environments_differ_in_a_late_argument_are_not_compared() -> None:
    lakes = [
        EnvSpec("FrozenLake-v1", {"map_name": None, "is_slippery": True, "success_rate": rate, "desc": [*desc]})
        for rate, desc in ((1 / 3, ("SFFG", "FFFF")), (1 / 3, ("SFFF", "FFFG")))
    ]
    assert RowEnvs(RowSpecs(tuple(lakes)), 2).classify() is Reproducibility.EPISODE
