"""Train an agent for connect four by self-play: PPO against its own present and past.

    python examples/self_play.py                           # starts a server of its own
    python examples/self_play.py --server HOST:PORT        # uses a running server

In each iteration, the current version of `main` plays one side, and a version that the map draws for each game plays
the other one. Now and then `main` plays against random moves, on both sides: the returns of the learning curve, from -1
for a loss to 1 for a win. In the end, its versions at each evaluation and random moves play against each other, and the
table of their win rates and Elo ratings is printed.

Needs `rollserve[plot]`; without `--server`, `rollserve-server[pettingzoo]`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

# One thread is fastest for matrices this small. numpy reads the variable when it is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy_ppo import Adam, Perceptron, Ppo, policy_loss
from training_run import TrainingRun, parser_of, sampler_of, save_gif

import rollserve
from rollserve.spaces import Dict

STEPS_PER_ITERATION = 3000
ITERATIONS_PER_EVALUATION = 5
NUM_EVALUATION_EPISODES = 50
PLAYERS = "player_0", "player_1"
NUM_SNAPSHOTS = 4
"""Number of earlier versions that are kept as opponents."""
CURRENT, EARLIER, RANDOM = 0.5, 0.35, 0.15
"""Weights of the opponents: the current version, the earlier ones together, and random moves."""
MASK = rollserve.ActionMask(observation="action_mask")


class MaskedPpo(Ppo):
    """PPO for an environment whose observations are a board and a mask of the legal actions."""

    def __init__(self, board_size: int, num_actions: int, **settings: Any) -> None:
        super().__init__(board_size + num_actions, num_actions, **settings)
        self._board_size = board_size
        # The policy gets the board alone; the mask rules out its logits.
        sizes = board_size, *self.hidden_sizes, num_actions
        self.policy = Perceptron.initial(sizes, 0.01, self.seed)
        self._policy_adam = Adam(self.policy.parameters)

    def agent(self) -> rollserve.MlpAgent:
        """Return the policy as an agent that gets the mask."""
        return rollserve.MlpAgent(self.policy.parameters, head="categorical", action_mask=MASK)

    def learn(self, batch: rollserve.EpisodeBatch, rate: float = 1.0) -> None:
        """Improve policy and value with a batch of whole episodes."""
        joined = dataclasses.replace(
            batch, observations=_joined(batch.observations), last_observations=_joined(batch.last_observations)
        )
        super().learn(joined, rate)

    def _improve_policy(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        advantages: np.ndarray,
        old_log_probs: np.ndarray,
        rate: float,
    ) -> None:
        boards, masks = observations[:, : self._board_size], observations[:, self._board_size :]
        logits = np.where(masks > 0, self.policy.forward(boards), np.float32(-1e9))
        loss = policy_loss(logits, actions, advantages, old_log_probs, self.clip, self.entropy_bonus)
        self._policy_adam.update(self.policy.parameters, self.policy.backward(loss.gradient), rate * self.learning_rate)


def _joined(columns: Any) -> np.ndarray:
    """Return boards and masks side by side, (T, board + actions)."""
    parts = [columns["observation"].reshape(len(columns["observation"]), -1), columns["action_mask"]]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def train(sampler: rollserve.Sampler, learner: MaskedPpo, run: TrainingRun, num_steps: int, target: float) -> float:
    """Train for a number of moves, or until the mean return against random moves reaches a target; return it."""
    policies: dict[str, rollserve.Agent] = {"main": learner.agent(), "random": rollserve.RandomAgent(MASK)}
    version = sampler.update_agent(rollserve.Policies(policies, policy_map_of(0, [])))
    snapshots: list[int] = []
    iteration = 0
    while True:
        if iteration % ITERATIONS_PER_EVALUATION == 0:
            versus_random = sampler.cross_play(["main", "random"], NUM_EVALUATION_EPISODES).returns[0][1]
            mean_return = versus_random.mean if versus_random else 0.0
            run.report(run.num_steps, mean_return)
            if run.num_steps >= num_steps or mean_return >= target:
                earlier = [("main", each) for each in reversed(snapshots)]
                print(sampler.cross_play(["main", *earlier, "random"], NUM_EVALUATION_EPISODES))
                return mean_return
            snapshots = [*snapshots, version][-NUM_SNAPSHOTS:]
        sampler.update_agent(rollserve.Policies({}, policy_map_of(iteration % 2, snapshots)))
        batch = sampler.multi_agent.obtain_samples(STEPS_PER_ITERATION)
        segments = batch.by_policy()["main"]
        # Moves of earlier versions are not learned from.
        current = np.flatnonzero(segments.policy_versions == segments.policy_versions.max())
        learner.learn(segments.take(current))
        run.num_steps += batch.num_steps
        iteration += 1
        version = sampler.update_agent({"main": learner.policy.parameters})


def policy_map_of(side: int, snapshots: list[int]) -> dict[str, Any]:
    """Return the map in which the current version plays one side, and an opponent that is drawn plays the other one."""
    earlier = [("main", version, EARLIER / len(snapshots)) for version in snapshots]
    opponents = [("main", 0, CURRENT), *earlier, ("random", 0, RANDOM)]
    return {PLAYERS[side]: "main", PLAYERS[1 - side]: opponents}


def frames_of(batch: rollserve.MultiAgentBatch) -> Iterator[np.ndarray]:
    """Replay an episode in plain PettingZoo, compare its observations, and yield its pictures."""
    # Imported here, because a trainer needs the client alone.
    module: Any = importlib.import_module("pettingzoo.classic.connect_four_v3")
    env, joint = module.env(render_mode="rgb_array"), batch.joint()
    env.reset(seed=int(batch.policies[0].batch.env_seeds[0]))
    yield env.render()
    for step in range(batch.num_steps):
        player = env.agent_selection
        board = env.observe(player)["observation"]
        np.testing.assert_array_equal(board, joint[player].observations["observation"][step])
        env.step(joint[player].actions[step])
        yield env.render()
    env.close()


def main() -> int:
    """Run the example; return 0 if the target was reached or none was given, else 1."""
    parser = parser_of("Train an agent by self-play through Rollserve.", "classic/connect_four-v3", 600_000)
    options = parser.parse_args()
    with sampler_of(options.server, options.out) as sampler:
        env = sampler.update_env(rollserve.EnvSpec(options.env, num_rows=16, multi_agent="aec"))
        match env.observation_space, env.action_space:
            case Dict({"player_0": Dict({"observation": board})}), Dict({"player_0": moves}):
                learner = MaskedPpo(board.flat_size, moves.flat_size, learning_rate=1e-3, seed=options.seed)
            case _:
                parser.error(f"--env: expected players with boards and masks, got {options.env}")
        title, label = f"PPO learns {options.env} by self-play through Rollserve", "mean return against random moves"
        run = TrainingRun(options, title, learner.save, label)
        mean_return = train(sampler, learner, run, options.steps, options.target)
        run.save()
        if options.video:
            sampler.update_agent(rollserve.Policies({}, dict(zip(PLAYERS, ("main", "random"), strict=True))))
            game = sampler.multi_agent.evaluate(1, return_episodes=True).episodes
            save_gif(options.video, list(frames_of(game)), fps=1)
    return 0 if mean_return >= options.target or options.target == float("inf") else 1


if __name__ == "__main__":
    sys.exit(main())
