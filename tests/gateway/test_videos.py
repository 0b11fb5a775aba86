"""Videos over RPC: the pictures of plain gymnasium, bounds, and what cannot be rendered."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ale_py
import grpc
import gymnasium
import numpy as np
import psutil
import pytest
from decoded_videos import decoded
from support import raises, server_environment

import rollserve
from rollserve import Reason
from rollserve.cli import main
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.tensors import tensor_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import sampler_service_pb2_grpc, tensor_pb2, video_pb2


@pytest.fixture(scope="module")
def video_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server with threads as workers that allows short and small videos."""
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "2", "--workers", "1")
    options += ("--backend", "in-process", "--allow-module", "sample_envs", "--max-video-frames", "60")
    options += ("--max-video-bytes", str(45 * 400 * 600 * 3), "--step-seconds", "3", "--seed", "5")
    log = tmp_path_factory.mktemp("server") / "server.log"
    with local_server(*options, log=log, environment=server_environment()) as running:
        yield running


@pytest.fixture
def sampler(video_server: LocalServer) -> Iterator[rollserve.Sampler]:
    video_server.reset()
    with rollserve.connect(video_server.address) as connected:
        connected.update_agent(rollserve.RandomAgent())
        yield connected


def plain_pictures(env_id: str, episode: rollserve.EpisodeBatch, **kwargs: Any) -> np.ndarray:
    """Return the pictures of an episode in a plain loop."""
    assert episode.env_seeds is not None
    env: gymnasium.Env[Any, Any] = gymnasium.make(env_id, render_mode="rgb_array", **kwargs)
    env.reset(seed=int(episode.env_seeds[0]))
    frames: list[Any] = [env.render()]
    for action in episode.actions:
        env.step(action)
        frames.append(env.render())
    env.close()
    return np.stack(frames)


