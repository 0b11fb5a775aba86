"""Replay buffer, against a list of steps that remembers everything."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learner_batches import random_batch
from support import raises

import rollserve
from rollserve import EpisodeBatch, ReplayBuffer
from rollserve_wire.columns import leaves_of

STACK = (4, 16, 16)
"""Shape of stacks that are large enough to be kept frame by frame."""


class Rows:
    """Rows of environments that end, restart and are cut at random, as fragment calls deliver them.

    Each observation is random, so that none is mistaken for another. Kinds: numbers, stacks of frames, or nested with
    both. Of stacks, an episode begins with one frame four times, or with different frames.
    """

    def __init__(self, num_rows: int, seed: int, kind: str) -> None:
        self.generator = np.random.default_rng(seed)
        self.kind = kind
        self.next_episode = num_rows
        self.rows = [(row, 0, self.first()) for row in range(num_rows)]

    def first(self) -> Any:
        frame = self.generator.integers(0, 256, STACK[1:], np.uint8)
        frames = (
            np.stack([frame] * 4) if self.generator.random() < 0.5 else self.generator.integers(0, 9, STACK, np.uint8)
        )
        return self.of(frames, self.generator.normal(size=3).astype(np.float32))

    def after(self, observation: Any) -> Any:
        frame = self.generator.integers(0, 256, (1, *STACK[1:]), np.uint8)
        frames = None
        if self.kind != "numbers":
            older = observation if self.kind == "stacks" else observation["image"]
            frames = np.concatenate([older[1:], frame])
            if self.generator.random() < 0.1:  # a stack that does not continue the one before
                frames = self.generator.integers(0, 256, STACK, np.uint8)
        return self.of(frames, self.generator.normal(size=3).astype(np.float32))

    def of(self, frames: Any, numbers: np.ndarray) -> Any:
        return {"numbers": numbers, "stacks": frames, "nested": {"image": frames, "0/x": numbers}}[self.kind]

    def batch(self, num_steps: int, end: float) -> EpisodeBatch:
        """Return the next steps of each row; each step ends its episode with a probability."""
        segments = []
        for row, (episode, first, observation) in enumerate(self.rows):
            steps: list[Any] = []
            for step in range(num_steps):
                following = self.after(observation)
                steps.append(observation)
                terminated, truncated = self.generator.random(2) < end
                observation = following
                if terminated or truncated or step == num_steps - 1:
                    segments.append(self.segment(steps, following, episode, first, (terminated, truncated), row))
                    first, steps = first + len(steps), []
                    if terminated or truncated:
                        episode, first, observation = self.next_episode, 0, self.first()
                        self.next_episode += 1
            self.rows[row] = (episode, first, observation)
        self.generator.shuffle(segments)  # type: ignore[arg-type]
        # Segments of an episode stay in order: they have at most one per call.
        return EpisodeBatch.concatenate(*segments)

    def segment(
        self, steps: list[Any], last: Any, episode: int, first: int, ends: tuple[bool, bool], row: int
    ) -> EpisodeBatch:
        def stacked(values: list[Any]) -> Any:
            if isinstance(values[0], dict):
                return {name: np.stack([value[name] for value in values]) for name in values[0]}
            return np.stack(values)

        num_steps = len(steps)
        return EpisodeBatch(
            observations=stacked(steps),
            last_observations=stacked([last]),
            actions=self.generator.normal(size=(num_steps, 2)),
            rewards=self.generator.normal(size=num_steps),
            lengths=np.array([num_steps]),
            terminated=np.array([ends[0]]),
            truncated=np.array([ends[1]]),
            agent_infos={"log_prob": self.generator.normal(size=num_steps), "value": np.zeros(num_steps)},
            episode_indices=np.array([episode]),
            first_steps=np.array([first]),
            row_indices=np.array([row]),
        )


class Memory:
    """A list of all steps of all batches, with the values of each."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def add(self, batch: EpisodeBatch, capacity: int) -> None:
        batch = batch.without_first_steps(max(0, batch.num_steps - capacity))
        for part in batch.split():
            episode, first = int(part.episode_indices[0]), int(part.first_steps[0])
            for t in range(part.num_steps):
                ends = t + 1 == part.num_steps
                self.steps.append(
                    {
                        "key": (episode, first + t),
                        "observations": row(part.observations, t),
                        "next_observations": row(part.last_observations, 0) if ends else row(part.observations, t + 1),
                        "actions": part.actions[t],  # type: ignore[call-overload, index]
                        "reward": float(part.rewards[t]),
                        "terminated": bool(ends and part.terminated[0]),
                        "truncated": bool(ends and part.truncated[0]),
                        "log_prob": float(part.agent_infos["log_prob"][t]),
                    }
                )

    def kept(self, capacity: int) -> dict[tuple[int, int], dict[str, Any]]:
        return {step["key"]: step for step in self.steps[-capacity:]}


def row(columns: Any, position: int) -> dict[str, np.ndarray]:
    return {name: array[position] for name, array in leaves_of(columns).items()}


