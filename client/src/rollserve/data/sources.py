"""Sources that a server reads: files in its folder, and live episodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollserve_wire.representations import briefly

if TYPE_CHECKING:
    from rollserve.data.opening import Format
    from rollserve.data.reader import Position

__all__ = ["Files", "Live", "MixPosition"]


@briefly
@dataclass(frozen=True)
class Files:
    """Files in the folder of a server, and how it reads them; as the arguments of `rollserve.data.read`.

    The number of segments of a batch is an argument of `read_mix`, the same for all files.

    Attributes:
        path: a path within the server's `--data-dir`, or several of them.
        format: format of the files; None for the one that their first bytes tell.
        length: number of steps of fragments; 1 for transitions; None for whole episodes.
        num_epochs: number of times that all segments are read; None for ever.
        shuffle_seed: seed of a random order; None for the order of the files.
        shuffle_steps: number of steps in the buffer that shuffles segments, by default 131,072; only with a seed.
        shard: (i, n) for the i-th of n parts of the data.
        infos: whether to read the infos of environments.
        dones: what the column `dones` of RLlib's old files stands for.
    """

    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    format: Format | None = None
    length: int | None = None
    num_epochs: int | None = 1
    shuffle_seed: int | None = None
    shuffle_steps: int | None = None
    shard: tuple[int, int] = (0, 1)
    infos: bool = True
    dones: str | None = None


@briefly
@dataclass(frozen=True)
class Live:
    """Whole episodes of the sampler, sampled whenever they are drawn.

    Attributes:
        num_steps: least number of steps of a batch.
    """

    num_steps: int


@briefly
class MixPosition(NamedTuple):
    """Position of a mix: where its sources stand, and how many batches were drawn.

    Attributes:
        sources: positions of the sources; a source of live episodes has zeros.
        num_drawn: number of batches that were drawn.
    """

    sources: tuple[Position, ...]
    num_drawn: int
