"""Recorded episodes in encoded messages, as protobuf's own parser reads them."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import batch_from_proto, equal, raises, read_batch

import rollserve
from rollserve_server.errors import OverLimitError
from rollserve_server.sampling import ColumnFormat
from rollserve_server.sampling.encode.encoder import Encoder, Encoding
from rollserve_server.sampling.encode.segments import SegmentContent, cut_into_messages
from rollserve_server.sampling.record import episodes as recorded_episodes
from rollserve_server.sampling.record.columns import ColumnKey
from rollserve_server.sampling.record.episodes import Episode, Recorder
from rollserve_server.sampling.record.infos import InfoKey, InfoReader
from rollserve_wire.v1 import sampler_service_pb2 as pb

KEYS: list[ColumnKey] = [
    ("observations", InfoKey("image", np.dtype(np.uint8), (3, 2))),
    ("observations", InfoKey("pose/0", np.dtype(np.float32), ())),
    ("actions", InfoKey("", np.dtype(np.int64), ())),
    ("rewards", InfoKey("", np.dtype(np.float64), ())),
    ("agent_infos", InfoKey("log_prob", np.dtype(np.float32), (2,))),
    ("states", InfoKey("h", np.dtype(np.float32), (3,))),
]


class Recording:
    """Random episodes of given lengths, recorded in rows, and the columns that they should have."""

    def __init__(self, lengths: list[int], num_rows: int, seed: int, info_shapes: list[tuple[int, ...]]) -> None:
        self.generator = np.random.default_rng(seed)
        self.random = random.Random(seed)
        self.num_rows = num_rows
        self.infos = InfoReader()
        self.recorder = Recorder(num_rows, KEYS, self.infos)
        self.info_shapes = info_shapes
        self.expected: dict[int, dict[str, Any]] = {}
        self.finished: dict[int, Episode] = {}
        pending = list(enumerate(lengths))
        running: dict[int, tuple[Episode, int]] = {}
        while pending or running:
            for row in range(num_rows):
                if row not in running and pending and self.random.random() < 0.7:
                    index, length = pending.pop(0)
                    running[row] = (self._begin(row, index), length)
            self._step(running)

    def _begin(self, row: int, index: int) -> Episode:
        info = {"start": index, "odd": float(index)} if index % 2 else {"start": index}
        episode = Episode.begin(index, 10 * index, self.infos.read_reset(info))
        self.recorder.begin(row, episode)
        self.expected[index] = {"steps": [], "infos": [], "reset": info}
        return episode

    def _step(self, running: dict[int, tuple[Episode, int]]) -> None:
        values = [self.generator.integers(0, 100, (self.num_rows, *key.shape)).astype(key.dtype) for _, key in KEYS]
        for group in dict.fromkeys(group for group, _ in KEYS):
            in_group = [value for (name, _), value in zip(KEYS, values, strict=True) if name == group]
            self.recorder.write(group, in_group)
        for row, (episode, length) in list(running.items()):
            record = self.expected[episode.index]
            record["steps"].append([value[row].copy() for value in values])
            info = self._info(episode.index)
            record["infos"].append(info)
            if info:
                self.recorder.write_infos(row, info)
            if len(record["steps"]) == length:
                del running[row]
                flags = self.random.choice([(True, False), (False, True), (True, True)])
                record["last"] = [self.generator.integers(0, 100, key.shape).astype(key.dtype) for _, key in KEYS[:2]]
                self.finished[episode.index] = self.recorder.finish(row, *flags, record["last"])
        self.recorder.advance()

    def _info(self, index: int) -> dict[str, Any]:
        info: dict[str, Any] = {}
        if self.random.random() < 0.6:
            info["sometimes"] = self.random.choice([1, 2.5]) if index % 3 else 7
        if self.info_shapes:
            info["nested"] = {"array": np.full(self.info_shapes[index % len(self.info_shapes)], index)}
        return info


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    num_rows=st.integers(1, 4),
    block_steps=st.integers(4, 40),
    limit=st.sampled_from([2500, 4096, 10_000, 1 << 20]),
    seed=st.integers(0, 1000),
    info_shapes=st.sampled_from([[], [(2,)], [(2,), (3,)]]),
    worker_index=st.sampled_from([None, 3]),
    all_states=st.booleans(),
)
def test_recorded_episodes_are_in_the_messages(
    lengths: list[int],
    num_rows: int,
    block_steps: int,
    limit: int,
    seed: int,
    info_shapes: list[tuple[int, ...]],
    worker_index: int | None,
    all_states: bool,
) -> None:
    with mock.patch.object(recorded_episodes, "_MAX_BUFFER_STEPS", block_steps):
        recording = Recording(lengths, num_rows, seed, info_shapes)
    in_order = [recording.finished[index] for index in range(len(lengths))]
    encoder, batches = Encoder(), []
    encoding = Encoding(policy_version=5, worker_index=worker_index, columns=ColumnFormat(all_states=all_states))
    for segments in cut_into_messages(in_order, limit, columns=encoding.columns):
        message = encoder.encode(SegmentContent(segments), encoding)
        assert message.num_bytes <= limit
        buffer = np.full(message.num_bytes + 5, 0xAA, np.uint8)
        message.write(buffer[3:-2])  # unaligned, as messages in a buffer are
        assert buffer[:3].tolist() == [0xAA] * 3
        data = buffer[3:-2].tobytes()
        batch = read_batch(data)
        assert equal(batch, batch_from_proto(pb.ObtainSamplesResponse.FromString(data).batch))
        info = message.place(3)
        assert (info.offset, info.size, info.num_steps) == (3, len(data), batch.num_steps)
        assert info.num_episodes == int((batch.terminated | batch.truncated).sum())
        assert ("state/h" in batch.agent_infos) == all_states
        batches.append(batch)
    check(recording, batches, worker_index)
    check_columns(batches)
    assert not any(episode.dropped_infos for episode in recording.finished.values())


def check_columns(batches: list[rollserve.EpisodeBatch]) -> None:
    """Check that an episode that continues in the next message has the same columns of the same types."""
    for one, following in itertools.pairwise(batches):
        if one.episode_indices[-1] == following.episode_indices[0] and len(one) == len(following) == 1:
            for group in ("env_infos", "episode_infos"):
                types, others = (
                    {name: column.dtype for name, column in getattr(batch, group).items() if name[0] != "_"}
                    for batch in (one, following)
                )
                assert types == others


def check(recording: Recording, batches: list[rollserve.EpisodeBatch], worker_index: int | None) -> None:
    if len(recording.info_shapes) < 2:
        batch = rollserve.EpisodeBatch.concatenate(*batches).joined()
        assert len(batch) == len(recording.finished)
        assert batch.env_seeds is not None
        assert batch.env_seeds.tolist() == [10 * index for index in range(len(batch))]
        assert (batch.policy_versions == 5).all()
        assert (batch.worker_indices is None) == (worker_index is None)
        whole = batch.split()
    else:  # the shape of an info varies, so batches cannot be joined
        whole = [episode for batch in batches for episode in batch.split()]
    for episode in whole:
        index, first = int(episode.episode_indices[0]), int(episode.first_steps[0])
        record = recording.expected[index]
        for step in range(episode.num_steps):
            image, pose, action, reward, log_prob, state = record["steps"][first + step]
            assert np.array_equal(episode.observations["image"][step], image)
            assert np.array_equal(episode.observations["pose/0"][step], pose)
            assert np.array_equal(episode.actions[step], action)
            assert np.array_equal(episode.rewards[step], reward)
            assert np.array_equal(episode.agent_infos["log_prob"][step], log_prob)
            if step == 0:
                assert np.array_equal(episode.initial_states["h"][0], state)
            if "state/h" in episode.agent_infos:
                assert np.array_equal(episode.agent_infos["state/h"][step], state)
            check_info(episode.env_infos, "sometimes", step, record["infos"][first + step].get("sometimes"))
            array = record["infos"][first + step].get("nested", {}).get("array")
            check_info(episode.env_infos, "nested/array", step, array)
        check_info(episode.episode_infos, "odd", 0, record["reset"].get("odd"))
        assert episode.episode_infos["start"][0] == index
        if first + episode.num_steps == len(record["steps"]):
            assert np.array_equal(episode.last_observations["image"][0], record["last"][0])
            assert episode.terminated[0] == recording.finished[index].terminated
            assert episode.truncated[0] == recording.finished[index].truncated
        else:
            assert np.array_equal(episode.last_observations["image"][0], record["steps"][first + episode.num_steps][0])
            assert not episode.terminated[0]
            assert not episode.truncated[0]


def check_info(infos: Any, name: str, row: int, expected: Any) -> None:
    if name not in infos:
        assert expected is None
    elif expected is None:
        assert not infos[f"_{name}"][row]
        assert not np.any(infos[name][row])
    else:
        assert np.array_equal(infos[name][row], expected)
        assert infos.get(f"_{name}", np.ones(row + 1))[row]


def test_step_larger_than_a_message_is_rejected_with_its_size() -> None:
    recording = Recording([3], 1, 0, [])
    with raises(OverLimitError, field="options.max_message_bytes", reason=rollserve.Reason.MESSAGE_TOO_SMALL) as caught:
        list(cut_into_messages([recording.finished[0]], 100))
    needed = max(map(int, re.findall(r"\d+", caught.value.text)))
    messages = list(cut_into_messages([recording.finished[0]], needed))
    assert [(segment.start, segment.stop) for (segment,) in messages] == [(0, 1), (1, 2), (2, 3)]
