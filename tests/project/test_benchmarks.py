"""Short runs of the benchmarks, and the checks of what they measure."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollserve
from benchmarks.peers.catalogue import Variant, variants_of
from benchmarks.peers.measurements import Measurement
from benchmarks.peers.participants import PeerParticipant
from benchmarks.peers.table import print_table, ratios
from benchmarks.service.agents import mlp_agent
from benchmarks.service.batches import sample_segments
from benchmarks.service.checks import check_sample
from benchmarks.service.results import CheckError
from benchmarks.service.workloads.phases import CALL_PHASES, UPDATE_PHASES, call_phases
from benchmarks.service.workloads.specs import SAMPLING

REPOSITORY = Path(__file__).parents[2]
WORKLOADS = {"w1-rows", "w5-round-trips", "w8-many"}
ITERATIONS = {f"w10-cartpole-native-{end}" for end in ("512", "2048", "8192", "2048-episodes")}


@pytest.mark.slow
def test_service_benchmark_writes_figures_and_a_chart(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    command = [sys.executable, "-m", "benchmarks.service", "--workloads", ",".join(WORKLOADS)]
    options = ["--scale", "0.002", "--rounds", "2", "--workers", "1", "--json", str(figures), "--chart", str(chart)]
    run = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert all(name in run.stdout for name in WORKLOADS)
    report = json.loads(figures.read_text())
    assert report["failures"] == {}
    assert report["versions"]["rollserve"] == rollserve.__version__
    assert report["machine"]["num_cores"] >= 1
    assert (report["settings"]["rounds"], report["settings"]["scale"]) == (2, 0.002)
    results = {result["workload"]: result for result in report["results"]}
    assert results.keys() == WORKLOADS
    for result in results.values():
        assert len(result["rounds"]) == 2
        assert result["checks"]
        for name, value in result["medians"].items():
            assert value == np.median([round_[name] for round_ in result["rounds"]])
    sampled = results["w1-rows"]["medians"]
    assert {"steps_per_second", "megabytes_per_second", "first_message_seconds", "ratio_to_bare"} <= sampled.keys()
    for group in ("workers", "gateway", "client"):
        assert sampled[f"{group}_peak_bytes"] > 1e7
        assert sampled[f"{group}_cpu_seconds_per_million_steps"] >= 0
    assert {"p50_seconds", "p99_seconds", "calls_per_second"} <= results["w5-round-trips"]["medians"].keys()
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_service_benchmark_splits_iterations_into_phases(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    command = [sys.executable, "-m", "benchmarks.service", "--workloads", "w10-cartpole-native"]
    options = ["--scale", "0.01", "--rounds", "1", "--workers", "2", "--json", str(figures), "--chart", str(chart)]
    run = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = {result["workload"]: result for result in json.loads(figures.read_text())["results"]}
    assert results.keys() == ITERATIONS
    for result in results.values():
        (round_,) = result["rounds"]
        assert len(result["checks"]) == 4
        assert round_["iteration_p50_seconds"] > round_["update_p50_seconds"] > 0
        assert round_["ratio_to_processes"] == round_["processes_p50_seconds"] / round_["iteration_p50_seconds"]
        assert round_["ratio_to_one_process"] == round_["one_process_p50_seconds"] / round_["iteration_p50_seconds"]
        assert all(round_[f"call_{phase}_seconds"] > 0 for phase in CALL_PHASES)
        assert all(round_[f"update_{phase}_seconds"] > 0 for phase in UPDATE_PHASES)
    assert "encode" in run.stdout
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_service_benchmark_compares_tls_with_plaintext(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    command = [sys.executable, "-m", "benchmarks.service", "--workloads", "w7"]
    options = ["--scale", "0.01", "--rounds", "1", "--workers", "1", "--json", str(figures), "--chart", str(chart)]
    run = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = {result["workload"]: result["medians"] for result in json.loads(figures.read_text())["results"]}
    assert results.keys() == {"w7-tls-native", "w7-tls-bulk", "w7-tls-round-trips"}
    for name in ("w7-tls-native", "w7-tls-bulk"):
        rates = results[name]["steps_per_second"], results[name]["plain_steps_per_second"]
        assert results[name]["ratio_to_plain"] == pytest.approx(rates[0] / rates[1])
    short = results["w7-tls-round-trips"]
    assert short["ratio_to_plain"] == pytest.approx(short["plain_p50_seconds"] / short["p50_seconds"])
    assert "x plaintext" in run.stdout


@pytest.mark.slow
def test_service_benchmark_drives_rows(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    command = [sys.executable, "-m", "benchmarks.service", "--workloads", "w11-cartpole-64,w11-cheetah-8"]
    options = ["--scale", "0.01", "--rounds", "1", "--json", str(figures), "--chart", str(chart)]
    run = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = {result["workload"]: result for result in json.loads(figures.read_text())["results"]}
    assert results.keys() == {"w11-cartpole-64", "w11-cheetah-8"}
    for result in results.values():
        (round_,) = result["rounds"]
        assert len(result["checks"]) == 2
        assert round_["ratio_to_echo"] == round_["echo_p50_seconds"] / round_["p50_seconds"]
        assert round_["secured_ratio_to_plain"] == round_["p50_seconds"] / round_["secured_p50_seconds"]
    (round_,) = results["w11-cheetah-8"]["rounds"]
    assert round_["ratio_to_async"] == round_["async_p50_seconds"] / round_["p50_seconds"]
    assert "ratio_to_async" not in results["w11-cartpole-64"]["medians"]
    assert "x AsyncVectorEnv" in run.stdout
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_service_benchmark_reads_files_of_episodes(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    command = [sys.executable, "-m", "benchmarks.service", "--workloads", "w9-short-episodes,w9-long-episodes"]
    options = ["--scale", "0.01", "--rounds", "1", "--json", str(figures), "--chart", str(chart)]
    run = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    results = {result["workload"]: result["medians"] for result in json.loads(figures.read_text())["results"]}
    assert results.keys() == {"w9-short-episodes", "w9-long-episodes"}
    for result in results.values():
        assert result["ratio_to_minari"] == pytest.approx(
            result["steps_per_second"] / result["minari_steps_per_second"]
        )
    assert "x Minari's iterator" in run.stdout
    assert chart.read_bytes().startswith(b"\x89PNG")


def test_phases_add_up_to_the_call() -> None:
    call = {"began": 0.0, "sent": 1.0, "ended": 60.0}
    call["receipts"] = [(2.0, 5.0, False), (6.0, 40.0, True), (43.0, 50.0, False), (51.0, 53.0, False)]
    times: list[dict[str, Any]] = [
        {"name": "reported", "time": 0.5, "order": 0, "sampling_seconds": 100.0, "encoding_seconds": 100.0},
        {"name": "received", "time": 3.0},
        {"name": "admitted", "time": 6.0},
        {"name": "ordered", "time": 10.0, "order": 1, "worker": 0},
        {"name": "ordered", "time": 11.0, "order": 2, "worker": 1},
        {"name": "written", "time": 12.0, "is_batch": False},
        {"name": "reported", "time": 20.0, "order": 2, "sampling_seconds": 9.0, "encoding_seconds": 9.0},
        {"name": "reported", "time": 30.0, "order": 1, "sampling_seconds": 7.0, "encoding_seconds": 4.0},
        {"name": "written", "time": 35.0, "is_batch": True},
        {"name": "written", "time": 45.0, "is_batch": False},
    ]
    phases = call_phases("call", [call], times)
    assert phases == {
        "call_client_seconds": 1.0,
        "call_intake_seconds": 2.0,
        "call_admission_seconds": 3.0,
        "call_orders_seconds": 4.0,
        "call_ray_seconds": 25.0 - 7.0 - 4.0,
        "call_worker_seconds": 7.0,
        "call_encode_seconds": 4.0,
        "call_send_seconds": 5.0,
        "call_settle_seconds": 9.0,
        "call_join_seconds": 11.0,
    }
    assert sum(phases.values()) == call["ended"] - call["began"]


def test_service_benchmark_lists_the_workloads_when_one_is_unknown() -> None:
    command = [sys.executable, "-m", "benchmarks.service", "--workloads", "w99"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 2
    assert "--workloads" in run.stderr
    assert "'w99'" in run.stderr
    assert all(name in run.stderr for name in WORKLOADS)


def swapped(columns: Any) -> np.ndarray:
    return np.concatenate([columns[1:], columns[:1]])


@pytest.mark.parametrize("name", ["w1-rows", "w1-native-256"])
def test_sample_check_finds_wrong_columns(sampler: rollserve.Sampler, name: str) -> None:
    workload = SAMPLING[name]
    sampler.update_env(dataclasses.replace(workload.env, num_rows=4))
    sampler.update_agent(workload.agent)
    sample = sample_segments(sampler.obtain_samples(1000), 200)
    assert 100 < sample.num_steps < 400
    assert check_sample(sample, workload)
    for column in ("observations", "last_observations", "actions"):
        broken = dataclasses.replace(sample, **{column: swapped(getattr(sample, column))})
        with pytest.raises(CheckError):
            check_sample(broken, workload)
    changes: list[dict[str, Any]] = [
        {"rewards": sample.rewards + 1},
        {"terminated": ~sample.terminated},
        {"agent_infos": {"log_prob": swapped(sample.agent_infos["log_prob"])}},
    ]
    for change in changes:
        with pytest.raises(CheckError):
            check_sample(dataclasses.replace(sample, **change), workload)
    with pytest.raises(CheckError, match=r"log.prob"):
        check_sample(sample, dataclasses.replace(workload, agent=mlp_agent((4, 64, 64, 2), "categorical", seed=1)))


@pytest.mark.slow
def test_peer_benchmark_writes_figures_ratios_and_a_chart(tmp_path: Path) -> None:
    figures, chart = tmp_path / "figures.json", tmp_path / "chart.png"
    command = [sys.executable, "-m", "benchmarks.peers", "--peers", "gymnasium,envpool", "--workloads", "w1"]
    sizes = ["--scale", "0.002", "--seconds", "0.1", "--rounds", "1", "--workers", "1"]
    options = [*sizes, "--json", str(figures), "--chart", str(chart)]
    run = subprocess.run([*command, *options], cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    report = json.loads(figures.read_text())
    assert {result["who"] for result in report["results"]} == {"Rollserve", "gymnasium", "EnvPool"}
    for result in report["results"]:
        assert not result["failure"]
        assert result["settings"]
        assert result["versions"]["numpy"] == np.__version__
        assert result["medians"]["steps_per_second"] > 0
        assert result["medians"]["trainer_peak_bytes"] > 1e7
    best = max(result["medians"]["steps_per_second"] for result in report["results"] if result["kind"] == "loop")
    own = max(result["medians"]["steps_per_second"] for result in report["results"] if result["kind"] == "service")
    (ratio,) = report["ratios"]
    assert (ratio["workload"], ratio["kind"]) == ("w1", "loop")
    assert ratio["ratio"] == pytest.approx(own / best)
    assert "SyncVectorEnv" in run.stdout
    assert chart.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["w2", "w3"])
def test_peers_without_a_service_are_measured(workload: str) -> None:
    for variant in variants_of(workload, 1, 1):
        if variant.peer in ("gymnasium", "envpool"):
            participant = PeerParticipant(workload, variant, Path(sys.executable), seconds=0.01)
            participant.measure_round()
            (measurement,) = participant.measurements
            assert not measurement.failure
            (figures,) = measurement.rounds
            assert measurement.speed > 0
            if variant.num_processes == 1:
                assert measurement.speed == figures["steps"] / figures["seconds"]


def test_peer_in_several_processes_is_measured_as_one() -> None:
    variant = Variant("gymnasium", "twice", {"vectorization": "native", "num_rows": 4}, num_processes=2)
    participant = PeerParticipant("w10-cartpole-native", variant, Path(sys.executable), seconds=0.01)
    participant.measure_round()
    (measurement,) = participant.measurements
    assert not measurement.failure
    (figures,) = measurement.rounds
    assert measurement.speed > figures["steps"] / figures["seconds"] * 0.999
    assert figures["all_peak_bytes"] > 1.5 * figures["trainer_peak_bytes"]


def test_failed_peer_is_in_the_table_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    variant = Variant("gymnasium", "as it is not", {"speed": "highest"})
    participant = PeerParticipant("w1", variant, Path(sys.executable), seconds=0.01)
    participant.measure_round()
    assert "unexpected keyword argument 'speed'" in participant.measurements[0].failure
    measured = Measurement("w1", "Rollserve", "service", "as it is", {})
    measured.rounds.append({"steps_per_second": 1e6, "trainer_peak_bytes": 1e8, "worker_peak_bytes": 0})
    print_table([measured, *participant.measurements])
    table = capsys.readouterr().out
    assert "as it is not" in table
    assert "'speed'" in table
    assert ratios([measured, *participant.measurements]) == []
