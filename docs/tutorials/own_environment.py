from typing import Any

import gymnasium as gym
import numpy as np


class Corridor(gym.Env[np.ndarray, np.int64]):
    """A corridor of `length` fields: the agent starts in the left half, and leaves on the right."""

    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 10, render_mode: str | None = None) -> None:
        self.length, self.render_mode = length, render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.field = int(self.np_random.integers(self.length // 2))
        return self.observe(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.field = max(0, self.field + (1 if action == 1 else -1))
        has_left = self.field == self.length
        return self.observe(), 1.0 if has_left else -0.01, has_left, False, {"field": self.field}

    def observe(self) -> np.ndarray:
        return np.array([self.field / self.length], np.float32)

    def render(self) -> np.ndarray:
        picture = np.full((20, 20 * self.length + 20, 3), 230, np.uint8)
        picture[2:18, 20 * self.field + 2 : 20 * self.field + 18] = 30, 90, 180
        return picture


if __name__ == "__main__":
    import rollserve
    from rollserve_server.local import local_server

    options = ("--env", "own_environment:Corridor", "--env-kwargs", '{"length": 8}', "--max-episode-length", "200")
    with (
        local_server(*options, "--backend", "in-process", log="server.log") as server,
        rollserve.connect(server.address) as sampler,
    ):
        sampler.update_agent(rollserve.RandomAgent())
        batch = sampler.obtain_samples(2_000, seed=1)
        print("length 8: ", len(batch), "episodes,", batch.truncated.sum(), "truncated")
        print("fields:", np.unique(batch.env_infos["field"]))

        sampler.update_env(rollserve.EnvChange(kwargs={"length": 16}))
        longer = sampler.obtain_samples(2_000, seed=1)
        print("length 16:", len(longer), "episodes,", longer.truncated.sum(), "truncated")

        try:
            sampler.update_env(rollserve.EnvChange(kwargs={"length": "ten"}))
        except rollserve.InvalidArgumentError as error:
            print(error.reason, error)
