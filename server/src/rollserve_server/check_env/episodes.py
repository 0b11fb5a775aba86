"""Episodes with random actions, run on fresh environments, on one environment, or in another process.

Where a worker would step rows together, each episode is a block of 8 rows.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollserve_server.envs import ManyEnvs, make_rows
from rollserve_server.settings import RowSettings
from rollserve_wire.environments import env_spec_from_proto, env_spec_to_proto
from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME
from rollserve_wire.v1 import environment_pb2

if TYPE_CHECKING:
    from rollserve_server.envs import RowEnvs, Trace, VectorEnvs
    from rollserve_wire.environments import EnvSpec

__all__ = ["make_checked_rows", "run_in_another_process", "run_on_fresh_envs", "run_on_one_env"]

_SETTINGS = RowSettings(rows=1, native_rows=8)


def make_checked_rows(spec: EnvSpec) -> RowEnvs | VectorEnvs:
    """Make one row, or 8 that are stepped together."""
    rows = make_rows(spec, _SETTINGS)
    assert not isinstance(rows, ManyEnvs)  # noqa: S101  # the command names environments with one agent
    return rows


def run_on_fresh_envs(spec: EnvSpec, seeds: Sequence[int], max_steps: int) -> list[Trace]:
    """Run each episode on an environment of its own."""
    return [trace for seed in seeds for trace in run_on_one_env(spec, [seed], max_steps)]


def run_on_one_env(spec: EnvSpec, seeds: Sequence[int], max_steps: int) -> list[Trace]:
    """Run all episodes on the same environment, in the order of the seeds."""
    rows = make_checked_rows(spec)
    try:
        return [rows.trace(seed, max_steps) for seed in seeds]
    finally:
        rows.close()


def run_in_another_process(spec: EnvSpec, num_episodes: int, max_steps: int) -> list[Trace]:
    """Run `run_on_fresh_envs` in a child process, with the seeds from 0."""
    request = json.dumps([env_spec_to_proto(spec).SerializeToString().hex(), num_episodes, max_steps])
    command = [sys.executable, "-m", "rollserve_server.check_env.episodes", request]
    paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, HASH_SEED_NAME: HASH_SEED, "PYTHONPATH": paths}
    answer = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True).stdout  # noqa: S603
    traces: list[Trace] = pickle.loads(answer)  # noqa: S301  # from our own child process
    return traces


def _answer() -> None:
    """Run the episodes of the request in `sys.argv[1]`, and write their traces to standard output as a pickle."""
    encoded, num_episodes, max_steps = json.loads(sys.argv[1])
    spec = env_spec_from_proto(environment_pb2.Environment.FromString(bytes.fromhex(encoded)))
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)  # output that environments print must not reach the answer
        answer.write(pickle.dumps(run_on_fresh_envs(spec, range(num_episodes), max_steps)))


if __name__ == "__main__":
    _answer()
