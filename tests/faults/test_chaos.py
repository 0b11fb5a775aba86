"""A run of chaos: all delivered data is compared with references, and no process is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.chaos.report import longest_waits, print_report
from faults.chaos.run import Options, run
from faults.chaos.schedule import DEFAULT_KINDS, schedule


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_chaos_run_finds_nothing_wrong(tmp_path: Path) -> None:
    outcome = run(Options(tmp_path / "run", seed=10, seconds=45.0, num_share_pairs=0))
    print_report(outcome)  # pytest shows it on failure
    assert not outcome.wrong
    assert outcome.verdict.num_compared_steps > 1000
    assert any(call.request["kind"] == "session" and call.outcome == "ok" for call in outcome.story.calls)
    assert {"worker killed", "gateway killed", "client killed"} <= longest_waits(outcome.story).keys()


def test_chaos_schedule_depends_on_its_seed_alone() -> None:
    faults = schedule(5, 60.0)
    assert faults == schedule(5, 60.0)
    assert faults != schedule(6, 60.0)
    assert {fault.kind for fault in faults} == set(DEFAULT_KINDS)
    assert all(0 < fault.at_seconds < 60 for fault in faults)
    fewer = schedule(5, 60.0, ["worker killed", "client killed"])
    assert set(fewer) == {fault for fault in faults if fault.kind in ("worker killed", "client killed")}
