"""Transforms of rewards, actions and observations, compared with gymnasium's wrappers and between kinds of rows."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from pools import pool_of, sample
from scripted_server import scripted_server
from support import HELPERS, equal, raises, server_environment
from unreliable import MortalBackend

import rollserve
from rollserve import EnvSpec, Reason, Wrapper
from rollserve.transforms import (
    CastObservations,
    ClipActions,
    ClipRewards,
    CropObservations,
    FlattenObservations,
    GrayscaleObservations,
    RescaleActions,
    RescaleObservations,
    ResizeObservations,
    ScaleObservations,
    ScaleRewards,
    SignRewards,
    Transform,
)
from rollserve_server.agents import ConstantSpec, RandomSpec
from rollserve_server.local import LocalServer, local_server
from rollserve_server.pool import AtLeast, Exactly, Fragments, InProcessBackend
from rollserve_wire.columns import leaves_of
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

PICTURES = "sample_envs:Pictures-v0"
NESTED = {"nested": True}
KINDS = ["rows", "native"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    log = tmp_path_factory.mktemp("transforms") / "log"
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--rows", "3", "--native-rows", "3")
    allowed = ("--allow-module", "sample_envs")
    with local_server(*options, *allowed, log=log, environment=server_environment()) as running:
        yield running
    assert "Traceback" not in log.read_text()


@pytest.fixture
def sampler(server: LocalServer) -> Iterator[rollserve.Sampler]:
    with rollserve.connect(server.address) as connected:
        yield connected


def use(sampler: rollserve.Sampler, *transforms: Transform, env: str = PICTURES, **options: Any) -> rollserve.EnvUpdate:
    """Set the environment with transforms, and an agent that acts at random."""
    updated = sampler.update_env(EnvSpec(env, transforms=transforms, **options))
    sampler.update_agent(rollserve.RandomAgent())
    return updated


def plain(wrap: Callable[[Any], Any] = lambda env: env, env: str = PICTURES, **kwargs: Any) -> Any:
    """Return the environment as gymnasium makes it, in a wrapper."""
    if str(HELPERS) not in sys.path:
        sys.path.insert(0, str(HELPERS))
    return wrap(gymnasium.make(env, disable_env_checker=True, **kwargs))


def same(one: Any, other: Any) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def leaf_values(observation: Any) -> dict[str, Any]:
    """Return the values of an observation by the names of its leaves."""
    if isinstance(observation, dict | tuple):
        items = observation.items() if isinstance(observation, dict) else enumerate(observation)
        parts = {str(key): leaf_values(part) for key, part in items}
        return {f"{key}/{name}" if name else key: part for key, each in parts.items() for name, part in each.items()}
    return {"": observation}


def check_episode(episode: rollserve.EpisodeBatch, env: Any) -> None:
    """Check that an episode is what a loop over gymnasium's environment gives for the agent's actions."""
    (seed,) = episode.env_seeds if episode.env_seeds is not None else ()
    observation, _ = env.reset(seed=int(seed))
    actions = np.array(episode.actions)
    for step in range(episode.num_steps):
        seen = leaves_of(episode.observations)
        assert all(same(column[step], leaf_values(observation)[name]) for name, column in seen.items())
        observation, reward, terminated, _, _ = env.step(actions[step].copy())
        assert same(episode.rewards[step], np.float64(reward))
    assert terminated == episode.terminated[0]
    last = leaf_values(observation)
    assert all(same(column[0], last[name]) for name, column in leaves_of(episode.last_observations).items())


LIKE_GYMNASIUM: dict[str, tuple[list[Transform], Callable[[Any], Any]]] = {
    "clip rewards": ([ClipRewards(-1, 2)], lambda env: wrappers.ClipReward(env, -1, 2)),
    "clip rewards above": ([ClipRewards(high=0.5)], lambda env: wrappers.ClipReward(env, None, 0.5)),
    "sign rewards": ([SignRewards()], lambda env: wrappers.TransformReward(env, np.sign)),
    "scale rewards": (
        [ScaleRewards(0.1, 3.0), ClipRewards(low=0)],
        lambda env: wrappers.ClipReward(wrappers.TransformReward(env, lambda reward: reward * 0.1 + 3.0), 0, None),
    ),
    "rescale actions": ([RescaleActions()], lambda env: wrappers.RescaleAction(env, -1.0, 1.0)),
    "clip and rescale actions": (
        [RescaleActions(-0.1, 0.3), ClipActions()],
        lambda env: wrappers.ClipAction(wrappers.RescaleAction(env, -0.1, 0.3)),
    ),
    "flatten": ([FlattenObservations()], wrappers.FlattenObservation),
    "cast": ([CastObservations(np.float32)], lambda env: wrappers.DtypeObservation(env, np.float32)),
    "rescale": (
        [CastObservations("float32"), RescaleObservations(-1, 2)],
        lambda env: wrappers.RescaleObservation(wrappers.DtypeObservation(env, np.float32), -1.0, 2.0),
    ),
    "scale": (
        [ScaleObservations(1 / 255)],
        lambda env: wrappers.TransformObservation(env, lambda seen: np.float32(seen) / np.float32(255), None),
    ),
    "grey": ([GrayscaleObservations()], wrappers.GrayscaleObservation),
    "grey with a channel": (
        [GrayscaleObservations(keep_channel=True)],
        lambda env: wrappers.GrayscaleObservation(env, keep_dim=True),
    ),
    "resize": ([ResizeObservations(5, 7)], lambda env: wrappers.ResizeObservation(env, (5, 7))),
    "crop": (
        [CropObservations(1, 2, height=8, width=4)],
        lambda env: wrappers.TransformObservation(env, lambda seen: seen[1:9, 2:6], None),
    ),
    "grey, small, cropped, scaled and flat": (
        [
            GrayscaleObservations(),
            ResizeObservations(6, 6),
            CropObservations(1, 0, 4, 6),
            ScaleObservations(2.0, -3.5),
            FlattenObservations(),
        ],
        lambda env: wrappers.TransformObservation(
            wrappers.ResizeObservation(wrappers.GrayscaleObservation(env), (6, 6)),
            lambda seen: np.float32(seen[1:5].astype(np.float64) * 2.0 - 3.5).ravel(),
            None,
        ),
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's, about precision of bounds
@pytest.mark.parametrize("case", LIKE_GYMNASIUM)
def test_episodes_equal_those_in_wrappers_of_gymnasium(sampler: rollserve.Sampler, case: str) -> None:
    transforms, wrap = LIKE_GYMNASIUM[case]
    updated = use(sampler, *transforms, vectorization="rows")
    env = plain(wrap)
    if env.observation_space is not None and case != "scale" and "crop" not in case:
        space: Any = updated.observation_space
        assert (space.shape, space.dtype) == (env.observation_space.shape, env.observation_space.dtype)
        assert same(np.broadcast_to(space.low, space.shape), env.observation_space.low)
        assert same(np.broadcast_to(space.high, space.shape), env.observation_space.high)
    if case == "rescale actions":
        action_space: Any = updated.action_space
        assert same(np.broadcast_to(action_space.low, (2,)), env.action_space.low)
    for episode in sampler.obtain_samples(40, seed=5).split():
        check_episode(episode, env)


@pytest.fixture(scope="module")
def raw(server: LocalServer) -> dict[str, list[rollserve.EpisodeBatch]]:
    """Whole episodes and fragments of seed 5 without transforms, by the kind of the rows."""
    with rollserve.connect(server.address) as sampler:
        batches = {}
        for kind in KINDS:
            use(sampler, vectorization=kind)
            batches[kind] = sampled(sampler)
    return batches


def sampled(sampler: rollserve.Sampler) -> list[rollserve.EpisodeBatch]:
    return [sampler.obtain_samples(40, seed=5), sampler.obtain_fragments(60, seed=5)]


def inside_out(env: Any, kind: Any) -> Iterator[Any]:
    """Yield the wrappers of a kind around an environment, innermost first."""
    if isinstance(env, gymnasium.Wrapper):
        yield from inside_out(env.env, kind)
    if isinstance(env, kind):
        yield env


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's, about precision of bounds
@pytest.mark.parametrize("case", LIKE_GYMNASIUM)
def test_native_rows_are_transformed_as_wrappers_transform_single_ones(
    sampler: rollserve.Sampler, raw: dict[str, list[rollserve.EpisodeBatch]], case: str
) -> None:
    transforms, wrap = LIKE_GYMNASIUM[case]
    env = plain(wrap)
    rewarding, acting = (list(inside_out(env, kind)) for kind in (wrappers.TransformReward, wrappers.TransformAction))
    observing = list(inside_out(env, wrappers.TransformObservation | wrappers.FlattenObservation))
    use(sampler, *transforms, vectorization="native")
    for before, after in zip(raw["native"], sampled(sampler), strict=True):
        if acting:  # other actions make other episodes
            for action, got in zip(after.actions, after.env_infos["got"], strict=True):
                for wrapper in reversed(acting):
                    action = wrapper.action(action)
                assert same(action, got)
            continue
        assert same(after.actions, before.actions)
        for reward, seen in zip(before.rewards, after.rewards, strict=True):
            for wrapper in rewarding:
                reward = wrapper.reward(reward)
            assert same(np.float64(reward), seen)
        for name in ("observations", "last_observations"):
            for observation, seen in zip(getattr(before, name), getattr(after, name), strict=True):
                for wrapper in observing:
                    observation = wrapper.observation(observation)
                assert same(observation, seen)


@pytest.mark.parametrize("kind", KINDS)
def test_raw_rewards_come_beside_transformed_ones(
    sampler: rollserve.Sampler, raw: dict[str, list[rollserve.EpisodeBatch]], kind: Any
) -> None:
    use(sampler, SignRewards(), vectorization=kind)
    batches = sampled(sampler)
    for before, batch in zip(raw[kind], batches, strict=True):
        assert before.raw_rewards is None
        assert same(batch.raw_rewards, before.rewards)
        assert same(batch.rewards, np.sign(before.rewards))
        assert same(batch.raw_returns, before.returns)
        assert not same(batch.returns, before.returns)
        assert "\nraw " in str(batch)
    assert same(batches[1].as_rows()["raw_rewards"], raw[kind][1].as_rows()["rewards"])
    for num_steps in range(4):
        later = [batch.without_first_steps(num_steps) for batch in (batches[1], raw[kind][1])]
        assert same(later[0].episode_returns, later[1].episode_returns)


@pytest.mark.parametrize("kind", KINDS)
def test_returns_of_evaluations_and_records_are_raw(
    sampler: rollserve.Sampler, raw: dict[str, list[rollserve.EpisodeBatch]], kind: Any
) -> None:
    use(sampler, ScaleRewards(100), vectorization=kind)
    start = sampler.metrics().end
    batch, fragments = sampled(sampler)
    records = sampler.metrics(since=start)
    assert records.returns[: len(batch)] == pytest.approx(raw[kind][0].returns)
    assert len(records) == len(batch) + int((fragments.terminated | fragments.truncated).sum())
    assert np.abs(records.returns).max() < 100
    ended = fragments.terminated | fragments.truncated
    assert records.returns[len(batch) :] == pytest.approx(fragments.episode_returns[ended])
    evaluated = sampler.evaluate(len(batch), seed=5)
    assert evaluated.returns == pytest.approx(raw[kind][0].returns)


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_recorded_as_chosen_and_as_they_arrived(sampler: rollserve.Sampler, kind: Any) -> None:
    updated = use(sampler, RescaleActions(-4, 4), ClipActions(), vectorization=kind)
    space: Any = updated.action_space
    assert (float(np.min(space.low)), float(np.max(space.high))) == (-4, 4)
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, head="diagonal_gaussian")
    wide = {**agent.parameters, "log_std": np.full(2, 2, np.float32)}
    sampler.update_agent(rollserve.MlpAgent(wide, head="diagonal_gaussian"))
    for batch in (sampler.obtain_samples(60, seed=1), sampler.obtain_fragments(60, seed=1)):
        actions, got = np.array(batch.actions), np.array(batch.env_actions)
        assert np.abs(actions).max() > 4
        assert same(got, batch.env_infos["got"])
        assert got.min(axis=0) == pytest.approx([-2, 0], abs=1e-6)
        inside = (np.abs(actions) < 4).all(axis=1)
        expected = [-2, 0] + (actions[inside] + 4) / 8 * 3
        assert np.allclose(got[inside], expected, atol=1e-5)


@pytest.mark.parametrize("factor", [0.7, float(np.float32(0.7))])
def test_leaves_of_nested_observations_are_transformed_alone(sampler: rollserve.Sampler, factor: float) -> None:
    use(sampler, vectorization="rows", kwargs=NESTED)
    raw: Any = sampler.obtain_samples(40, seed=4).observations
    use(
        sampler,
        GrayscaleObservations(leaves=["picture"]),
        ScaleObservations(factor, leaves=["rest/0"]),
        vectorization="rows",
        kwargs=NESTED,
    )
    batch = sampler.obtain_samples(40, seed=4)
    seen: Any = batch.observations
    assert seen["picture"].shape[1:] == (12, 10)
    assert same(seen["rest/0"], (raw["rest/0"] * np.float64(factor)).astype(np.float32))
    assert same(seen["rest/1"], raw["rest/1"])
    assert same(seen["rest/2"], raw["rest/2"])


@pytest.mark.parametrize("kind", KINDS)
def test_nested_observations_become_vectors_as_in_gymnasium(sampler: rollserve.Sampler, kind: Any) -> None:
    use(sampler, vectorization=kind, kwargs=NESTED)
    raw: Any = sampler.obtain_samples(30, seed=4).observations
    use(sampler, FlattenObservations(), vectorization=kind, kwargs=NESTED)
    batch = sampler.obtain_samples(30, seed=4)
    env = plain(nested=True)
    for step, seen in enumerate(np.array(batch.observations)):
        rest = tuple(raw[f"rest/{position}"][step] for position in range(3))
        expected = gymnasium.spaces.flatten(env.observation_space, {"picture": raw["picture"][step], "rest": rest})
        assert same(seen, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_named_leaves_become_a_vector_each(sampler: rollserve.Sampler, kind: Any) -> None:
    use(sampler, vectorization=kind, kwargs=NESTED)
    raw: Any = sampler.obtain_samples(30, seed=4).observations
    leaves = ["picture", "rest/1"]
    use(sampler, FlattenObservations(leaves), vectorization=kind, kwargs=NESTED)
    batch = sampler.obtain_samples(30, seed=4, return_spaces=True)
    seen: Any = batch.observations
    own: Any = plain(nested=True).observation_space
    spaces = {"picture": own["picture"], "rest/1": own["rest"][1]}
    for name in leaves:
        assert same(seen[name], np.stack([gymnasium.spaces.flatten(spaces[name], value) for value in raw[name]]))
    assert same(seen["rest/0"], raw["rest/0"])
    assert same(seen["rest/2"], raw["rest/2"])


def test_stacks_of_frames_are_cast_and_cropped_whole(sampler: rollserve.Sampler) -> None:
    stack = [Wrapper("GrayscaleObservation"), Wrapper("FrameStackObservation", {"stack_size": 3})]
    use(sampler, wrappers=stack, vectorization="rows")
    raw = sampler.obtain_samples(40, seed=6, compression="lz4")
    transforms = CropObservations(2, 1, 8, 8, channels_first=True), ScaleObservations(1 / 255)
    use(sampler, *transforms, wrappers=stack, vectorization="rows")
    batch = sampler.obtain_samples(40, seed=6)
    expected = (np.array(raw.observations)[:, :, 2:10, 1:9] / 255).astype(np.float32)
    assert same(batch.observations, expected)
    assert same(
        np.array(batch.last_observations)[:, :-1],
        np.array(batch.next_observations)[np.cumsum(batch.lengths) - 1][:, :-1],
    )


def test_native_stepping_stays_on(sampler: rollserve.Sampler) -> None:
    updated = sampler.update_env(EnvSpec("CartPole-v1", transforms=[ScaleRewards(0.1), CastObservations("float64")]))
    assert updated.reproducibility is rollserve.Reproducibility.BLOCK
    updated = sampler.update_env(EnvSpec("CartPole-v1", wrappers=[Wrapper("ClipReward", {"max_reward": 1})]))
    assert updated.reproducibility is rollserve.Reproducibility.EPISODE


def test_rows_and_workers_can_differ_in_transforms(sampler: rollserve.Sampler) -> None:
    def spec(*transforms: Transform) -> EnvSpec:
        return EnvSpec(PICTURES, transforms=transforms)

    rows = [spec(ScaleRewards(2)), spec(), spec(ScaleRewards(4), RescaleActions(-2, 2))]
    with raises(
        rollserve.InvalidArgumentError, field="all_workers.per_row.updates[2].environment", quotes="action_space"
    ):
        sampler.update_env(rows)
    rows = [spec(ScaleRewards(2), ClipActions()), spec(), spec(ScaleRewards(4))]
    sampler.update_env(per_worker=[rows, [spec()] * 3])
    sampler.update_agent(rollserve.RandomAgent())
    for batch in (sampler.obtain_samples(300, seed=8), sampler.obtain_fragments(300, seed=8)):
        assert batch.raw_rewards is not None
        factors = np.array([2.0, 1, 4, 1, 1, 1])[batch.episode_indices % 6]
        assert same(batch.rewards, batch.raw_rewards * np.repeat(factors, batch.lengths))
        assert same(batch.env_actions, batch.env_infos["got"])


def test_changes_keep_transforms_and_whole_environments_replace_them(sampler: rollserve.Sampler) -> None:
    use(sampler, SignRewards(), vectorization="rows")
    sampler.update_env(rollserve.EnvChange(kwargs={"mean_length": 3}))
    assert sampler.obtain_samples(20).raw_rewards is not None
    assert sampler.status().envs[0].transforms == (SignRewards(),)
    use(sampler, vectorization="rows")
    assert sampler.obtain_samples(20).raw_rewards is None


@pytest.mark.parametrize(
    ("env", "transforms", "field"),
    [
        ("CartPole-v1", [RescaleActions()], "transforms[0]"),
        ("CartPole-v1", [SignRewards(), ClipActions()], "transforms[1]"),
        ("CartPole-v1", [CastObservations("int8")], "transforms[0]"),
        ("CartPole-v1", [RescaleObservations(0, 1)], "transforms[0]"),
        ("CartPole-v1", [GrayscaleObservations()], "transforms[0]"),
        ("CartPole-v1", [ScaleObservations(2.0, leaves=["x"])], "transforms[0].leaves"),
        (PICTURES, [CropObservations(5, 0, 8, 1)], "transforms[0]"),
        (PICTURES, [CastObservations("int8")], "transforms[0]"),
        (PICTURES, [RescaleObservations(0, 1)], "transforms[0]"),
        (PICTURES, [CastObservations("float32"), ResizeObservations(2, 2)], "transforms[1]"),
        (PICTURES, [FlattenObservations(), CropObservations(0, 0, 1, 1)], "transforms[1]"),
        (PICTURES, [FlattenObservations(["x"])], "transforms[0].leaves"),
        (PICTURES, [CropObservations(0, 0, 1, 1, channels_first=True)] * 65, "transforms"),
    ],
)
def test_transforms_that_do_not_fit_are_refused_by_name(
    sampler: rollserve.Sampler, env: str, transforms: list[Transform], field: str
) -> None:
    use(sampler, SignRewards(), vectorization="rows")
    before = sampler.status().env_version
    for kind in KINDS:
        with raises(
            rollserve.InvalidArgumentError, field=f"all_workers.environment.{field}", reason=Reason.INVALID_VALUE
        ):
            sampler.update_env(EnvSpec(env, transforms=transforms, vectorization=kind))  # type: ignore[arg-type]
    assert sampler.status().env_version == before
    assert sampler.obtain_samples(10).raw_rewards is not None


@pytest.mark.parametrize("dtype", ["complex64", "nothing", "bool"])
def test_cast_refuses_dtypes_of_no_numbers_by_name(dtype: str) -> None:
    with raises(rollserve.InvalidArgumentError, field="dtype") as error:
        CastObservations(dtype)
    assert str(error.value).count("expected") == 1
    assert str(error.value).endswith(dtype) or str(error.value).endswith(repr(dtype))


def test_operators_declare_transforms(tmp_path: Path) -> None:
    profiles = '{"quiet": {"env": "CartPole-v1", "transforms": [{"scale_rewards": {"factor": 0.5}}]}}'
    own = (
        "--transforms",
        '[{"clip_rewards": {"high": 0.25}}, {"cast_observations": {"data_type": "DATA_TYPE_FLOAT64"}}]',
    )
    options = ("--env", "CartPole-v1", *own, "--profiles", profiles, "--backend", "in-process", "--workers", "1")
    with local_server(*options, log=tmp_path / "log") as server, rollserve.connect(server.address) as sampler:
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(50)
        assert set(batch.rewards) == {0.25}
        assert np.array(batch.observations).dtype == np.float64
        with raises(rollserve.InvalidArgumentError, field="all_workers.environment.transforms"):
            sampler.update_env(EnvSpec("profile:quiet", transforms=[SignRewards()]))
        sampler.update_env("profile:quiet")
        assert set(sampler.obtain_samples(50).rewards) == {0.5}


def test_equal_requests_have_equal_results(sampler: rollserve.Sampler) -> None:
    use(sampler, ScaleRewards(0.3), RescaleActions(), ScaleObservations(0.1), vectorization="native")
    assert equal(sampler.obtain_samples(60, seed=1), sampler.obtain_samples(60, seed=1))


def test_populations_have_raw_returns(sampler: rollserve.Sampler) -> None:
    returns = []
    for transforms in ((), (ScaleRewards(100), CastObservations("float64"), FlattenObservations())):
        updated = sampler.update_env(EnvSpec("CartPole-v1", transforms=transforms))
        agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0)
        sampler.update_agent(agent)
        members = {name: np.stack([value, 3 * value]) for name, value in agent.parameters.items()}
        returns.append(sampler.evaluate_population(members, 2, seed=3).returns)
    assert same(*returns)


def test_blackholes_swallow_transformed_steps(sampler: rollserve.Sampler) -> None:
    use(sampler, SignRewards(), RescaleActions(), ScaleObservations(0.5), vectorization="native")
    with sampler.stream_samples(40, seed=5, blackhole=True) as stream:
        assert not list(stream)
        assert stream.end().num_discarded_steps >= 40


@pytest.mark.parametrize("target", [AtLeast(120), Exactly(3), Fragments(120)], ids=["samples", "exact", "fragments"])
@pytest.mark.parametrize("kind", KINDS)
async def test_results_are_the_same_after_workers_were_lost(
    kind: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", server_environment()["PYTHONPATH"])
    transforms = [ScaleRewards(0.3), ClipRewards(low=-0.5), RescaleActions(), ClipActions(), ScaleObservations(1 / 255)]
    spec = EnvSpec(PICTURES, {"mean_length": 30}, transforms=transforms, vectorization=kind, num_rows=2)
    async with pool_of(InProcessBackend(), spec, workers=3, allow_module=("sample_envs",)) as pool:
        await pool.update_agent([RandomSpec()])
        expected = [await sample(pool, target, seed=4) for _ in range(2)]
    num_restarts = 0
    small = {"worker_buffer_bytes": 60_000, "call_window_bytes": 30_000, "unit_retries": 20}
    for seed in range(2):
        backend = MortalBackend(seed, 6, with_machines=True)
        async with pool_of(backend, spec, workers=3, allow_module=("sample_envs",), **small) as pool:
            await pool.update_agent([RandomSpec()])
            for batch in expected:
                assert equal(await sample(pool, target, seed=4, max_message_bytes=16_000), batch)
            num_restarts += sum(worker.num_restarts for worker in pool.status().workers)
    assert num_restarts > 0


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="EnvPool has no wheel here")
@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
async def test_rows_of_envpool_are_transformed() -> None:
    batches = []
    transforms: list[Transform] = [ScaleRewards(0.5), RescaleActions(-3, 3), CastObservations("float32")]
    for each in ([], transforms):
        spec = EnvSpec(
            "HalfCheetah-v5", {"max_episode_steps": 20}, (), vectorization="envpool", num_rows=2, transforms=each
        )
        async with pool_of(InProcessBackend(), spec, workers=1) as pool:
            await pool.update_agent([ConstantSpec({"": np.full(6, 1.5 if each else 0.5)})])
            batches.append([await sample(pool, target, seed=2) for target in (AtLeast(60), Fragments(60))])
    for before, after in zip(*batches, strict=True):
        assert same(after.observations, np.float32(before.observations))
        assert same(after.last_observations, np.float32(before.last_observations))
        assert same(after.raw_rewards, before.rewards)
        assert same(after.rewards, before.rewards * 0.5)
        assert same(after.env_actions, before.actions)


def test_servers_that_do_not_know_transforms_are_an_error() -> None:
    space = space_to_proto(rollserve.spaces.Discrete(2))
    old = pb.UpdateEnvResponse(
        environment_version=2, observation_space=space, action_space=space, reproducibility=1, row_count=1
    )
    spec = EnvSpec("CartPole-v1", transforms=[SignRewards()])
    updates: list[Any] = [{"env": spec}, {"per_worker": [rollserve.EnvChange(), [None, spec]]}]
    with (
        scripted_server(UpdateEnv=lambda _: [old.SerializeToString()]) as address,
        rollserve.connect(address) as sampler,
    ):
        assert sampler.update_env("CartPole-v1").env_version == 2
        for update in updates:
            with raises(rollserve.ServerError, field="transforms"):
                sampler.update_env(**update)
