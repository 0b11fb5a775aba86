"""Ends of episodes, as messages carry them beside their bytes, so that nobody has to parse these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.sampling.protocol.orders import ENDING

if TYPE_CHECKING:
    from rollserve_server.sampling.encode.tables import FragmentTable
    from rollserve_server.sampling.record.episodes import Episode
    from rollserve_server.sampling.record.lives import ManyEpisode

__all__ = ["endings_of", "endings_of_table"]


def endings_of(episodes: Iterable[Episode | ManyEpisode]) -> bytes:
    """Return the ends of the episodes that have ended, as the bytes of an array of `ENDING`."""
    endings = [
        (
            episode.index,
            episode.total_reward,
            episode.first_step + episode.length,
            episode.row,
            episode.seconds,
            episode.terminated,
            episode.truncated,
        )
        for episode in episodes
        if episode.ended
    ]
    return np.array(endings, ENDING).tobytes() if endings else b""


def endings_of_table(fragments: FragmentTable) -> bytes:
    """Return the ends of the episodes that end with these fragments, as the bytes of an array of `ENDING`."""
    ended = fragments.terminated | fragments.truncated
    endings = np.empty(int(np.count_nonzero(ended)), ENDING)
    if not len(endings):
        return b""
    endings["episode_index"] = fragments.episode_indices[ended]
    endings["total_reward"] = fragments.total_rewards[ended]
    endings["length"] = (fragments.first_steps + fragments.lengths)[ended]
    endings["row"] = fragments.rows[ended]
    endings["seconds"] = fragments.seconds[ended]
    endings["terminated"] = fragments.terminated[ended]
    endings["truncated"] = fragments.truncated[ended]
    return endings.tobytes()
