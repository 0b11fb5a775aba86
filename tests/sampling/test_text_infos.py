"""Texts and other values without numbers among infos: what batches hold of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fragment_calls import MODULES, fragments, in_calls
from pools import pool_of, sample
from sample_envs import VariedInfos
from support import equal, raises
from unreliable import MortalBackend

import rollserve
from rollserve_server.agents import RandomSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, Exactly, InProcessBackend, RowUpdates
from rollserve_server.sampling import ColumnFormat
from rollserve_server.sampling.record.infos import InfoReader
from rollserve_wire.v1.tensor_pb2 import COMPRESSION_LZ4

VARIED = rollserve.EnvSpec("sample_envs:VariedInfos", {"max_length": 40}, text_info_bytes=8)
TEXTS = {"text": "text", "[1,[2]]": [1, [2]], "null": None}


def read(value: Any, num_bytes: int = 32) -> tuple[dict[str, Any], Mapping[str, int]]:
    """Return what a reader makes of an info `v`: columns by name, and the numbers of dropped values by name."""
    dropped: Counter[str] = Counter()
    values = InfoReader(num_bytes).read({"v": value}, dropped)
    return {key.name: bytes(array).rstrip(b"\0").decode() for key, array in values}, dropped


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        ("", "text/v", ""),
        ("größer 😀", "text/v", "größer 😀"),
        (np.str_("x"), "text/v", "x"),
        (None, "json/v", "null"),
        (["b", "a"], "json/v", '["b","a"]'),
        (("é", [1, 2.5, True]), "json/v", '["é",[1,2.5,true]]'),
        ([{"z": 1, "a": np.float32(0.5), "m": np.arange(2)}], "json/v", '[{"a":0.5,"m":[0,1],"z":1}]'),
        (np.array(["x", "yz"]), "json/v", '["x","yz"]'),
    ],
    ids=repr,
)
def test_values_without_numbers_become_texts(value: Any, column: str, text: str) -> None:
    assert read(value) == ({column: text}, {})


CIRCULAR: list[Any] = [""]
CIRCULAR.append(CIRCULAR)


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 33, "ä" * 17, "a\0", "\ud800", b"x", object(), 1j, {""}),
        *(
            ["x", float("nan")],
            ["x", float("inf")],
            [[-np.inf], ""],
            [{1: 2, "a": 3}, ""],
            [{None: 1, "a": 2}],
            CIRCULAR,
        ),
    ],
)
def test_values_that_are_too_long_or_no_json_are_dropped_and_counted(value: Any) -> None:
    assert read(value) == ({}, {"v": 1})


def check(batch: rollserve.EpisodeBatch) -> int:
    """Compare all infos of a batch with a plain run of the environment; return the number of texts."""
    env, num_texts, missing, row = VariedInfos(max_length=40), 0, Counter[str](), 0
    found, found_of_resets = rollserve.text_infos(batch.env_infos), rollserve.text_infos(batch.episode_infos)
    assert batch.env_seeds is not None
    segments = zip(batch.env_seeds, batch.first_steps, batch.lengths, strict=True)
    for segment, (seed, first, length) in enumerate(segments):
        _, info = env.reset(seed=int(seed))
        steps = [(info, batch.episode_infos, found_of_resets, segment)]
        for step in range(first + length):
            *_, info = env.step(2)
            if step >= first:
                steps.append((info, batch.env_infos, found, row))
                row += 1
        for info, columns, texts, position in steps:
            for name, value in info.items():
                if is_there(columns, name, position):
                    assert np.array_equal(columns[name][position], value)
                elif any(is_there(columns, f"{prefix}/{name}", position) for prefix in ("text", "json")):
                    assert texts[name][position] == value
                    num_texts += 1
                else:
                    missing[name] += 1
    assert batch.account.dropped_infos == missing
    return num_texts


def is_there(columns: Mapping[str, np.ndarray], name: str, row: int) -> bool:
    """Whether a column has a value in the row."""
    return name in columns and (f"_{name}" not in columns or bool(columns[f"_{name}"][row]))


async def test_texts_are_those_of_a_plain_loop_and_others_are_counted() -> None:
    async with pool_of(InProcessBackend(), VARIED, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        for batch in (await sample(pool, AtLeast(200), seed=3), await sample(pool, Exactly(9), seed=3)):
            assert check(batch) > 20
        assert check(await fragments(pool, 160, seed=3)) > 20


def texts_of_segments(batch: rollserve.EpisodeBatch) -> list[tuple[int, int, str]]:
    """Return the episode, the first step and the texts of each segment."""
    return [(int(part.episode_indices[0]), int(part.first_steps[0]), repr(found_in(part))) for part in batch.split()]


def found_in(part: rollserve.EpisodeBatch) -> list[tuple[str, list[Any]]]:
    """Return the texts of a segment, without names that only other segments have."""
    texts = rollserve.text_infos(part.env_infos)
    return sorted((name, values) for name, values in texts.items() if any(value is not None for value in values))


async def test_texts_are_the_same_with_any_workers_messages_and_deaths() -> None:
    whole, parts = [], []
    for seed, (num_workers, num_rows) in enumerate(((1, 6), (2, 3), (3, 2), (5, 1))):
        options: dict[str, Any] = {"workers": num_workers, "rows": num_rows, "unit_retries": 1000, **MODULES}
        async with pool_of(MortalBackend(seed, num_workers // 3), VARIED, **options) as pool:
            await pool.update_agent([RandomSpec()])
            columns = ColumnFormat(COMPRESSION_LZ4 if num_workers > 1 else None)
            limits: dict[str, Any] = {"columns": columns, "max_message_bytes": 8192 if num_workers > 2 else 1 << 22}
            whole.append(await sample(pool, AtLeast(300), seed=5, **limits))
            if num_workers * num_rows == 6:
                batches = await in_calls(pool, [13, 40], seed=6, **limits)
                assert sum(map(check, batches)) > 20
                parts.append(sorted(segment for batch in batches for segment in texts_of_segments(batch)))
    assert all(equal(batch, whole[0]) for batch in whole)
    assert parts[1:] == parts[:-1]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
async def test_native_rows_have_texts(mode: str) -> None:
    env = rollserve.EnvSpec("sample_envs:Infos-v0", {"mode": mode}, vectorization="native", text_info_bytes=4)
    async with pool_of(InProcessBackend(), env, workers=1, vectorization="native", **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        batches = [await sample(pool, AtLeast(60))]
        if mode == "SameStep":
            batches.append(await fragments(pool, 128))
        for batch in batches:
            texts, left = rollserve.text_infos(batch.env_infos), (batch.env_infos["steady"] - 0.25).astype(int).tolist()
            assert texts["word"] == [str(each) for each in left]
            assert texts["mixed"] == [None if each % 2 else "even" for each in left]


async def test_rows_and_workers_have_texts_of_one_size() -> None:
    other = dataclasses.replace(VARIED, text_info_bytes=16)
    async with pool_of(InProcessBackend(), VARIED, workers=2, rows=2, **MODULES) as pool:
        await pool.update_agent([RandomSpec()])
        with raises(InvalidValueError, field="text_info_bytes", quotes=("expected 8", "got 16")):
            await pool.update_env([VARIED, other], per_worker=True)
        with raises(InvalidValueError, field="text_info_bytes", quotes=("expected 8", "got 16")):
            await pool.update_env([RowUpdates((VARIED, other))])
        assert check(await sample(pool, AtLeast(100), seed=3))
        await pool.update_env([other])
        assert (await sample(pool, AtLeast(100), seed=3)).env_infos["text/odd"].shape[1:] == (16,)


def test_client_asks_for_texts(thread_sampler: rollserve.Sampler) -> None:
    thread_sampler.update_agent(rollserve.RandomAgent())
    thread_sampler.update_env(VARIED)
    batch = thread_sampler.obtain_samples(200, seed=3)
    assert check(batch) > 20
    part = rollserve.EpisodeBatch.concatenate(batch, dataclasses.replace(batch, env_infos={}))
    texts = rollserve.text_infos(batch.env_infos)
    assert rollserve.text_infos(part.env_infos)["odd"] == texts["odd"] + [None] * batch.num_steps
    thread_sampler.update_env(dataclasses.replace(VARIED, text_info_bytes=0))
    assert rollserve.text_infos(thread_sampler.obtain_samples(200, seed=3).env_infos) == {}
    with raises(
        rollserve.InvalidArgumentError, field="all_workers.environment.text_info_bytes", quotes=("65536", "65537")
    ):
        thread_sampler.update_env(dataclasses.replace(VARIED, text_info_bytes=65537))


def test_columns_of_such_a_name_that_are_no_texts_are_left_out() -> None:
    texts = np.frombuffer(b"ab\0cd\0", np.uint8).reshape(2, 3)
    others = {"text/number": np.zeros(2), "json/bytes": texts, "text/bytes": np.full((2, 3), 255, np.uint8)}
    assert rollserve.text_infos({**others, "text/own": texts}) == {"own": ["ab", "cd"]}
