"""Batches as tensordicts, in TorchRL's estimator and losses."""

from __future__ import annotations

import numpy as np
import pytest
from learner_batches import random_batch

import rollserve

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
pytest.importorskip("torchrl", reason="TorchRL is an extra: make test-bridges")
pytestmark = pytest.mark.filterwarnings("ignore")  # TorchRL's own


def test_tensordict_has_the_keys_of_torchrl() -> None:
    batch = random_batch([3, 2], 0, nested=True)
    data = batch.to_tensordict()
    assert data.batch_size == (5,)
    assert isinstance(batch.observations, dict)
    assert np.shares_memory(data["observation", "image"].numpy(), batch.observations["image"])
    assert np.array_equal(data["observation", "0", "x"], batch.observations["0/x"])
    assert np.array_equal(data["action", "a"], batch.actions["a"])  # type: ignore[call-overload,index]
    assert np.array_equal(data["next", "reward"][:, 0], batch.rewards.astype(np.float32))
    assert np.array_equal(data["next", "observation", "image"], batch.next_observations["image"])  # type: ignore[call-overload,index]
    assert np.array_equal(data["sample_log_prob"], batch.agent_infos["log_prob"])
    assert "state_value" not in data
    assert data["collector", "traj_ids"].tolist() == [0, 0, 0, 1, 1]
    assert not data["done"].any()


def test_segments_end_as_in_collectors() -> None:
    ends = {"terminated": np.array([True, False, False]), "truncated": np.array([False, True, False])}
    following = random_batch([2, 1, 2], 0, **ends).to_tensordict()["next"]
    assert following["terminated"].ravel().tolist() == [False, True, False, False, False]
    assert following["truncated"].ravel().tolist() == [False, False, True, False, True]
    assert following["done"].ravel().tolist() == [False, True, True, False, True]


def test_advantages_and_ppo_loss_of_torchrl_work(sampler: rollserve.Sampler) -> None:
    from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    nn = torch.nn
    policy, critic = (nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, size)) for size in (2, 1))
    sampler.update_agent(rollserve.MlpAgent.from_torch(policy, "categorical", value=critic))
    batch = sampler.obtain_fragments(160)
    assert batch.terminated.any()
    assert not (batch.terminated | batch.truncated).all()
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(policy, in_keys=["observation"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        ),
    )
    value_network = TensorDictModule(critic, in_keys=["observation"], out_keys=["state_value"])
    with torch.no_grad():
        last_values = critic(batch.to_torch()["last_observations"])[:, 0].numpy()
    data = GAE(gamma=0.99, lmbda=0.95, value_network=value_network)(batch.to_tensordict())
    expected = batch.advantages(0.99, 0.95, last_values=last_values)
    assert np.allclose(data["advantage"][:, 0], expected.advantages, atol=1e-4)
    assert np.allclose(data["value_target"][:, 0], expected.value_targets, atol=1e-4)
    given = batch.to_tensordict(last_values=last_values)
    without_network = GAE(gamma=0.99, lmbda=0.95, value_network=None)(given)
    assert np.allclose(without_network["advantage"][:, 0], expected.advantages, atol=1e-4)

    losses = ClipPPOLoss(actor, value_network)(data)
    assert abs(float(losses["kl_approx"])) < 1e-5  # the actor computes the data's log-probabilities
    sum(losses[name] for name in losses.keys() if name.startswith("loss_")).backward()  # noqa: SIM118
    assert all(parameter.grad is not None for parameter in [*policy.parameters(), *critic.parameters()])
