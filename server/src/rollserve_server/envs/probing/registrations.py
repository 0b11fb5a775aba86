"""Registrations of environments, as a worker passes them on to its probes.

A module that an earlier request named may have registered ids, which requests can then name without the module. A new
process does not know them.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING

import gymnasium

from rollserve_server.envs.row_specs import specs_of_rows

if TYPE_CHECKING:
    from rollserve_server.envs.row_specs import WorkerSpecs

__all__ = ["register", "registrations"]


def registrations(specs: WorkerSpecs) -> list[bytes]:
    """Return the registrations of the ids that specs name, pickled, as far as they can be."""
    names = {spec.id for spec in specs_of_rows(specs, num_rows=1)} & gymnasium.registry.keys()
    pickled = []
    for name in sorted(names):
        with contextlib.suppress(Exception):  # an entry point may be a function that has no name
            pickled.append(pickle.dumps(gymnasium.registry[name]))
    return pickled


def register(pickled: list[bytes]) -> None:
    """Register what another process has registered, where this one can import its code."""
    for each in pickled:
        with contextlib.suppress(Exception):
            spec = pickle.loads(each)  # noqa: S301  # written by the parent
            gymnasium.registry.setdefault(spec.id, spec)
