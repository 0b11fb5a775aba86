"""Joining the batches of many messages, with one copy of each step."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Sequence
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import equal, raises

import rollserve
from rollserve import episode_buffer
from rollserve._calls.joining import Joining, join_batches
from rollserve_server.local import LocalServer
from rollserve_wire.columns import leaves_of

ACCOUNT = rollserve.Account(
    num_steps=0,
    num_episodes=0,
    num_simulated_steps=0,
    num_carried_steps=0,
    num_kept_steps=0,
    num_superseded_steps=0,
    num_cancelled_steps=0,
    num_lost_steps=0,
    num_idle_steps=0,
    num_retried_episodes=0,
    seed=0,
    first_episode_index=0,
    policy_version=1,
    env_version=1,
    dropped_infos={"lost": 3},
    workers=(),
    queued_seconds=0.0,
    waiting_seconds=0.0,
    sending_seconds=0.0,
    elapsed_seconds=0.0,
)


@st.composite
def streams(draw: st.DrawFn) -> list[rollserve.EpisodeBatch]:
    """Draw messages of episodes cut at any step, with infos that vary in presence, type and shape."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    source = np.random.default_rng(draw(st.integers(0, 2**32)))
    ends = np.cumsum(lengths)
    cuts = draw(st.lists(st.integers(1, int(ends[-1])), max_size=5))
    bounds = sorted({0, int(ends[-1]), *cuts})
    changes = draw(st.sampled_from([0, 0, 1]))  # whether the infos of the messages differ
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=len(bounds), max_size=len(bounds)))
    leaves = draw(st.sampled_from([[""], ["a", "b"]]))
    bound = draw(st.booleans())
    batches = []
    for (start, stop), kind in zip(itertools.pairwise(bounds), kinds, strict=False):
        indices = np.searchsorted(ends, np.arange(start, stop), side="right")
        episodes, counts = np.unique(indices, return_counts=True)
        firsts = np.maximum(start - (ends - lengths)[episodes], 0)
        batches.append(
            message(source, leaves, kind if changes else KINDS[0], episodes, counts, firsts, ends, stop, bound)
        )
    return batches


KINDS: list[dict[str, tuple[str, tuple[int, ...], bool]]] = [
    {"x": ("f4", (2,), False)},
    {"x": ("f4", (2,), True)},
    {"x": ("f8", (2,), False), "y": ("?", (), True)},
    {"x": ("f4", (3,), True)},
    {"_x": ("?", (), False)},
    {"x": ("f4", (2,), False), "_x": ("f4", (), False)},
    {},
]
"""Infos of a message by name: dtype, shape, and whether they have gaps."""


