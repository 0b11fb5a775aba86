"""A plain loop over an environment of gym, of any version.

`python plain_gym_loop.py ID` reads a seed and actions for each episode, as JSON, and writes the version of gym, and for
each step of each episode the bytes of the observation before it, the reward, and whether the episode is terminated and
truncated.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gym
import numpy as np


def play(env: Any, seed: int, actions: Any) -> Any:
    if hasattr(env, "seed"):
        env.seed(seed % 2**32)
        observation = env.reset()
    else:
        observation, _ = env.reset(seed=seed)
    for action in actions:
        before = observation
        outcome = env.step(np.asarray(action, env.action_space.dtype)[()])
        if len(outcome) == 5:
            observation, reward, terminated, truncated, _ = outcome
        else:
            observation, reward, done, infos = outcome
            truncated = infos.get("TimeLimit.truncated", False)
            terminated = done and not truncated
        yield before.tobytes().hex(), float(reward), bool(terminated), bool(truncated)


if __name__ == "__main__":
    made = gym.make(sys.argv[1])
    episodes = [list(play(made, *each)) for each in json.load(sys.stdin)]
    json.dump([gym.__version__, episodes], sys.stdout)
