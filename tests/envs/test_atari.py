"""Seeded resets of ALE's games, which restore what was loaded instead of loading the game again."""

from __future__ import annotations

from typing import Any

import ale_py.env
import gymnasium
import numpy as np
import pytest

from rollserve import EnvSpec
from rollserve_server.envs import RowEnvs
from rollserve_wire.environments import env_spec_from_proto, env_spec_to_proto


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the games that were loaded, which grows."""
    games: list[Any] = []
    load_game = ale_py.env.AtariEnv.load_game

    def load(game: Any) -> None:
        games.append(game)
        load_game(game)

    monkeypatch.setattr(ale_py.env.AtariEnv, "load_game", load)
    return games


def run(env: gymnasium.Env[Any, Any], seed: int, num_steps: int = 60) -> list[Any]:
    """Return all results of the first steps of an episode with random actions."""
    results: list[Any] = [env.reset(seed=seed)]
    actions = np.random.default_rng(seed)
    results += [env.step(actions.integers(env.action_space.n)) for _ in range(num_steps)]  # type: ignore[attr-defined]
    return results


def run_row(env: RowEnvs, seed: int, num_steps: int = 60) -> list[Any]:
    """Return the same of the only row."""
    infos: Any = env.reset(0, seed)
    results: list[Any] = [(env.observations[0][0].copy(), infos)]
    actions = np.random.default_rng(seed)
    for _ in range(num_steps):
        infos = dict(env.step([0], [actions.integers(env.action_space.n, size=1)]))  # type: ignore[attr-defined]
        flags = env.terminated[0], env.truncated[0]
        results.append((env.observations[0][0].copy(), env.rewards[0], *flags, infos.get(0, {})))
    return results


def equal(results: list[Any], others: list[Any]) -> bool:
    """Whether results are the same: observations, rewards, ends and infos."""
    pairs = zip(results, others, strict=True)
    return all(np.array_equal(one[0], other[0]) and one[1:] == other[1:] for one, other in pairs)


@pytest.mark.parametrize(
    ("name", "num_loads"),
    # What ALE restores of MiniatureGolf is not what it has saved, so the game is loaded each time.
    [("Pong", 2), ("Breakout", 2), ("Pitfall", 2), ("MiniatureGolf", 4)],
)
def test_seeded_resets_of_games_are_the_same_as_in_ale(name: str, num_loads: int, loads: list[Any]) -> None:
    gymnasium.register_envs(ale_py)
    plain = gymnasium.make(f"ALE/{name}-v5", disable_env_checker=True)
    env = RowEnvs(EnvSpec(f"ALE/{name}-v5"), 1)
    loads.clear()
    for seed in (7, 2**31 - 1, 7, 0):
        assert equal(run_row(env, seed), run(plain, seed)), seed
    assert len(loads) - loads.count(plain.unwrapped) == num_loads


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_seeded_resets_of_all_games_are_the_same_as_in_ale(part: int) -> None:
    gymnasium.register_envs(ale_py)
    games = sorted(name for name in gymnasium.registry if name.startswith("ALE/") and name.endswith("-v5"))
    assert len(games) > 100
    for name in games[part::6]:
        plain, env = gymnasium.make(name, disable_env_checker=True), RowEnvs(EnvSpec(name), 1)
        for seed in (7, 11, 7):
            assert equal(run_row(env, seed, 10), run(plain, seed, 10)), (name, seed)


def test_seeded_resets_have_the_modes_of_their_game(loads: list[Any]) -> None:
    games = [RowEnvs(EnvSpec("ALE/Pong-v5", {"mode": mode, "difficulty": mode}), 1) for mode in (0, 1)]
    loads.clear()
    episodes = [[run_row(game, seed) for seed in (1, 2, 3, 1)] for game in games]
    assert len(loads) == 4
    assert all(equal(of_game[0], of_game[3]) for of_game in episodes)
    assert not any(equal(*of_seed) for of_seed in zip(*episodes, strict=True))


def test_range_of_skipped_frames_arrives_as_a_tuple() -> None:
    spec = env_spec_from_proto(env_spec_to_proto(EnvSpec("ALE/Pong-v5", {"frameskip": (2, 5)})))
    assert spec.kwargs["frameskip"] == [2, 5]
    RowEnvs(spec, 1).reset(0, 0)
