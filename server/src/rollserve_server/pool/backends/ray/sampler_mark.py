"""The mark of a sampler in the cluster's key-value store: it outlives the sampler's server, journal and workers.

A server that finds a mark and a journal without state knows that the sampler of an earlier server was lost. The mark of
a server's first sampler has a directory of the others beside it, which clients have created.
"""

from __future__ import annotations

import ray
from ray.experimental import internal_kv

__all__ = ["read_directory", "read_mark", "remove_mark", "write_directory", "write_mark"]

_STORE_NAMESPACE = "rollserve"


def read_mark(tag: str) -> int:
    """Return the epoch in which the sampler with this tag was served last in the namespace; 0 if there is none."""
    value = internal_kv._internal_kv_get(_key(tag), namespace=_STORE_NAMESPACE)
    return int(value or 0)


def write_mark(tag: str, epoch: int) -> None:
    """Record that the sampler with this tag is served in an epoch."""
    internal_kv._internal_kv_put(_key(tag), str(epoch), overwrite=True, namespace=_STORE_NAMESPACE)


def remove_mark(tag: str) -> None:
    """Record that the sampler with this tag has ended on purpose, and the server's other samplers with it."""
    for key in (_key(tag), _directory_key(tag)):
        internal_kv._internal_kv_del(key, namespace=_STORE_NAMESPACE)


def read_directory(tag: str) -> bytes:
    """Return what `write_directory` has recorded; empty if it has not."""
    value = internal_kv._internal_kv_get(_directory_key(tag), namespace=_STORE_NAMESPACE)
    return bytes(value or b"")


def write_directory(tag: str, directory: bytes) -> None:
    """Record the samplers that clients have created beside the one with this tag."""
    internal_kv._internal_kv_put(_directory_key(tag), directory, overwrite=True, namespace=_STORE_NAMESPACE)


def _key(tag: str) -> str:
    return f"epoch of {tag} in {ray.get_runtime_context().namespace}"


def _directory_key(tag: str) -> str:
    return f"samplers of {tag} in {ray.get_runtime_context().namespace}"
