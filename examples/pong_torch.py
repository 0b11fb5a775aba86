"""Train an agent for Pong with the PPO of ppo_torch.py: from four bytes of the console's memory instead of pixels.

    PYTHONPATH=examples python examples/pong_torch.py               # starts a server of its own
    PYTHONPATH=examples python examples/pong_torch.py --resume      # goes on with the checkpoint in `run`
    PYTHONPATH=examples rollserve-server --env pong_torch:PongMemory
    python examples/pong_torch.py --server HOST:PORT                # uses that server

Needs `rollserve[torch,plot]`; without `--server`, `rollserve-server[atari]`.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np

gym.register_envs(ale_py)


class PongMemory(gym.Wrapper[np.ndarray, np.int64, np.ndarray, np.int64]):
    """Pong, whose observations are where paddles and ball are, and how far they moved in the last step.

    Observations are (8,) float32 in [-1, 1]. An action is to stay, to go up, or to go down, for four frames.
    """

    ACTIONS = 0, 2, 3
    PLACES = (51, 50, 49, 54)
    """Bytes of the memory: height of the own paddle and of the other one, column and height of the ball."""

    def __init__(self, render_mode: str | None = None) -> None:
        kwargs: dict[str, Any] = {"obs_type": "ram", "frameskip": 4, "repeat_action_probability": 0.0}
        super().__init__(gym.make("ALE/Pong-v5", render_mode=render_mode, **kwargs))
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(len(self.ACTIONS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        memory, _ = self.env.reset(seed=seed, options=options)
        self._places = self._places_in(memory)
        return self._observe(memory), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        memory, reward, terminated, truncated, _ = self.env.step(np.int64(self.ACTIONS[action]))
        return self._observe(memory), float(reward), terminated, truncated, {}

    def _observe(self, memory: np.ndarray) -> np.ndarray:
        places, before = self._places_in(memory), self._places
        self._places = places
        # A move of a quarter of the screen or more is one of a ball that is served.
        return np.concatenate([places, np.clip(4 * (places - before), -1, 1)]).astype(np.float32)

    def _places_in(self, memory: np.ndarray) -> np.ndarray:
        return memory[list(self.PLACES)] / 127.5 - 1


def main() -> None:
    """Run the example."""
    import torch
    from ppo_torch import ActorCritic, Ppo, Settings, train
    from training_run import TrainingRun, finish, parser_of, sampler_of

    import rollserve

    parser = parser_of("Train an agent for Pong with PPO through Rollserve.", "pong_torch:PongMemory", 3_000_000)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the workers need the other cores
    with sampler_of(options.server, options.out, options.env) as sampler:
        num_workers = sampler.status().num_workers
        settings = Settings(
            row_steps=256, minibatch_size=512, num_epochs=6, entropy_bonus=0.01, num_rows=16, max_policy_lag=0
        )
        spaces = sampler.update_env(rollserve.EnvSpec(options.env, num_rows=max(1, settings.num_rows // num_workers)))
        learner = Ppo(ActorCritic(spaces.observation_space, spaces.action_space), settings, options.seed)
        run = TrainingRun(options, "PPO learns Pong through Rollserve, from positions", learner.save)
        if options.resume:
            learner.load(run.checkpoint)
        train(sampler, learner, options.steps, run.num_steps, options.target, run.report)
        run.save()
        # Without randomness all episodes would be the same.
        finish(sampler, options.video, num_video_steps=600, deterministic=False)


if __name__ == "__main__":
    main()
