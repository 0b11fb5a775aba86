"""Ends of segments in the client: requests, joined batches, learners' computations, descriptions and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cutting_proxy import cutting_proxy
from recurrent_truth import agent_for
from support import equal, raises, server_environment

import rollserve
from rollserve_server.local import LocalServer, local_server


@pytest.fixture(scope="module")
def small_server() -> Iterator[LocalServer]:
    options = ("--env", "CartPole-v1", "--workers", "2", "--vectorization", "rows", "--rows", "2")
    with local_server(
        *options, "--backend", "in-process", "--allow-module", "sample_envs", environment=server_environment()
    ) as running:
        yield running


@pytest.fixture
def valued(small_server: LocalServer) -> Iterator[rollserve.Sampler]:
    """A sampler with an agent that has states and a value."""
    with rollserve.connect(small_server.address) as sampler:
        sampler.update_env("sample_envs:Ragged", kwargs={"max_length": 300})
        sampler.update_agent(agent_for("gru", 2, 3, value="shared"))
        yield sampler


def test_call_returns_the_ends_that_it_asks_for(valued: rollserve.Sampler) -> None:
    plain = valued.obtain_fragments(400, seed=3)
    assert plain.last_values is None
    assert not plain.last_states
    batch = valued.obtain_fragments(400, seed=3, return_last_values=True, return_last_states=True)
    assert batch.last_values is not None
    assert batch.last_values.shape == (len(batch),)
    assert batch.last_states["h"].shape == (len(batch), 6)
    assert equal(dataclasses.replace(batch, last_values=None, last_states={}), plain)
    later = valued.obtain_fragments(400, seed=3, row_step_count=100, return_last_states=True)
    goes_on = dict(zip(batch.episode_indices.tolist(), batch.last_states["h"], strict=True))
    ends = dict(zip(batch.episode_indices.tolist(), batch.episode_returns, strict=True))
    continued = [segment for segment in later.split() if segment.first_steps[0]]
    assert len(continued) == 4
    for segment in continued:
        index = int(segment.episode_indices[0])
        assert np.array_equal(segment.initial_states["h"][0], goes_on[index])
        assert segment.returns_before[0] == pytest.approx(ends[index])


def test_agent_without_a_value_is_rejected(valued: rollserve.Sampler) -> None:
    version, field = valued.status().policy_version, "options.return_last_values"
    with raises(rollserve.InvalidArgumentError, field=field, quotes=("value", "mlp")):
        valued.obtain_samples(10, agent=agent_for("gru", 2, 3), return_last_values=True)
    assert valued.status().policy_version == version
    assert valued.obtain_samples(10, return_last_values=True).last_values is not None
    valued.update_agent(rollserve.RandomAgent())
    for call in (valued.obtain_samples, valued.obtain_fragments, valued.obtain_exact_episodes):
        with raises(rollserve.InvalidArgumentError, field=field, quotes=("value", "random")):
            call(8, return_last_values=True)
    with raises(TypeError, field="return_last_values"):
        valued.obtain_samples(10, return_last_values=1)  # type: ignore[call-arg]
    assert not valued.obtain_samples(10, return_last_states=True).last_states


def test_broken_stream_is_resumed_with_the_same_ends(valued: rollserve.Sampler, small_server: LocalServer) -> None:
    valued.update_env("sample_envs:Ends", kwargs={"length": 700})
    valued.update_agent(agent_for("gru", 2, 8, value="shared"))
    options: dict[str, Any] = {"seed": 1, "return_last_values": True, "return_last_states": True}
    for method in ("obtain_samples", "obtain_fragments"):
        with (
            cutting_proxy(small_server.address, num_cuts=2, max_bytes=100_000, seed=1) as proxy,
            rollserve.connect(proxy.address, max_message_bytes=1 << 13) as distant,
        ):
            distant.status()
            batch = getattr(distant, method)(4000, **options)
        assert batch.account.num_resumptions > 0
        assert equal(batch, getattr(valued, method)(4000, **options))
        buffer = rollserve.EpisodeBuffer()
        with rollserve.connect(small_server.address, max_message_bytes=1 << 13) as small:
            assert equal(getattr(small, method)(4000, out=buffer, **options), batch)


async def test_async_client_returns_ends(valued: rollserve.Sampler, small_server: LocalServer) -> None:
    options: dict[str, Any] = {"seed": 3, "return_last_values": True, "return_last_states": True}
    async with rollserve.aconnect(small_server.address) as asynchronous:
        batch = await asynchronous.obtain_fragments(200, **options)
    assert equal(batch, valued.obtain_fragments(200, **options))


def test_batches_have_the_spaces_of_their_version(valued: rollserve.Sampler, small_server: LocalServer) -> None:
    version = valued.status().env_version
    valued.update_agent(rollserve.RandomAgent())
    valued.update_env(rollserve.EnvSpec("CartPole-v1"))
    with rollserve.connect(small_server.address, max_message_bytes=1 << 12) as small:
        for sampler in (valued, small):
            old = sampler.obtain_samples(200, env_version=version, return_spaces=True)
            new = sampler.obtain_fragments(200, return_spaces=True)
            assert str(old.observation_space) == "Box((2,), float64)"
            assert str(old.action_space) == "Discrete(3, start=2)"
            assert str(new.action_space) == "Discrete(2)"
            for batch in (new, new.joined(), new.split()[0], rollserve.EpisodeBatch.concatenate(*new.split())):
                assert batch.observation_space is new.observation_space is not None
            assert rollserve.EpisodeBatch.concatenate(new, sampler.obtain_fragments(8)).action_space is None
        stream = small.stream_samples(200, return_spaces=True)
        assert all(str(batch.observation_space) == "Box((4,), float32)" for batch in stream)
        assert valued.obtain_samples(10).observation_space is None


def test_learners_bootstrap_with_the_last_values(valued: rollserve.Sampler) -> None:
    batch = valued.obtain_fragments(400, return_last_values=True)
    values, last = batch.agent_infos["value"], batch.last_values
    assert not (batch.terminated | batch.truncated).all()
    for name, arguments in (
        ("advantages", (0.99, 0.95)),
        ("n_step_returns", (3, 0.99)),
        ("vtrace", (batch.agent_infos["log_prob"], 0.99)),
    ):
        method = getattr(batch, name)
        assert np.array_equal(method(*arguments), method(*arguments, values, last)), name
        # Values of another network belong to other last values.
        with raises(ValueError, field="last_values"):
            method(*arguments, values + 1)
        with raises(ValueError, field="last_values", quotes=("return_last_values",)):
            getattr(dataclasses.replace(batch, last_values=None), name)(*arguments)


def test_rows_have_the_value_after_each_step(valued: rollserve.Sampler) -> None:
    batch = valued.obtain_fragments(400, seed=3, max_episode_length=60, return_last_values=True)
    rows = batch.as_rows()
    values, following = rows["agent_infos"]["value"], rows["next_values"]
    assert following.shape == (100, 4)
    goes_on = ~(rows["terminated"] | rows["truncated"])[:-1]
    assert np.array_equal(following[:-1][goes_on], values[1:][goes_on])
    assert not following[rows["terminated"]].any()
    assert np.count_nonzero(following[rows["truncated"]])
    assert batch.last_values is not None
    assert np.isin(batch.last_values, following).all()
    assert "next_values" not in valued.obtain_fragments(400).as_rows()


def fragments_batch(**changes: Any) -> rollserve.EpisodeBatch:
    """Return three segments: a whole episode, the end of one, and the middle of one."""
    columns: dict[str, Any] = {
        "observations": np.arange(6.0),
        "last_observations": np.array([10.0, 11, 12]),
        "actions": np.zeros(6, np.int64),
        "rewards": np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        "lengths": np.array([2, 1, 3]),
        "terminated": np.array([True, False, False]),
        "truncated": np.array([False, True, False]),
        "first_steps": np.array([0, 7, 5]),
        "returns_before": np.array([0.0, 70.0, 50.0]),
        "last_values": np.array([0, 0.25, 0.5], np.float32),
        "last_states": {"h": np.arange(6, dtype=np.float32).reshape(3, 2)},
    }
    return rollserve.EpisodeBatch(**(columns | changes))


def test_returns_of_ended_episodes_include_the_steps_before() -> None:
    batch = fragments_batch()
    assert batch.episode_returns == pytest.approx([0.1 + 0.2, 70.3, 50 + 1.5])
    assert batch.episode_lengths.tolist() == [2, 8, 8]
    assert batch.returns == pytest.approx([0.3, 0.3, 1.5])
    text, page = str(batch), batch._repr_html_()
    assert "episode returns: mean 35.3" in text
    assert "episode lengths: mean 5" in text
    assert "episode returns" in page
    unknown = fragments_batch(returns_before=None)
    assert np.array_equal(unknown.returns_before, [0, np.nan, np.nan], equal_nan=True)
    assert "\nreturns: mean 0.7" in str(unknown)
    assert "\nreturns: mean 0.7" in str(fragments_batch(terminated=np.zeros(3, bool), truncated=np.zeros(3, bool)))


def test_batches_keep_their_ends_when_cut_joined_and_written(tmp_path: Path) -> None:
    batch = fragments_batch()
    assert equal(rollserve.EpisodeBatch.concatenate(*batch.split()), batch)
    assert equal(rollserve.EpisodeBatch.from_list(batch.to_list()), batch)
    batch.save(tmp_path / "batch.npz")
    assert equal(rollserve.EpisodeBatch.load(tmp_path / "batch.npz"), batch)
    later = batch.without_first_steps(4)
    assert later.first_steps.tolist() == [6]
    assert later.returns_before.tolist() == [50 + 0.4]
    assert later.last_states["h"].tolist() == [[4, 5]]
    # The first step of the last segment, and the rest of it.
    first = dataclasses.replace(
        fragments_batch().split()[2],
        observations=batch.observations[3:4],
        actions=batch.actions[3:4],
        rewards=batch.rewards[3:4],
        lengths=np.array([1]),
        last_values=np.array([9], np.float32),
        last_states={"h": np.full((1, 2), 9, np.float32)},
    )
    joined = rollserve.EpisodeBatch.concatenate(first, later).joined()
    assert equal(joined, batch.split()[2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("last_values", np.zeros(2, np.float32)),
        ("last_values", np.zeros(3, np.int64)),
        ("last_values", np.zeros((3, 1), np.float32)),
        ("returns_before", np.zeros(3, np.int64)),
        ("returns_before", [0.0, 0.0, 0.0]),
        ("last_states", {"h": np.zeros((2, 2), np.float32)}),
        ("last_states", np.zeros((3, 2), np.float32)),
    ],
)
def test_ends_that_do_not_fit_are_rejected(name: str, value: Any) -> None:
    with raises(ValueError, match=f"^{name}"):
        fragments_batch(**{name: value})
