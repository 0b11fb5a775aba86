"""Peers: whom connections are charged to, by their addresses."""

from __future__ import annotations

import functools
import ipaddress
from urllib.parse import unquote

__all__ = ["Address", "address_of", "charged_host", "charged_peer", "plain_host"]

Address = tuple[str, int]
"""Host and port of a connection's client."""

_MAX_KNOWN = 4096
"""Connections whose addresses are remembered."""
_NETWORK_BITS = 64
"""Leading bits of an IPv6 address that name a network; its owner has all addresses in it."""


@functools.lru_cache(maxsize=_MAX_KNOWN)
def charged_peer(peer: str) -> str:
    """Return whom a connection is charged to, given its name from gRPC, such as `ipv4:10.0.0.1:4711`."""
    return charged_host(address_of(peer)[0])


@functools.lru_cache(maxsize=_MAX_KNOWN)
def address_of(peer: str) -> Address:
    """Return host and port of a connection's client, given its name from gRPC; port 0 for other kinds of sockets."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return plain_host(host.strip("[]")), int(port) if port.isdecimal() else 0


def plain_host(host: str) -> str:
    """Return a numeric address without its interface, one of IPv4 as such where a socket of IPv6 has it."""
    return host.partition("%")[0].removeprefix("::ffff:")


def charged_host(host: str) -> str:
    """Return whom a connection is charged to, given its numeric address: that, or its network of IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a kind of socket without addresses
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
