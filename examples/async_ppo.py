"""Compare asynchronous with synchronous PPO, in one run: wall time to a return, and how old the steps are.

    python examples/async_ppo.py                                   # CartPole-v1, with a server of its own
    python examples/async_ppo.py --target 475 --server HOST:PORT
    python examples/async_ppo.py --env HalfCheetah-v5 --target 1000

The synchronous trainer samples, learns, and sends its parameters. The asynchronous one iterates over a stream: the
server samples the next round while the trainer learns from the last one, and no round is more than `--lag` updates old.
PPO's ratio of probabilities is taken to the version that acted, so old steps count for less. The learner is in
numpy_ppo.py, for Box actions in numpy_gaussian_ppo.py.

Needs `rollserve[plot]`; without `--server`, `rollserve-server`, for MuJoCo with its extra `mujoco`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

# One thread is fastest for matrices this small. numpy reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from numpy_gaussian_ppo import GaussianPpo
from numpy_ppo import Ppo
from training_run import Returns, TrainingRun, finish, parser_of, sampler_of

import rollserve

MODES = "synchronous", "asynchronous"
NUM_ROWS = 64  # of all workers
FRAGMENT_LENGTH = 128  # steps of each row in an iteration


class Result(NamedTuple):
    """What a trainer has reached.

    Attributes:
        seconds: wall time of the training.
        num_steps: number of steps that the trainer has learned from.
        mean_return: mean return of the last 100 episodes.
        account: account of the stream; None without one.
    """

    seconds: float
    num_steps: int
    mean_return: float
    account: rollserve.Account | None


def synchronous(sampler: rollserve.Sampler) -> Iterator[rollserve.EpisodeBatch]:
    """Yield batches that are sampled with the present policy, while the trainer waits."""
    while True:
        yield sampler.obtain_fragments(FRAGMENT_LENGTH * NUM_ROWS)


def train(
    sampler: rollserve.Sampler,
    learner: Ppo,
    batches: Iterator[rollserve.EpisodeBatch],
    target: float,
    max_steps: int,
    report: Callable[[int, float], None],
) -> tuple[int, float]:
    """Learn until the last 100 episodes return `target` on average, or from `max_steps` steps.

    Returns:
        The number of steps, and the mean return.
    """
    returns, num_steps, mean_return = Returns(sampler), 0, float("nan")
    for batch in batches:
        num_steps += batch.num_steps
        mean_return = returns.update()
        report(num_steps, mean_return)
        if returns.reached(target) or num_steps >= max_steps:
            break
        learner.learn(batch, rate=1.0 - num_steps / max_steps)
        sampler.update_agent(learner.policy.parameters)
    return num_steps, mean_return


def learner_of(status: rollserve.SamplerStatus, seed: int) -> Ppo:
    """Return a new learner for the spaces of the environment."""
    sizes = status.observation_space.flat_size, status.action_space.flat_size
    if isinstance(status.action_space, rollserve.spaces.Box):
        return GaussianPpo(*sizes, seed=seed)
    return Ppo(*sizes, learning_rate=1e-3, seed=seed)


def run(options: argparse.Namespace, sampler: rollserve.Sampler, *, is_asynchronous: bool) -> Result:
    """Train a new learner in one of the two ways."""
    learner = learner_of(sampler.status(), options.seed)
    curve = TrainingRun(options, f"PPO learns {options.env} through Rollserve", learner.save)
    sampler.update_agent(learner.agent())
    began = time.monotonic()
    if is_asynchronous:
        with sampler.stream(fragment_length=FRAGMENT_LENGTH, max_policy_lag=options.lag) as stream:
            reached = train(sampler, learner, stream, options.target, options.steps, curve.report)
            seconds = time.monotonic() - began
        account = stream.account
    else:
        reached = train(sampler, learner, synchronous(sampler), options.target, options.steps, curve.report)
        seconds, account = time.monotonic() - began, None
    curve.save()
    return Result(seconds, *reached, account)


def report(name: str, result: Result) -> None:
    """Print a line about a trainer, and one about what was sampled for it."""
    rate = result.num_steps / result.seconds
    print(
        f"{name}: mean return {result.mean_return:.1f} after {result.seconds:.1f} s and {result.num_steps:,} steps, "
        f"{rate:,.0f} steps/s",
        flush=True,
    )
    if result.account is not None:
        account = result.account
        lags = ", ".join(f"{lag}: {count:,}" for lag, count in enumerate(account.lag_step_counts))
        print(
            f"  steps by their lag: {lags}; {account.num_stale_steps:,} too old, {account.num_unsent_steps:,} unsent; "
            f"workers idle for {account.worker_idle_seconds:.1f} s between and in rounds, sampling waited for the "
            f"trainer {account.client_waiting_seconds + account.update_waiting_seconds:.1f} s"
        )


def main() -> int:
    """Run the example; return 0 if both trainers reach the target, else 1."""
    parser = parser_of("Compare asynchronous with synchronous PPO through Rollserve.", "CartPole-v1", 1_500_000)
    parser.set_defaults(target=400.0)
    parser.add_argument("--lag", type=int, default=1, help="largest lag of a round (default: %(default)s)")
    parser.add_argument("--only", choices=MODES, help="make one training alone")
    parser.add_argument("--camera", help="camera of the video, such as MuJoCo's `track`")
    options = parser.parse_args()
    results: dict[str, Result] = {}
    with sampler_of(options.server, options.out) as sampler:
        num_rows = max(1, NUM_ROWS // sampler.status().num_workers)  # of each worker
        sampler.update_env(rollserve.EnvSpec(options.env, num_rows=num_rows))
        for name in [options.only] if options.only else MODES:
            results[name] = run(options, sampler, is_asynchronous=name == "asynchronous")
            report(name, results[name])
        if options.camera:
            sampler.update_env(rollserve.EnvChange(kwargs={"camera_name": options.camera}))
        finish(sampler, options.video)
    if not options.only:
        ratio = results["synchronous"].seconds / results["asynchronous"].seconds
        print(f"asynchronous needs 1/{ratio:.2f} of the time")
    return 0 if all(result.mean_return >= options.target for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
