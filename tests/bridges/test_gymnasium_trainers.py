"""Trainers that step environments of gymnasium's interface, in environments of a server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollserve
from rollserve_server.local import LocalServer

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
PAGE = (Path(__file__).parents[2] / "docs" / "gymnasium.md").read_text()
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


@pytest.fixture
def rows(light_server: LocalServer) -> Iterator[rollserve.Sampler[Any]]:
    """A sampler with eight rows of CartPole-v1."""
    light_server.reset()
    with rollserve.connect(light_server.address) as sampler:
        sampler.update_env(rollserve.EnvSpec("CartPole-v1", vectorization="rows", num_rows=4))
        yield sampler


@pytest.mark.slow
def test_loop_over_gymnasiums_environments_learns(rows: rollserve.Sampler[Any]) -> None:
    import gymnasium_ppo

    with contextlib.closing(rows.vector_env(autoreset="same_step")) as envs:
        assert gymnasium_ppo.train(envs, 40_000, target=100) >= 100  # random ones have 22


def test_loop_over_gymnasiums_environments_bootstraps_truncated_episodes(rows: rollserve.Sampler[Any]) -> None:
    import gymnasium_ppo

    with contextlib.closing(rows.vector_env(autoreset="same_step", max_episode_length=5)) as envs:
        assert gymnasium_ppo.train(envs, 1024) == 5


def test_torchrl_example_of_the_page_collects(light_server: LocalServer, rows: rollserve.Sampler[Any]) -> None:
    pytest.importorskip("torchrl", reason="TorchRL is an extra: make test-bridges")
    (example,) = re.findall(r"<!-- TorchRL -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example.replace("127.0.0.1:50051", light_server.address).replace("100_000", "2_000"), names)
    batch = names["batch"]
    assert batch.shape == (8, 125)
    ended = batch["next", "done"][:, :-1, 0]
    going_on = ~ended
    assert ended.any()
    shown, following = batch["next", "observation"][:, :-1], batch["observation"][:, 1:]
    assert torch.equal(shown[going_on], following[going_on])
    assert (following[ended].abs() <= 0.05).all()  # the first observations of the next episodes
    assert not (shown[ended].abs() <= 0.05).all()


@pytest.mark.slow
def test_torchrl_learns_in_rows_of_a_server(rows: rollserve.Sampler[Any]) -> None:
    pytest.importorskip("torchrl", reason="TorchRL is an extra: make test-bridges")
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymWrapper
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    def network(outputs: int) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, outputs))

    torch.manual_seed(0)
    env = GymWrapper(rows.vector_env(autoreset="same_step", seed=0), categorical_action_encoding=True)
    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.action_spec,
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = TensorDictModule(network(1), in_keys=["observation"], out_keys=["state_value"])
    advantages, loss = GAE(gamma=0.99, lmbda=0.95, value_network=critic), ClipPPOLoss(actor, critic, clip_epsilon=0.2)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    lengths = []
    for batch in Collector(env, actor, frames_per_batch=1_000, total_frames=30_000):
        lengths.append(batch.numel() / max(1, int(batch["next", "done"].sum())))
        for _ in range(10):
            advantages(batch)
            losses = loss(batch.reshape(-1))
            optimizer.zero_grad()
            sum(losses[f"loss_{part}"] for part in ("objective", "critic", "entropy")).backward()
            optimizer.step()
    assert np.mean(lengths[-3:]) > 60 > 30 > lengths[0]  # random episodes have 22 steps
