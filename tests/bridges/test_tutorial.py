"""The tutorial for PyTorch, docs/tutorials/halfcheetah.py, on small numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollserve

FILE = Path(__file__).parents[2] / "docs" / "tutorials" / "halfcheetah.py"
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own


@pytest.fixture
def tutorial() -> Any:
    """The module of the tutorial's file."""
    pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    pytest.importorskip("matplotlib", reason="matplotlib is an extra: make test-bridges")
    spec = importlib.util.spec_from_file_location("halfcheetah", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_halfcheetah_tutorial_learns_from_what_acted(
    tutorial: Any, sampler: rollserve.Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences = []

    def minimum(gains: Any, clipped_gains: Any) -> Any:
        differences.append((gains - clipped_gains).abs().max().item())
        return tutorial.torch.where(gains < clipped_gains, gains, clipped_gains)

    monkeypatch.setattr(tutorial.torch, "min", minimum)
    curve = tutorial.train(sampler, num_iterations=2, steps_per_row=500)
    num_steps = 2 * 500 * 4
    assert len(differences) == 2 * 10 * -(-num_steps // 2 // 64)
    assert differences[0] == 0  # all ratios are within the clip, because the policy that acted is the one that learns
    assert [point[0] for point in curve] == [num_steps]
    assert -1000 < curve[0][1] < 0
    held = sampler.agent_parameters()
    assert held["log_std"].any()
    batch = sampler.obtain_fragments(40)
    assert np.isfinite(batch.agent_infos["value"]).all()
    assert sampler.status().policy_version >= 3


def test_halfcheetah_tutorial_normalizes_by_all_steps(tutorial: Any, sampler: rollserve.Sampler) -> None:
    tutorial.train(sampler, num_iterations=1, steps_per_row=16)
    account = sampler.obtain_fragments(64, return_discount=0.99).account
    assert account is not None
    version = account.policy_version - 1
    first = sampler.obtain_fragments(64, return_discount=0.99, seed=account.seed, policy_version=version)
    held = sampler.agent_parameters()
    assert np.allclose(held["observation/mean"], first.observations.mean(axis=0))
    assert np.allclose(held["observation/variance"], first.observations.var(axis=0))