def test_raw_pictures_of_a_batch_are_those_of_gymnasium(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(40, seed=3)
    for segment in (0, len(batch) - 1):
        video = sampler.render(batch, segment, format="raw")
        expected = plain_pictures("CartPole-v1", batch.split()[segment])
        assert np.array_equal(video.frames, expected)
        assert (video.fps, video.env_version) == (50, 1)


def test_sampled_episode_is_the_one_that_a_call_delivers(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(1, seed=9, first_episode_index=4)
    video = sampler.render(seed=9, index=4, format="raw")
    assert np.array_equal(video.frames, plain_pictures("CartPole-v1", batch))
    assert (video.seed, video.episode_index, video.policy_version) == (9, 4, 1)
    assert np.array_equal(sampler.render(batch, format="raw").frames, video.frames)


def test_episode_of_a_session_is_rendered(sampler: rollserve.Sampler) -> None:
    with sampler.drive(seed=3, fragment_length=8) as session:
        for number in range(40):
            session.policy_version = number // 5
            step = session.observe()
            session.step((np.arange(session.num_rows) + step.number) // 3 % 2)
    batch = session.batch()
    segment = int(np.flatnonzero(batch.first_steps)[0])
    fragments = batch.take(np.flatnonzero(batch.episode_indices == batch.episode_indices[segment])).split()
    expected = plain_pictures("CartPole-v1", rollserve.EpisodeBatch.concatenate(*fragments))
    assert len(fragments) > 2
    assert np.array_equal(sampler.render(batch, segment, format="raw").frames, expected)
    frames = batch.replay(segment, lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array"))
    assert np.array_equal(list(frames), expected)


def test_screens_of_a_game_are_those_of_gymnasium(sampler: rollserve.Sampler) -> None:
    gymnasium.register_envs(ale_py)
    sampler.update_env(rollserve.EnvSpec("ALE/Pong-v5", vectorization="rows"))
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(1, seed=3, first_episode_index=1, max_episode_length=40)
    expected = plain_pictures("ALE/Pong-v5", batch)
    assert np.array_equal(sampler.render(batch, format="raw").frames, expected)
    video = sampler.render(seed=3, index=1, max_episode_length=40, format="raw")
    assert np.array_equal(video.frames, expected)


def test_seed_is_the_own_one_by_default_and_the_own_sequence_goes_on(sampler: rollserve.Sampler) -> None:
    first = sampler.obtain_samples(1)
    video = sampler.render(index=0, format="raw")
    assert video.seed == 5
    assert np.array_equal(video.frames, plain_pictures("CartPole-v1", first.split()[0]))
    assert sampler.obtain_samples(1).episode_indices[0] == len(first)


def test_earlier_version_acts(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.ConstantAgent(0))
    assert sampler.render(seed=1, index=2, version=2).policy_version == 2
    random = sampler.render(seed=1, index=2, version=1, format="raw")
    assert random.num_frames == sampler.obtain_samples(1, seed=1, first_episode_index=2, policy_version=1).num_steps + 1


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_mp4_has_the_pictures_but_for_the_codec(sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch = sampler.obtain_samples(20, seed=3)
    video = sampler.render(batch, 0, fps=25)
    path = tmp_path / "video.mp4"
    path.write_bytes(video.data)
    codec, fps, frames = decoded(path)
    expected = plain_pictures("CartPole-v1", batch.split()[0])
    assert (codec, fps) == ("h264", 25)
    assert frames.shape == expected.shape
    assert max(np.abs(one.astype(int) - other).mean() for one, other in zip(frames, expected, strict=True)) < 2
    with raises(ValueError, match="format: expected raw, to have the pictures as an array, got mp4"):
        video.frames  # noqa: B018


def test_overlays_change_a_corner_alone(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env("CartPole-v1")
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, value="separate", seed=0)
    sampler.update_agent(agent)
    batch = sampler.obtain_samples(1, seed=3)
    plain = sampler.render(batch, format="raw").frames
    drawn = sampler.render(batch, format="raw", overlays=["step", "reward", "action", "value"]).frames
    assert all((one != other).any() for one, other in zip(plain, drawn, strict=True))
    assert np.array_equal(plain[:, 110:], drawn[:, 110:])
    assert len({frame[:110].tobytes() for frame in drawn}) == len(drawn)


def test_replay_with_other_actions_is_refused(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(1, seed=3)
    assert batch.env_seeds is not None
    mirrored = dataclasses.replace(batch, actions=1 - batch.actions)  # type: ignore[operator]
    with raises(rollserve.PreconditionError, reason=Reason.REPLAY_DIFFERS, match="observations before step 1"):
        sampler.render(mirrored)


def test_replay_that_ends_otherwise_is_refused(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(1, seed=3)
    changed = dataclasses.replace(batch, rewards=batch.rewards * 2)
    with raises(rollserve.PreconditionError, reason=Reason.REPLAY_DIFFERS, match="rewards: 2.0 at step 0"):
        sampler.render(changed)


def test_async_sampler_renders(video_server: LocalServer, sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(1, seed=3)

    async def render() -> rollserve.Video:
        async with rollserve.aconnect(video_server.address) as connected:
            return await connected.render(batch, format="raw")

    assert np.array_equal(asyncio.run(render()).frames, plain_pictures("CartPole-v1", batch))


def test_too_large_videos_are_refused(sampler: rollserve.Sampler) -> None:
    sampler.update_env("Pendulum-v1")
    sampler.update_agent(rollserve.RandomAgent())
    with raises(rollserve.LimitError, reason=Reason.VIDEO_TOO_LARGE, match="at most 60 pictures .* got 201"):
        sampler.render(seed=1, index=0)
    video = sampler.render(seed=1, index=0, max_episode_length=40, format="raw")
    assert video.frames.shape == (41, 500, 500, 3)
    with raises(rollserve.LimitError, reason=Reason.VIDEO_TOO_LARGE, match="--max-video-bytes"):
        sampler.render(seed=1, index=0, max_episode_length=55, format="raw")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"actions": np.array([0, 2, 1])}, r"recorded.actions\[''\]: expected actions in the space, got 2 at step 1"),
        ({"actions": np.zeros(3, np.float32)}, r"recorded.actions\[''\]: expected int64 of shape .*, got float32"),
        ({"actions": {"x": np.zeros(3, np.int64)}}, r"recorded.actions: expected actions of the leaves \[''\], got"),
    ],
)
def test_actions_of_another_space_are_refused(sampler: rollserve.Sampler, change: dict[str, Any], text: str) -> None:
    batch = sampler.obtain_samples(1, seed=3, max_episode_length=3)
    with raises(rollserve.InvalidArgumentError, match=text):
        sampler.render(dataclasses.replace(batch, **change))


def test_unknown_versions_are_refused(sampler: rollserve.Sampler) -> None:
    with raises(rollserve.PreconditionError, reason=Reason.POLICY_VERSION, match="sampled.policy_version"):
        sampler.render(seed=1, index=0, version=7)
    with raises(rollserve.PreconditionError, reason=Reason.ENVIRONMENT_VERSION, match="environment_version"):
        sampler.render(seed=1, index=0, env_version=7)


def rendered(sampler: rollserve.Sampler, trouble: str, **options: Any) -> rollserve.Video:
    """Render an episode of an environment that makes this trouble."""
    sampler.update_env(rollserve.EnvSpec("sample_envs:Rendered", {"trouble": trouble}, vectorization="rows"))
    sampler.update_agent(rollserve.RandomAgent())
    return sampler.render(seed=1, index=0, **options)


def test_nested_spaces_reset_options_and_transforms_are_replayed(sampler: rollserve.Sampler) -> None:
    spec = rollserve.EnvSpec(
        "sample_envs:Rendered",
        vectorization="rows",
        reset_options={"length": 5},
        transforms=[rollserve.transforms.ScaleRewards(0.5), rollserve.transforms.FlattenObservations()],
    )
    sampler.update_env(spec)
    sampler.update_agent(rollserve.RandomAgent())
    batch = sampler.obtain_samples(1, seed=1)
    video = sampler.render(batch, format="raw")
    assert (video.frames.shape, video.fps) == ((6, 33, 47, 3), 12)
    assert np.array_equal(video.frames, sampler.render(seed=1, index=0, format="raw").frames)
    assert [int(frame[0, 0, 1]) for frame in video.frames] == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize(
    ("trouble", "error", "reason", "text"),
    [
        ("mode", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, "no such mode"),
        ("nothing", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, "got NoneType"),
        ("gray", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, r"got uint8 of shape \(33, 47\)"),
        ("empty", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, r"got uint8 of shape \(0, 47, 3\)"),
        ("growing", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, r"\(34, 47, 3\) after .* \(33, 47, 3\)"),
        ("render", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, "no display"),
        ("exit", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, "SystemExit: 3"),
        ("interrupt", rollserve.InvalidArgumentError, Reason.ENV_NOT_RENDERABLE, "KeyboardInterrupt"),
        ("step", rollserve.ServerError, Reason.ENV_FAILED, "out of luck"),
        ("hang", rollserve.InvalidArgumentError, Reason.ENV_REFUSED, "a step took more than 3 s"),
        ("crash", rollserve.InvalidArgumentError, Reason.ENV_REFUSED, "ended its process when it was tried, in a step"),
        ("differ", rollserve.PreconditionError, Reason.REPLAY_DIFFERS, "observations before step 3"),
    ],
)
def test_trouble_of_rendering_is_named_and_disturbs_nobody(
    sampler: rollserve.Sampler, trouble: str, error: type[Exception], reason: Reason, text: str
) -> None:
    with raises(error, reason=reason, match=text):
        rendered(sampler, trouble)
    assert sampler.obtain_samples(20).num_steps >= 20
    assert all(worker.num_restarts == 0 for worker in sampler.status().workers)


def test_environments_that_cannot_be_replayed_one_by_one_are_refused(sampler: rollserve.Sampler) -> None:
    for env, text in (
        (rollserve.EnvSpec("CartPole-v1", vectorization="envpool"), "stepped one by one"),
        (rollserve.EnvSpec("sample_envs:Unseeded", vectorization="rows"), "class WORKER"),
    ):
        sampler.update_env(env)
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_NOT_RENDERABLE, match=text):
            sampler.render(seed=1, index=0)


def test_native_rows_are_stepped_one_by_one_for_a_video(sampler: rollserve.Sampler) -> None:
    sampler.update_agent(rollserve.RandomAgent())
    expected = sampler.obtain_samples(1, seed=8, first_episode_index=3)
    sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="native"))
    video = sampler.render(seed=8, index=3, format="raw")
    assert np.array_equal(video.frames, plain_pictures("CartPole-v1", expected))
    batch = sampler.obtain_samples(400, seed=8)
    with raises(rollserve.PreconditionError, reason=Reason.REPLAY_DIFFERS, match=r"class BLOCK .*vectorization='rows'"):
        sampler.render(batch, len(batch) - 1)


def test_many_agents_are_refused_by_name(sampler: rollserve.Sampler) -> None:
    sampler.update_env(rollserve.EnvSpec("sample_envs:crowd", multi_agent="parallel"))
    with raises(
        rollserve.InvalidArgumentError, reason=Reason.ENV_NOT_RENDERABLE, match="an environment with one agent"
    ):
        sampler.render(seed=1, index=0)


def test_call_that_is_cancelled_ends_its_process(video_server: LocalServer, sampler: rollserve.Sampler) -> None:
    with raises(rollserve.DeadlineError):
        rendered(sampler, "hang", timeout=1)
    children = psutil.Process(video_server.process.pid).children(recursive=True)
    deadline = time.monotonic() + 10
    while any(_is_probe(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_probe(process: psutil.Process) -> bool:
    """Whether a process renders: a fork of the process that forks them."""
    try:
        parent = process.parent()
        return parent is not None and "probing.child" in " ".join(parent.cmdline()) and process.status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def test_command_writes_a_video(
    video_server: LocalServer, sampler: rollserve.Sampler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "episode.mp4"
    command = ["video", video_server.address, "--episode", "2", "--seed", "1", "--overlay", "step", "--out", str(path)]
    assert main(command) == 0
    num_frames = sampler.obtain_samples(1, seed=1, first_episode_index=2).num_steps + 1
    shown = f"episode 2 of seed 1, policy version 1: {num_frames} pictures of 600 x 400, 50 per second"
    assert shown in capsys.readouterr().out
    assert path.read_bytes()[4:8] == b"ftyp"
    assert main([*command[:-1], str(tmp_path / "episode.gif")]) == 1
    assert "out: expected a file FILE.mp4" in capsys.readouterr().err
    assert main([*command, "--policy-version", "9"]) == 1
    assert "POLICY_VERSION" in capsys.readouterr().err


@pytest.mark.slow
def test_operator_may_allow_no_videos() -> None:
    with (
        local_server(
            "--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--max-renders", "0"
        ) as running,
        rollserve.connect(running.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        with raises(rollserve.LimitError, reason=Reason.TOO_MANY_CALLS, match="--max-renders"):
            sampler.render(index=0)


def test_others_wait_for_a_place(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(1, seed=3)
    with ThreadPoolExecutor(4) as threads:
        videos = list(threads.map(lambda _: sampler.render(batch, format="raw"), range(4)))
    assert all(np.array_equal(video.frames, videos[0].frames) for video in videos)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ValueError, "index: expected the index of an episode, or a batch, got neither"),
        ({"index": 0, "format": "gif"}, rollserve.InvalidArgumentError, r"format: expected one of \['mp4', 'raw'\]"),
        ({"index": 0, "overlays": ["sum"]}, rollserve.InvalidArgumentError, "overlays: expected some of"),
        ({"index": 0, "overlays": ["step", "step"]}, rollserve.InvalidArgumentError, r"overlays\[1\]: .* each once"),
        ({"index": 0, "fps": 0}, rollserve.InvalidArgumentError, "frames_per_second: expected a number from 0.001"),
        ({"index": 0, "fps": 1e-9}, rollserve.InvalidArgumentError, "frames_per_second: expected a number from 0.001"),
        ({"index": 0, "fps": 1e-320}, rollserve.InvalidArgumentError, "frames_per_second: expected a number from"),
        ({"index": 0, "overlays": ["value"]}, rollserve.InvalidArgumentError, "overlays: expected an episode with"),
        ({"index": 1 << 63}, rollserve.InvalidArgumentError, "sampled.episode_index: expected a number from 0"),
        ({"index": 0, "max_episode_length": 0}, rollserve.InvalidArgumentError, "sampled.max_episode_length"),
    ],
)
def test_malformed_requests_are_refused(
    sampler: rollserve.Sampler, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with raises(error, match=text):
        sampler.render(**arguments)


STEPS = tensor_to_proto(np.array([0, 1, 1]))


def recorded(**fields: Any) -> dict[str, Any]:
    """Return the fields of a request for an episode of three steps, with changes."""
    actions = [tensor_pb2.NamedTensor(tensor=STEPS)]
    return {"recorded": video_pb2.RecordedEpisode(**{"actions": actions, **fields})}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "episode: expected sampled or recorded, got none"),
        (recorded(actions=[]), r"recorded.actions: expected actions of the leaves \[''\], got \[\]"),
        (
            recorded(actions=[tensor_pb2.NamedTensor(tensor=tensor_to_proto(np.array(1)))]),
            r"recorded.actions\[''\]: expected an action for each step, got a single number",
        ),
        (recorded(rewards=tensor_to_proto(np.ones(2))), r"recorded.rewards: expected numbers of shape \(3,\)"),
        (recorded(values=tensor_to_proto(np.ones((3, 1)))), r"recorded.values: expected numbers of shape \(3,\)"),
        (recorded(observation_checksums=[1]), "recorded.observation_checksums: expected none, or 4, got 1"),
        ({**recorded(), "format": 0}, "format: expected VIDEO_FORMAT_RAW or VIDEO_FORMAT_MP4, got 0"),
        ({**recorded(), "overlays": [9]}, r"overlays\[0\]: expected one of VIDEO_OVERLAY_STEP, .* got 9"),
    ],
)
def test_malformed_messages_are_refused(
    video_server: LocalServer, sampler: rollserve.Sampler, fields: dict[str, Any], text: str
) -> None:
    request = pb.RenderEpisodeRequest(**{"format": video_pb2.VIDEO_FORMAT_RAW, **fields})
    with grpc.insecure_channel(video_server.address) as channel:
        with pytest.raises(grpc.RpcError, match=text) as caught:
            list(sampler_service_pb2_grpc.SamplerServiceStub(channel).RenderEpisode(request))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_actions_that_a_client_makes_up_are_rendered(video_server: LocalServer, sampler: rollserve.Sampler) -> None:
    request = pb.RenderEpisodeRequest(format=video_pb2.VIDEO_FORMAT_RAW, **recorded(environment_seed=4))
    with grpc.insecure_channel(video_server.address) as channel:
        render = sampler_service_pb2_grpc.SamplerServiceStub(channel).RenderEpisode
        data = b"".join(response.data for response in render(request))
        long = recorded(actions=[tensor_pb2.NamedTensor(tensor=tensor_to_proto(np.zeros(40, np.int64)))])
        with pytest.raises(grpc.RpcError, match="actions: 40 of them, but the episode ends after") as caught:
            list(render(pb.RenderEpisodeRequest(format=video_pb2.VIDEO_FORMAT_RAW, **long)))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    env: gymnasium.Env[Any, Any] = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=4)
    frames: list[Any] = [env.render()]
    for action in (0, 1, 1):
        env.step(action)
        frames.append(env.render())
    assert data == np.stack(frames).tobytes()


@pytest.mark.parametrize("library", ["osmesa", pytest.param("glfw", marks=pytest.mark.slow), "unknown"])
def test_mujoco_without_a_library_to_draw_is_sampled_and_names_it(library: str, tmp_path: Path) -> None:
    options = ("--env", "CartPole-v1", "--vectorization", "rows", "--rows", "1", "--workers", "1")
    # On machines that have these libraries, PyOpenGL has to use another one.
    variables = {"MUJOCO_GL": library, "PYOPENGL_PLATFORM": "none", "DISPLAY": ""}
    with (
        local_server(*options, "--backend", "in-process", log=tmp_path / "log", environment=variables) as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_env("HalfCheetah-v5", kwargs={"max_episode_steps": 3})
        sampler.update_agent(rollserve.RandomAgent())
        assert sampler.obtain_samples(3).num_steps == 3
        with raises(rollserve.InvalidArgumentError, reason=Reason.ENV_NOT_RENDERABLE, match="MUJOCO_GL=egl"):
            sampler.render(index=0, seed=1, format="raw")
        pictures = rollserve.Wrapper("AddRenderObservation")
        with raises(rollserve.InvalidArgumentError, match="MUJOCO_GL=egl"):
            sampler.update_env("HalfCheetah-v5", kwargs={"render_mode": "rgb_array"}, wrappers=[pictures])
