"""The command line `rollserve`."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from commands import ROLLSERVE, run, run_here
from matplotlib import image
from support import equal
from terminals import run_on_a_terminal

import rollserve
from rollserve.cli import main
from rollserve_server.local import LocalServer, local_server

FULL = Path("/dev/full")


def test_status_prints_the_sampler(sampler: rollserve.Sampler, server: LocalServer) -> None:
    sampler.obtain_samples(100)
    shown = run("status", server.address)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"sampler default, server {rollserve.__version__}, up ")
    assert lines[1].startswith("environment: CartPole-v1 (version ")
    result_bytes = f"{sampler.status().quota.result_bytes:,}"
    assert lines[2].startswith(f"owner none, no lease, at most 8 workers, {result_bytes} bytes of results, ")
    assert lines[3] == "observations: Box((4,), float32), actions: Discrete(2)"
    assert lines[4].startswith("agent: mlp (version ")
    counters = sampler.status().counters
    assert any(line.startswith(f"faults: {counters.num_env_failures} errors of environments, ") for line in lines)
    assert f"stragglers: {counters.num_straggler_episodes} episodes started a second time on another worker" in lines
    assert sum(line.startswith("worker ") and ": healthy, 4 rows, " in line for line in lines) == 2


def test_status_prints_json(sampler: rollserve.Sampler, server: LocalServer) -> None:
    status = json.loads(run_here("status", server.address, "--json").stdout)
    assert status["policy_version"] == sampler.status().policy_version
    (env,) = status["envs"]
    assert (env["id"], env["kwargs"], env["wrappers"], env["task"]) == ("CartPole-v1", {}, [], None)
    assert status["action_space"] == "Discrete(2)"
    assert [worker["healthy"] for worker in status["workers"]] == [True, True]


def test_top_prints_one_screen(
    sampler: rollserve.Sampler, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = sampler.metrics()
    batch = sampler.obtain_samples(5000, seed=4)
    monkeypatch.setenv("COLUMNS", "80")
    shown = run_here("top", server.address, "--once")
    assert shown.returncode == 0, shown.stderr
    lines = [line.rstrip() for line in shown.stdout.splitlines()]
    assert max(map(len, lines)) <= 80
    returns = batch.returns[-100:]
    summary = f"mean {returns.mean():.6g}, min {returns.min():.6g}, max {returns.max():.6g} of the last 100 episodes"
    assert f"return       {summary}" in lines
    assert len(sampler.metrics(records.end)) == len(batch) > 100
    status = sampler.status()
    assert any(line.startswith(f"policy       version {status.policy_version}, set ") for line in lines)
    assert "calls        0 running, 0 queued" in lines
    assert any(re.fullmatch("trend        [▁▂▃▄▅▆▇█]{30}  of the returns, the oldest first", line) for line in lines)
    assert [line.split()[:3] for line in lines[-2:]] == [["0", "healthy", "4"], ["1", "healthy", "4"]]


def test_top_counts_episodes_that_the_server_has_overwritten() -> None:
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--episode-records", "5")
    with local_server(*options) as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        ended = threading.Event()

        def sample() -> None:
            while not ended.is_set():
                sampler.obtain_samples(1000)

        sampling = threading.Thread(target=sample)
        sampling.start()
        shown = run_here("top", server.address, "--once")
        ended.set()
        sampling.join()
    match = re.search(r"^rates +([\d,]+) steps/s, ([\d,.]+) episodes/s", shown.stdout, re.M)
    assert match is not None, shown.stdout
    steps, episodes = (float(text.replace(",", "")) for text in match.groups())
    assert episodes > 30
    assert 5 < steps / episodes < 100
    # A look gets the last 5 records, and what ends while it reads them.
    kept = re.search(r"of the last (\d+) episodes", shown.stdout)
    assert kept is not None, shown.stdout
    assert 5 <= int(kept[1]) < episodes


def test_top_needs_a_terminal_unless_once(server: LocalServer) -> None:
    shown = run_here("top", server.address)
    assert shown.returncode == 1
    assert "top: expected a terminal, or --once, got standard output that is none" in shown.stderr


def test_top_shows_a_live_view_until_interrupted(sampler: rollserve.Sampler, server: LocalServer) -> None:
    controller, terminal = pty.openpty()
    # A shell starts background jobs with interrupts ignored, which children inherit.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        [ROLLSERVE, "top", server.address], stdout=terminal, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    ) as top:
        signal.signal(signal.SIGINT, handler)
        os.close(terminal)
        shown = b""
        while shown.count(b"steps/s,") < 2:  # two screens
            shown += os.read(controller, 1 << 16)
        top.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how the end of a terminal reads
            while data := os.read(controller, 1 << 16):
                shown += data
        assert top.wait(30) == 130
    os.close(controller)
    assert b"CartPole-v1, version" in shown


def test_sample_saves_the_batch_and_prints_a_summary(
    sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path
) -> None:
    out = tmp_path / "batch.npz"
    shown = run("sample", server.address, "--steps", "10000", "--seed", "4", "--out", out)
    assert shown.returncode == 0, shown.stderr
    batch = rollserve.EpisodeBatch.load(out)
    assert equal(batch, sampler.obtain_samples(10_000, seed=4))
    lines = shown.stdout.splitlines()
    assert f"{len(batch)} episodes" in lines[0]
    assert f"{batch.num_steps} steps in " in lines[0]
    assert f"return: mean {batch.returns.mean():.1f}, min {batch.returns.min():g}, " in lines[1]
    assert f"length: mean {batch.lengths.mean():.1f}, " in lines[2]
    assert "seed 4, first episode 0" in lines[3]
    assert lines[4] == f"written to {out}"
    assert shown.stderr == ""  # no bar, because this is not a terminal, and no line in the first 10 seconds


def test_sample_repeats_a_call_by_seed_and_first_episode(
    sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path
) -> None:
    out, first = tmp_path / "batch.npz", ("--seed", "4", "--first-episode-index", "3")
    shown = run_here("sample", server.address, "--steps", "100", *first, "--out", out)
    assert shown.returncode == 0, shown.stderr
    assert "seed 4, first episode 3" in shown.stdout
    assert equal(rollserve.EpisodeBatch.load(out), sampler.obtain_samples(100, seed=4, first_episode_index=3))


def test_sample_shows_a_bar_on_a_terminal(sampler: rollserve.Sampler, server: LocalServer) -> None:
    _, text = run_on_a_terminal(ROLLSERVE, "sample", server.address, "--steps", "10000")
    assert "/10000 steps, " in text
    assert text.endswith("\x1b[2K")  # the bar is erased at the end


def test_sample_logs_its_progress_without_a_terminal(
    cartpole: rollserve.Sampler,
    server: LocalServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollserve.progress_displays.LINE_SECONDS", 0.05)
    cartpole.update_env("sample_envs:Slow", kwargs={"step_seconds": 0.02})
    assert main(["sample", server.address, "--steps", "80", "--random-agent"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"rollserve: \d+/80 steps, \d+ steps/s", line) for line in lines), lines


def test_counts_may_have_an_exponent(sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path) -> None:
    shown = run_here("sample", server.address, "--steps", "1e3", "--seed", "3", "--out", tmp_path / "batch.npz")
    assert shown.returncode == 0, shown.stderr
    assert equal(rollserve.EpisodeBatch.load(tmp_path / "batch.npz"), sampler.obtain_samples(1000, seed=3))
    assert "\n20 episodes, " in run_here("evaluate", server.address, "--episodes", "2e1").stdout
    assert run_here("resize", server.address, "2.0").stdout == "2 workers, previously 2\n"
    for wrong in ("1.5", "1e-1", "nan", "inf", "1e999", "", "ten", "0", "-5"):
        shown = run_here("sample", server.address, "--steps", wrong)
        assert shown.returncode == 2
        assert (
            f"argument --steps: expected a positive whole number, such as 10000 or 1e4, got {wrong!r}" in shown.stderr
        )
    shown = run_here("create", server.address, "other", "CartPole-v1", "--max-rows", "-1")
    assert "argument --max-rows: expected a whole number, such as 10000 or 1e4, got '-1'" in shown.stderr


def test_sample_draws_returns_and_lengths(sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    shown = run_here("sample", server.address, "--steps", "2000", "--plot", path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines()[-1] == f"written to {path}"
    assert image.imread(path).shape == (720, 1200, 4)
    for name, start in (("fragments.svg", b"<?xml"), ("fragments.pdf", b"%PDF")):
        shown = run_here("sample", server.address, "--steps", "8", "--fragments", "--plot", tmp_path / name)
        assert shown.returncode == 0, shown.stderr
        assert (tmp_path / name).read_bytes().startswith(start)


def test_sample_without_matplotlib_says_how_to_install_it_and_samples_nothing(
    sampler: rollserve.Sampler,
    server: LocalServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_steps = sampler.status().counters.num_simulated_steps
    command = ["sample", server.address, "--steps", "10", "--plot", str(tmp_path / "plot.png")]
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        assert main(command) == 1
    assert "pip install 'rollserve[plot]'" in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "plot.txt")]) == 1
    assert ".png" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert sampler.status().counters.num_simulated_steps == num_steps


def test_sample_sends_a_random_agent(sampler: rollserve.Sampler, server: LocalServer) -> None:
    assert run_here("sample", server.address, "--steps", "10", "--random-agent").returncode == 0
    assert list(sampler.status().agent_kinds) == ["random"]


def test_sample_passes_options_of_the_agent(sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path) -> None:
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(status.observation_space, status.action_space, head="epsilon_greedy", seed=0)
    version, out = sampler.update_agent(agent), tmp_path / "batch.npz"
    sampler.update_agent(rollserve.RandomAgent())
    common = ("sample", server.address, "--steps", "300", "--seed", "4", "--out", out, "--policy-version", str(version))
    shown = run_here(*common, "--epsilon", "0,1,0.5", "--min-policy-version", str(version))
    assert shown.returncode == 0, shown.stderr
    expected = sampler.obtain_samples(300, seed=4, policy_version=version, epsilon=[0, 1, 0.5])
    assert equal(rollserve.EpisodeBatch.load(out), expected)
    assert run_here(*common, "--deterministic").returncode == 0
    expected = sampler.obtain_samples(300, seed=4, policy_version=version, deterministic=True)
    assert equal(rollserve.EpisodeBatch.load(out), expected)
    for field, options in (
        ("options.exploration.temperatures", ("--temperature", "2,3")),
        ("options.exploration.noise_scales", ("--noise-scale", "0.5")),
        ("options.min_policy_version", ("--min-policy-version", str(version + 1))),
    ):
        shown = run_here(*common, *options)
        assert (shown.returncode, f": {field}: " in shown.stderr) == (1, True), shown.stderr
    shown = run_here(*common, "--epsilon", "0.5,x")
    assert shown.returncode == 2
    assert "argument --epsilon: " in shown.stderr
    assert "'0.5,x'" in shown.stderr


def test_error_is_one_line_with_an_exit_status(sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path) -> None:
    cases = [
        (1, "step_count: ", ("sample", server.address, "--steps", "7", "--fragments")),
        (1, "sampler: ", ("status", server.address, "--sampler", "x")),
        (1, "seed: ", ("sample", server.address, "--steps", "1", "--seed", "-1")),
        (1, "num_steps: ", ("sample", server.address, "--steps", "99999999999999999999")),
        (2, "sampler: ", ("status", server.address, "--sampler", "\udcff")),
        (2, "target: ", ("status", "127.0.0.1:99999")),
        (2, "target: ", ("status", "localhost")),
        (2, "timeout: ", ("status", server.address, "--timeout", "0")),
        (2, "timeout: ", ("status", server.address, "--timeout", "-1")),
        (3, "127.0.0.1:1", ("status", "127.0.0.1:1")),
        (4, "No such file or directory", ("sample", server.address, "--steps", "1", "--out", tmp_path / "no" / "x")),
        (4, "Is a directory", ("sample", server.address, "--steps", "1", "--out", tmp_path)),
        (4, f"{FULL}: No space left on device", ("sample", server.address, "--steps", "1", "--out", FULL)),
        (
            4,
            "No such file or directory",
            ("sample", server.address, "--steps", "1", "--plot", tmp_path / "no" / "x.png"),
        ),
    ]
    for status, quote, arguments in cases:
        shown = run_here(*arguments)
        assert shown.returncode == status, shown.stderr
        assert quote in shown.stderr
        assert shown.stderr.startswith("rollserve: ")
        assert shown.stderr.count("\n") == 1, shown.stderr
    for arguments in (("sample", server.address), ("nope",), ("status",), ("sample", server.address, "--steps", "x")):
        shown = run_here(*arguments)
        assert shown.returncode == 2
        assert shown.stderr.startswith("usage: rollserve")


def test_output_file_is_checked_before_sampling(
    sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path
) -> None:
    before = sampler.status().counters
    for out in (tmp_path, tmp_path / "no" / "x"):
        assert run_here("sample", server.address, "--steps", "1", "--out", out).returncode == 4
    assert sampler.status().counters.num_completed_calls == before.num_completed_calls
    assert run_here("sample", server.address, "--steps", "7", "--fragments", "--out", tmp_path / "new").returncode == 1
    assert list(tmp_path.iterdir()) == []  # the failed attempt leaves no file


def test_output_file_has_the_given_name(sampler: rollserve.Sampler, server: LocalServer, tmp_path: Path) -> None:
    assert run_here("sample", server.address, "--steps", "10", "--seed", "3", "--out", tmp_path / "one").returncode == 0
    sampler.with_receipt(sampler.obtain_samples(10, seed=3)).save(tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other"]
    with np.load(tmp_path / "one") as one, np.load(tmp_path / "other") as other:
        assert one.files == other.files
        assert all(np.array_equal(one[name], other[name]) for name in one if name != "receipt")  # times differ


def test_full_disk_is_reported(sampler: rollserve.Sampler, server: LocalServer) -> None:
    with FULL.open("wb") as full:
        shown = subprocess.run(
            [ROLLSERVE, "status", server.address], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert shown.returncode == 4
    assert shown.stderr.startswith("rollserve: ")
    assert shown.stderr.endswith(": No space left on device\n")


def test_random_agent_is_proposed_when_there_is_none(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer
) -> None:
    shown = run_here("sample", thread_server.address, "--steps", "10")
    assert shown.returncode == 1
    assert "--random-agent" in shown.stderr
    assert "NO_AGENT" in shown.stderr


def test_version_is_printed() -> None:
    assert run_here("--version").stdout == f"rollserve {rollserve.__version__}\n"


def test_help_names_the_commands() -> None:
    shown = run_here("--help")
    assert shown.returncode == 0
    for word in ("status", "sample", "evaluate"):
        assert word in shown.stdout


def test_save_and_restore_write_and_read_a_file(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer, tmp_path: Path
) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    path = tmp_path / "sampler.saved"
    saved = run_here("save", thread_server.address, str(path))
    assert (saved.returncode, saved.stdout) == (0, f"written to {path}\n"), saved.stderr
    thread_sampler.update_agent(rollserve.RandomAgent())
    restored = run_here("restore", thread_server.address, str(path))
    assert restored.stdout == "sampler restored: policy version 1, environment version 1, 2 workers\n", restored.stderr
    path.write_bytes(b"something else")
    refused = run_here("restore", thread_server.address, str(path))
    assert refused.returncode == 1
    assert "data: expected the file of a saved sampler, got other bytes" in refused.stderr
    assert run_here("restore", thread_server.address, str(tmp_path / "missing")).returncode == 4


def test_agent_is_exported_as_a_model(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer, tmp_path: Path
) -> None:
    status = thread_sampler.status()
    path = tmp_path / "policy.onnx"
    thread_sampler.update_agent(rollserve.MlpAgent.initial(status.observation_space, status.action_space))
    exported = run_here("agent", "export", thread_server.address, "--onnx", str(path))
    assert (exported.returncode, exported.stdout) == (0, f"written to {path}\n"), exported.stderr
    thread_sampler.update_agent(rollserve.OnnxAgent(path, "categorical"))
    assert thread_sampler.obtain_samples(10).num_steps >= 10
    thread_sampler.update_agent(rollserve.RandomAgent())
    refused = run_here("agent", "export", thread_server.address, "--onnx", str(path))
    assert refused.returncode == 1
    assert "agent: expected an MLP or a model, got an agent of the class RandomAgent" in refused.stderr
    assert (
        run_here("agent", "export", thread_server.address, "--onnx", str(path), "--policy-version", "2").returncode == 0
    )


def test_commands_show_and_evaluate_policies_by_name(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    thread_sampler.update_env(rollserve.EnvSpec("sample_envs:relay", multi_agent="aec"))
    agent = rollserve.RandomAgent(rollserve.ActionMask(info="action_mask"))
    thread_sampler.update_agent(rollserve.Policies({"red": agent, "blue": agent}, {0: "red", "*": "blue"}))
    thread_sampler.update_agent({"blue": agent})
    assert main(["status", thread_server.address]) == 0
    assert "policies: blue (version 2), red (version 1)" in capsys.readouterr().out
    assert main(["evaluate", thread_server.address, "--episodes", "4"]) == 0
    shown = capsys.readouterr().out
    for name in ("relay_0", "relay_1", "red@1", "blue@2"):
        assert re.search(rf"^{name} +\S+ ± ", shown, re.MULTILINE), shown


@pytest.mark.slow
def test_many_agents_are_refused_before_they_act_and_exported_by_policy(
    thread_sampler: rollserve.Sampler, thread_server: LocalServer, tmp_path: Path
) -> None:
    env = thread_sampler.update_env(rollserve.EnvSpec("mpe/simple_adversary-v3", multi_agent="parallel"))
    spaces = (space.spaces["agent_0"] for space in (env.observation_space, env.action_space))  # type: ignore[union-attr]
    policies = {"adversary": rollserve.RandomAgent(), "agent": rollserve.MlpAgent.initial(*spaces)}
    thread_sampler.update_agent(policies)
    refused = run_here("sample", thread_server.address, "--steps", "20")
    assert refused.returncode == 1
    assert "sample: expected an environment with one agent" in refused.stderr
    assert thread_sampler.status().next_episode_index == 0
    path = tmp_path / "policy.onnx"
    export = "agent", "export", thread_server.address, "--onnx", str(path)
    refused = run_here(*export, "--policy", "agent")
    assert "acts_for: expected one of the agents adversary_0, agent_0, agent_1, got None" in refused.stderr
    exported = run_here(*export, "--policy", "agent", "--acts-for", "agent_1")
    assert exported.returncode == 0, exported.stderr
    thread_sampler.update_agent({"agent": rollserve.OnnxAgent(path, "categorical")})
    assert thread_sampler.obtain_samples(10).num_steps >= 10
