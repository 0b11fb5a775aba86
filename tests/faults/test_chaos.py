"""Everything fails now and then: all that comes is what should come, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.chaos.report import longest_waits, print_report
from faults.chaos.run import Options, run
from faults.chaos.schedule import DEFAULT_KINDS, schedule


@pytest.mark.timeout(600)
def test_a_minute_of_chaos(tmp_path: Path) -> None:
    outcome = run(Options(tmp_path / "run", seed=10, seconds=45.0))
    print_report(outcome.story, outcome.verdict, outcome.growths, outcome.wrong)  # shown if it fails
    assert not outcome.wrong
    assert outcome.verdict.num_compared_steps > 1000
    assert {"worker killed", "gateway killed", "client killed"} <= longest_waits(outcome.story).keys()


def test_the_schedule_is_a_function_of_its_seed() -> None:
    faults = schedule(5, 60.0)
    assert faults == schedule(5, 60.0)
    assert faults != schedule(6, 60.0)
    assert {fault.kind for fault in faults} == set(DEFAULT_KINDS)
    assert all(0 < fault.at_seconds < 60 for fault in faults)
    fewer = schedule(5, 60.0, ["worker killed", "client killed"])
    assert set(fewer) == {fault for fault in faults if fault.kind in ("worker killed", "client killed")}
