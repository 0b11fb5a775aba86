"""Environments that do not wait for the policy: robots, and engines at a fixed rate."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Callable, Mapping, Optional, Tuple

import numpy as np

from rollserve_env_host.environments import Environment, environment_factory

__all__ = ["RealTime", "factory_of"]

_Outcome = Tuple[Any, float, bool, bool, Mapping[str, Any]]


class RealTime(Environment):
    """An environment that makes a step each period: with the policy's action, or a default one if that is late.

    A step of the policy has the rewards of the late steps before it. The info `late_steps` counts these, and
    `host_seconds` is the host's clock (Unix time) at the observation. If an episode ends in a late step, that is the
    outcome of the policy's next step, whose action is not used.
    """

    def __init__(self, env: Environment, period_seconds: float, default_action: object) -> None:
        """Begin at rest.

        Args:
            env: the environment.
            period_seconds: time from one step to the next.
            default_action: the action of late steps, as JSON has it.

        Raises:
            ValueError: the action has another form than the action space.
        """
        self._env, self._period = env, period_seconds
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.max_episode_steps, self.is_nondeterministic = env.max_episode_steps, True
        self._default = _value(env.action_space, default_action)
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._is_running = False

    def set_task(self, method: str, argument: object) -> None:
        self._env.set_task(method, argument)

    def reset(self, seed: int, options: Optional[Mapping[str, Any]]) -> Tuple[Any, Mapping[str, Any]]:
        self._stop()
        observation, infos = self._env.reset(seed, options)
        self._action: Optional[Tuple[Any]] = None
        self._outcome: Optional[_Outcome] = None
        self._error: Optional[BaseException] = None
        self._reward, self._num_late, self._is_running = 0.0, 0, True
        self._thread = threading.Thread(target=self._run, name="real time", daemon=True)
        self._thread.start()
        return observation, self._with_clock(infos)

    def begin_step(self, action: Any) -> None:
        """Give the action of the next step, without waiting for it."""
        with self._changed:
            self._action = (action,)

    def end_step(self) -> _Outcome:
        """Wait for the step whose action was given, and return its outcome."""
        with self._changed:
            self._changed.wait_for(lambda: self._outcome is not None or not self._is_running)
            if self._error is not None:
                raise self._error
            if self._outcome is None:
                raise ValueError("step: expected an episode that has begun")
            outcome, self._outcome = self._outcome, None
            return outcome

    def step(self, action: Any) -> _Outcome:
        self.begin_step(action)
        return self.end_step()

    def close(self) -> None:
        self._stop()
        self._env.close()

    def _run(self) -> None:
        """Make a step each period, until the episode ends."""
        due = time.monotonic() + self._period
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_running, max(due - time.monotonic(), 0))
                if not self._is_running:
                    return
                action, self._action = self._action, None
            try:
                outcome = self._env.step(self._default if action is None else action[0])
            except Exception as error:
                self._error = error
                outcome = None
            with self._changed:
                self._take(outcome, is_late=action is None)
                self._changed.notify_all()
            due = max(due + self._period, time.monotonic())

    def _take(self, outcome: Optional[_Outcome], *, is_late: bool) -> None:
        if outcome is None:
            self._is_running = False
            return
        observation, reward, terminated, truncated, infos = outcome
        self._reward += float(reward)
        self._num_late += is_late
        if is_late and not (terminated or truncated):
            return
        self._outcome = observation, self._reward, terminated, truncated, self._with_clock(infos)
        self._reward, self._num_late = 0.0, 0
        self._is_running = not (terminated or truncated)

    def _with_clock(self, infos: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**infos, "late_steps": np.int64(self._num_late), "host_seconds": np.float64(time.time())}

    def _stop(self) -> None:
        with self._changed:
            self._is_running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()


def factory_of(
    env: str, period_seconds: Optional[float] = None, default_action: str = "null"
) -> Callable[[Mapping[str, Any]], Environment]:
    """Return a function that makes the environment of a name with arguments; see `environment_factory`.

    Args:
        env: the name.
        period_seconds: time from one step to the next, for an environment that does not wait; None for one that does.
        default_action: the action of late steps, as JSON.
    """
    make = environment_factory(env)
    if period_seconds is None:
        return make
    seconds, action = period_seconds, json.loads(default_action)
    return lambda kwargs: RealTime(make(kwargs), seconds, action)


def _value(space: Any, given: Any) -> Any:
    """Return a value of a space from what JSON holds; raise ValueError if it has another form."""
    kind = type(space).__name__
    try:
        if kind == "Dict":
            return {key: _value(part, given[key]) for key, part in space.spaces.items()}
        if kind == "Tuple":
            return tuple(_value(part, given[position]) for position, part in enumerate(space.spaces))
        value = np.asarray(given, np.int64 if kind == "Discrete" else space.dtype)
    except (TypeError, KeyError, IndexError, ValueError):
        raise ValueError("default action: expected a value of {!r}, got {!r}".format(space, given))
    if value.shape != tuple(space.shape or ()):
        raise ValueError("default action: expected a value of {!r}, got {!r}".format(space, given))
    return value[()] if kind == "Discrete" else value