def check_transitions(found: rollserve.Transitions, memory: Memory, capacity: int, n: int, gamma: float) -> None:
    """Check each transition against the list, walking from step to step of its episode."""
    kept = memory.kept(capacity)
    for position, index in enumerate(found.indices.tolist()):
        assert len(memory.steps) - capacity <= index < len(memory.steps)
        first = last = memory.steps[index]
        rewards, length = first["reward"], 1
        while length < n and not (last["terminated"] or last["truncated"]):
            following = kept.get((last["key"][0], last["key"][1] + 1))
            if following is None:
                break
            rewards += gamma**length * following["reward"]
            last, length = following, length + 1
        for name, step in (("observations", first), ("next_observations", last)):
            columns = leaves_of(getattr(found, name))
            assert columns.keys() == step[name].keys()
            for leaf, array in columns.items():
                assert array.dtype == step[name][leaf].dtype
                assert array[position].tobytes() == step[name][leaf].tobytes()
        assert np.array_equal(found.actions[position], first["actions"])  # type: ignore[call-overload, index]
        assert np.isclose(found.rewards[position], rewards)
        assert found.terminated[position] == last["terminated"]
        assert found.truncated[position] == last["truncated"]
        assert found.lengths[position] == length
        assert found.agent_infos["log_prob"][position] == first["log_prob"]


@given(
    st.integers(1, 40),
    st.integers(0, 99),
    st.sampled_from(["numbers", "stacks", "nested"]),
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0.1, 0.9])), min_size=1, max_size=8),
    st.integers(1, 4),
    st.booleans(),
)
def test_buffer_equals_a_list_of_steps(
    capacity: int, seed: int, kind: str, calls: list[tuple[int, float]], n: int, is_prioritized: bool
) -> None:
    rows, memory = Rows(3, seed, kind), Memory()
    buffer = ReplayBuffer(capacity, priority_exponent=0.6 if is_prioritized else None, agent_infos=["log_prob"])
    generator = np.random.default_rng(seed)
    for num_steps, end in calls:
        batch = rows.batch(num_steps, end)
        memory.add(batch, capacity)
        buffer.add(batch)
        assert len(buffer) == min(capacity, len(memory.steps))
        check_transitions(buffer.sample(30, generator, n=n, gamma=0.9), memory, capacity, n, 0.9)


def test_uniform_samples_reach_all_steps_alike() -> None:
    rows, memory = Rows(2, 0, "numbers"), Memory()
    buffer = ReplayBuffer(10, agent_infos=["log_prob"])
    for _ in range(4):
        batch = rows.batch(4, 0.2)
        memory.add(batch, 10)
        buffer.add(batch)
    counts = np.bincount(buffer.sample(50_000, np.random.default_rng(0)).indices, minlength=32)
    assert not counts[:22].any()
    # 5,000 are expected of each; a standard deviation is 67.
    assert np.abs(counts[22:] - 5_000).max() < 5 * 67


def test_samples_follow_the_generator() -> None:
    buffer = ReplayBuffer(100)
    buffer.add(random_batch([30, 30], 0))
    one, same, other = (buffer.sample(9, np.random.default_rng(seed)).indices.tolist() for seed in (1, 1, 2))
    assert one == same != other


def test_frames_are_kept_once() -> None:
    rows = Rows(4, 1, "stacks")
    buffer = ReplayBuffer(4_000)
    num_segments = num_steps = 0
    while num_steps < 12_000:
        batch = rows.batch(100, 0.01)
        buffer.add(batch)
        num_steps, num_segments = num_steps + batch.num_steps, num_segments + len(batch)
    raw = 2 * 4_000 * 4 * 256  # observations before and after each step
    # Each step adds a frame, and a tenth of the steps four, as do beginnings; the pool has an eighth to spare. Beside
    # frames are 64 + 2 * 8 bytes of references for each step, and its columns.
    assert buffer.nbytes < raw / 8 * 2 + 4_000 * 150
    assert buffer.nbytes > raw / 8


def test_memory_does_not_grow_once_the_buffer_is_full() -> None:
    rows = Rows(4, 1, "nested")
    buffer = ReplayBuffer(500)
    sizes = []
    for _ in range(60):
        buffer.add(rows.batch(25, 0.05))
        sizes.append(buffer.nbytes)
    # Of 500 steps, the number of frames varies with the number of beginnings among them.
    assert sizes[-1] < 1.3 * sizes[6]


def test_views_of_a_stream_are_kept_like_copies() -> None:
    """Observations of a message with one segment are a view in which stacks share their frames."""
    frames = np.random.default_rng(0).integers(0, 256, (24, *STACK[1:]), np.uint8)
    view = np.lib.stride_tricks.as_strided(frames, (20, *STACK), (frames.strides[0], *frames.strides))
    columns: dict[str, Any] = {
        "last_observations": frames[np.newaxis, 20:],
        "actions": np.arange(20),
        "rewards": np.arange(20.0),
        "lengths": np.array([20]),
        "terminated": np.array([False]),
        "truncated": np.array([True]),
    }
    kept = []
    for observations in (view, view.copy()):
        buffer = ReplayBuffer(20)
        buffer.add(EpisodeBatch(observations=observations, **columns))
        found = buffer.sample(100, np.random.default_rng(0))
        assert np.array_equal(found.observations, view[found.indices])
        kept.append((buffer.nbytes, found.next_observations.tobytes()))  # type: ignore[union-attr]
    assert kept[0] == kept[1]


