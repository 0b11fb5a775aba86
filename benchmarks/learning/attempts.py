"""One participant learns one task once, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.learning.catalogue import Participant, Task
from benchmarks.shared.processes import REPOSITORY, one_thread

__all__ = ["Attempt", "learn"]


@dataclass
class Attempt:
    """One attempt at a task.

    Attributes:
        who: title of the participant.
        task: name of the task.
        seed: seed of the learner.
        curve: seconds, number of steps and mean return of the last 100 episodes, after each iteration.
        versions: versions of packages.
        failure: why there is no curve, or why it ends early; empty otherwise.
    """

    who: str
    task: str
    seed: int
    curve: list[dict[str, float]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    def time_to(self, target: float) -> dict[str, float] | None:
        """Return the seconds and the steps after which 100 episodes returned the target, or None if they never did."""
        for point in self.curve:
            if point["mean_return"] >= target and point["num_episodes"] >= 100:
                return {"seconds": point["seconds"], "num_steps": point["num_steps"]}
        return None


def learn(
    name: str, task: Task, participant: Participant, python: Path, seed: int, address: str, limit_seconds: float
) -> Attempt:
    """Let a participant learn a task, until it reaches the target, has made all steps, or has used up its time."""
    attempt = Attempt(participant.title, name, seed)
    module = f"benchmarks.learning.runs.{participant.module[task.algorithm]}"
    command = [str(python), "-m", module, json.dumps(task.to_json()), str(seed), address]
    variables = one_thread()
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(REPOSITORY / "examples")])
    variables["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="rollserve-bench-") as folder, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603  # modules of this package
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=variables, cwd=folder
        )
        clock = threading.Timer(limit_seconds, process.kill)
        clock.start()
        assert process.stdout is not None  # noqa: S101  # a pipe
        for line in process.stdout:
            found: dict[str, Any] = json.loads(line)
            if "versions" in found:
                attempt.versions = found["versions"]
            else:
                attempt.curve.append(found)
        process.wait()
        clock.cancel()
        if process.returncode or not attempt.curve:
            errors.seek(0)
            lines = [each.strip() for each in errors if each.strip()]
            attempt.failure = lines[-1] if lines else "it ended without a message"
    return attempt
