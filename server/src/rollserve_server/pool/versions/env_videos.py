"""Videos of episodes, each in an environment that a child process of the server makes for it."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollserve_server.envs import Overlay, Rendering, leaf_bounds, leaves_of_space, run_rendering
from rollserve_server.errors import CallTooLongError, InvalidValueError, NotReadyError, OverLimitError, listed
from rollserve_server.pool.versions.selection import check_expected_env
from rollserve_wire.environments import EnvSpec, Reproducibility
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping

    import numpy as np

    from rollserve_server.envs import Leaf, VideoForm
    from rollserve_server.pool.requests import Expectation, VideoRequest
    from rollserve_server.pool.state.versions import EnvVersion
    from rollserve_server.pool.versions.versions import Versions
    from rollserve_server.settings import PoolSettings
    from rollserve_wire.replays import RecordedEpisode

__all__ = ["EnvVideos", "RenderedEnv"]


@dataclass(frozen=True)
class RenderedEnv:
    """An environment that can be rendered.

    Attributes:
        version: number of the environment's version.
        spec: the environment.
        action_leaves: leaves of its action space.
        reproducibility: its class, as the sampler steps it.
    """

    version: int
    spec: EnvSpec
    action_leaves: tuple[Leaf, ...]
    reproducibility: Reproducibility

    @property
    def single(self) -> EnvSpec | None:
        """The environment stepped one by one, where episodes of the sampler have no seeds of their own; else None."""
        is_block = self.reproducibility is Reproducibility.BLOCK
        return dataclasses.replace(self.spec, vectorization="rows") if is_block else None

    @property
    def compares_observations(self) -> bool:
        """Whether recorded observations are what the environment returns, without transforms."""
        return not any(type(transform).__name__.endswith("Observations") for transform in self.spec.transforms)


class EnvVideos:
    """Renders episodes in environments that are made for that: workers and their environments are not used.

    Attributes:
        limits: bounds of videos.
    """

    def __init__(self, versions: Versions, settings: PoolSettings) -> None:
        """Take the installed versions, and limits of memory, time and size."""
        self._versions = versions
        self._health = settings.health
        self.limits = settings.rendering

    def env(self, env_version: int | None, expected: Expectation, *, sampled: bool) -> RenderedEnv:
        """Return the environment of a version; see `Pool.rendered_env`."""
        versions = self._versions
        check_expected_env(versions, expected)
        number = versions.envs.choose(env_version, Reason.ENVIRONMENT_VERSION)
        env = versions.env_in_use(number)
        _check_renderable(env, sampled=sampled)
        spec = env.specs[0]
        assert isinstance(spec, EnvSpec)  # noqa: S101  # checked above
        leaves = leaves_of_space(env.description.action_space, "actions")
        return RenderedEnv(number, spec, leaves, env.description.reproducibility)

    async def render(
        self, env: RenderedEnv, episode: RecordedEpisode, request: VideoRequest
    ) -> AsyncGenerator[VideoForm | bytes, None]:
        """Render an episode; see `Pool.render`."""
        self._check(env, episode, request)
        if not env.compares_observations:
            episode = dataclasses.replace(episode, observations=None)
        rendering = Rendering(
            env.spec, episode, request.format, request.fps, request.overlays, self.limits.max_video_bytes
        )
        ended = threading.Event()
        parts = run_rendering(rendering, self._health, ended)
        seconds, loop = self.limits.render_seconds, asyncio.get_running_loop()
        # One thread, so that closing waits for the part that is being made.
        with_one_thread = ThreadPoolExecutor(1, "rendering")
        try:
            while seconds > 0:
                began = time.monotonic()
                async with asyncio.timeout(seconds):
                    part = await loop.run_in_executor(with_one_thread, _next, parts)
                if part is None:
                    return
                seconds -= time.monotonic() - began
                yield part
            raise TimeoutError
        except NotReadyError as error:
            if env.reproducibility is not Reproducibility.EPISODE:
                error.text += f"; episodes of class {env.reproducibility.name} are not a function of their seeds"
            if env.reproducibility is Reproducibility.BLOCK:
                error.text += ", those of EnvSpec(vectorization='rows') are"
            raise
        except TimeoutError:
            text = f"the video took more than {self.limits.render_seconds:g} s to be made (--render-seconds)"
            raise CallTooLongError(text) from None
        finally:
            ended.set()
            with_one_thread.submit(parts.close)
            with_one_thread.shutdown(wait=False)

    def _check(self, env: RenderedEnv, episode: RecordedEpisode, request: VideoRequest) -> None:
        """Raise an error unless the episode fits the environment and the limits."""
        _check_actions(env.action_leaves, episode.actions)
        max_frames = self.limits.max_video_frames
        if episode.num_steps + 1 > max_frames:
            expected = f"at most {max_frames} pictures (--max-video-frames)"
            raise OverLimitError.of(
                "episode", expected=expected, got=episode.num_steps + 1, reason=Reason.VIDEO_TOO_LARGE
            )
        if Overlay.VALUE in request.overlays and episode.values is None:
            expected = "an episode with values, of an agent that has them"
            raise InvalidValueError.of("overlays", expected=expected, got="one without")


def _next(parts: Generator[VideoForm | bytes, None, None]) -> VideoForm | bytes | None:
    return next(parts, None)


def _check_renderable(env: EnvVersion, *, sampled: bool) -> None:
    """Raise InvalidValueError for environments whose episodes cannot be replayed one by one."""
    description = env.description
    if description.agents:
        raise _not_renderable("an environment with one agent", f"agents {listed(description.agents)}")
    if env.rows_differ or len(env.specs) > 1:
        raise _not_renderable("one environment for all rows", "environments that differ")
    if description.why_not_single:
        got = f"rows that are stepped at once: {description.why_not_single}"
        raise _not_renderable("an environment that can be stepped one by one", got)
    if sampled and description.reproducibility is Reproducibility.WORKER:
        expected = "an environment of class EPISODE or BLOCK, so that an episode is a function of its seed"
        raise _not_renderable(expected, "class WORKER")


def _not_renderable(expected: str, got: str) -> InvalidValueError:
    return InvalidValueError.of("", expected=f"{expected}, to render it", got=got, reason=Reason.ENV_NOT_RENDERABLE)


def _check_actions(leaves: tuple[Leaf, ...], actions: Mapping[str, np.ndarray]) -> None:
    """Raise InvalidValueError unless actions are of the space, where Box alone may be left, as agents do."""
    names = [leaf.name for leaf in leaves]
    if sorted(actions) != sorted(names):
        expected = f"actions of the leaves {names}"
        raise InvalidValueError.of("recorded.actions", expected=expected, got=sorted(actions))
    num_steps = len(next(iter(actions.values()), ()))
    for leaf in leaves:
        column, field = actions[leaf.name], f"recorded.actions[{leaf.name!r}]"
        if column.dtype != leaf.dtype or column.shape != (num_steps, *leaf.shape) or not num_steps:
            expected = f"{leaf.dtype} of shape {('T', *leaf.shape)}, with 1 or more steps for all leaves"
            got = f"{column.dtype} of shape {column.shape}"
            raise InvalidValueError.of(field, expected=expected, got=got)
        if leaf.dtype.kind != "f":
            low, high = leaf_bounds(leaf)
            flat = column.reshape(num_steps, -1)
            outside = (flat < low) | (flat > high)
            if outside.any():
                step = int(outside.any(axis=1).argmax())
                raise InvalidValueError.of(field, expected="actions in the space", got=f"{column[step]} at step {step}")
