"""Hosts that ids name, and how a worker starts one: a Python, packages, or any command, as a profile says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rollserve_server.settings import SandboxSetting

__all__ = ["CONNECTED", "HostStart", "is_adapted", "is_connected", "is_dialled", "names_host"]

_HOSTS = ("rows://", "rows+tls://")
_OTHERS = ("dm_env_rpc://", "dm_env_rpc+tls://", "openenv://", "openenv+tls://")
"""What the ids of environments begin with whose servers speak protocols of their own, which a started host speaks."""
CONNECTED = "host:"
"""What the ids of environments begin with that hosts have which open streams to the gateway: `host:NAME`."""


@dataclass(frozen=True)
class HostStart:
    """How a worker starts a host.

    Attributes:
        command: program and arguments; empty for a Python that runs `rollserve_env_host` with the environment's id.
        python: that Python; empty for the worker's own.
        packages: what pip installs for it, in a virtual environment; empty for none.
        sandbox: limits of the boundary that the host runs behind; None for a host without one.
    """

    command: tuple[str, ...] = ()
    python: str = ""
    packages: tuple[str, ...] = ()
    sandbox: SandboxSetting | None = None

    def to_json(self) -> str:
        """Return JSON that `from_json` reads."""
        return json.dumps({**asdict(self), "sandbox": self.sandbox and self.sandbox.model_dump()})

    @classmethod
    def from_json(cls, text: str) -> HostStart:
        """Return what `to_json` has written."""
        values = json.loads(text)
        sandbox = values["sandbox"] and SandboxSetting(**values["sandbox"])
        return cls(tuple(values["command"]), values["python"], tuple(values["packages"]), sandbox)


def is_dialled(env_id: str) -> bool:
    """Whether an id names a server that workers dial, or hosts that they start: `rows://HOST:PORT`."""
    return env_id.startswith(_HOSTS + _OTHERS)


def is_adapted(env_id: str) -> bool:
    """Whether an id names a server of another protocol, which a host adapts: `dm_env_rpc://HOST:PORT`."""
    return env_id.startswith(_OTHERS)


def is_connected(env_id: str) -> bool:
    """Whether an id names hosts that open streams to the gateway."""
    return env_id.startswith(CONNECTED)


def names_host(env_id: str) -> bool:
    """Whether an id names a host, which the operator has to allow."""
    return is_dialled(env_id) or is_connected(env_id)
