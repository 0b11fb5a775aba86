"""The conformance kit: the Python client passes it, and a client that errs in anything does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support import read_batch

from rollserve import Reason
from rollserve_conformance.cases import CASES
from rollserve_conformance.cli import main, table_of
from rollserve_conformance.description import describe_batch
from rollserve_conformance.kit import CaseOutcome
from rollserve_conformance.operations import array_of
from rollserve_conformance.reading import read_stream
from rollserve_conformance.recordings import FOLDER, recording

KIT = Path(sys.executable).with_name("rollserve-conformance")
ADAPTER = (sys.executable, "-m", "rollserve_conformance.python_adapter")
RECORDINGS = sorted(path.stem for path in FOLDER.glob("*.json"))
PAGE = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()

TAMPERING = """
import json, pathlib, sys
from rollserve_conformance import python_adapter as adapter

file = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    case, (change, *others) = json.loads(line), json.loads(file.read_text())
    file.write_text(json.dumps(others))
    if change.startswith("case"):
        exec(change)
    r = adapter._results(case)
    if change.startswith("r"):
        exec(change)
    print(json.dumps({"case": case["case"], "results": r}), flush=True)
"""
"""An adapter that changes what it is asked, `case`, or its results, `r`, by the next statement in a file."""

SILENCES = """
import json, sys
case = json.loads(input())["case"]
match case:
    case "status":
        print("ready", file=sys.stderr)
        sys.exit(3)
    case "no-agent":
        print("hello")
        input()
    case _:
        print(json.dumps({"case": case}))
