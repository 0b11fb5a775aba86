"""EpisodeBatch: columns, what is derived from them, files, and invalid columns."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import equal, raises

from rollserve import ActionMask, EpisodeBatch, StepType
from rollserve_wire.gymnasium_spaces import space_of_gymnasium


def make(lengths: list[int], *, nested: bool = False, **changes: Any) -> EpisodeBatch:
    """Return a batch whose observation in step t of segment i is 100 i + t."""
    num_steps, num_segments = sum(lengths), len(lengths)
    values = np.concatenate([100.0 * i + np.arange(length) for i, length in enumerate(lengths)] or [np.zeros(0)])
    last = np.array([100.0 * i + length for i, length in enumerate(lengths)])
    observations: Any = np.stack([values, -values], axis=1)
    last_observations: Any = np.stack([last, -last], axis=1)
    if nested:
        observations = {"a": observations, "b/0": values}
        last_observations = {"a": last_observations, "b/0": last}
    columns: dict[str, Any] = {
        "observations": observations,
        "last_observations": last_observations,
        "actions": np.arange(num_steps),
        "rewards": np.ones(num_steps),
        "lengths": np.array(lengths, np.int64),
        "terminated": np.arange(num_segments) % 2 == 0,
        "truncated": np.arange(num_segments) % 3 == 1,
        "agent_infos": {"log_prob": values / 2},
        "env_infos": {"x": values, "_x": values % 2 == 0},
        "episode_infos": {"start": last},
        "initial_states": {"h": np.stack([last, -last], axis=1)},
    }
    return EpisodeBatch(**(columns | changes))


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def test_derived_columns() -> None:
    batch = make([3, 1, 2, 1])
    assert (len(batch), batch.num_steps) == (4, 7)
    assert batch.returns.tolist() == [3, 1, 2, 1]
    # Segments 0 and 2 terminate, 1 is truncated, 3 does neither: it is a fragment.
    first, mid, terminal, timeout = StepType
    assert batch.step_types.tolist() == [first, mid, terminal, timeout, first, terminal, first]
    assert batch.next_observations[:, 0].tolist() == [1, 2, 3, 101, 201, 202, 301]
    assert batch.valids.tolist() == [[True] * 3, [True, False, False], [True, True, False], [True, False, False]]
    padded = batch.padded("observations")
    assert padded.shape == (4, 3, 2)
    assert padded[2, :, 0].tolist() == [200, 201, 0]
    assert batch.padded("agent_infos")["log_prob"][0].tolist() == [0, 0.5, 1]
    assert batch.padded("step_types").dtype == np.uint8
    assert batch.padded("next_observations")[0, :, 0].tolist() == [1, 2, 3]
    assert repr(batch) == "EpisodeBatch(4 segments, 7 steps, 2 terminated, 1 truncated)"
    assert repr(make([3, 1])) == "EpisodeBatch(2 episodes, 4 steps, 1 terminated, 1 truncated)"
    assert repr(make([3, 1], first_steps=np.array([5, 0]))).startswith("EpisodeBatch(2 segments, ")


def test_step_type_is_terminal_for_both_flags_and_mid_for_neither() -> None:
    batch = make([2, 2], terminated=np.array([True, False]), truncated=np.array([True, False]))
    assert batch.step_types.tolist() == [StepType.FIRST, StepType.TERMINAL, StepType.FIRST, StepType.MID]
    going_on = dataclasses.replace(batch, first_steps=np.array([4, 6]))
    assert going_on.step_types.tolist() == [StepType.MID, StepType.TERMINAL, StepType.MID, StepType.MID]


@given(LENGTHS, st.booleans())
def test_concatenate_inverts_split(lengths: list[int], nested: bool) -> None:
    batch = make(lengths, nested=nested)
    parts = batch.split()
    assert [len(part) for part in parts] == [1] * len(lengths)
    assert [part.num_steps for part in parts] == lengths
    # `split` drops the mask of a segment without gaps, and `concatenate` restores it.
    assert equal(EpisodeBatch.concatenate(*parts), EpisodeBatch.concatenate(batch))


@given(LENGTHS, st.booleans())
def test_from_list_inverts_to_list(lengths: list[int], nested: bool) -> None:
    batch = make(lengths, nested=nested, env_infos={"x": np.arange(sum(lengths))})
    rows = batch.to_list()
    assert [len(row["rewards"]) for row in rows] == lengths
    # `episode_infos` have one value per segment.
    assert [row["episode_infos"]["start"] for row in rows] == [100 * i + length for i, length in enumerate(lengths)]
    assert equal(EpisodeBatch.from_list(rows), batch)


def test_from_list_names_missing_and_unknown_columns() -> None:
    row = {
        "observations": np.zeros((2, 3)),
        "last_observations": np.zeros(3),
        "actions": np.zeros(2, np.int64),
        "rewards": np.zeros(2),
        "terminated": True,
        "truncated": False,
    }
    batch = EpisodeBatch.from_list([row, row])
    assert batch.lengths.tolist() == [2, 2]
    assert batch.terminated.tolist() == [True, True]
    with raises(ValueError, quotes=("1", "rewards")):
        EpisodeBatch.from_list([row, {name: value for name, value in row.items() if name != "rewards"}])
    with raises(ValueError, quotes=("0", "dones")):
        EpisodeBatch.from_list([row | {"dones": True}])
    with raises(ValueError, quotes="batch"):
        EpisodeBatch.from_list([])


@given(LENGTHS, st.integers(1, 3))
def test_joined_restores_cut_episodes(lengths: list[int], size: int) -> None:
    """Messages cut episodes in this way."""
    batch = make(lengths, terminated=np.ones(len(lengths), np.bool_), env_infos={})
    pieces = []
    for episode in batch.split():
        length = int(episode.lengths[0])
        for start in range(0, length, size):
            stop = min(start + size, length)
            last = episode.last_observations if stop == length else episode.observations[stop : stop + 1]
            pieces.append(
                dataclasses.replace(
                    episode,
                    observations=episode.observations[start:stop],
                    last_observations=last,
                    actions=episode.actions[start:stop],
                    rewards=episode.rewards[start:stop],
                    agent_infos={"log_prob": episode.agent_infos["log_prob"][start:stop]},
                    lengths=np.array([stop - start]),
                    first_steps=np.array([start]),
                    terminated=episode.terminated & (stop == length),
                    truncated=episode.truncated & (stop == length),
                )
            )
    assert equal(EpisodeBatch.concatenate(*pieces).joined(), batch)


def test_joined_keeps_segments_apart_that_do_not_continue() -> None:
    ended = make([2, 2], first_steps=np.array([0, 2]), episode_indices=np.array([5, 5]))
    assert len(ended.joined()) == 2
    neither = np.zeros(2, np.bool_)
    fragments = dataclasses.replace(ended, terminated=neither, truncated=neither)
    assert len(fragments.joined()) == 1
    assert len(dataclasses.replace(fragments, first_steps=np.array([0, 3])).joined()) == 2
    assert len(dataclasses.replace(fragments, policy_versions=np.array([1, 2])).joined()) == 2
    assert len(dataclasses.replace(fragments, episode_indices=np.array([5, 6])).joined()) == 2


def test_concatenate_fills_missing_infos_with_gaps() -> None:
    one = make([2], env_infos={"x": np.array([1, 2])})
    other = make([1], env_infos={"y": np.array([[1.5, 2.5]])})
    both = EpisodeBatch.concatenate(one, other, one)
    assert both.env_infos["x"].tolist() == [1, 2, 0, 1, 2]
    assert both.env_infos["_x"].tolist() == [True, True, False, True, True]
    assert both.env_infos["y"].tolist() == [[0, 0], [0, 0], [1.5, 2.5], [0, 0], [0, 0]]
    assert both.env_infos["_y"].tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("name", "value", "field", "quotes"),
    [
        ("lengths", [3, 2], "lengths", "list"),
        ("lengths", np.array([[3, 2]]), "lengths", "(1, 2)"),
        ("lengths", np.array([3.0, 2.0]), "lengths", "float64"),
        ("lengths", np.array([5, 0]), "lengths", ("0", "1")),
        ("lengths", np.array([6, -1]), "lengths", ("-1", "1")),
        ("lengths", np.array([3, 3]), "lengths", ("6", "5")),
        ("rewards", np.ones((5, 1)), "rewards", "(5, 1)"),
        ("rewards", np.array(["a"] * 5), "rewards", "<U1"),
        ("observations", np.zeros((4, 2)), "observations", ("(4, 2)", "5")),
        ("observations", [0] * 5, "observations", "list"),
        ("observations", {"a": np.zeros((4, 2))}, "observations/a", ("(4, 2)", "5")),
        ("last_observations", np.zeros((3, 2)), "last_observations", ("(3, 2)", "2")),
        ("last_observations", np.zeros((2, 7)), "last_observations", ("(7,)", "(2,)")),
        ("last_observations", {"a": np.zeros((2, 2))}, "last_observations", ("['a']", "['']")),
        ("last_observations", np.zeros((2, 2), np.float32), "last_observations", ("float64", "float32")),
        ("observations", np.zeros((5, 2), np.uint8), "last_observations", ("uint8", "float64")),
        ("observations", np.array([["a", "b"]] * 5), "observations", "<U1"),
        ("last_observations", np.array([[b"a", b"b"]] * 2), "last_observations", "|S1"),
        ("actions", np.zeros(3), "actions", ("(3,)", "5")),
        ("actions", np.array([None] * 5), "actions", "object"),
        ("actions", np.array(["left"] * 5), "actions", "<U4"),
        ("actions", np.zeros(5, "V4"), "actions", "|V4"),
        ("actions", np.zeros(5, "m8[s]"), "actions", "timedelta64[s]"),
        ("agent_infos", {"log_prob": np.zeros(4)}, "agent_infos/log_prob", ("(4,)", "5")),
        ("env_infos", {"x": [1] * 5}, "env_infos/x", "list"),
        ("env_infos", {"x": np.array(["a"] * 5)}, "env_infos/x", "<U1"),
        ("env_infos", np.zeros(5), "env_infos", "ndarray"),
        ("episode_infos", {"x": np.zeros(5)}, "episode_infos/x", ("(5,)", "2")),
        ("terminated", np.array([0, 1]), "terminated", ("int64", "bool")),
        ("terminated", np.array([True]), "terminated", ("1", "2")),
        ("truncated", np.array([True] * 3), "truncated", ("3", "2")),
        ("policy_versions", np.zeros(3, np.int64), "policy_versions", ("3", "2")),
        ("first_steps", np.zeros(2), "first_steps", "float64"),
        ("env_seeds", np.zeros(3, np.int64), "env_seeds", ("3", "2")),
        ("env_seeds", np.array([1, 2**63], np.uint64), "env_seeds", (str(2**63), str(2**63 - 1))),
    ],
)
def test_misfit_column_is_rejected_by_name(name: str, value: Any, field: str, quotes: str | tuple[str, ...]) -> None:
    with raises(ValueError, field=field, quotes=quotes):
        dataclasses.replace(make([3, 2]), **{name: value})


def test_last_observations_keep_the_dtype_of_observations() -> None:
    row = {
        "observations": np.array([1, 2], np.uint8),
        "last_observations": 300.7,
        "actions": np.zeros(2, np.int64),
        "rewards": np.zeros(2),
        "terminated": True,
        "truncated": False,
    }
    with raises(ValueError, field="last_observations", quotes=("uint8", "float64")):
        EpisodeBatch.from_list([row])
    batch = EpisodeBatch.from_list([row | {"last_observations": np.uint8(3)}])
    assert batch.next_observations.dtype == np.uint8
    assert batch.next_observations.tolist() == [2, 3]
    nested = make([2], nested=True)
    last = dict(nested.last_observations, **{"b/0": np.array([300.7], np.float32)})
    with raises(ValueError, field="last_observations/b/0", quotes=("float64", "float32")):
        dataclasses.replace(nested, last_observations=last)


def test_concatenate_rejects_columns_that_differ() -> None:
    with raises(ValueError, field="observations", quotes=("['a', 'b/0']", "['']")):
        EpisodeBatch.concatenate(make([1]), make([1], nested=True))
    with raises(ValueError, field="actions"):
        EpisodeBatch.concatenate(make([1]), make([1], actions=np.zeros((1, 2))))
    with raises(ValueError, field="env_infos", quotes=("'x'", "(2,)")):
        EpisodeBatch.concatenate(make([1], env_infos={"x": np.zeros(1)}), make([1], env_infos={"x": np.zeros((1, 2))}))
    with raises(ValueError, quotes=("'reward'", "rewards")):
        make([1]).padded("reward")


@pytest.mark.parametrize("nested", [True, False])
def test_batch_survives_files_and_pickles(tmp_path: Path, nested: bool) -> None:
    batch = make([3, 1], nested=nested, env_seeds=np.array([4, 5]))
    batch.save(tmp_path / "batch.npz")
    assert equal(EpisodeBatch.load(tmp_path / "batch.npz"), batch)
    assert equal(pickle.loads(pickle.dumps(batch)), batch)
    np.savez(tmp_path / "other.npz", x=np.zeros(1))
    with raises(ValueError, field=str(tmp_path / "other.npz")):
        EpisodeBatch.load(tmp_path / "other.npz")


@pytest.mark.parametrize("dtype", [np.uint64, np.uint8, np.int32])
def test_integer_columns_may_have_any_integer_type(dtype: type[np.integer]) -> None:
    names = (
        "lengths",
        "policy_versions",
        "episode_indices",
        "first_steps",
        "env_seeds",
        "worker_indices",
        "row_indices",
    )
    expected = make(
        [3, 1, 2], env_seeds=np.array([4, 5, 6]), worker_indices=np.zeros(3, np.int64), row_indices=np.arange(3)
    )
    batch = dataclasses.replace(expected, **{name: getattr(expected, name).astype(dtype) for name in names})
    assert equal(batch, expected)
    assert batch.returns.tolist() == [3, 1, 2]
    assert batch.step_types.tolist() == expected.step_types.tolist()
    assert batch.next_observations.tolist() == expected.next_observations.tolist()
    assert [len(part.rewards) for part in batch.split()] == [3, 1, 2]
    assert equal(batch.without_first_steps(2), expected.without_first_steps(2))


@given(LENGTHS, st.data())
def test_without_first_steps_drops_steps(lengths: list[int], data: st.DataObject) -> None:
    batch = make(lengths)
    num_steps = data.draw(st.integers(0, sum(lengths)))
    rest = batch.without_first_steps(num_steps)
    assert rest.rewards.tolist() == batch.rewards[num_steps:].tolist()
    assert np.array_equal(rest.observations, batch.observations[num_steps:])
    assert rest.num_steps == rest.lengths.sum()
    # The rest has `first_steps` and `last_observations` that fit its steps.
    assert (rest.first_steps + rest.lengths).tolist() == lengths[len(lengths) - len(rest) :]
    assert (rest.first_steps[1:] == 0).all()
    for name in ("last_observations", "terminated", "truncated", "episode_indices"):
        assert np.array_equal(getattr(rest, name), getattr(batch, name)[len(lengths) - len(rest) :])
    assert batch.lengths.tolist() == lengths
    with raises(ValueError, quotes=(str(sum(lengths)), str(sum(lengths) + 1))):
        batch.without_first_steps(sum(lengths) + 1)


@pytest.mark.parametrize("name", ["a.npy", "empty", "text", "no.zip", "cut.npz", "pickled.npz", "missing.npz"])
def test_load_rejects_other_files(tmp_path: Path, name: str) -> None:
    batch = make([3, 1])
    path = tmp_path / name
    match name:
        case "a.npy":
            np.save(path, np.zeros(3))
        case "empty":
            path.touch()
        case "text":
            path.write_text("steps,return\n")
        case "no.zip":
            path.write_bytes(b"PK\x03\x04" + bytes(100))
        case "cut.npz":
            batch.save(path)
            path.write_bytes(path.read_bytes()[:-100])
        case "pickled.npz":
            np.savez(path, rewards=np.array([None]))
        case "missing.npz":
            np.savez(path, rewards=np.zeros(1))
    with raises(ValueError, field=str(path)) as caught:
        EpisodeBatch.load(path)
    assert name == "pickled.npz" or "pickle" not in str(caught.value)


def test_load_raises_when_the_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        EpisodeBatch.load(tmp_path / "batch.npz")


def test_batch_may_be_empty() -> None:
    batch = make([])
    assert (len(batch), batch.num_steps) == (0, 0)
    assert batch.returns.shape == batch.step_types.shape == (0,)
    assert batch.valids.shape == (0, 0)
    assert batch.split() == []
    assert str(batch).splitlines()[0] == repr(batch)
    rows: dict[str, Any] = make([], row_indices=np.zeros(0, np.int64)).as_rows()
    assert rows["observations"].shape == (0, 0, 2)
    assert len(batch.joined()) == 0


@pytest.mark.parametrize(
    ("first", "second", "dtype"),
    [
        (np.int64([2**53]), np.float32([0.5]), np.float64),
        (np.int64([2**53 + 1]), np.float64([0.5]), None),
        (np.int64([2**63 - 1]), np.uint64([2**64 - 1]), np.uint64),
        (np.int8([0]), np.uint64([2**53 + 1]), np.uint64),
        (np.int64([-1]), np.uint64([1]), None),
    ],
)
def test_concatenate_keeps_the_digits_of_integers(first: Any, second: Any, dtype: Any) -> None:
    batches = [make([1], agent_infos={"x": column}) for column in (first, second)]
    if dtype is None:
        with raises(ValueError, match="'x': expected numbers that one dtype can hold"):
            EpisodeBatch.concatenate(*batches)
    else:
        joined = EpisodeBatch.concatenate(*batches).agent_infos["x"]
        assert joined.dtype == dtype
        assert joined.tolist() == [first[0], second[0]]


def test_flat_observations_are_those_of_gymnasium() -> None:
    space = gymnasium.spaces.Dict(
        {
            "kind": gymnasium.spaces.Discrete(3, start=-1),
            "goal": gymnasium.spaces.Tuple(
                [gymnasium.spaces.MultiDiscrete([[2], [3]]), gymnasium.spaces.MultiBinary(2)]
            ),
            "image": gymnasium.spaces.Box(0, 255, (2, 2), np.uint8),
            "mask": gymnasium.spaces.MultiBinary(4),
        }
    )
    space.seed(0)
    drawn = [space.sample() for _ in range(5)]
    columns = {
        "kind": np.array([each["kind"] for each in drawn]),
        "goal/0": np.stack([each["goal"][0] for each in drawn]),
        "goal/1": np.stack([each["goal"][1] for each in drawn]),
        "image": np.stack([each["image"] for each in drawn]),
        "mask": np.stack([each["mask"] for each in drawn]),
    }
    batch = make(
        [4],
        observations={name: column[:4] for name, column in columns.items()},
        last_observations={name: column[4:] for name, column in columns.items()},
    )
    own = space_of_gymnasium(space)
    flat = batch.flat_observations(observation_space=own)
    assert flat.dtype == np.float32
    assert np.array_equal(flat, [gymnasium.spaces.flatten(space, each) for each in drawn[:4]])
    with_space = dataclasses.replace(batch, observation_space=own)
    assert np.array_equal(with_space.flat_observations(), flat)
    assert np.array_equal(
        with_space.flat_observations("last_observations")[0], gymnasium.spaces.flatten(space, drawn[4])
    )
    mask = ActionMask(observation="mask")
    assert np.array_equal(with_space.flat_observations(action_mask=mask), flat[:, :-4])
    with raises(ValueError, field="observations['kind']", match="give the space, or ask for it with return_spaces"):
        batch.flat_observations()
    with raises(ValueError, field="action_mask"):
        with_space.flat_observations(action_mask=ActionMask(observation="legal"))
    with raises(ValueError, field="name"):
        batch.flat_observations("actions")
