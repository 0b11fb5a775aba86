"""Short runs of the comparison with Stable-Baselines3, whose environments are its own or Rollserve's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.catalogue import driven_variants, variants_of
from benchmarks.peers.participants import DrivingParticipant, PeerParticipant

pytest.importorskip("stable_baselines3")


@pytest.mark.slow
def test_rollouts_in_own_environments_and_in_rollserves_are_measured() -> None:
    workload, python = "w11-cartpole", Path(sys.executable)
    (driven,), (own, _) = driven_variants(workload, 1), variants_of(workload, 1, 1)
    participants = [
        DrivingParticipant(workload, driven, python, seconds=0.01),
        PeerParticipant(workload, own, python, seconds=0.01),
    ]
    for participant in participants:
        participant.measure_round()
        (measurement,) = participant.measurements
        assert not measurement.failure
        (figures,) = measurement.rounds
        assert figures["steps"] % (4 * 64) == 0
        assert measurement.speed == figures["steps"] / figures["seconds"]
    assert [each.measurements[0].who for each in participants] == ["Rollserve", "Stable-Baselines3"]
    assert driven_variants("w1", 1) == []