def message(
    source: np.random.Generator,
    leaves: list[str],
    kind: dict[str, tuple[str, tuple[int, ...], bool]],
    episodes: np.ndarray,
    counts: np.ndarray,
    firsts: np.ndarray,
    ends: np.ndarray,
    stop: int,
    bound: bool,
) -> rollserve.EpisodeBatch:
    num_steps, num_segments = int(counts.sum()), len(counts)

    def column(num_rows: int, dtype: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        return source.integers(0, 2, (num_rows, *shape)).astype(dtype)

    def infos(num_rows: int) -> dict[str, np.ndarray]:
        columns = {}
        for name, (dtype, shape, gaps) in kind.items():
            columns[name] = column(num_rows, dtype, shape)
            if gaps:
                columns[f"_{name}"] = column(num_rows, "?")
        return columns

    def states(num_rows: int) -> dict[str, np.ndarray]:
        gaps = {"_h": column(num_rows, "?")} if "_x" in infos(0) else {}
        return {"h": column(num_rows, "f4", (2,)), **gaps}

    over = np.minimum(ends[episodes], stop) == ends[episodes]
    terminated = over & (episodes % 2 == 0)
    observations = {leaf: column(num_steps, "u1", (3,)) for leaf in leaves}
    last = {leaf: column(num_segments, "u1", (3,)) for leaf in leaves}
    return rollserve.EpisodeBatch(
        observations=observations[""] if leaves == [""] else observations,
        last_observations=last[""] if leaves == [""] else last,
        actions=column(num_steps, "i8"),
        rewards=source.random(num_steps),
        lengths=counts,
        terminated=terminated,
        truncated=over & ~terminated,
        agent_infos={"log_prob": column(num_steps, "f4")},
        env_infos=infos(num_steps),
        episode_infos=infos(num_segments),
        initial_states=states(num_segments),
        episode_indices=episodes,
        first_steps=firsts,
        env_seeds=episodes + 7,
        worker_indices=episodes % 3 if bound else None,
    )


def join(
    batches: Sequence[rollserve.EpisodeBatch], num_steps: int = 0, out: rollserve.EpisodeBuffer | None = None
) -> rollserve.EpisodeBatch:
    with Joining(num_steps, out) as joining:
        for batch in batches:
            joining.add(batch)
        return joining.join(account_of(batches))


def account_of(batches: Sequence[rollserve.EpisodeBatch]) -> rollserve.Account:
    counts = Counter(
        num_steps=sum(batch.num_steps for batch in batches),
        num_episodes=int(sum((batch.terminated | batch.truncated).sum() for batch in batches)),
    )
    return rollserve.Account(**{**ACCOUNT.__dict__, **counts})


@settings(max_examples=60)
@given(st.lists(streams(), min_size=1, max_size=3), st.sampled_from([0, 5, 1000, 10**18]), st.booleans())
def test_joining_equals_join_batches(
    several: list[list[rollserve.EpisodeBatch]], num_steps: int, growing: bool
) -> None:
    out = rollserve.EpisodeBuffer()
    with mock.patch.object(episode_buffer, "_DOUBLED_BYTES", 0 if growing else 1 << 20):
        for batches in several:
            expected = join_batches(batches, account_of(batches))
            batch = join(batches, num_steps)
            assert equal(batch, expected)
            assert batch.account == expected.account
            assert equal(join(batches, num_steps, out), expected)
            assert batch.observations is not None
            for array in (batch.rewards, batch.actions, batch.lengths):
                assert array.flags.writeable


@settings(max_examples=60)
@given(streams())
def test_joining_copies_added_batches(batches: list[rollserve.EpisodeBatch]) -> None:
    expected = join_batches(batches, account_of(batches))
    with Joining() as joining:
        for batch in batches:
            passing = copy.deepcopy(batch)
            joining.add(passing)
            for columns in filter(lambda columns: columns is not None, vars(passing).values()):
                for leaf in leaves_of(columns).values():
                    leaf[...] = 0
        assert equal(joining.join(account_of(batches)), expected)


@settings(max_examples=60)
@given(streams(), streams())
def test_buffer_holds_a_batch_until_the_next_call(
    first: list[rollserve.EpisodeBatch], second: list[rollserve.EpisodeBatch]
) -> None:
    """The second call may need more memory; its batch is complete in either case."""
    buffers = [rollserve.EpisodeBuffer(), rollserve.EpisodeBuffer()]
    ones = join(first, 1, buffers[0])
    others = join(second, 1, buffers[1])
    assert equal(ones, join_batches(first, account_of(first)))
    again = join(second, 1, buffers[0])
    assert equal(again, join_batches(second, account_of(second)))
    assert equal(others, again)
    assert ones.rewards.sum() >= 0  # overwritten or not, the memory is still mapped


def test_buffer_memory_is_reused(sampler: rollserve.Sampler) -> None:
    buffer = rollserve.EpisodeBuffer()
    first = sampler.obtain_samples(500, seed=1, out=buffer)
    expected = sampler.obtain_samples(500, seed=2)
    second = sampler.obtain_samples(500, seed=2, out=buffer)
    assert equal(second, expected)
    assert np.shares_memory(np.asarray(first.observations), np.asarray(second.observations))
    assert np.array_equal(np.asarray(first.observations)[:500], np.asarray(expected.observations)[:500])
    larger = sampler.obtain_samples(5000, seed=2, out=buffer)
    assert not np.shares_memory(np.asarray(larger.observations), np.asarray(second.observations))
    assert equal(second, expected)
    assert equal(sampler.obtain_exact_episodes(3, seed=4, out=buffer), sampler.obtain_exact_episodes(3, seed=4))


def test_buffer_takes_messages_with_and_without_masks() -> None:
    """A message has the mask of an info only if one of its rows lacks the info."""
    whole, gaps = batch_of({"x": np.arange(3)}), batch_of({"x": np.arange(3), "_x": np.array([True, False, True])})
    for batches in ([whole, gaps], [gaps, whole], [whole, gaps, whole]):
        buffer = rollserve.EpisodeBuffer()
        batch = join(batches, 0, buffer)
        assert equal(batch, join_batches(batches, account_of(batches)))
        assert "_x" in batch.env_infos
        assert len(buffer) == batch.num_steps
        assert np.shares_memory(join([whole], 0, buffer).rewards, batch.rewards)


def batch_of(env_infos: dict[str, np.ndarray]) -> rollserve.EpisodeBatch:
    """Return an episode of three steps."""
    columns = {"observations": np.zeros((3, 2)), "last_observations": np.zeros(2), "actions": np.zeros(3)}
    ends = {"rewards": np.ones(3), "terminated": True, "truncated": False}
    return rollserve.EpisodeBatch.from_list([{**columns, **ends, "env_infos": env_infos}])


def test_buffer_in_use_is_rejected(sampler: rollserve.Sampler) -> None:
    buffer = rollserve.EpisodeBuffer()
    with Joining(out=buffer), raises(ValueError, field="out"):
        sampler.obtain_samples(10, out=buffer)
    assert sampler.obtain_samples(10, out=buffer).num_steps >= 10


async def test_async_client_fills_a_buffer(sampler: rollserve.Sampler, server: LocalServer) -> None:
    buffer = rollserve.EpisodeBuffer()
    async with rollserve.aconnect(server.address) as other:
        batch = await other.obtain_samples(500, seed=1, out=buffer)
    assert equal(batch, sampler.obtain_samples(500, seed=1))


def test_result_owns_its_memory(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_samples(1000, seed=1)
    for array in (batch.observations, batch.rewards, batch.agent_infos["logits"], batch.lengths):
        assert isinstance(array, np.ndarray)
        assert array.flags.owndata