def test_stacks_of_a_real_environment_are_kept_frame_by_frame(sampler: rollserve.Sampler) -> None:
    wrappers = (
        rollserve.Wrapper("AtariPreprocessing"),
        rollserve.Wrapper("FrameStackObservation", {"stack_size": 4}),
    )
    sampler.update_env("ALE/Pong-v5", kwargs={"frameskip": 1}, wrappers=wrappers)
    sampler.update_agent(rollserve.RandomAgent())
    buffer = ReplayBuffer(400)
    expected: list[EpisodeBatch] = []
    for _ in range(3):
        expected.append(sampler.obtain_fragments(160))
        buffer.add(expected[-1])
    found = buffer.sample(200, np.random.default_rng(0))
    batch = EpisodeBatch.concatenate(*expected)
    assert np.array_equal(found.observations, batch.observations[found.indices])  # type: ignore[call-overload, index]
    assert np.array_equal(found.next_observations, batch.next_observations[found.indices])  # type: ignore[call-overload, index]
    raw = buffer.capacity * 4 * 84 * 84
    assert buffer.nbytes < raw / 2


def test_buffer_joins_fragments_only_if_their_observations_meet() -> None:
    first = random_batch([3], 0, first_steps=np.array([0]), terminated=np.array([False]), truncated=np.array([False]))
    following = dataclasses.replace(
        first,
        first_steps=np.array([3]),
        observations=np.array([[3.0, -3], [4, -4], [5, -5]]),
        last_observations=np.array([[6.0, -6]]),
    )
    stranger = dataclasses.replace(following, observations=following.observations + 1)  # type: ignore[operator]
    lengths = {}
    for name, later in (("following", following), ("stranger", stranger)):
        buffer = ReplayBuffer(10)
        buffer.add(first)
        buffer.add(later)
        found = buffer.sample(200, np.random.default_rng(0), n=6, gamma=1)
        lengths[name] = dict(zip(found.indices.tolist(), found.lengths.tolist(), strict=True))
    assert lengths["following"] == {0: 6, 1: 5, 2: 4, 3: 3, 4: 2, 5: 1}
    assert lengths["stranger"] == {0: 3, 1: 2, 2: 1, 3: 3, 4: 2, 5: 1}


@pytest.mark.parametrize("kind", ["numbers", "nested"])
def test_pickled_buffer_continues(kind: str) -> None:
    rows = Rows(3, 0, kind)
    buffer = ReplayBuffer(60, priority_exponent=0.5, agent_infos=["log_prob"])
    memory = Memory()
    for call in range(8):
        batch = rows.batch(7, 0.1)
        memory.add(batch, 60)
        buffer.add(batch)
        if call % 2:
            buffer = pickle.loads(pickle.dumps(buffer))
        check_transitions(buffer.sample(60, np.random.default_rng(0), n=3, gamma=0.9), memory, 60, 3, 0.9)


def test_buffer_refuses_batches_of_other_columns_and_stays_as_it_was() -> None:
    buffer = ReplayBuffer(10, agent_infos=["log_prob"])
    buffer.add(random_batch([4], 0))
    before = buffer.sample(50, np.random.default_rng(0))
    for changes, field in (
        ({"actions": np.zeros((4, 2))}, "actions"),
        ({"rewards": np.zeros(4, np.float32)}, "rewards"),
        ({"observations": np.zeros((4, 3)), "last_observations": np.zeros((1, 3))}, "observations"),
        ({"agent_infos": {}}, "agent_infos['log_prob']"),
        ({"actions": {"a": np.zeros(4)}}, "batch"),
    ):
        with raises(ValueError, field=field):
            buffer.add(random_batch([4], 0, **changes))
    with raises(TypeError, field="batch"):
        buffer.add({"rewards": np.zeros(4)})  # type: ignore[arg-type]
    buffer.add(random_batch([], 0))
    assert len(buffer) == 4
    after = buffer.sample(50, np.random.default_rng(0))
    assert before.rewards.tobytes() == after.rewards.tobytes()


def test_buffer_rejects_invalid_arguments() -> None:
    with raises(ValueError, field="capacity"):
        ReplayBuffer(0)
    with raises(TypeError, field="agent_infos"):
        ReplayBuffer(5, agent_infos="log_prob")
    with raises(ValueError, field="priority_exponent"):
        ReplayBuffer(5, priority_exponent=1.5)
    buffer = ReplayBuffer(5)
    with raises(ValueError, field="buffer"):
        buffer.sample(2, np.random.default_rng(0))
    buffer.add(random_batch([3], 0))
    with raises(TypeError, field="generator"):
        buffer.sample(2, 0)  # type: ignore[arg-type]
    with raises(ValueError, field="gamma"):
        buffer.sample(2, np.random.default_rng(0), n=2)
    with raises(ValueError, field="priority_exponent"):
        buffer.update_priorities([0], [1.0])
