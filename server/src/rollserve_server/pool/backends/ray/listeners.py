"""A check that the Ray that a server starts is reached from this machine only."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from rollserve_wire.errors import mismatch

__all__ = ["on_loopback_only"]

_MAX_SHOWN = 5


class _Listener(NamedTuple):
    process: str
    address: str
    port: int


@contextlib.contextmanager
def on_loopback_only() -> Iterator[None]:
    """Check that listeners that the block starts, in this process or its children, are on loopback addresses.

    Raises:
        OSError: another network interface leads to a listener.
    """
    before = _listeners()
    yield
    exposed = sorted(each for each in _listeners() - before if not _is_loopback(each.address))
    if exposed:
        shown = ", ".join(f"{each.process} on {each.address}:{each.port}" for each in exposed[:_MAX_SHOWN])
        advice = "install the version of Ray that constraints.txt names"
        raise OSError(f"Ray's listeners: {mismatch('loopback addresses only', shown, advice)}")


def _listeners() -> set[_Listener]:
    found = set()
    process = psutil.Process()
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # the process has ended
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add(_Listener(each.name(), *connection.laddr))
    return found


def _is_loopback(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback
