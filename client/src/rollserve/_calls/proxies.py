"""HTTP proxies, which gRPC takes from the environment's variables."""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import urlsplit

__all__ = ["hint_about_proxy", "is_loopback"]

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that gRPC reads, the first that is set."""
_SCHEME = re.compile(r"(dns|ipv4|ipv6):(//[^/]*/)?")


def is_loopback(target: str) -> bool:
    """Whether a target is this machine's loopback interface, where no proxy reaches what the client means."""
    host = _SCHEME.sub("", target, count=1).rpartition(":")[0].strip("[]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def hint_about_proxy(details: str) -> str:
    """Return which variable names the proxy that a connection failed at, to add to gRPC's error; empty for none."""
    name = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if name is None:
        return ""
    try:
        proxy = urlsplit(os.environ[name])
        host, port = proxy.hostname or "", proxy.port or 443
    except ValueError:
        return ""
    # gRPC tells the address of a proxy that it has found, and the name of one that it has not.
    is_number = re.fullmatch(r"[0-9.]+|.*:.*", host) is not None
    marks = (f"{host}:{port}", f"[{host}]:{port}") if is_number else (host, f":{port}")
    if any(mark in details for mark in (*marks, "HTTP proxy")):
        return f" (through the proxy of {name}; no_proxy excepts hosts)"
    return ""
