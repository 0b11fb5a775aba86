"""The demonstration `examples/cartpole.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollserve
from rollserve_server.local import LocalServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "cartpole.py"
LAST_LINE = re.compile(
    r"demo: CartPole-v1 mean return (\d+\.\d) over 100 episodes, (\d+) steps in (\d+\.\d) s, (\d+) steps/s"
)


@pytest.mark.parametrize("own_server", [pytest.param(True, marks=pytest.mark.slow), False])
def test_demo_learns_cartpole(
    own_server: bool, server: LocalServer, sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    options = [] if own_server else ["--server", server.address]
    before = sampler.status().counters
    shown = subprocess.run(
        [sys.executable, EXAMPLE, *options], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    lines = shown.stdout.splitlines()
    found = LAST_LINE.fullmatch(lines[-1])
    assert found is not None, lines[-1]
    mean_return, num_steps, seconds, rate = map(float, found.groups())
    assert mean_return >= 475
    assert rate == pytest.approx(num_steps / seconds, rel=0.1)
    iterations = [line for line in lines if line.startswith("iteration ")]
    assert re.fullmatch(r"iteration +1: mean return +\d+\.\d, [\d,]+ steps, [\d,]+ steps/s", iterations[0])
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert any("demo.png" in line for line in lines)
    after = sampler.status().counters
    assert after.num_steps - before.num_steps == (0 if own_server else num_steps)


def test_demo_reports_an_unreachable_server_in_one_line() -> None:
    shown = subprocess.run(
        [sys.executable, EXAMPLE, "--server", "127.0.0.1:1"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 3
    assert re.fullmatch(r"demo: .*127\.0\.0\.1:1.*\n", shown.stderr)
