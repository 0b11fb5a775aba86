"""Episodes in files: batches of Minari, D4RL, RLlib's JSON, Parquet and Rollserve's own files, without a server.

>>> for batch in rollserve.data.read("hopper", length=1, batch_size=256, shuffle_seed=1):  # doctest: +SKIP
...     update(batch.observations, batch.actions, batch.rewards, batch.last_observations, batch.terminated)
"""

from rollserve.data.mixing import mix
from rollserve.data.opening import Format
from rollserve.data.reader import Position, Reader, read

__all__ = ["Format", "Position", "Reader", "mix", "read"]
