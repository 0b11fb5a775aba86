"""Spaces whose values differ in size or kind, as arrays of one shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pools import pool_of, sample
from sample_envs import Assorted
from support import equal, raises

import rollserve
from rollserve import EnvSpec, Wrapper
from rollserve.data import verify
from rollserve.transforms import ClipActions
from rollserve_server.agents import RandomSpec
from rollserve_server.pool import AtLeast, InProcessBackend

MODULE = "sample_envs"


def assorted(most: int = 3, max_items: int | None = 4, **limits: int) -> EnvSpec:
    arguments = {"max_items": max_items, **limits}
    return EnvSpec(f"{MODULE}:Assorted", {"most": most}, [Wrapper("FixedShapes", arguments)])


def ragged(leaves: Any, name: str, num: str, row: int) -> np.ndarray:
    """Return the elements that count in a row; all others have one value."""
    values, number = leaves[name][row], int(leaves[num][row])
    assert (values[number:] == values[-1]).all()
    return np.array(values[:number])


def check_things(leaves: Any, name: str, row: int, kinds: Any, places: Any) -> None:
    """Check a sequence of things; what fills it up is in its space."""
    assert ragged(leaves, f"{name}/items/kind", f"{name}/length", row).tolist() == list(kinds)
    assert np.array_equal(ragged(leaves, f"{name}/items/place", f"{name}/length", row), np.reshape(places, (-1, 2)))
    if len(kinds) < 4:
        assert leaves[f"{name}/items/kind"][row][-1] == 1
        assert leaves[f"{name}/items/place"][row][-1].tolist() == [1, 0]


def check_observation(leaves: Any, row: int, observation: Any) -> None:
    """Check a row of the columns against the observation of the environment itself."""
    things, stack, graph = observation["things"], observation["stack"], observation["graph"]
    check_things(leaves, "things", row, [each["kind"] for each in things], [each["place"] for each in things])
    check_things(leaves, "stack", row, stack["kind"], stack["place"])
    assert np.array_equal(ragged(leaves, "graph/nodes", "graph/num_nodes", row), graph.nodes)
    edges = ragged(leaves, "graph/edges", "graph/num_edges", row)
    links = ragged(leaves, "graph/edge_links", "graph/num_edges", row)
    if graph.edges is None:
        assert len(edges) == len(links) == 0
    else:
        assert np.array_equal(edges, graph.edges)
        assert np.array_equal(links, graph.edge_links)
    choice, chosen = observation["one"]
    assert leaves["one/choice"][row] == choice
    text = leaves["one/1"][row]
    assert leaves["one/0"][row] == (-1 if choice else chosen) or choice
    assert "".join(map(chr, text[text > 0])) == (chosen if choice else "0")


def action_of(leaves: Any, row: int) -> dict[str, Any]:
    """Return the action of the environment itself in a row of the columns."""
    choice, said = int(leaves["one/choice"][row]), leaves["say"][row].tolist()
    return {
        "moves": tuple(leaves["moves/items"][row][: leaves["moves/length"][row]]),
        "one": (choice, leaves[f"one/{choice}"][row]),
        "path": leaves["path/items"][row][: leaves["path/length"][row]],
        "say": "".join("abc"[index] for index in said[: (*said, 3).index(3)]),
    }


def check_episode(episode: rollserve.EpisodeBatch) -> None:
    env = Assorted()
    assert episode.env_seeds is not None
    observation, _ = env.reset(seed=int(episode.env_seeds[0]))
    for step in range(episode.num_steps):
        check_observation(episode.observations, step, observation)
        observation, reward, *_, infos = env.step(action_of(episode.actions, step))
        assert episode.rewards[step] == reward
        assert {name: episode.env_infos[name][step] for name in infos} == infos
    check_observation(episode.last_observations, 0, observation)


async def test_episodes_equal_those_of_the_environment_itself_with_any_workers() -> None:
    whole = []
    for workers, rows in ((1, 1), (3, 2)):
        async with pool_of(
            InProcessBackend(),
            assorted(),
            workers=workers,
            rows=rows,
            allow_module=(MODULE,),
            check_observations=True,
        ) as pool:
            await pool.update_agent([RandomSpec()])
            whole.append(await sample(pool, AtLeast(400), seed=4))
    assert equal(*whole)
    lengths = [whole[0].observations[name] for name in ("things/length", "graph/num_nodes", "one/choice")]  # type: ignore[index]
    assert all(len(np.unique(each)) > 1 for each in lengths)
    assert len(np.unique(whole[0].env_infos["num_said"])) == 4
    for episode in whole[0].split():
        check_episode(episode)


@pytest.fixture
def sampler(thread_sampler: rollserve.Sampler) -> rollserve.Sampler:
    return thread_sampler


def test_networks_act_on_numbers_among_them_and_receipts_verify_them(
    sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    wrappers = [*assorted().wrappers, Wrapper("FilterObservation", {"filter_keys": ["graph", "stack", "things"]})]
    spec = EnvSpec(f"{MODULE}:Assorted", {}, wrappers, transforms=[ClipActions()])
    updated = sampler.update_env(spec)
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0)
    sampler.update_agent(agent)
    batch = sampler.obtain_fragments(64)
    assert np.isfinite(batch.agent_infos["log_prob"]).all()
    sampler.with_receipt(sampler.obtain_samples(40), agent).save(tmp_path / "a.npz")
    assert verify(tmp_path / "a.npz", allowed_modules=[MODULE]).is_equal


def test_more_elements_than_there_is_room_for_are_an_error_that_names_the_limit(sampler: rollserve.Sampler) -> None:
    text = "edges: expected at most 1, got 12: FixedShapes takes max_edges"  # at the first reset with the last seed
    with raises(rollserve.InvalidArgumentError, reason=rollserve.Reason.ENV_REFUSED, match=text):
        sampler.update_env(assorted(most=50, max_items=50, max_edges=1))


@pytest.mark.parametrize(
    ("spec", "quotes"),
    [
        (assorted(max_items=None), ("max_items", "no bound")),
        (assorted(max_items=0), ("max_items", "from 1 to 65536")),
        (assorted(max_edges=1 << 40), ("max_edges", "from 1 to 65536")),
        (
            EnvSpec(
                f"{MODULE}:Varying", {"kind": "Graph", "actions": True}, [Wrapper("FixedShapes", {"max_items": 2})]
            ),
            ("action_space", "no Graph"),
        ),
    ],
    ids=["no bound", "no items", "too many edges", "graphs as actions"],
)
def test_spaces_without_a_fixed_shape_are_refused_by_name(
    sampler: rollserve.Sampler, spec: EnvSpec, quotes: tuple[str, ...]
) -> None:
    with raises(rollserve.InvalidArgumentError, field="all_workers.environment.wrappers[0].kwargs_json", quotes=quotes):
        sampler.update_env(spec)


def test_other_spaces_stay_as_they_are(sampler: rollserve.Sampler) -> None:
    env = gymnasium.make("CartPole-v1")
    updated = sampler.update_env(EnvSpec("CartPole-v1", wrappers=[Wrapper("FixedShapes")]))
    assert isinstance(env.observation_space, spaces.Box)
    assert str(updated.observation_space) == str(sampler.update_env("CartPole-v1").observation_space)
