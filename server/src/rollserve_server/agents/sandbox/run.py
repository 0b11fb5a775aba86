"""Has agents tried in processes of their own, which may crash, hang or run out of memory without harm to this one."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.fixed import leaf_bounds
from rollserve_server.errors import shorten

if TYPE_CHECKING:
    from rollserve_server.envs import Leaf
    from rollserve_server.settings import SandboxLimits

__all__ = ["NUM_PROBE_ROWS", "SandboxError", "random_values", "run_in_sandbox"]

_log = logging.getLogger(__name__)

NUM_PROBE_ROWS = 80
"""How many observations an agent is tried with."""
_MOST_LOGGED = 4000
_FAR = 1e4
"""Bounds beyond are as good as none."""


class SandboxError(Exception):
    """An agent that was tried is of no use.

    Attributes:
        text: why, for people.
        details: what the trial says besides.
    """

    def __init__(self, text: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.details = details or {}


def run_in_sandbox(
    program: Sequence[str],
    arguments: Mapping[str, object],
    num_bytes: int,
    limits: SandboxLimits,
    *,
    writes_files: bool = False,
) -> dict[str, Any]:
    """Runs a trial, and returns what it has found.

    Args:
        program: what Python is to run: it calls `trial.answer`.
        arguments: of what it passes to that.
        num_bytes: the agent's size.
        limits: what limits the trial.
        writes_files: whether it may write to files.

    Raises:
        SandboxError: the agent is of no use.
    """
    bounds = {
        "memory_bytes": limits.memory_bytes + 8 * num_bytes,
        "seconds": limits.seconds,
        "writes_files": writes_files,
    }
    most_seconds = limits.patience * limits.seconds
    with tempfile.TemporaryFile() as printed:
        status, output = _run(program, pickle.dumps((bounds, dict(arguments)), protocol=5), printed, most_seconds)
        printed.seek(max(printed.seek(0, os.SEEK_END) - _MOST_LOGGED, 0))
        last_words = printed.read().decode(errors="replace")
    if status is None:
        raise SandboxError(f"it did not end its trial within {most_seconds} s")
    if status == -signal.SIGXCPU:
        raise SandboxError(f"it did not end its trial within {limits.seconds} s of a processor's time")
    answer = _read(output)
    if answer is None:
        _log.debug("trial broken off", extra={"output": last_words})
        raise SandboxError(f"it ended the process that tried it, {_manner(status)}")
    if "error" in answer:
        raise SandboxError(shorten(str(answer["error"])), answer)
    return answer


def _run(program: Sequence[str], given: bytes, printed: IO[bytes], most_seconds: float) -> tuple[int | None, bytes]:
    """Runs Python; returns its status, None if the time was over, and its answer. All that it began ends with it."""
    # Without -P, Python would take the modules beside the program for others.
    command = [sys.executable, "-P", *program]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(given, timeout=most_seconds)
        except subprocess.TimeoutExpired:
            return None, b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output


def random_values(leaf: Leaf, generator: np.random.Generator) -> np.ndarray:
    """Values of a leaf, one for each row: between its bounds, or normal where these are far away."""
    low, high = leaf_bounds(leaf)
    far = (low < -_FAR) | (high > _FAR)
    near_low, near_high = np.where(far, 0, low), np.where(far, 0, high)
    shape = (NUM_PROBE_ROWS, low.size)
    if leaf.dtype.kind == "f":
        values = generator.uniform(near_low, near_high, shape)
    else:
        values = generator.integers(near_low, near_high, shape, endpoint=True).astype(np.float64)
    normal = np.clip(generator.standard_normal(shape), low, high)
    values = np.where(far, normal if leaf.dtype.kind == "f" else np.trunc(normal), values)
    return values.astype(leaf.dtype).reshape(NUM_PROBE_ROWS, *leaf.shape)


def _read(output: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _manner(status: int) -> str:
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"with status {status}"
