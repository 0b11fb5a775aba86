"""The table of RPCs: its entries, and what the documentation says of them."""

from __future__ import annotations

import re
from pathlib import Path

from rollserve_server.gateway.rpcs.places import Places
from rollserve_server.gateway.rpcs.rpc import SERVICE
from rollserve_server.gateway.service import RPCS

_LIMITS = Path(__file__).parents[2] / "docs" / "limits.md"


def test_every_rpc_of_the_service_has_one_entry() -> None:
    assert sorted(rpc.name for rpc in RPCS) == sorted(method.name for method in SERVICE.methods)


def test_table_of_places_is_that_of_the_rpcs() -> None:
    """Where the machine's memory bounds places further, the page gives the number first."""
    rows = re.findall(r"^\| `(\w+)`.*? \| (\d+)\D.*?\| (\d+) \|$", _LIMITS.read_text().partition("## Places")[2], re.M)
    documented = {name: (int(most), int(of_client)) for name, most, of_client in rows if name != "Watch"}
    bounds = {rpc.name: rpc.bound.make() for rpc in RPCS if rpc.bound is not None}
    places = {name: bound for name, bound in bounds.items() if isinstance(bound, Places)}
    assert documented.keys() == places.keys()
    for name, bound in places.items():
        most, of_client = documented[name]
        assert bound.max_of_client == of_client
        assert bound.max_in_all <= most
