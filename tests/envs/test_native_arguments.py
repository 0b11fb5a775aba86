"""Arguments that hang or crash native code, or change how its rows are stepped: they cost no worker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
from support import raises

import rollserve
from rollserve import EnvSpec, Reason
from rollserve_server.local import LocalServer, local_server

FIELD = "all_workers.environment"
NUM_CORES = len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server whose workers choose how rows are stepped."""
    with local_server("--env", "CartPole-v1", "--workers", "2", "--backend", "in-process") as running:
        yield running


def pong(**kwargs: object) -> EnvSpec:
    return EnvSpec("ALE/Pong-v5", kwargs, vectorization="native", num_rows=4)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 7),
        ("batch_size", 2),
        ("thread_affinity_offset", 1000),
        ("num_threads", 1_000_000),
        ("num_threads", NUM_CORES + 1),
        ("num_threads", -1),
        ("num_threads", "2"),
        ("num_threads", True),
    ],
)
@pytest.mark.parametrize("vectorization", ["native", "auto"])
def test_argument_of_the_pool_of_rows_is_refused(
    sampler: rollserve.Sampler, name: str, value: object, vectorization: str
) -> None:
    chosen: rollserve.Vectorization | None = None if vectorization == "auto" else "native"
    spec = EnvSpec("ALE/Pong-v5", {name: value}, vectorization=chosen)
    quotes = (name, json.dumps(value))
    with raises(
        rollserve.InvalidArgumentError, field=f"{FIELD}.kwargs_json", reason=Reason.INVALID_VALUE, quotes=quotes
    ):
        sampler.update_env(spec)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("kwargs", [{"stack_num": 0}, {"img_width": 0}], ids=["no frames", "no pixels"])
def test_arguments_with_which_native_code_would_hang_are_refused(
    sampler: rollserve.Sampler, kwargs: dict[str, int]
) -> None:
    with raises(rollserve.InvalidArgumentError, field=f"{FIELD}.id", quotes="at least one element"):
        sampler.update_env(pong(**kwargs))
    assert [worker.num_restarts for worker in sampler.status().workers] == [0, 0]


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("mode", ["human", "human_list", "rgb_array_list"])
def test_render_mode_that_opens_windows_is_refused(sampler: rollserve.Sampler, mode: str) -> None:
    field, reason = f"{FIELD}.kwargs_json", Reason.RENDER_MODE_NOT_ALLOWED
    with raises(rollserve.InvalidArgumentError, field=field, reason=reason, quotes=repr(mode)):
        sampler.update_env("HalfCheetah-v5", kwargs={"render_mode": mode})
