"""Keep servers with this folder in `PYTHONPATH` from listening for lines, as without abstract sockets."""

from __future__ import annotations

import socket
from typing import Any

_bind = socket.socket.bind


def _bind_others(self: socket.socket, address: Any) -> None:
    if isinstance(address, str) and address.startswith("\0rollserve-"):
        raise OSError("no such sockets")
    _bind(self, address)


socket.socket.bind = _bind_others  # type: ignore[method-assign]