"""
"""An adapter that answers no case: ends, chatters, or has no results."""


def run_kit(*options: str, adapter: Iterable[str] = ADAPTER) -> subprocess.CompletedProcess[str]:
    return subprocess.run([KIT, "run", *options, "--", *adapter], capture_output=True, text=True, check=False)


def outcomes(file: Path) -> dict[str, Any]:
    return {outcome["case"]: outcome for outcome in json.loads(file.read_text())}


def test_python_client_passes_all_cases_past_a_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    result = run_kit("--json", str(tmp_path / "python.json"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"{len(CASES)} cases: {len(CASES)} passed"
    assert "Traceback" not in result.stderr  # no error of the server's own
    assert list(outcomes(tmp_path / "python.json")) == [
        name for secure in (False, True) for name, case in CASES.items() if case.secure == secure
    ]


CHANGES = [
    ("plain-box", "r[2]['batch']['observations'].clear()", "observations.: expected"),
    ("plain-box", "r[2]['batch']['rewards'][''].update(sha256='0')", "rewards..sha256: expected"),
    ("plain-box", "r[2]['batch']['agent_infos'].update(x={})", "['x'] as well"),
    ("plain-box", "r[2]['batch']['truncated'].reverse()", "truncated: expected"),
    ("plain-box", "r[1].update(policy_version=2)", "update_agent.policy_version: expected 1, got 2"),
    ("infos-gaps", "r[2]['batch']['env_infos']['collided'].pop('mask')", "collided.mask: expected"),
    ("evaluation", "r[2]['returns'].pop()", "returns: expected"),
    ("no-agent", "r[0]['error'].update(reason='')", "reason: expected NO_AGENT, got"),
    ("recorded-integers", "r[0]['batch']['account']['dropped_infos'].pop('id')", "dropped_infos.id: expected 3"),
    ("no-agent", "r.pop()", "results: expected 4, got 3"),
    ("resume-samples", "r[2]['batch']['account'].update(num_resumptions=0)", "num_resumptions: expected 1"),
    ("recorded-parts", "r[0]['batch']['lengths'].sort()", "lengths: expected"),
    (
        "recorded-ends",
        "r[0]['batch']['last_states']['hidden'].update(sha256='0')",
        "last_states.hidden.sha256: expected",
    ),
    ("recorded-ends", "r[0]['batch'].pop('environment_actions')", "environment_actions.: expected"),
    ("recorded-ended-episodes", "r[0]['progress'].update(num_ended_episodes=2)", "num_ended_episodes: expected 9"),
    ("ends-of-fragments", "r[3]['batch']['returns_before'][0] = None", "returns_before: expected"),
    ("plain-box", "r[2]['batch']['raw_rewards'] = r[2]['batch']['rewards']", "raw_rewards: expected [], got"),
    (
        "plain-box",
        "case['operations'][2]['num_steps'] += 1",
        "obtain_samples, request.step_count: expected 60, got 61",
    ),
    ("warnings", "r[3]['warnings'].pop()", "warnings: expected"),
    ("call-environments", "r[1]['values'].append(1)", "values: expected"),
    ("many-parallel", "r[2]['multi_agent_batch']['policies'].pop('late')", "policies: expected"),
    ("many-parallel", "r[2]['multi_agent_batch']['policies']['late'].pop('env_steps')", "late.env_steps: expected"),
    ("many-parallel", "r[2]['multi_agent_batch']['policies']['runner']['agents'].reverse()", "runner.agents: expected"),
    ("many-parallel", "r[2]['multi_agent_batch']['global_states'] = {}", "expected no global_states"),
    (
        "many-in-turns",
        "r[2]['multi_agent_batch']['policies']['main']['rewards_before'].append(0.0)",
        "rewards_before: expected",
    ),
    ("many-global-state", "r[2]['multi_agent_batch'].pop('last_global_states')", "last_global_states: expected"),
    ("many-views", "r[2]['by_agent'].pop('guard')", "by_agent: expected"),
    ("many-views", "r[5]['joint']['second']['acted']['']['sha256'] = '0'", "joint.second.acted..sha256: expected"),
    ("many-evaluation", "r[3]['agent_returns']['by_policy']['a@1'] = 0.0", "by_policy.a@1: expected"),
    ("drive", "r[1]['results'][3]['step']['rewards'][''].update(sha256='0')", "rewards..sha256: expected"),
    ("drive", "r[1]['results'][4]['step']['ended_rows'].append(3)", "drive, step.step.ended_rows: expected"),
    ("drive", "r[1]['results'][12]['batch']['agent_infos'].pop('pair')", "drive.batch.agent_infos.pair: expected"),
    ("drive", "r[1]['results'][23]['account'].update(num_steps=1)", "drive, end.account.num_steps: expected 80, got 1"),
    ("drive", "r[1]['results'].pop()", "drive, results: expected 25, got 24"),
    (
        "drive-next-step",
        "case['operations'][1]['next_step'] = False",
        "request 3.actions.idle: expected [true, false, false, true], got nothing",
    ),
    (
        "drive-refused",
        "r[1]['results'][2]['error'].update(field='')",
        "field: expected actions.actions[''][2], got",
    ),
    ("drive-refused", "r[1]['results'][3] = r[1]['results'][1]", "drive, step.error: expected"),
    (
        "drive-resumed",
        "case = json.loads(json.dumps(case).replace(': \"resume\"', ': \"observe\"'))",
        "expected a stream that is taken up again, got none",
    ),
    ("drive-resumed", "r[1]['results'][7]['step'].update(number=4)", "drive, observe.step.number: expected 5, got 4"),
    ("drive-reconnected", "case['operations'][1]['lease_seconds'] = 9", "request 1.spec.lease_seconds: expected 60"),
    ("drive-lease-over", "case['operations'][1]['operations'][2]['after_seconds'] = 0", "observe.error: expected"),
    ("drive-apart", "r[1]['results'][0]['rows']['rewards'][''].update(sha256='0')", "rows.rewards..sha256: expected"),
    ("token-missing", "r[0]['error'].update(kind='invalid_argument')", "kind: expected access"),
]
"""Errors of a client in its requests and results, by the case, and what the kit says of each."""


def test_wrong_requests_and_results_fail(tmp_path: Path) -> None:
    script, file = tmp_path / "adapter.py", tmp_path / "outcomes.json"
    script.write_text(TAMPERING)
    options = [option for case, _, _ in CHANGES for option in ("--case", case)]
    statements = tmp_path / "statements.json"  # of all adapters: the kit starts one for each of its servers
    statements.write_text(json.dumps([statement for _, statement, _ in CHANGES]))
    result = run_kit(*options, "--json", str(file), adapter=(sys.executable, str(script), str(statements)))
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"{len(CHANGES)} cases: {len(CHANGES)} failed"
    for outcome, (case, _, text) in zip(json.loads(file.read_text()), CHANGES, strict=True):
        assert outcome["case"] == case
        assert text in outcome["text"]


def test_adapter_that_does_not_answer_fails(tmp_path: Path) -> None:
    texts = {
        "status": "the adapter has ended",
        "no-agent": "expected the answer to 'no-agent', got 'hello",
        "plain-box": "expected results, got",
    }
    file = tmp_path / "outcomes.json"
    options = [option for case in texts for option in ("--case", case)]
    result = run_kit(*options, "--json", str(file), adapter=(sys.executable, "-c", SILENCES))
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "3 cases: 3 failed"
    for case, outcome in outcomes(file).items():
        assert texts[case] in outcome["text"]
        assert texts[case] in result.stdout


def test_feature_that_a_client_lacks_is_named(tmp_path: Path) -> None:
    answer = "{'case': json.loads(line)['case'], 'unsupported': 'no lz4'}"
    script = f"import json\nfor line in open(0): print(json.dumps({answer}))"
    file = tmp_path / "outcomes.json"
    result = run_kit(
        "--case", "compressed-lz4", "--case", "1", "--json", str(file), adapter=(sys.executable, "-uc", script)
    )
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "2 cases: 2 unsupported"
    assert {outcome["text"] for outcome in outcomes(file).values()} == {"no lz4"}


def test_served_case_is_the_one_that_runs() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([KIT, "serve", "recorded-gaps"], stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        line = server.stdout.readline()
        answer = subprocess.run(ADAPTER, input=line, capture_output=True, text=True, check=True).stdout
        server.stdin.close()
        assert server.wait(30) == 0
    batch, expected = json.loads(answer)["results"][0]["batch"], recording("gaps").expected
    account = {name: batch["account"][name] for name in expected["account"]}
    assert {**{name: batch[name] for name in expected}, "account": account} == expected


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_are_read_to_their_values(name: str) -> None:
    stream = recording(name)
    assert describe_batch(read_stream(stream.messages)) == stream.expected


def test_recorded_gaps_are_those_that_were_written() -> None:
    infos = read_stream(recording("gaps").messages)["env_infos"]
    assert infos["count"].tolist() == [1, 2, 3, 0.5, 1.5, 0]
    assert infos["_count"].tolist() == [True] * 5 + [False]
    assert infos["_success"].tolist() == [True, False, True, False, False, False]
    assert (infos["big"].dtype, infos["big"].tolist()) == (np.uint64, [1, 2, 2**63 - 1, 2**64 - 1, 3, 0])
    assert infos["nested/force"].tolist() == [[1, 2], [0, 0], [5, 6], [7, 8], [9, 10], [0, 0]]
    assert infos["_nested/force"].tolist() == [True, False, True, True, True, False]
    assert (infos["late"].dtype, infos["late"].tolist()) == (np.int16, [0, 0, 0, 4, 5, 300])


def test_recorded_integers_are_those_that_were_written() -> None:
    batch = read_stream(recording("integers").messages)
    infos = batch["env_infos"]
    assert infos["hash"].dtype == np.uint64
    assert infos["hash"].tolist() == [1, 2**63 - 1, 5, 2**64 - 1, 0, 2**63, 0]
    assert infos["three"].tolist() == [-3, 4, 2**53, 9, 10, 2**53, 0.5]
    assert set(infos) == {"hash", "_hash", "exact", "_exact", "three"}
    assert batch["episode_infos"]["key"].tolist() == [0, 1, 2**63, 0]
    assert batch["account"].dropped_infos == {"score": 7, "negative": 7, "id": 3}


def test_recorded_parts_are_those_that_were_written() -> None:
    batch = read_stream(recording("parts").messages)
    assert batch["episode_indices"].tolist() == [4, 5, 6, 7]
    assert batch["lengths"].tolist() == [2, 8, 2, 1]
    assert (batch["terminated"].tolist(), batch["truncated"].tolist()) == (
        [True, False, True, False],
        [False, True, False, True],
    )
    assert batch["initial_states"]["hidden"][:, 0].tolist() == [0, 1, 4, 5]
    assert batch["episode_infos"]["level"].tolist() == [7, 8, 9, 1]


def test_recorded_ends_are_those_that_were_written() -> None:
    batch = read_stream(recording("ends").messages)
    assert batch["lengths"].tolist() == [2, 6, 3, 1]
    assert batch["last_values"][""].tolist() == [0.5, 1.5, 0.75, 0.25]
    assert batch["last_states"]["hidden"][:, 0].tolist() == [2, 6, 3, 1]
    assert batch["returns_before"].tolist() == [0, 0, 0, 0]
    raw, actions = batch["raw_rewards"][""], batch["env_actions"][""]
    assert raw[5:10].tolist() == [0.5, 1.5, 0.5, 1.5, 2.5]
    assert (raw[:5] == batch["rewards"][""][:5]).all()
    assert (raw[10:] == batch["rewards"][""][10:]).all()
    assert actions[5:10].tolist() == [1, 0, 1, 0, 1]
    assert (actions[10:] == batch["actions"][""][10:]).all()


def test_plain_reader_agrees_with_the_client_on_a_message() -> None:
    message = recording("dtypes").messages[1]
    batch = read_batch(message)
    assert isinstance(batch.observations, dict)
    observations = read_stream(recording("dtypes").messages)["observations"]
    assert {name: each.tobytes() for name, each in observations.items()} == {
        name: each.tobytes() for name, each in batch.observations.items()
    }


def test_cases_cover_every_reason_that_servers_send() -> None:
    reasons = {
        step["abort"]["trailing"]["rollserve-reason"]
        for script in CASES["reasons-of-calls"].scripts
        for step in script["steps"]
    }
    assert reasons == {reason.name for reason in Reason} - {Reason.TLS_FAILED.name}


def test_cases_have_every_agent_and_option() -> None:
    tables = PAGE.split("## Operations")[1].split("| `agent.kind`")[0].split("### Sessions")
    operations = [operation for case in CASES.values() for operation in case.operations]
    kinds = {operation["agent"]["kind"] for operation in operations if "agent" in operation}
    assert kinds == {"random", "constant", "mlp", "onnx", "python"}
    driven = [each for operation in operations for each in operation.get("operations", ())]
    for described, table in zip((operations, driven), tables, strict=True):
        assert {operation["do"] for operation in described} == set(re.findall(r"^\| `(\w+)` \| ", table, re.M)) - {"do"}


def test_array_of_the_page_is_what_it_says() -> None:
    (text,) = re.findall(r'^({"dtype": "float32", "shape".*})$', PAGE, re.MULTILINE)
    assert array_of(json.loads(text)).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_list_names_every_case_with_its_number() -> None:
    lines = CliRunner().invoke(main, ["list"]).output.splitlines()
    assert [line.split(maxsplit=2) for line in lines] == [
        [str(number), case.name, case.about] for number, case in enumerate(CASES.values(), start=1)
    ]


def test_table_has_notes_on_what_clients_lack() -> None:
    table = table_of(
        {
            "A": [
                CaseOutcome("plain-box", "passed", "", 0.1),
                CaseOutcome("compressed-lz4", "unsupported", "no lz4", 0.1),
            ],
            "B": [
                CaseOutcome("plain-box", "failed", "wrong", 0.1),
                CaseOutcome("compressed-lz4", "unsupported", "no lz4", 0.1),
            ],
        }
    ).splitlines()
    assert table[0] == "| | case | A | B |"
    assert table[2].endswith("| ✓ | ✗ |")
    assert next(line for line in table if "compressed-lz4" in line).endswith("| - (1) | - (1) |")
    assert table[-1] == "1. no lz4"


def test_unknown_case_is_refused_by_name() -> None:
    result = run_kit("--case", "nonsense")
    assert result.returncode == 1
    assert "case: expected a name or number of `rollserve-conformance list`, got 'nonsense'" in result.stderr
