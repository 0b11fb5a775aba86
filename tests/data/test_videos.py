"""Replayed episodes as pictures and videos, and replays that are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from decoded_videos import decoded
from support import raises

import rollserve

# imageio-ffmpeg leaves the pipes of its process to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def cartpole(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", render_mode="rgb_array", **kwargs)


@pytest.fixture
def batch(thread_sampler: rollserve.Sampler) -> rollserve.EpisodeBatch:
    """A batch of whole episodes with random actions."""
    thread_sampler.update_agent(rollserve.RandomAgent())
    return thread_sampler.obtain_samples(40, seed=3)


def pictures(batch: rollserve.EpisodeBatch, position: int) -> list[np.ndarray]:
    """Return the pictures of an episode in a plain loop."""
    episode = batch.split()[position]
    assert episode.env_seeds is not None
    env = cartpole()
    env.reset(seed=int(episode.env_seeds[0]))
    frames: list[Any] = [env.render()]
    for action in episode.actions:
        env.step(action)
        frames.append(env.render())
    env.close()
    return frames


def test_pictures_are_those_of_a_plain_loop(batch: rollserve.EpisodeBatch) -> None:
    for position in (0, len(batch) - 1):
        frames = list(batch.replay(position, cartpole))
        assert len(frames) == batch.lengths[position] + 1
        assert all(map(np.array_equal, frames, pictures(batch, position)))
    assert np.array_equal(next(batch.replay(-1, cartpole)), frames[0])


def test_environment_is_closed(batch: rollserve.EpisodeBatch) -> None:
    closed = []

    class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
        def close(self) -> None:
            closed.append(True)
            super().close()

    frames = batch.replay(0, lambda: Watched(cartpole()))
    next(frames)
    frames.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_replays_that_differ_are_refused(batch: rollserve.EpisodeBatch) -> None:
    changed = dataclasses.replace(batch, actions=1 - batch.actions)  # type: ignore[operator]
    with raises(ValueError, match="replay: expected the recorded episode, got observations before step 1"):
        list(changed.replay(0, cartpole))
    with raises(ValueError, match="replay: expected the recorded episode, got rewards: 1.0 at step 0, replayed 0.0"):
        list(batch.replay(0, lambda: cartpole(sutton_barto_reward=True)))


def test_segments_that_cannot_be_replayed_are_refused(batch: rollserve.EpisodeBatch) -> None:
    with raises(ValueError, match="segment: expected an episode .* got one from step 5 on"):
        list(batch.cut(5).take([1]).replay(0, cartpole))
    with raises(ValueError, match="segment: expected an episode .* got one without a seed"):
        list(dataclasses.replace(batch, env_seeds=None).replay(0, cartpole))

        list(batch.replay(0, lambda: gymnasium.make("CartPole-v1")))
    with pytest.raises(IndexError, match=f"segment: expected a segment from 0 to {len(batch) - 1}, got {len(batch)}"):
        batch.replay(len(batch), cartpole)
    with pytest.raises(TypeError, match="make_env: expected a function that makes the environment"):
        batch.replay(0, cartpole())


def test_video_has_the_pictures(batch: rollserve.EpisodeBatch, tmp_path: Path) -> None:
    path = tmp_path / "episode.mp4"
    num_frames = rollserve.data.write_video(path, batch.replay(0, cartpole), fps=50)
    codec, fps, frames = decoded(path)
    assert (codec, fps) == ("h264", 50)
    expected = pictures(batch, 0)
    assert len(frames) == num_frames == len(expected)
    for frame, picture in zip(frames, expected, strict=True):
        assert np.abs(frame.astype(int) - picture).mean() < 2  # the codec's loss


def test_odd_sizes_get_an_edge(tmp_path: Path) -> None:
    path = tmp_path / "odd.mp4"
    rollserve.data.write_video(path, [np.full((33, 47, 3), 200, np.uint8)] * 3)
    assert decoded(path).frames[0].shape == (34, 48, 3)
    assert decoded(path).frames[0][:30, :44].min() > 190


@pytest.mark.parametrize(
    ("frames", "fps", "text"),
    [
        ([], 30, "frames: expected at least one picture, got none"),
        ([np.zeros((4, 4), np.uint8)], 30, "frames: expected uint8 of shape .*, got uint8 of shape"),
        (
            [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)],
            30,
            r"frames: expected uint8 of shape \(4, 4, 3\)",
        ),
        ([np.zeros((4, 4, 3))], 30, "frames: expected uint8 .*, got float64"),
        ([np.zeros((4, 4, 3), np.uint8)], 0, "fps: expected a positive number, got 0"),
    ],
)
def test_other_pictures_are_refused(tmp_path: Path, frames: list[Any], fps: float, text: str) -> None:
    with raises(ValueError, match=text):
        rollserve.data.write_video(tmp_path / "video.mp4", frames, fps=fps)


def test_path_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rollserve.data.write_video(tmp_path / "missing" / "video.mp4", [np.zeros((4, 4, 3), np.uint8)])


def test_video_that_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(b"before")
    with raises(ValueError, match="frames: expected uint8 of shape"):
        rollserve.data.write_video(path, [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 6, 3), np.uint8)])
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"before"]


def test_fps_of_another_type_is_refused(tmp_path: Path) -> None:
    with raises(TypeError, match="fps: expected a positive number, got str"):
        rollserve.data.write_video(tmp_path / "video.mp4", [], fps="a")  # type: ignore[arg-type]


def test_replay_says_that_seeds_of_blocks_make_no_episode(batch: rollserve.EpisodeBatch) -> None:
    """A batch of native rows has the seed of the block for each of its episodes."""
    assert batch.env_seeds is not None
    shared = dataclasses.replace(batch, env_seeds=np.full_like(batch.env_seeds, 3))
    with raises(
        ValueError, match="replay: expected .*, got observations before step 0: the environment is another one, or"
    ):
        list(shared.replay(0, cartpole))
