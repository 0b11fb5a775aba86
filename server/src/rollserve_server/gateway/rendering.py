"""Videos: an episode is sampled if the client has none, rendered, and sent."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from rollserve_server.errors import DomainError
from rollserve_server.gateway.messages.videos import EpisodeCollector
from rollserve_server.gateway.responses import delivered_messages
from rollserve_server.pool import (
    Account,
    AtLeast,
    Beginning,
    Delivery,
    Evaluation,
    EvaluationRequest,
    MessageFormat,
    Progress,
    SampleRequest,
    SamplingOptions,
)
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import video_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from rollserve_server.envs import VideoForm
    from rollserve_server.gateway.messages.videos import RenderRequest
    from rollserve_server.gateway.rpcs.open_rpc import OpenRpc
    from rollserve_server.pool import Pool, RenderedEnv
    from rollserve_wire.replays import RecordedEpisode

__all__ = ["rendered"]

_FORMATS = {"raw": video_pb2.VIDEO_FORMAT_RAW, "mp4": video_pb2.VIDEO_FORMAT_MP4}
_MAX_MESSAGE_BYTES, _MAX_PART_BYTES = 256 << 20, 2 << 20
"""Largest message of a sampled episode, which no client gets; largest part of a video in a response."""


async def rendered(
    pool: Pool, request: RenderRequest, rpc: OpenRpc
) -> AsyncGenerator[pb.RenderEpisodeResponse | Progress | Account, None]:
    """Yield the responses for a video; and if its episode is sampled, the progress and account of that.

    Raises:
        DomainError: as of `Pool.sample` and `Pool.render`.
    """
    is_sampled = isinstance(request.episode, SamplingOptions)
    env = pool.rendered_env(request.env_version, request.expected, sampled=is_sampled)
    beginning = video_pb2.VideoBeginning(format=_FORMATS[request.video.format], environment_version=env.version)
    episode = request.episode
    if isinstance(episode, SamplingOptions):
        collector = EpisodeCollector(observations=env.compares_observations)
        options = dataclasses.replace(
            episode, env_version=env.version, seed=pool.own_seed if episode.seed is None else episode.seed
        )
        async with contextlib.aclosing(_sampled(pool, env, options, rpc, collector)) as items:
            async for item in items:
                if isinstance(item, Beginning):
                    beginning.policy_version = item.policy_version
                    beginning.seed, beginning.episode_index = item.seed, item.first_episode_index
                else:
                    yield item
        episode = collector.episode()
    async for response in _parts(pool, env, episode, request, beginning):
        yield response


async def _sampled(
    pool: Pool,
    env: RenderedEnv,
    options: SamplingOptions,
    rpc: OpenRpc,
    collector: EpisodeCollector,
) -> AsyncGenerator[Progress | Beginning | Account, None]:
    """Sample the episode of the first index, and yield what the call does beside its deliveries."""
    messages = MessageFormat(_MAX_MESSAGE_BYTES)
    sampled: AsyncGenerator[object, None]
    if env.single is None:
        sampled = pool.sample(SampleRequest(AtLeast(1), messages, options), rpc)
    else:
        sampled = pool.evaluate(EvaluationRequest(1, options, env.single, messages), rpc)
    try:
        async with contextlib.aclosing(sampled) as items:
            async for item in items:
                if isinstance(item, Delivery):
                    for message in delivered_messages(item):
                        collector.add(message)
                elif isinstance(item, Evaluation):
                    yield item.account
                elif isinstance(item, Progress | Beginning | Account):
                    yield item
    except DomainError as error:
        error.field = error.field.replace("options", "sampled", 1) if error.field.startswith("options") else error.field
        raise


async def _parts(
    pool: Pool,
    env: RenderedEnv,
    episode: RecordedEpisode,
    request: RenderRequest,
    beginning: video_pb2.VideoBeginning,
) -> AsyncGenerator[pb.RenderEpisodeResponse, None]:
    num_bytes = 0
    async with contextlib.aclosing(pool.render(env, episode, request.video)) as items:
        async for item in items:
            if isinstance(item, bytes):
                num_bytes += len(item)
                for start in range(0, len(item), _MAX_PART_BYTES):
                    yield pb.RenderEpisodeResponse(data=item[start : start + _MAX_PART_BYTES])
            else:
                yield pb.RenderEpisodeResponse(beginning=_with_form(beginning, item))
    yield pb.RenderEpisodeResponse(end=video_pb2.VideoEnd(byte_count=num_bytes))


def _with_form(beginning: video_pb2.VideoBeginning, form: VideoForm) -> video_pb2.VideoBeginning:
    beginning.height, beginning.width = form.height, form.width
    beginning.frames_per_second, beginning.frame_count = form.fps, form.num_frames
    return beginning
