"""The table of RPCs: its entries, and what the documentation says of their bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollserve_server.admission import Admission, ConnectionAdmission
from rollserve_server.datasets import max_read_bytes, processes
from rollserve_server.gateway import health, reflection, service
from rollserve_server.gateway.rpcs.rpc import Bound
from rollserve_server.gateway.service import RPCS
from rollserve_server.settings import Settings

_LIMITS = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
_BOUNDS: dict[str, Bound] = {rpc.name: rpc.bound for rpc in RPCS if rpc.bound is not None}


def documented(section: str) -> list[tuple[Sequence[str], bool, Sequence[str]]]:
    """Return the rows of a section's table: the RPCs, whether each sampler has the bound, and the other cells."""
    lines = _LIMITS.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return [(re.findall(r"`(\w+)`", what), "of each sampler" in what, cells) for what, *cells in rows]


def queue_of(bound: Any) -> tuple[int, int, int, float, int]:
    """Return what the table of queues says of a bound."""
    if isinstance(bound, ConnectionAdmission):
        of_all, of_client = bound._all, bound._max_per_connection
        assert of_all._patience_seconds == bound._patience_seconds
        assert of_all._max_waiting == bound._max_waiting
    else:
        assert isinstance(bound, Admission)
        of_all, of_client = bound, bound._max_of_client
    running, waiting = of_all._max_running, of_all._max_waiting
    return running, of_client, of_all._max_admitted - running, of_all._patience_seconds, waiting


def test_every_bound_is_documented_once() -> None:
    rows = documented("Places") + documented("Queues")
    names = [name for row, _, _ in rows for name in row]
    assert sorted(names) == sorted([*_BOUNDS, "Watch", reflection.REFLECTION_RPC])
    for row, per_sampler, _ in rows:
        assert len({_BOUNDS.get(name) for name in row}) == 1, row  # RPCs of a row share it
        bound = _BOUNDS.get(row[0])
        assert per_sampler == (bound is not None and bound.per_sampler), row
    shared = [_BOUNDS[row[0]] for row, _, _ in rows if row[0] in _BOUNDS]
    assert len(set(shared)) == len(shared)  # and rows share none


@pytest.mark.parametrize("memory_gib", [1, 4, 7, 4096])
def test_places_are_those_of_the_table(memory_gib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_gib << 30
    for module in (service, processes):
        monkeypatch.setattr(module, "memory_bytes", lambda: memory)
    by_memory = {
        "": memory,
        ", or one for each GiB of memory": memory_gib,
        ", or as many as half of the memory is enough for": memory // 2 // max_read_bytes(),
    }
    for (name,), _, (in_all, of_client) in documented("Places"):
        most, text = re.fullmatch(r"(\d+)(.*)", in_all).groups()  # type: ignore[union-attr]
        expected = max(min(int(most), by_memory[text]), 1), int(of_client)
        if name == "Watch":
            assert expected == (health._MAX_WATCHERS, health._MAX_CLIENT_WATCHERS)
        else:
            made: Any = _BOUNDS[name].make()
            assert (made.max_in_all, made.max_of_client) == expected, name


def test_queues_are_those_of_the_table() -> None:
    of_reflection = ConnectionAdmission(
        reflection._MAX_ANSWERS,
        reflection._MAX_CONNECTION_ANSWERS,
        reflection._PATIENCE_SECONDS,
        max_waiting=reflection._MAX_WAITING,
    )
    for names, _, cells in documented("Queues"):
        expected = tuple(float(cell.removesuffix(" s")) for cell in cells)
        bound = _BOUNDS.get(names[0])
        assert queue_of(of_reflection if bound is None else bound.make()) == expected, names
        if "RenderEpisode" in names:  # a server has as many as its settings say
            settings = Settings.from_flat({"env": "CartPole-v1"})
            assert queue_of(service._videos(settings.gateway.max_renders)) == expected
