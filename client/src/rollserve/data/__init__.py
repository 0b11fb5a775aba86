"""Episodes in files: batches of Minari, D4RL, RLlib's JSON, Parquet and Rollserve's own files, without a server.

>>> for batch in rollserve.data.read("hopper", length=1, batch_size=256, shuffle_seed=1):  # doctest: +SKIP
...     update(batch.observations, batch.actions, batch.rewards, batch.last_observations, batch.terminated)
"""

from rollserve.data.agent_files import save_agent
from rollserve.data.mixing import mix
from rollserve.data.opening import Format
from rollserve.data.reader import Position, Reader, read
from rollserve.data.sources import Files, Live, MixPosition
from rollserve.data.verification import EpisodeCheck, Verification, verify
from rollserve.data.videos import write_video

__all__ = [
    "EpisodeCheck",
    "Files",
    "Format",
    "Live",
    "MixPosition",
    "Position",
    "Reader",
    "Verification",
    "mix",
    "read",
    "save_agent",
    "verify",
    "write_video",
]


def __dir__() -> list[str]:
    return __all__  # modules and imports are no part of the interface
