"""The mark of a sampler in the cluster's key-value store: it outlives the sampler's server, journal and workers.

A server that finds a mark and a journal without state knows that the sampler of an earlier server was lost.
"""

from __future__ import annotations

import ray
from ray.experimental import internal_kv

__all__ = ["read_mark", "remove_mark", "write_mark"]

_STORE_NAMESPACE = "rollserve"


def read_mark() -> int:
    """Return the epoch in which the sampler of this process's namespace was served last; 0 if there is none."""
    value = internal_kv._internal_kv_get(_key(), namespace=_STORE_NAMESPACE)
    return int(value or 0)


def write_mark(epoch: int) -> None:
    """Record that the sampler of this process's namespace is served in an epoch."""
    internal_kv._internal_kv_put(_key(), str(epoch), overwrite=True, namespace=_STORE_NAMESPACE)


def remove_mark() -> None:
    """Record that the sampler of this process's namespace has ended on purpose."""
    internal_kv._internal_kv_del(_key(), namespace=_STORE_NAMESPACE)


def _key() -> str:
    return f"epoch of {ray.get_runtime_context().namespace}"
