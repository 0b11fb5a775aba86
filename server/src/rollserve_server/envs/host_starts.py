"""How a worker starts a host: a Python, packages, or any command, as an operator's profile says."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rollserve_server.settings import SandboxSetting

__all__ = ["DIALLED", "HostStart", "is_dialled"]

DIALLED = ("rows://", "rows+tls://")
"""What the ids of environments begin with that hosts have which workers dial: `rows://HOST:PORT`."""


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
    """Whether an id names a host that workers dial."""
    return env_id.startswith(DIALLED)
