"""Whether the environments of all workers have the same spaces and step alike."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gymnasium import Space

from rollserve_server.envs import agree, describe_space
from rollserve_server.errors import InvalidValueError, within
from rollserve_server.pool.versions.fields import element_field
from rollserve_wire.environments import Reproducibility
from rollserve_wire.spaces import space_to_proto

if TYPE_CHECKING:
    from rollserve_server.envs import Traces
    from rollserve_server.sampling import EnvDescription

__all__ = ["check_alike", "check_same", "common_description"]

_log = logging.getLogger(__name__)


def common_description(descriptions: Mapping[int, EnvDescription], probed: Traces) -> EnvDescription:
    """Return the description of all workers' environments, which have the same spaces, from the description of each.

    Args:
        descriptions: the descriptions by worker.
        probed: traces of the same environments in processes of probes. Environments of other episodes in another
            process are of class `WORKER`.
    """
    first, *_ = descriptions.values()
    classes = [each.reproducibility for each in descriptions.values()]
    reproducibility = Reproducibility.WORKER if Reproducibility.WORKER in classes else classes[0]
    traces = dict(probed)
    for index, description in descriptions.items():
        if reproducibility is not Reproducibility.WORKER and not agree(traces, description.traces):
            _log.warning("an environment has other episodes in another process", extra={"worker": index})
            reproducibility = Reproducibility.WORKER
        traces.update(description.traces)
    why_not_single = next((each.why_not_single for each in descriptions.values() if each.why_not_single), "")
    return dataclasses.replace(first, reproducibility=reproducibility, why_not_single=why_not_single, traces={})


def check_alike(descriptions: Mapping[int, EnvDescription], *, per_worker: bool) -> None:
    """Raise InvalidValueError unless all workers' environments have the same spaces and step alike."""
    first, *_ = descriptions.values()
    for index, description in descriptions.items():
        with within(element_field(index, per_worker=per_worker)):
            check_same(description, first)


def check_same(description: EnvDescription, first: EnvDescription) -> None:
    """Raise InvalidValueError unless a worker's environments have the spaces of another's and step alike."""
    expected = _compared(first)
    for name, got in _compared(description).items():
        if not _are_equal(got, expected[name]):
            text = f"expected the first worker's {name}, {expected[name]}, got {got}"
            raise InvalidValueError(text)


def _are_equal(one: object, other: object) -> bool:
    """Whether two values are equal: spaces by their messages, because gymnasium makes several copies of bounds."""
    if isinstance(one, Space) and isinstance(other, Space):
        return space_to_proto(describe_space(one)) == space_to_proto(describe_space(other))
    return one == other


def _compared(description: EnvDescription) -> Mapping[str, object]:
    """Return what the environments of all workers must have in common, by the wire's names."""
    return {
        "observation_space": description.observation_space,
        "action_space": description.action_space,
        "vectorization": "rows" if description.num_episodes_per_row is None else "native or envpool",
        "row_count": description.num_rows,
        "episodes_per_row": description.num_episodes_per_row,
    }
