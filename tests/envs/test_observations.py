"""Conversion of observations to their space, and environments that cannot be made or fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from scripted_env import SPEC, Sampling, Script, Scripted, sample
from support import raises

from rollserve import EnvSpec
from rollserve_server.envs import RowEnvs
from rollserve_server.errors import EnvFailedError, InvalidValueError
from rollserve_wire.columns import leaves_of

BOX = spaces.Box(-1, 1, (3,), np.float32)
INTEGERS = spaces.Box(0, 9, (2,), np.int32)
IMAGE = spaces.Box(0, 255, (2,), np.uint8)
NESTED = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(4), IMAGE)), "b": BOX})


@pytest.fixture(autouse=True)
def _script() -> Iterator[None]:
    Scripted.num_open = 0
    yield
    Scripted.script, Scripted.make = Script(), lambda: None


def nested(first: Any = 1, second: Any = (1, 2), third: Any = (0.0, 0.5, 1.0)) -> dict[str, Any]:
    return {"a": (first, second), "b": third}


WRONG = {
    "a number for an array": (BOX, np.float32(0.5), ("()", "(3,)")),
    "too few": (BOX, np.zeros(1, np.float32), ("(1,)", "(3,)")),
    "a row": (BOX, np.zeros((1, 3), np.float32), ("(1, 3)", "(3,)")),
    "floats for integers": (INTEGERS, np.array([1.9, 2]), ("float64", "int32")),
    "a list of floats": (INTEGERS, [1.0, 2.0], ("float64", "int32")),
    "beyond the type": (INTEGERS, np.array([1, 2**31]), ("2147483648", "int32")),
    "below the type": (IMAGE, np.array([3, -1]), ("-1", "uint8")),
    "complex numbers": (BOX, np.zeros(3, complex), ("complex128", "float32")),
    "texts": (INTEGERS, ["1", "2"], ("<U1", "int32")),
    "a float for a number": (spaces.Discrete(3), 1.9, ("float64", "int64")),
    "an array for a number": (spaces.Discrete(3), np.array([1]), ("(1,)", "()")),
    "a number too large": (spaces.Discrete(3), 2**70, ()),
    "in a leaf": (NESTED, nested(second=[1.5, 2]), ("'a/1'", "float64", "uint8")),
    "in a shape of a leaf": (NESTED, nested(third=0.0), ("'b'", "()", "(3,)")),
    "without a leaf": (
        NESTED,
        {"b": np.zeros(3)},
        ("observation 'a/0'", "returned from", "a dict with ['b']"),
    ),
}


@pytest.mark.parametrize("at", [0, 2], ids=["reset", "step"])
@pytest.mark.parametrize(("space", "wrong", "quotes"), WRONG.values(), ids=WRONG)
def test_wrong_observation_fails_the_episode(space: Any, wrong: Any, quotes: tuple[str, ...], at: int) -> None:
    right = nested() if space is NESTED else np.zeros(space.shape, space.dtype)
    Scripted.script = Script(3, observation=lambda step: wrong if step == at else right, observation_space=space)
    with raises(EnvFailedError, quotes=("episode 0", "step" if at else "reset", *quotes)):
        sample(1)


FITTING = {
    "rounded": (BOX, np.array([0.1, 0.2, 0.3])),
    "integers for floats": (BOX, np.array([1, 0, -1])),
    "lists": (BOX, [0.5, 0.25, 1]),
    "wider integers": (IMAGE, np.array([0, 255])),
    "truth values": (INTEGERS, np.array([True, False])),
    "another byte order": (INTEGERS, np.array([3, 4], ">i4")),
    "outside the bounds": (BOX, np.array([7, -7, np.inf], np.float32)),
    "not a number": (BOX, np.full(3, np.nan, np.float32)),
    "a number": (spaces.Discrete(3), 2),
    "a number of numpy": (spaces.Discrete(3), np.int32(2)),
    "a number in an array": (spaces.Discrete(3), np.array(2, np.uint8)),
    "a number in a small type": (spaces.Discrete(3, dtype=np.int8), 2),
    "a float": (spaces.Box(0, 1, (), np.float32), 0.1),
    "nested": (NESTED, nested(np.int64(3), np.array([1, 255], np.uint8), np.array([0.0, 0.5, 1.0], np.float32))),
    "nested lists": (NESTED, nested(3, [4, 5], [0.5, 0.5, 0.5])),
}


@pytest.mark.parametrize(("space", "observation"), FITTING.values(), ids=FITTING)
def test_observation_that_converts_without_loss_is_accepted(space: Any, observation: Any) -> None:
    Scripted.script = Script(2, observation=lambda step: observation, observation_space=space)
    batch, _ = sample(2)
    parts = (
        {"": observation}
        if space is not NESTED
        else {"a/0": observation["a"][0], "a/1": observation["a"][1], "b": observation["b"]}
    )
    leaves = leaves_of(batch.observations)
    assert leaves.keys() == parts.keys()
    for name, part in parts.items():
        expected = np.asarray(part).astype(leaves[name].dtype)
        assert np.array_equal(leaves[name], [expected] * 4, equal_nan=True)


NO_NUMBERS = {
    "nothing": ("reward", None, "NoneType"),
    "a text": ("reward", "1.5", "'1.5'"),
    "a complex number": ("reward", 1 + 2j, "1+2j"),
    "a complex number of numpy": ("reward", np.complex128(1), "1+0j"),
    "an integer beyond all floats": ("reward", 10**400, "int"),
    "an array": ("reward", np.ones(1), "(1,)"),
    "a list": ("reward", [1.0], "list"),
    "a flag that is a text": ("terminated", "False", "'False'"),
    "a flag that is not a number": ("terminated", np.nan, "nan"),
    "a flag that is nothing": ("truncated", None, "NoneType"),
    "a flag that is an array": ("truncated", np.zeros(1, np.bool_), "(1,)"),
    "infos that are a number": ("info", 3, "int"),
    "infos that are a list": ("info", [("a", 1)], "list"),
}


@pytest.mark.parametrize(("field", "value", "quote"), NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_step_fails_when_a_reward_flag_or_info_is_none(field: str, value: Any, quote: str) -> None:
    fine = {"reward": 1.0, "terminated": False, "truncated": False, "info": {}}[field]
    Scripted.script = Script(4, **{field: lambda step: value if step == 2 else fine})  # type: ignore[arg-type]
    with raises(EnvFailedError, quotes=("episode 0", "after 1 steps", f"{field}: expected", quote)):
        sample(1)


class Tensor:
    """A number in a tensor of another library, which numpy reads only on demand."""

    shape = ()

    def __init__(self, value: Any) -> None:
        self.item = lambda: value


@pytest.mark.parametrize("wrap", [np.asarray, np.float32, np.int64, Tensor], ids=lambda wrap: wrap.__name__)
def test_rewards_and_flags_may_be_numbers_of_arrays(wrap: Any) -> None:
    end = wrap(1) if wrap is not np.asarray else np.asarray(True)
    Scripted.script = Script(
        reward=lambda step: wrap(step), terminated=lambda step: np.False_, truncated=lambda step: step == 3 and end
    )
    batch, _ = sample(2)
    assert batch.rewards.tolist() == [1.0, 2.0, 3.0] * 2
    assert not batch.terminated.any()
    assert batch.truncated.all()


@pytest.mark.parametrize("num_rows", [1, 3])
def test_rewards_that_are_not_finite_fail_only_if_checked(num_rows: int) -> None:
    Scripted.script = Script(4, reward=lambda step: np.inf if step == 2 else 1.0)
    envs, rows, actions = RowEnvs(SPEC, num_rows), range(num_rows), [np.zeros(num_rows, np.int64)]
    for checked in (False, True):
        envs.checks_observations = checked
        for row in rows:
            envs.reset(row, 0)
        envs.step(rows, actions)
        envs.step(rows, actions)
        assert [failure.row for failure in envs.failures] == (list(rows) if checked else [])
        assert all("reward: expected a finite number, got inf" in failure.text for failure in envs.failures)
    envs.close()


def test_rows_may_share_arrays_and_infos() -> None:
    spec, num_rows = EnvSpec("scripted_env:Sharing"), 4
    envs, actions = RowEnvs(spec, num_rows), [np.zeros(num_rows, np.int64)]
    infos = [envs.reset(row, row) for row in range(num_rows)]
    found: list[Any] = []
    for _ in range(3):
        found.append((np.copy(envs.observations[0]), np.copy(envs.rewards), infos))
        infos = [info for _, info in envs.step(range(num_rows), actions)]
    for row in range(num_rows):
        alone = RowEnvs(spec, 1)
        info = alone.reset(0, row)
        for observations, rewards, all_infos in found:
            assert np.array_equal(observations[row], alone.observations[0][0])
            assert rewards[row] == alone.rewards[0]
            assert all_infos[row]["number"] == info["number"]
            assert np.array_equal(all_infos[row]["nested"]["array"], info["nested"]["array"])
            ((_, info),) = alone.step([0], [np.zeros(1, np.int64)])


def test_environments_with_an_unsupported_space_are_closed() -> None:
    Scripted.script = Script(observation_space=spaces.Sequence(spaces.Discrete(2)))
    with raises(InvalidValueError, field="id", quotes="Sequence"):
        RowEnvs(SPEC, 3)
    assert Scripted.num_open == 0


def fail_after(count: int) -> None:
    """Make all constructors raise after the next ones."""
    made = iter(range(count))

    def make() -> None:
        if next(made, None) is None:
            raise RuntimeError("no more of them")

    Scripted.make = make


def test_rows_are_closed_when_one_cannot_be_made() -> None:
    fail_after(2)
    with raises(InvalidValueError, field="id", quotes="no more of them"):
        RowEnvs(SPEC, 3)
    assert Scripted.num_open == 0


def test_failed_row_recovers_once_its_environment_can_be_made() -> None:
    Scripted.script = Script(3, observation=lambda step: [0.0] if step < 2 else [1.0, 2.0])
    fail_after(2)
    envs = RowEnvs(SPEC, 2)
    actions = [np.zeros(2, np.int64)]
    for row in range(2):
        envs.reset(row, 0)
    envs.step([0, 1], actions)
    envs.step([0, 1], actions)
    assert [failure.row for failure in envs.failures] == [0, 1]
    assert all("(2,)" in failure.message for failure in envs.failures)
    assert Scripted.num_open == 0
    for _ in range(2):
        with raises(EnvFailedError, quotes=("reset", "no more of them")):
            envs.reset(0, 0)
    Scripted.make = lambda: None
    envs.reset(1, 0)
    envs.reset(0, 0)
    envs.step([0, 1], actions)
    assert not envs.failures
    envs.close()
    assert Scripted.num_open == 0


def test_worker_continues_after_a_failed_episode() -> None:
    Scripted.script = Script(1, observation=lambda step: [0.0] * (1 + step))
    sampling = Sampling(num_rows=2)
    with pytest.raises(EnvFailedError):
        sampling.sample(2)
    sampling.worker.close_work(1)
    Scripted.script = Script()
    report, _ = sampling.sample(2)
    assert len(report.finished) == 2
    sampling.worker.close()
    assert Scripted.num_open == 0
