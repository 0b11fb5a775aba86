"""Train an agent for CartPole-v1 with PPO, through Rollserve's public client alone.

    python examples/cartpole.py                            # starts a server of its own
    python examples/cartpole.py --server HOST:PORT         # uses a running server

`train` is the whole loop: sample, learn, send the new parameters. The learner is in numpy_ppo.py, the display and the
learning curve are in training_display.py.

The exit status is 0 if the mean return of 100 new episodes reaches 475, which gymnasium calls solved; 1 if it does not;
and 3 if the server cannot be used.

Needs `rollserve[plot,top]`; without `--server`, `rollserve-server`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path

# One thread is fastest for matrices this small. numpy reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from numpy_ppo import Ppo
from rich.console import Console
from training_display import Display, LearningCurve
from training_run import save_video

import rollserve

ENV = "CartPole-v1"
SOLVED_RETURN = 475.0
TRAINED_RETURN = 490.0
NUM_EVALUATION_EPISODES = 100
STEPS_PER_ITERATION = 8192
MAX_ITERATIONS = 150


def train(sampler: rollserve.Sampler, display: Display, curve: LearningCurve, seed: int) -> tuple[float, int]:
    """Train until an evaluation reaches SOLVED_RETURN, for at most MAX_ITERATIONS.

    Returns:
        The mean return of the last evaluation, and the number of sampled steps, evaluations included.
    """
    # The server reports the spaces of its environment.
    status = sampler.status()
    learner = Ppo(status.observation_space.flat_size, status.action_space.flat_size, seed=seed, learning_rate=1e-3)

    # The first update sends the whole agent: its network, its head and its parameters.
    sampler.update_agent(learner.agent())
    num_steps = 0
    for iteration in range(1, MAX_ITERATIONS + 1):
        # Whole episodes of the current policy, with at least that many steps in all.
        batch = sampler.obtain_samples(STEPS_PER_ITERATION)
        num_steps += batch.num_steps
        curve.add(num_steps, batch.returns)
        display.show(iteration, batch.returns.mean(), num_steps)

        if batch.returns.mean() >= TRAINED_RETURN:
            mean_return, num_evaluation_steps = evaluate(sampler)
            num_steps += num_evaluation_steps
            if mean_return >= SOLVED_RETURN:
                return mean_return, num_steps

        # Later updates send the parameters alone.
        learner.learn(batch, rate=1.0 - iteration / (MAX_ITERATIONS + 1))
        sampler.update_agent(learner.policy.parameters)
    mean_return, num_evaluation_steps = evaluate(sampler)
    return mean_return, num_steps + num_evaluation_steps


def evaluate(sampler: rollserve.Sampler) -> tuple[float, int]:
    """Return the mean return of 100 new episodes of the current policy, and their number of steps."""
    num_workers = sampler.status().num_workers
    batch = sampler.obtain_exact_episodes(-(-NUM_EVALUATION_EPISODES // num_workers))
    return float(batch.returns[:NUM_EVALUATION_EPISODES].mean()), batch.num_steps


@contextlib.contextmanager
def server_address(console: Console, address: str | None, log: Path) -> Generator[str]:
    """Yield the address of a running server, or run a server of its own for as long as the block."""
    if address is not None:
        yield address
        return
    from rollserve_server.local import local_server  # here, because a trainer needs the client alone

    with contextlib.ExitStack() as stack:
        with console.status("starting the server"):
            server = stack.enter_context(local_server("--env", ENV, "--rows", "32", log=log))
        console.print(f"server at {server.address}, its log in {log}")
        yield server.address
        console.print("stopping the server")


def main() -> int:
    """Run the example; return its exit status."""
    parser = argparse.ArgumentParser(description=f"Train an agent for {ENV} through Rollserve.")
    parser.add_argument("--server", metavar="HOST:PORT", help="address of a running server (default: start one)")
    parser.add_argument(
        "--curve", type=Path, default=Path("demo.png"), help="file for the learning curve (default: %(default)s)"
    )
    parser.add_argument(
        "--log",
        type=Path,
        default=Path("demo-server.log"),
        help="file for the log of a started server (default: %(default)s)",
    )
    parser.add_argument("--video", type=Path, metavar="FILE.gif", help="file for an episode of the trained agent")
    parser.add_argument("--seed", type=int, default=0, help="seed of the learner (default: %(default)s)")
    options = parser.parse_args()

    console = Console(highlight=False)
    curve = LearningCurve(f"PPO learns {ENV} through Rollserve", SOLVED_RETURN)
    with server_address(console, options.server, options.log) as address, rollserve.connect(address) as sampler:
        sampler.update_env(ENV)
        began = time.monotonic()
        with Display(console, TRAINED_RETURN) as display:
            mean_return, num_steps = train(sampler, display, curve, options.seed)
        seconds = time.monotonic() - began
        if options.video:
            save_video(sampler, options.video)
    curve.save(options.curve)
    console.print(f"learning curve in {options.curve.resolve()}", soft_wrap=True)
    print(
        f"demo: {ENV} mean return {mean_return:.1f} over {NUM_EVALUATION_EPISODES} episodes, "
        f"{num_steps} steps in {seconds:.1f} s, {num_steps / seconds:.0f} steps/s"
    )
    return 0 if mean_return >= SOLVED_RETURN else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except rollserve.RollserveError as error:
        print(f"demo: {' '.join(error.message.split())}", file=sys.stderr)
        sys.exit(3)
