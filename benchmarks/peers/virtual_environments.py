"""Virtual environments of the peers, in `.venv-peers`."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.peers.catalogue import PEERS
from benchmarks.shared.processes import REPOSITORY

__all__ = ["InstallError", "python_of"]

_ENVIRONMENTS = REPOSITORY / ".venv-peers"
_REQUIREMENTS = Path(__file__).parent / "requirements"
_TIME_LIMIT_SECONDS = 1800


class InstallError(Exception):
    """A peer could not be installed."""


def python_of(peer: str) -> Path:
    """Return the interpreter that has a peer. Installs the peer first, unless its requirements are installed already.

    Raises:
        InstallError: the installation failed; the message has the reason and the log's path.
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
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    # The constraint also holds for the environments in which pip builds packages from source.
    options = ["install", "--quiet", "--build-constraint", str(requirements), "--requirement", str(requirements)]
    with log.open("w") as output:
        try:
            subprocess.run(  # noqa: S603  # requirements of this package
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
            reason = _error_line(log.read_text())
    raise InstallError(f"not installed: {reason} ({log.relative_to(REPOSITORY)})")


def _error_line(output: str) -> str:
    """Return the first exception in pip's output, else its first error, else its first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    exceptions = [line for line in lines if "Error:" in line]
    errors = [line for line in lines if line.lower().startswith("error:")]
    return (exceptions or errors or lines or ["pip printed nothing"])[0]
