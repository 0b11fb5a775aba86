"""The tutorial for PyTorch, docs/tutorials/halfcheetah.py, on small numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

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
    differences: list[float] = []
    loss = tutorial.clipped_policy_loss

    def compare(log_probs: Any, old_log_probs: Any, advantages: Any) -> Any:
        differences.append((log_probs - old_log_probs).abs().max().item())
        return loss(log_probs, old_log_probs, advantages)

    monkeypatch.setattr(tutorial, "clipped_policy_loss", compare)
    curve = tutorial.train(sampler, num_iterations=3, steps_per_row=32)
    evaluation = sampler.evaluate(2)
    num_steps = 32 * 4
    assert len(differences) == 3 * 10 * 2
    assert max(differences[::20]) < 1e-4  # at first, the policy that learns is the one that acted
    assert differences[19] > 1e-3
    assert [point[0] for point in curve] == [num_steps, 2 * num_steps, 3 * num_steps]
    held = sampler.agent_parameters()
    assert held["log_std"].any()
    assert held["observation/mean"].all()
    sampler.update_agent(rollserve.MlpAgent(held, "diagonal_gaussian"))
    assert sampler.evaluate(2).returns.tolist() == evaluation.returns.tolist()
