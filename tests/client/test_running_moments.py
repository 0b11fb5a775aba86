"""Running moments and returns beside numpy, and beside loops like Stable-Baselines3's VecNormalize."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import random_batch
from support import raises

import rollserve
from rollserve import RunningMoments, RunningReturns, spaces
from rollserve.agents import agent_to_proto, parameters_to_proto, with_moments
from rollserve_wire.moments import OrderedMoments, segment_moments


def random_rows(num_rows: int, seed: int = 0, shape: tuple[int, ...] = (3,), offset: float = 100.0) -> np.ndarray:
    return offset + np.random.default_rng(seed).normal(size=(num_rows, *shape))


def check_close(moments: RunningMoments, rows: np.ndarray) -> None:
    assert moments.count == len(rows)
    assert np.allclose(moments.mean, rows.mean(axis=0), rtol=1e-12, atol=0)
    assert np.allclose(moments.variance, rows.var(axis=0), rtol=1e-12, atol=1e-25)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), st.sampled_from([(), (1,), (3,), (2, 2)]))
def test_moments_of_any_parts_equal_those_of_all_rows(lengths: list[int], shape: tuple[int, ...]) -> None:
    rows = random_rows(sum(lengths) + 1, len(lengths), shape)
    moments = RunningMoments()
    for part in np.split(rows, np.cumsum(lengths)):
        moments.add(part)
    check_close(moments, rows)


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.int64, np.float16, np.float32])
def test_moments_are_computed_in_float64_of_any_numbers(dtype: Any) -> None:
    rows = (np.random.default_rng(0).random((500, 4)) * 200 > 100 if dtype is np.bool_ else 0) + (
        np.random.default_rng(1).integers(0, 200, (500, 4))
    ).astype(np.float64) * (dtype is not np.bool_)
    moments = RunningMoments()
    moments.add(rows.astype(dtype))
    assert moments.mean.dtype == np.float64  # type: ignore[union-attr]
    check_close(moments, rows.astype(dtype).astype(np.float64))


def test_moments_of_constant_numbers_are_exact() -> None:
    moments = RunningMoments()
    for _ in range(10):
        moments.add(np.full((777, 2), [0.1, 1e9 + 0.1]))
    assert np.array_equal(moments.mean, [0.1, 1e9 + 0.1])
    assert np.array_equal(moments.variance, [0, 0])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(1, 9))
def test_bits_depend_on_segments_and_their_order_alone(lengths: list[int], num_messages: int) -> None:
    rows = random_rows(sum(lengths), 3)
    segments = [[part] for part in np.split(rows, np.cumsum(lengths)[:-1])]
    together = segment_moments(segments, 3)
    one_by_one = np.concatenate([segment_moments([segment], 3) for segment in segments])
    assert np.array_equal(together, one_by_one)
    in_pieces = segment_moments([np.array_split(segment[0], min(len(segment[0]), 3)) for segment in segments], 3)
    assert np.array_equal(together, in_pieces)
    whole, parts = OrderedMoments(3), OrderedMoments(3)
    whole.add(together)
    for part in np.array_split(together, num_messages):
        parts.add(part)
    assert np.array_equal(whole.total(), parts.total())


@pytest.mark.parametrize(("num_rows", "size"), [(20_000, 64), (40, 40_000), (3, 600_000)])
def test_long_segments_and_many_of_them_are_merged_alike(num_rows: int, size: int) -> None:
    rows = random_rows(num_rows, 3, (size,)).astype(np.float32)
    lengths = np.array([num_rows - num_rows // 3, num_rows // 3])
    moments = RunningMoments.of_segments(rows, lengths)
    check_close(moments, rows.astype(np.float64))
    apart = [RunningMoments.of_segments(part, [len(part)]) for part in np.split(rows, lengths[:1])]
    apart[0].merge(apart[1])
    assert np.allclose(apart[0].m2, moments.m2, rtol=1e-12)


def test_many_segments_are_merged_in_groups_with_the_result_of_numpy() -> None:
    rows = random_rows(9000, 3, (2,))
    check_close(RunningMoments.of_segments(rows, np.full(3000, 3)), rows)


def test_merged_moments_are_of_leaves_by_name() -> None:
    rows = {"a": random_rows(50), "b/c": random_rows(50, 1, ())}
    moments, other = RunningMoments(), RunningMoments()
    moments.add({name: array[:20] for name, array in rows.items()})
    other.add({name: array[20:] for name, array in rows.items()})
    before = other.state()
    moments.merge(other)
    moments.merge(RunningMoments())
    assert moments.count == 50
    assert isinstance(moments.mean, dict)
    for name, array in rows.items():
        assert np.allclose(moments.mean[name], array.mean(axis=0), rtol=1e-12)
    assert all(np.array_equal(value, before[name]) for name, value in other.state().items())
    assert other.count == 30


def test_state_holds_everything() -> None:
    moments = RunningMoments()
    moments.add({"a": random_rows(50, 2, (2, 3)), "b": random_rows(50, 1, ())})
    state = moments.state()
    assert sorted(state) == ["count/a", "count/b", "m2/a", "m2/b", "mean/a", "mean/b"]
    again = RunningMoments.from_state(state)
    assert again == moments
    again.add({"a": random_rows(1, 2, (2, 3)), "b": random_rows(1, 1, ())})
    assert again != moments
    assert RunningMoments.from_state(RunningMoments().state()).count == 0


class VecNormalize:
    """Running mean and variance as Stable-Baselines3 updates them step by step, without its first count of 1e-4."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 0

    def update(self, array: np.ndarray) -> None:
        mean, var, count = array.mean(axis=0), array.var(axis=0), len(array)
        delta, total = mean - self.mean, self.count + count
        m2 = self.var * self.count + var * count + np.square(delta) * self.count * count / total
        self.mean, self.var, self.count = self.mean + delta * count / total, m2 / total, total


