"""Bridges to libraries that are not installed."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from learner_batches import random_batch

import rollserve
from rollserve import EpisodeBatch

ROOT = Path(__file__).parents[2]
BRIDGES: dict[str, tuple[str, Callable[[EpisodeBatch], object]]] = {
    "torch": ("torch", EpisodeBatch.to_torch),
    "jax": ("jax", EpisodeBatch.to_jax),
    "tensordict": ("torchrl", EpisodeBatch.to_tensordict),
    "ray.rllib.policy.sample_batch": ("rllib", EpisodeBatch.to_sample_batch),
    "ray.rllib.env.single_agent_episode": ("rllib", EpisodeBatch.to_rllib_episodes),
    "pandas": ("pandas", EpisodeBatch.to_pandas),
    "pyarrow": ("arrow", EpisodeBatch.to_arrow),
}


def test_extras_of_the_bridges_exist() -> None:
    extras = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for extra, _ in BRIDGES.values()} | {"sb3"} <= extras.keys()


@pytest.mark.parametrize("module", BRIDGES)
def test_bridge_names_the_extra_when_the_library_is_missing(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, bridge = BRIDGES[module]
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(ImportError, match=rf"^{module}: expected .*, got .*: pip install 'rollserve\[{extra}\]'$"):
        bridge(random_batch([3], 0))


def test_agents_name_the_extra_when_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"rollserve\[torch\]"):
        rollserve.MlpAgent.from_torch(object(), "categorical")
    with pytest.raises(ImportError, match=r"rollserve\[torch\]"):
        rollserve.OnnxAgent.from_torch(object(), rollserve.spaces.Discrete(2), "categorical")
    with pytest.raises(ImportError, match=r"rollserve\[sb3\]"):
        rollserve.bridges.fill_rollout_buffer(object(), random_batch([3], 0))
