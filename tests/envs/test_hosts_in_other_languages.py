"""Hosts in C++ and TypeScript: CartPole beside gymnasium's, and requests of all kinds."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from host_driver import Driver, started

from rollserve_wire.gymnasium_spaces import gymnasium_space
from rollserve_wire.rows.v1.rows_pb2 import Request, Results
from rollserve_wire.spaces import space_from_proto
from rollserve_wire.tensors import named_tensors_from_proto, named_tensors_to_proto, tensor_from_proto

HOSTS = Path(__file__).parents[2] / "client" / "hosts"
PROGRAMS: dict[tuple[str, str], list[str | Path]] = {
    ("cpp", "cartpole"): [HOSTS / "cpp/build/cartpole"],
    ("cpp", "tally"): [HOSTS / "cpp/build/tally"],
    ("typescript", "cartpole"): ["node", HOSTS / "typescript/build/examples/cartpole.js"],
    ("typescript", "tally"): ["node", HOSTS / "typescript/build/test/tally.js"],
}
NUM_ROWS = 64


@pytest.fixture(params=["cpp", "typescript"])
def language(request: pytest.FixtureRequest) -> str:
    return request.param


def command(language: str, program: str) -> list[str]:
    found = [str(part) for part in PROGRAMS[language, program]]
    if not Path(found[-1]).exists() or shutil.which(found[0]) is None:
        pytest.skip(f"{found[-1]} is not built: make -C client/hosts/{language} build")
    return found


@pytest.fixture
def tally(language: str) -> Iterator[Driver]:
    with started(command(language, "tally")) as driver:
        yield driver


def test_cartpole_equals_gymnasium_to_the_last_bit(language: str) -> None:
    envs = [gymnasium.make("CartPole-v1") for _ in range(NUM_ROWS)]
    random = np.random.default_rng(7)
    words = (int(word) for word in iter(lambda: random.integers(2**64 - 1, dtype=np.uint64), None))
    seeds = itertools.chain([0, 1, 2**32 - 1, 2**32, 2**64 - 1], (word >> word % 64 for word in words))
    observations = np.zeros((NUM_ROWS, 4), np.float32)
    num_steps, lengths = np.zeros(NUM_ROWS, np.int64), []
    with started(command(language, "cartpole")) as driver:
        assert driver.hello.protocol_version == 1
        assert driver.hello.name == "CartPole-v1"
        made = driver.ask(make={"row_count": NUM_ROWS}).made
        assert gymnasium_space(space_from_proto(made.observation_space)) == envs[0].observation_space
        assert gymnasium_space(space_from_proto(made.action_space)) == envs[0].action_space
        assert made.max_episode_steps == 500
        assert not made.is_nondeterministic

        ended = np.arange(NUM_ROWS)
        for _ in range(800):
            if len(ended):
                num_steps[ended] = 0
                drawn = list(itertools.islice(seeds, len(ended)))
                begun = [envs[row].reset(seed=seed)[0] for row, seed in zip(ended, drawn, strict=True)]
                observations[ended] = begun
                assert driver.reset(ended.tolist(), drawn)[""].tobytes() == np.array(begun).tobytes()
            # Poles are balanced, so that an error of the last bit grows until it is seen in single precision; half of
            # the actions are random, for angles that are large enough for such errors.
            balancing = observations @ np.array([0.05, 0.1, 1, 0.3]) > 0
            chosen = random.random((2, NUM_ROWS)) < 0.5
            actions = np.where(chosen[0], chosen[1], balancing).astype(np.int64)
            results = driver.step({"": actions}).results
            steps = [env.step(action) for env, action in zip(envs, actions, strict=True)]
            observations[:] = [step[0] for step in steps]
            assert named_tensors_from_proto(results.observations)[""].tobytes() == observations.tobytes()
            assert list(results.rewards) == [step[1] for step in steps]
            assert list(results.terminated) == [step[2] for step in steps]
            assert list(results.truncated) == [step[3] for step in steps]
            num_steps += 1
            ended = np.flatnonzero([step[2] or step[3] for step in steps])
            lengths += num_steps[ended].tolist()
    assert len(lengths) >= 200
    assert max(lengths) == 500


def moves(*changes: int, flags: list[list[int]] | None = None) -> dict[str, np.ndarray]:
    """Return actions of the tally: what to add in each row, and its flags."""
    levels = [[position % 2, 10 + position % 5] for position in range(len(changes))]
    return {
        "0": np.array(changes, np.int64),
        "1": np.array(flags or [[0, 0]] * len(changes), np.int8),
        "2": np.array(levels, np.uint8),
    }


def begin(driver: Driver, *seeds: int, **content: Any) -> None:
    assert driver.ask(make={"row_count": len(seeds), **content}).WhichOneof("content") == "made"
    totals = driver.reset(range(len(seeds)), seeds)["total"]
    offset = int(content.get("task_argument_json", 0))
    assert totals.tolist() == [[seed + offset, 0.5] for seed in seeds]


def infos_of(results: Results) -> dict[str, tuple[list[int], list[Any]]]:
    """Return the positions and values of each info."""
    return {
        info.name: (
            list(info.positions),
            tensor_from_proto(info.tensor).tolist()
            if info.HasField("tensor")
            else list(map(json.loads, info.json.texts)),
        )
        for info in results.infos
    }


def test_nested_spaces_and_infos_travel_as_columns(tally: Driver) -> None:
    made = tally.ask(make={"row_count": 3, "task_method": "set_task", "task_argument_json": "10"}).made
    assert gymnasium_space(space_from_proto(made.observation_space)) == gymnasium.spaces.Dict(
        total=gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float64),
        last=gymnasium.spaces.Tuple([gymnasium.spaces.MultiBinary(2)]),
    )
    assert gymnasium_space(space_from_proto(made.action_space)) == gymnasium.spaces.Tuple(
        [
            gymnasium.spaces.Discrete(3, start=-1),
            gymnasium.spaces.MultiBinary(2),
            gymnasium.spaces.MultiDiscrete(np.array([2, 5], np.uint8), np.uint8, start=np.array([0, 10], np.uint8)),
        ]
    )
    assert made.is_nondeterministic
    begun = tally.ask(reset={"rows": [0, 1, 2], "seeds": [1, 2, 2**63], "options_json": '{"a": [1]}'}).results
    assert infos_of(begun) == {"seed": ([], [1, 2, 2**63]), "options": ([], [{"a": [1]}] * 3)}
    results = tally.step(moves(1, 0, flags=[[0, 1], [0, 0]]), rows=[0, 1]).results
    observations = named_tensors_from_proto(results.observations)
    assert {name: column.tolist() for name, column in observations.items()} == {
        "total": [[12.0, 0.5], [12.0, 0.5]],
        "last/0": [[0, 1], [0, 0]],
    }
    assert [(column.dtype, column.shape) for column in observations.values()] == [("f8", (2, 2)), ("i1", (2, 2))]
    assert infos_of(results) == {"levels": ([], [[0, 10], [1, 11]]), "half": ([], [6, 6]), "mixed": ([0], [[0]])}
    results = tally.step(moves(1, 0), rows=[0, 1]).results
    assert infos_of(results) == {
        "levels": ([], [[0, 10], [1, 11]]),
        "half": ([1], [6]),
        "odd": ([0], [{"total": 13}]),
    }
    assert list(results.rewards) == [1, 0]


def test_environment_that_throws_fails_its_row_alone(tally: Driver) -> None:
    begin(tally, 10, 20, 30, 40)
    flags = [[0, 1], [1, 0], [1, 1], [0, 1]]  # the info of the last row has another shape than that of the first
    results = tally.step(moves(1, 1, 1, 1, flags=flags)).results
    assert [failure.position for failure in results.failures] == [1, 2, 3]
    assert results.failures[0].text == "the tally is lost"
    assert results.failures[2].text.startswith("infos['mixed']: expected")
    assert named_tensors_from_proto(results.observations)["total"][0].tolist() == [11, 0.5]
    assert tally.step(moves(1, 1), rows=[0, 1]).refusal.text.startswith(
        "rows: expected rows whose episodes go on, got 1"
    )
    assert tally.reset([1, 3], [5, 6])["total"].tolist() == [[5, 0.5], [6, 0.5]]
    results = tally.step(moves(1, 1, -1), rows=[0, 1, 3]).results
    assert not results.failures
    assert named_tensors_from_proto(results.observations)["total"][:, 0].tolist() == [12, 6, 5]


def test_episode_that_has_ended_goes_on_after_a_reset_alone(tally: Driver) -> None:
    begin(tally, 1, 100, 50)
    results = tally.step(moves(-1, 1, 1)).results
    assert list(results.terminated) == [True, False, False]
    assert list(results.truncated) == [False, True, False]
    for rows in ([0], [1], []):
        assert tally.step(moves(*[0] * (len(rows) or 3)), rows=rows).refusal.text.startswith("rows: ")
    tally.reset([0, 1], [7, 8])
    assert named_tensors_from_proto(tally.step(moves(1, 1, 1)).results.observations)["total"][:, 0].tolist() == [
        8,
        9,
        52,
    ]


def step_with(rows: list[int] | None = None, **changes: np.ndarray | None) -> dict[str, Any]:
    """Return a step of three rows whose actions by name are changed, or left out for None."""
    actions = {**moves(1, 1, 1), **changes}
    kept = {name: action for name, action in actions.items() if action is not None}
    return {"step": {"rows": rows or [], "actions": named_tensors_to_proto(kept)}}


MALFORMED: dict[str, list[dict[str, Any]]] = {
    "content: ": [{}],
    "make: ": [{"make": {"row_count": 1}}],
    "rows: ": [
        {"reset": {"rows": [3], "seeds": [1]}},
        {"reset": {"rows": [1, 0], "seeds": [1, 2]}},
        {"reset": {"rows": [1, 1], "seeds": [1, 2]}},
        step_with([0, 1, 2**32 - 1]),
        step_with([0, 2, 1]),
    ],
    "seeds: ": [{"reset": {"rows": [0, 1], "seeds": [1]}}],
    "actions: ": [step_with(**{"2": None}), {"step": {}}, step_with(more=np.zeros(3))],
    "actions['0']: ": [
        step_with(**{"0": np.array([0, 2, 0])}),
        step_with(**{"0": np.array([0, 0, -(2**63)])}),
        step_with(**{"0": np.zeros(2, np.int64)}),
        step_with(**{"0": np.zeros((3, 1), np.int64)}),
        step_with(**{"0": np.zeros(3, np.int32)}),
        step_with([0, 1]),
    ],
    "actions['1']: ": [
        step_with(**{"1": np.full((3, 2), -1, np.int8)}),
        step_with(**{"1": np.zeros((3, 2), np.bool_)}),
    ],
    "actions['2']: ": [step_with(**{"2": np.array([[0, 10], [0, 14], [0, 15]], np.uint8)})],
}


def refuses(driver: Driver, fields: dict[str, list[dict[str, Any]]]) -> None:
    """Check that requests are refused, with texts that begin with their fields."""
    for field, requests in fields.items():
        for request in requests:
            response = driver.ask(**request)
            assert response.WhichOneof("content") == "refusal", request
            assert response.refusal.text.startswith(field), (request, response.refusal.text)


def test_rows_are_made_first_and_only_as_asked(tally: Driver) -> None:
    make = {"row_count": 3}
    unknown = {**make, "kwargs_json": '{"a": 1}'}
    wrong = {**make, "task_method": "set_task", "task_argument_json": "[]"}
    refuses(
        tally,
        {
            "content: ": [{}, {"reset": {"rows": [0], "seeds": [1]}}, step_with()],
            "row_count: ": [{"make": {}}, {"make": {"row_count": 2**32 - 1}}],
            "kwargs: ": [{"make": unknown}],
            "task": [{"make": wrong}],
        },
    )
    begin(tally, 10)


def test_malformed_request_is_refused_and_leaves_rows_as_they_are(tally: Driver) -> None:
    begin(tally, 10, 20, 30)
    refuses(tally, MALFORMED)
    results = tally.step(moves(1, 1, 1)).results
    assert named_tensors_from_proto(results.observations)["total"][:, 0].tolist() == [11, 21, 31]


def test_request_of_another_number_is_refused(tally: Driver) -> None:
    begin(tally, 10)
    for number in (0, 2, 4, 2**64 - 1):
        response = tally.send(Request(number=number, **step_with()).SerializeToString())
        assert response.number == number
        assert response.refusal.text == f"number: expected 3, got {number}"
    assert named_tensors_from_proto(tally.step(moves(1)).results.observations)["total"].tolist() == [[11, 0.5]]


def test_message_that_is_no_request_is_refused(tally: Driver) -> None:
    begin(tally, 10)
    whole = Request(number=3, **step_with()).SerializeToString()
    for message in (b"\xff" * 20, whole[:-1], b"\x08", b"\x1a\x05ab"):
        assert tally.send(message).refusal.text.startswith("request: ")
    named = Request(number=3, reset={"rows": [0], "seeds": [1], "options_json": "é"}).SerializeToString()
    assert tally.send(named.replace("é".encode(), b"\xff\xff")).refusal.text.startswith("request: ")
    unknown = Request(number=3).SerializeToString() + b"\xfa\x01\x00"  # field 31
    assert tally.send(unknown).refusal.text.startswith("content: ")


def test_listening_host_serves_workers_with_rows_of_their_own(language: str) -> None:
    arguments = [*command(language, "tally"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", process.stdout.readline())
            assert found is not None
            address = ("127.0.0.1", int(found[1]))
            with closing(socket.create_connection(address)) as broken:
                Driver(broken)
                broken.sendall(struct.pack("<I", 2**32 - 1))
                assert broken.recv(1) == b""
            with closing(socket.create_connection(address)) as one, closing(socket.create_connection(address)) as other:
                drivers = [Driver(one), Driver(other)]
                begin(drivers[0], 10, 20)
                begin(drivers[1], 30)
                one.sendall(b"\x05\x00\x00\x00\x08")  # a part of a message, and then the end
                one.close()
                results = drivers[1].step(moves(1)).results
                assert named_tensors_from_proto(results.observations)["total"].tolist() == [[31, 0.5]]
            with closing(socket.create_connection(address)) as third:
                begin(Driver(third), 40)
        finally:
            process.kill()


@pytest.mark.parametrize("arguments", [[], ["--listen"], ["--listen", "nowhere"], ["--listen", "127.0.0.1:no"]])
def test_wrong_command_line_ends_with_status_2(language: str, arguments: list[str]) -> None:
    run = subprocess.run([*command(language, "tally"), *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert run.stderr
    assert not run.stdout
