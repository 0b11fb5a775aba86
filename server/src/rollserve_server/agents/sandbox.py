"""Sandboxes: child processes in which agents are probed before they are accepted, and random rows for probes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rollserve_server.children import Lifeline, launching, variables_for_code, variables_for_models
from rollserve_server.envs import Leaf, leaf_bounds
from rollserve_server.errors import shorten
from rollserve_server.futures import when_abandoned

if TYPE_CHECKING:
    from rollserve_server.agents.agent import ActionMask
    from rollserve_server.settings import SandboxLimits

__all__ = ["NUM_PROBE_ROWS", "SandboxError", "random_masks", "random_rows", "run_in_sandbox"]

_log = logging.getLogger(__name__)
_MAX_LOGGED_BYTES = 4000

NUM_PROBE_ROWS = 80
"""Number of observations that a probe has."""

_FAR = 1e4  # bounds beyond this count as none


class SandboxError(Exception):
    """An agent was refused in a sandbox.

    Attributes:
        text: reason, for people.
        details: further details from the probe.
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
    runs_code: bool = False,
) -> dict[str, Any]:
    """Run a probe in a child process, and return its result.

    Args:
        program: Python's arguments: a script or module that calls `answer`.
        arguments: arguments of the probe function.
        num_bytes: size of the agent.
        limits: limits of the child process.
        runs_code: whether the probe runs code written in Python, which may need files, the network and settings in
            environment variables. Otherwise it has none of them.

    Raises:
        SandboxError: the probe refused the agent, exceeded its limits, or died.
    """
    bounds = {
        "memory_bytes": limits.memory_bytes + 8 * num_bytes,
        "seconds": limits.seconds,
        "writes_files": runs_code,
    }
    max_seconds = limits.patience * limits.seconds
    with tempfile.TemporaryFile() as printed:
        request = pickle.dumps((bounds, dict(arguments)), protocol=5)
        status, output = _run(program, request, printed, max_seconds, runs_code=runs_code)
        printed.seek(max(printed.seek(0, os.SEEK_END) - _MAX_LOGGED_BYTES, 0))
        last_output = printed.read().decode(errors="replace")
    if status is None:
        raise SandboxError(f"the probe in the sandbox exceeded {max_seconds} s")
    if status == -signal.SIGXCPU:
        raise SandboxError(f"the probe in the sandbox exceeded {limits.seconds} s of processor time")
    result = _parse(output)
    if result is None:
        _log.debug("probe died", extra={"output": last_output})
        raise SandboxError(f"the agent ended the process of its sandbox {_manner(status)}")
    if "error" in result:
        raise SandboxError(shorten(str(result["error"])), result)
    return result


def _run(
    program: Sequence[str], request: bytes, printed: IO[bytes], max_seconds: float, *, runs_code: bool
) -> tuple[int | None, bytes]:
    """Run Python; return its status, or None if it took too long, and its answer. Kills all processes it started."""
    with contextlib.closing(Lifeline()) as lifeline:
        with lifeline.end() as end:
            process = subprocess.Popen(  # noqa: S603
                launching(end, *program, confined=not runs_code),
                pass_fds=[end],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                process_group=0,
                env=variables_for_code() if runs_code else variables_for_models(),
            )

        def kill() -> None:  # foreign code may have let go of the lifeline
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        def kill_if_running() -> None:
            if process.poll() is None:
                kill()

        when_abandoned(kill_if_running)
        with process:
            try:
                output, _ = process.communicate(request, timeout=max_seconds)
            except subprocess.TimeoutExpired:
                return None, b""
            finally:
                kill()
    return process.returncode, output


def _parse(output: bytes) -> dict[str, Any] | None:
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


def random_rows(leaf: Leaf, generator: np.random.Generator) -> np.ndarray:
    """Return random values of a leaf, (80, *shape): uniform between near bounds, else normal."""
    if isinstance(leaf.space, spaces.Text):
        return _random_texts(leaf.space, generator)
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


def _random_texts(space: spaces.Text, generator: np.random.Generator) -> np.ndarray:
    """Return the code points of random texts of a space, (80, max_length)."""
    characters = np.array([ord(character) for character in space.characters] or [0], np.uint32)
    values = generator.choice(characters, (NUM_PROBE_ROWS, space.max_length))
    lengths = generator.integers(space.min_length, space.max_length, NUM_PROBE_ROWS, endpoint=True)
    values[np.arange(space.max_length) >= lengths[:, np.newaxis]] = 0
    return values


def random_masks(mask: ActionMask, generator: np.random.Generator) -> np.ndarray:
    """Return random legal actions, (80, S) bool; each element of an action has a legal value."""
    legal = generator.random((NUM_PROBE_ROWS, mask.size)) < 0.5
    for leaf in mask.leaves:
        of_leaf = legal[:, leaf.columns]
        for part, count in zip(leaf.parts, leaf.counts, strict=True):
            of_leaf[np.arange(NUM_PROBE_ROWS), part.start + generator.integers(count, size=NUM_PROBE_ROWS)] = True
    return legal