def rows_of(seed: int, num_steps: int = 60, num_rows: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return observations and rewards (steps, rows), and whether each step ends an episode."""
    source = np.random.default_rng(seed)
    dones = source.random((num_steps, num_rows)) < 0.15
    return source.normal(5, 3, (num_steps, num_rows, 3)), source.normal(1, 2, (num_steps, num_rows)), dones


def fragments_of(rewards: np.ndarray, dones: np.ndarray, start: int, stop: int) -> rollserve.EpisodeBatch:
    """Return the fragments of some steps of all rows, as a call delivers them."""
    segments: list[tuple[int, int, int, int]] = []  # row, first step, end, episode
    num_rows = rewards.shape[1]
    for row in range(num_rows):
        ends = [*(np.flatnonzero(dones[:, row]) + 1).tolist(), len(rewards)]
        begin = 0
        for number, end in enumerate(dict.fromkeys(ends)):
            if begin < stop and end > start:
                segments.append((row, begin, end, row + num_rows * number))
            begin = end
    parts = [(row, max(begin, start), min(end, stop)) for row, begin, end, _ in segments]
    ends_here = [end <= stop and bool(dones[end - 1, row]) for row, _, end, _ in segments]
    return rollserve.EpisodeBatch(
        observations=np.zeros((sum(last - first for _, first, last in parts), 1)),
        last_observations=np.zeros((len(parts), 1)),
        actions=np.zeros(sum(last - first for _, first, last in parts)),
        rewards=np.concatenate([rewards[first:last, row] for row, first, last in parts]),
        lengths=np.array([last - first for _, first, last in parts]),
        terminated=np.array(ends_here),
        truncated=np.zeros(len(parts), np.bool_),
        episode_indices=np.array([episode for *_, episode in segments]),
        first_steps=np.array([max(start - begin, 0) for _, begin, _, _ in segments]),
    )


@pytest.mark.parametrize("cuts", [(60,), (10, 25, 26, 60), tuple(range(1, 61))])
def test_returns_and_scaled_rewards_are_those_of_vec_normalize(cuts: tuple[int, ...]) -> None:
    _, rewards, dones = rows_of(1)
    expected, running = VecNormalize(()), np.zeros(rewards.shape[1])
    by_step = []
    for step in range(len(rewards)):
        running = running * 0.9 + rewards[step]
        by_step.append(running.copy())
        expected.update(running)
        running[dones[step]] = 0
    returns = RunningReturns(0.9)
    start = 0
    for stop in cuts:
        batch = fragments_of(rewards, dones, start, stop)
        got = returns.add(batch)
        wanted = fragments_of(np.array(by_step), dones, start, stop).rewards
        assert np.allclose(got, wanted, rtol=1e-12)
        start = stop
    assert returns.num_unknown_episodes == 0
    assert returns.moments.count == rewards.size
    assert np.allclose(returns.moments.variance, expected.var, rtol=1e-12)
    scaled = np.clip(batch.rewards / np.sqrt(expected.var + 1e-8), -0.8, 0.8)
    assert np.allclose(batch.scaled_rewards(returns.moments, clip=0.8), scaled, rtol=1e-12)
    assert (np.abs(scaled) == 0.8).any()
    changed = batch.with_scaled_rewards(returns.moments, clip=0.8)
    assert np.array_equal(changed.rewards, batch.scaled_rewards(returns.moments, clip=0.8))
    assert changed.raw_rewards is batch.rewards
    assert np.array_equal(changed.raw_returns, batch.returns)
    again = changed.with_scaled_rewards(returns.moments)
    assert again.raw_rewards is batch.rewards


def test_returns_of_parts_that_were_not_joined_continue() -> None:
    _, rewards, dones = rows_of(2)
    parts = [fragments_of(rewards, dones, start, start + 20) for start in (0, 20, 40)]
    apart, together = RunningReturns(0.9), RunningReturns(0.9)
    expected = np.concatenate([apart.add(part) for part in parts])
    assert np.allclose(together.add(rollserve.EpisodeBatch.concatenate(*parts)), expected, rtol=1e-12)


def test_episodes_without_a_beginning_are_counted() -> None:
    _, rewards, dones = rows_of(3)
    returns = RunningReturns(0.9)
    batch = fragments_of(rewards, dones, 20, 40)
    got = returns.add(batch)
    assert returns.num_unknown_episodes == np.count_nonzero(batch.first_steps) > 0
    assert got[0] == batch.rewards[0]


def test_normalized_observations_are_those_of_vec_normalize() -> None:
    observations, _, _ = rows_of(4)
    expected, moments = VecNormalize((3,)), RunningMoments()
    for step in observations:
        expected.update(step)
        moments.add(step)
    assert np.allclose(moments.mean, expected.mean, rtol=1e-12)
    assert np.allclose(moments.variance, expected.var, rtol=1e-12)
    flat = observations.reshape(-1, 3)
    assert np.array_equal(
        RunningMoments().normalized(flat, clip=4), np.clip(flat / np.sqrt(1 + 1e-8), -4, 4).astype(np.float32)
    )
    wanted = np.clip((flat - expected.mean) / np.sqrt(expected.var + 1e-8), -1.5, 1.5).astype(np.float32)
    got = moments.normalized(flat, clip=1.5)
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.float32
    assert np.allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("num_rows", [0, 9])
def test_normalized_leaves_without_moments_stay_as_they_are(num_rows: int) -> None:
    box = spaces.Box(np.float32(-1), np.float32(1), (2,), np.dtype(np.float32))
    many = spaces.MultiDiscrete(np.full(2, 20), np.zeros(2, np.int64), np.dtype(np.int64))
    space = spaces.Dict({"a": spaces.Discrete(30), "b": box, "c": many})
    moments = RunningMoments()
    moments.add({"b": random_rows(num_rows, shape=(2,), offset=0)})
    rows = {"a": np.arange(15, 18), "b": np.full((3, 2), 1e9), "c": np.full((3, 2), 12)}
    got = moments.normalized(rows, observation_space=space)
    assert isinstance(got, dict)
    assert np.array_equal(got["b"], np.full((3, 2), 10, np.float32))
    assert all(got[name] is rows[name] for name in ("a", "c"))
    with raises(ValueError, field="observation_space"):
        moments.normalized(rows, observation_space=box)


def test_parameters_follow_the_order_of_the_space() -> None:
    box = spaces.Box(np.float32(-1), np.float32(1), (2, 2), np.dtype(np.float32))
    space = spaces.Dict({"b": box, "a": spaces.Tuple((spaces.Discrete(3), box))})
    moments = RunningMoments()
    moments.add({"a/1": random_rows(9, 0, (2, 2)), "b": random_rows(9, 1, (2, 2))})
    got = moments.parameters(space)
    assert isinstance(moments.mean, dict)
    assert np.array_equal(got["observation/mean"], [*moments.mean["b"].ravel(), 0, 0, 0, *moments.mean["a/1"].ravel()])
    assert np.array_equal(got["observation/variance"][4:7], [1, 1, 1])
    assert moments.parameters()["observation/mean"].shape == (8,)
    with raises(ValueError, field="observation_space"):
        moments.parameters(box)


def test_wrong_values_are_refused() -> None:
    moments = RunningMoments()
    for read in (lambda: moments.mean, lambda: moments.variance, moments.parameters):
        with raises(ValueError, field="moments"):
            read()
    with raises(ValueError, field="values"):
        moments.add(np.array(["a"]))
    with raises(ValueError, field="values['x']"):
        moments.add({"x": np.float64(3)})  # type: ignore[dict-item]
    with raises(ValueError, field="values"):
        moments.add({"x": np.zeros(3), "y": np.zeros(4)})
    moments.add(np.zeros((3, 2)))
    before = moments.state()
    for other in (np.zeros((3, 4)), {"x": np.zeros((3, 2))}):
        with raises(ValueError, field="other"):
            moments.add(other)
    with raises(TypeError, field="other"):
        moments.merge(3)  # type: ignore[arg-type]
    assert RunningMoments.from_state(before) == moments
    with raises(ValueError, field="values"):
        moments.normalized(np.zeros((3, 4)))
    for name, value in (("m2/", -np.ones(2)), ("m2/", np.ones(3)), ("count/", np.array(-1)), ("count/", np.array(1.5))):
        with raises(ValueError, field=name.rstrip("/")):
            RunningMoments.from_state({**before, name: value})
    for state in ({"mean/": np.zeros(2)}, {**before, "more": np.zeros(2)}):
        with raises(ValueError, field="state"):
            RunningMoments.from_state(state)
    with raises(ValueError, field="discount"):
        RunningReturns(1.1)
    batch = random_batch([3], 0)
    with raises(ValueError, field="return_moments"):
        batch.scaled_rewards(moments)
    with raises(TypeError, field="return_moments"):
        batch.scaled_rewards(3)  # type: ignore[arg-type]
    single = RunningMoments()
    single.add(np.ones(3))
    with raises(ValueError, field="epsilon"):
        batch.scaled_rewards(single, epsilon=0)


AGENTS: dict[str, Any] = {
    "parameters": {"0/weight": np.zeros((2, 2), np.float32)},
    "mlp": rollserve.MlpAgent({"0/weight": np.zeros((2, 2), np.float32)}, "categorical"),
    "python": rollserve.PythonAgent("any", {}, {"x": np.zeros(2)}),
}


def message_of(update: Any) -> Any:
    return parameters_to_proto(update) if isinstance(update, dict) else agent_to_proto(update)


@pytest.mark.parametrize("kind", AGENTS)
def test_update_has_the_moments_among_its_parameters(kind: str) -> None:
    moments, update = RunningMoments(), AGENTS[kind]
    moments.add(random_rows(9, 0, (2,)))
    expected = {**getattr(update, "parameters", update), **moments.parameters()}
    whole = expected if kind == "parameters" else dataclasses.replace(update, parameters=expected)
    assert message_of(with_moments(update, moments)) == message_of(whole) != message_of(update)


def test_moments_of_no_step_make_an_mlp_normalize_by_mean_zero_and_variance_one() -> None:
    layers = {"0/weight": np.zeros((2, 5), np.float32), "0/bias": np.zeros(2, np.float32)}
    agent = rollserve.MlpAgent(layers, "categorical", previous_action=True, previous_reward=True)
    ones = {"observation/mean": np.zeros(2), "observation/variance": np.ones(2)}
    whole = dataclasses.replace(agent, parameters={**layers, **ones})
    for each in (agent, whole):
        assert message_of(with_moments(each, RunningMoments())) == message_of(whole)
    policies: Any = with_moments(rollserve.Policies({"main": agent}), {"main": RunningMoments()})
    assert message_of(policies.updates["main"]) == message_of(whole)


@pytest.mark.parametrize("num_rows", [0, 9])
def test_update_of_an_agent_without_such_parameters_is_refused(num_rows: int) -> None:
    moments = RunningMoments()
    moments.add(random_rows(num_rows, 0, (2,)))
    for agent in (rollserve.RandomAgent(), rollserve.OnnxAgent(b"model", "categorical")):
        with raises(TypeError, field="observation_moments"):
            with_moments(agent, moments)
    with raises(TypeError, field="observation_moments"):
        with_moments({}, 3)  # type: ignore[arg-type]
