"""Infos of environments become columns, or are dropped and counted; they never make a call fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_env import Script, Scripted, sample

import rollserve
from rollserve_server.envs import RowEnvs
from rollserve_server.errors import EnvFailedError

Infos = Callable[[int], Mapping[Any, Any]]


def delivered(length: int, info: Infos, num_episodes: int = 1) -> tuple[rollserve.EpisodeBatch, Mapping[str, int]]:
    """Return episodes with these infos in each step and none at the reset, and the counts of dropped ones."""
    Scripted.script = Script(length, lambda step: info(step) if step else {})
    return sample(num_episodes)


class RefusesToBeAnArray:
    def __array__(self, *arguments: Any, **options: Any) -> np.ndarray:
        raise TypeError("no array")


def test_integers_beyond_int64_become_uint64() -> None:
    hashes = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 5]
    batch, dropped = delivered(len(hashes), lambda step: {"hash": hashes[step - 1]})
    assert batch.env_infos["hash"].dtype == np.uint64
    assert batch.env_infos["hash"].tolist() == hashes
    assert not dropped


def test_gaps_remain_when_integers_change_their_type() -> None:
    values = {1: 3, 3: 2**64 - 1, 4: True, 6: 4}
    batch, dropped = delivered(6, lambda step: {"n": values[step]} if step in values else {})
    assert batch.env_infos["n"].tolist() == [3, 0, 2**64 - 1, 1, 0, 4]
    assert batch.env_infos["_n"].tolist() == [True, False, True, True, False, True]
    assert not dropped


def test_integers_beyond_64_bits_are_dropped() -> None:
    values = [2**64, 1, -(2**63) - 1, -(2**63)]
    batch, dropped = delivered(4, lambda step: {"n": values[step - 1]})
    assert batch.env_infos["n"].dtype == np.int64
    assert batch.env_infos["n"].tolist() == [0, 1, 0, -(2**63)]
    assert batch.env_infos["_n"].tolist() == [False, True, False, True]
    assert dropped == {"n": 2}


def test_integers_without_a_common_type_are_dropped() -> None:
    batch, dropped = delivered(3, lambda step: {"n": [-1, 2**63, 7][step - 1], "fine": step})
    assert set(batch.env_infos) == {"fine"}
    assert dropped == {"n": 3}


def test_integers_that_floats_beside_them_would_change_are_dropped() -> None:
    batch, dropped = delivered(3, lambda step: {"n": [2**53 + 1, 0.5, 7][step - 1], "fine": [2**53, 0.5, 7][step - 1]})
    assert batch.env_infos["fine"].tolist() == [2.0**53, 0.5, 7.0]
    assert set(batch.env_infos) == {"fine"}
    assert dropped == {"n": 3}


def test_reset_infos_may_exceed_int64() -> None:
    Scripted.script = Script(1, lambda step: {"hash": 2**63 + 1, "too_big": 2**64})
    batch, dropped = sample(2)
    assert batch.episode_infos["hash"].tolist() == [2**63 + 1] * 2
    assert batch.episode_infos["hash"].dtype == np.uint64
    assert dropped == {"too_big": 4}


def test_infos_with_names_of_masks_are_dropped() -> None:
    def info(step: int) -> Mapping[str, Any]:
        return {"x": {"y": 1.5, "_z": 3}, "_x": {"y": 0.25}, "_lonely": 1} if step != 2 else {}

    batch, dropped = delivered(3, info)
    assert set(batch.env_infos) == {"x/y", "_x/y", "x/_z", "_x/_z"}
    assert batch.env_infos["x/y"].tolist() == [1.5, 0.0, 1.5]
    assert batch.env_infos["_x/y"].tolist() == [True, False, True]
    assert batch.env_infos["x/_z"].tolist() == [3, 0, 3]
    assert dropped == {"_x/y": 2, "_lonely": 2}


def test_first_of_several_infos_with_one_name_is_taken() -> None:
    infos = [{"a": {"b": 1}, "a/b": 2.5, 7: 1, "7": 2}, {"a/b": 3, "a": {"b": 4}}]
    batch, dropped = delivered(2, lambda step: infos[step - 1])
    assert batch.env_infos["a/b"].tolist() == [1, 3]
    assert batch.env_infos["7"].tolist() == [1, 0]
    assert dropped == {"a/b": 2, "7": 1}


def test_info_of_several_shapes_is_dropped_for_its_episode() -> None:
    values = iter([np.zeros(1), np.zeros(2), 1.0, np.ones(3), np.ones(3), np.ones(3)])
    Scripted.script = Script(3, lambda step: {"ragged": next(values), "fine": step} if step else {})
    # The first look at a new environment would consume some of the values.
    with mock.patch.object(RowEnvs, "classify", return_value=rollserve.Reproducibility.EPISODE):
        batch, dropped = sample(2, num_rows=1)
    assert batch.env_infos["fine"].tolist() == [1, 2, 3] * 2
    assert batch.env_infos["ragged"].tolist() == [[0.0] * 3] * 3 + [[1.0] * 3] * 3
    assert batch.env_infos["_ragged"].tolist() == [False] * 3 + [True] * 3
    assert dropped == {"ragged": 3}


@pytest.mark.parametrize("value", ["text", None, [1, [2]], object(), RefusesToBeAnArray(), 1j, np.datetime64("now")])
def test_infos_without_numbers_are_dropped(value: object) -> None:
    batch, dropped = delivered(2, lambda step: {"odd": value})
    assert not batch.env_infos
    assert dropped == {"odd": 2}


NUMBERS: list[Any] = [
    *(True, np.True_, 3, 2.5, np.float16(0.5), np.float32(0.1), np.int8(-3), np.uint8(200), np.uint64(2**64 - 1)),
    *([1, 2], np.arange(6.0).reshape(2, 3), np.zeros((0, 2)), np.array(3, ">i4"), np.array([], bool)),
    np.arange(10)[::2],
]


@pytest.mark.parametrize("value", NUMBERS, ids=repr)
@pytest.mark.parametrize("steps", [(1, 2, 3), (2,), (1, 3)], ids=repr)
def test_numbers_and_arrays_keep_their_type_and_shape(value: Any, steps: tuple[int, ...]) -> None:
    batch, dropped = delivered(3, lambda step: {"v": value} if step in steps else {})
    expected = np.asarray(value)
    column = batch.env_infos["v"]
    assert (column.dtype, column.shape) == (expected.dtype.newbyteorder("="), (3, *expected.shape))
    for step in (1, 2, 3):
        assert np.array_equal(column[step - 1], expected if step in steps else np.zeros_like(expected))
    assert batch.env_infos.get("_v", np.ones(3, bool)).tolist() == [step in steps for step in (1, 2, 3)]
    assert not dropped


def test_arrays_are_copied() -> None:
    array = np.zeros(2)

    def info(step: int) -> Mapping[str, Any]:
        array[:] = step
        return {"v": array}

    Scripted.script = Script(3, info)
    batch, _ = sample(1)
    assert batch.env_infos["v"].tolist() == [[1, 1], [2, 2], [3, 3]]
    assert batch.episode_infos["v"].tolist() == [[0, 0]]


class RefusesToBeNamed:
    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


def test_unreadable_infos_are_dropped() -> None:
    itself: dict[str, Any] = {"n": 1}
    itself["again"] = {"itself": itself}
    infos = {"fine": 2, "\udc80": 1.0, "nested": {"\udc80": 1.0, "b": 3}, RefusesToBeNamed(): 1, "itself": itself}
    batch, dropped = delivered(1, lambda step: infos)
    assert {name: column.tolist() for name, column in batch.env_infos.items() if name[0] != "_"} == {
        "fine": [2],
        "nested/b": [3],
        "itself/n": [1],
    }
    assert dropped == {"(unreadable)": 4}


@pytest.mark.parametrize("form", [list, iter, lambda outcome: outcome[:4], lambda outcome: None])
def test_step_must_return_five_values(form: Callable[[Any], Any]) -> None:
    step = Scripted.step
    with mock.patch.object(Scripted, "step", lambda self, action: form(step(self, action))):
        if form in (list, iter):
            batch, dropped = delivered(3, lambda step: {"n": step})
            assert batch.env_infos["n"].tolist() == [1, 2, 3]
            assert not dropped
        else:
            with pytest.raises(EnvFailedError, match="returned from step: expected observation, reward"):
                delivered(3, lambda step: {})


LEAVES = st.one_of(
    st.sampled_from([True, 1, -1, 2**63, 2**64, 0.5, "text", np.float32(0.25), np.int16(-7), np.True_]),
    st.sampled_from([(), (1,), (2, 2)]).map(lambda shape: np.full(shape, 4, np.uint8)),
)
NAMES = st.sampled_from(["a", "b", "_a", "a/b"])
INFOS = st.dictionaries(NAMES, LEAVES | st.dictionaries(NAMES, LEAVES, max_size=2), max_size=4)


@given(infos=st.lists(INFOS, min_size=1, max_size=8))
def test_every_info_is_delivered_or_counted_as_dropped(infos: list[dict[str, Any]]) -> None:
    batch, dropped = delivered(len(infos), lambda step: infos[step - 1])
    values = [list(flat(info)) for info in infos]
    missing: Counter[str] = Counter(name for step in values for name, _ in step)
    for name, column in batch.env_infos.items():
        if name[0] != "_":
            mask = batch.env_infos.get(f"_{name}", np.ones(len(infos), bool))
            for row in np.flatnonzero(mask):
                given_values = [value for other_name, value in values[row] if other_name == name]
                assert any(np.array_equal(column[row], np.asarray(value, column.dtype)) for value in given_values)
                missing[name] -= 1
    assert +missing == Counter(dropped)


def flat(info: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in info.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value
