"""Virtual environments of the peers' own."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.catalogue import PEERS
from benchmarks.service.children import REPOSITORY

__all__ = ["SetUpError", "python_of"]

_ENVIRONMENTS = REPOSITORY / ".venv-peers"
_REQUIREMENTS = Path(__file__).parent / "requirements"
_TIME_LIMIT_SECONDS = 1800


class SetUpError(Exception):
    """A peer could not be installed."""


def python_of(peer: str) -> Path:
    """The interpreter that has a peer, which is installed first if it is not there as its requirements say.

    Raises:
        SetUpError: it could not be installed; says why, and where all that was said is.
    """
    if not PEERS[peer].own_environment:
        return Path(sys.executable)
    environment, requirements = _ENVIRONMENTS / peer, _REQUIREMENTS / f"{peer}.txt"
    python, ready = environment / "bin" / "python", environment / "ready"
    if not ready.exists() or ready.read_text() != requirements.read_text():
        ready.unlink(missing_ok=True)
        venv.create(environment, clear=True, symlinks=True)
        _install(requirements, python, _ENVIRONMENTS / f"{peer}.log")
        ready.write_text(requirements.read_text())
    return python


def _install(requirements: Path, python: Path, log: Path) -> None:
    """What is built from source is built with the versions that are required, too."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    options = ["install", "--quiet", "--build-constraint", str(requirements), "--requirement", str(requirements)]
    with log.open("w") as output:
        try:
            subprocess.run(  # noqa: S603  # this project's files
                [*pip, *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PIP_NO_INPUT": "1"},
                timeout=_TIME_LIMIT_SECONDS,
                check=True,
            )
            return
        except subprocess.TimeoutExpired:
            reason = f"took more than {_TIME_LIMIT_SECONDS} s"
        except subprocess.CalledProcessError:
            reason = _reason(log.read_text())
    raise SetUpError(f"not installed: {reason} ({log.relative_to(REPOSITORY)})")


def _reason(output: str) -> str:
    """The line that says most of what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error:" in line or line.lower().startswith("error:")]
    return (errors or lines or ["nothing was said"])[0]
