"""Receipts: what is needed to verify a batch in plain gymnasium, without the server that sampled it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollserve_wire.columns import named_arrays
from rollserve_wire.errors import mismatch
from rollserve_wire.representations import briefly

__all__ = ["HASH_SEED", "HASH_SEED_NAME", "Receipt", "column_digests", "hash_seed"]

_FORMAT = 1

HASH_SEED_NAME = "PYTHONHASHSEED"
"""Environment variable with the hash seed, and the name under which receipts have it among the packages."""

HASH_SEED = "0"
"""Hash seed of all processes that run environments or agents: the order of a set of texts depends on it."""

_variable_at_start = os.environ.get(HASH_SEED_NAME, "")


@briefly
@dataclass(frozen=True)
class Receipt:
    """Record of what a batch was made with, and digests of its columns.

    Attributes:
        environment: specification of the environment, as the JSON form of the message `rollserve.v1.Environment`.
        num_segments: number of segments of the batch.
        digests: SHA-256 of each column by its name, in hex.
        reproducibility: `EPISODE`, `BLOCK` or `WORKER`: which unit of work the same seed gives again.
        packages: versions of the packages that the workers' environments ran with, and the hash seed of their processes
            (`PYTHONHASHSEED`), several joined by "and" where workers differ; empty if unknown.
        seed: root seed of the sequence; None if unknown.
        env_version: version of the environment; 0 if unknown.
        agent: SHA-256 of the agent that acted, in hex; empty if unknown.
        account: counts of the call's account; empty if the batch has none.
    """

    environment: Mapping[str, Any]
    num_segments: int
    digests: Mapping[str, str]
    reproducibility: str = "EPISODE"
    packages: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    env_version: int = 0
    agent: str = ""
    account: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the receipt as one line of JSON."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Return the receipt that JSON describes; raise ValueError for anything else."""
        try:
            values = json.loads(text)
            if not isinstance(values, dict) or values.pop("format", None) != _FORMAT:
                raise ValueError(f"format: {mismatch(_FORMAT, 'another one')}")
            receipt = cls(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"receipt: {mismatch('a receipt as JSON', error)}") from None
        for name, kind in (("environment", dict), ("digests", dict), ("packages", dict), ("num_segments", int)):
            if not isinstance(getattr(receipt, name), kind):
                raise ValueError(f"receipt.{name}: {mismatch(kind.__name__, type(getattr(receipt, name)).__name__)}")
        return receipt


def hash_seed() -> str:
    """Return the hash seed of this process, `random` if it is another one each time."""
    if not sys.flags.hash_randomization:
        return "0"
    is_set = _variable_at_start not in ("", "0", "random") and not sys.flags.ignore_environment
    return _variable_at_start if is_set else "random"


def column_digests(batch: Any) -> dict[str, str]:
    """Return the SHA-256 of each column of a batch, of its dtype, shape and bytes; about 1 s for 2 GB."""
    digests = {}
    for name, array in named_arrays(batch):
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest = hashlib.sha256(f"{little.dtype.str} {little.shape}".encode())
        digest.update(little.reshape(-1).view(np.uint8).data)
        digests[name] = digest.hexdigest()
    return digests
