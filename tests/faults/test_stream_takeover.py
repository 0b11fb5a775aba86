"""Streams whose gateway is killed: the next one takes the sampler over, and no round is doubled or lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import RayCluster, cluster_server, free_port, ray_cluster
from support import equal

import rollserve

OPTIONS = ("--env", "CartPole-v1", "--workers", "2", "--vectorization", "rows", "--rows", "4", "--seed", "7")
OPTIONS += ("--worker-num-cpus", "0.25", "--keep-versions", "30")
LENGTH, NUM_ROWS = 16, 8
KINDS: dict[str, dict[str, Any]] = {"fragments": {"fragment_length": LENGTH}, "episodes": {"num_steps": 200}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stream_goes_on_after_its_gateway_was_killed(cluster: RayCluster, tmp_path: Path, kind: str) -> None:
    port, batches = free_port(), []
    with cluster_server(cluster, tmp_path, *OPTIONS, port=port) as first, rollserve.connect(first.address) as sampler:
        status = sampler.status()
        spaces = status.observation_space, status.action_space
        sampler.update_agent(rollserve.MlpAgent.initial(*spaces, seed=0))
        with sampler.stream(**KINDS[kind], seed=5, max_policy_lag=1) as stream:
            for batch in stream:
                batches.append(batch)
                stream.update_agent(rollserve.MlpAgent.initial(*spaces, seed=len(batches)).parameters)
                if len(batches) == 4:
                    first.process.kill()
                    first.process.wait()
                    break
            with cluster_server(cluster, tmp_path, *OPTIONS, port=port):
                for batch in stream:
                    batches.append(batch)
                    stream.update_agent(rollserve.MlpAgent.initial(*spaces, seed=len(batches)).parameters)
                    if len(batches) == 8:
                        break
                stream.end()
                _check(sampler, batches)
                assert stream.account.num_resumptions >= 1


def _check(sampler: rollserve.Sampler, batches: list[rollserve.EpisodeBatch]) -> None:
    """Check that rounds follow each other, and are the same when they are requested again."""
    rounds = [batch.round for batch in batches]
    for number, (batch, sampled) in enumerate(zip(batches, rounds, strict=True)):
        assert sampled is not None
        options = {"seed": 5, "policy_version": sampled.policy_version}
        if sampled.num_rows:
            assert sampled.row_step_count == number * LENGTH
            clock = sampled.row_step_count if number else None
            again = sampler.obtain_fragments(LENGTH * NUM_ROWS, row_step_count=clock, **options)
        else:
            first = sampled.first_episode_index
            assert first == sum(map(len, batches[:number]))
            again = sampler.obtain_samples(200, first_episode_index=first, **options)
        assert equal(batch, again)
