"""A server of walks by the package of OpenEnv: `python openenv_program.py PORT`."""

from __future__ import annotations

import sys
from typing import Any, List, Optional  # noqa: UP035

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv_walk import Walk
from pydantic import Field


class Move(Action):
    move: int = Field(ge=-1, le=1)
    jump: bool
    wind: List[float] = Field(min_length=2, max_length=2)  # noqa: UP006
    push: float = 0.25
    level: int = 3


class Seen(Observation):
    place: float
    grid: List[List[int]]  # noqa: UP006
    jumped: bool
    text: str


class WalkEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._walk = Walk()

    def reset(self, seed: Optional[int] = None, start: float = 0.0, **kwargs: Any) -> Seen:  # noqa: UP045
        return Seen(**self._walk.reset(seed, start))

    def step(self, action: Move, **kwargs: Any) -> Seen:
        observation, reward, done = self._walk.step(**action.model_dump(exclude={"metadata"}))
        return Seen(**observation, reward=reward, done=done)

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(WalkEnvironment, Move, Seen, max_concurrent_envs=100)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
