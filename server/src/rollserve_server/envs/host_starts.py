"""How a worker starts a host: a Python, packages, or any command, as an operator's profile says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rollserve_server.settings import SandboxSetting

__all__ = ["HostStart", "is_adapted", "is_dialled"]

_HOSTS = ("rows://", "rows+tls://")
_OTHERS = ("dm_env_rpc://", "dm_env_rpc+tls://", "openenv://", "openenv+tls://")
"""What the ids of environments begin with whose servers speak protocols of their own, which a started host speaks."""


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
