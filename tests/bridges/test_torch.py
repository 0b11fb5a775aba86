"""Batches as tensors of PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from learner_batches import random_batch

import rollserve

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "i8", "f2", "f4", "f8"])
def test_tensors_share_the_memory_of_arrays(dtype: str) -> None:
    column = np.ones((4, 3), dtype)
    tensor = rollserve.bridges.to_torch({"x": column})["x"]
    column[1, 2] = 0
    assert tensor.shape == (4, 3)
    assert np.array_equal(tensor.numpy(), column)
    assert np.shares_memory(tensor.numpy(), column)


def test_batch_becomes_tensors_by_field(sampler: rollserve.Sampler) -> None:
    batch = sampler.obtain_fragments(80)
    tensors = batch.to_torch()
    assert isinstance(batch.observations, np.ndarray)
    for name in ("observations", "last_observations", "actions", "rewards", "lengths", "terminated", "row_indices"):
        assert np.shares_memory(tensors[name].numpy(), getattr(batch, name)), name
    assert np.shares_memory(tensors["agent_infos"]["log_prob"].numpy(), batch.agent_infos["log_prob"])
    assert tensors["terminated"].dtype == torch.bool
    assert "account" not in tensors


def test_leaves_minibatches_and_transitions_become_tensors() -> None:
    batch = random_batch([3, 2], 0, nested=True)
    assert set(batch.to_torch()["observations"]) == {"image", "0/x"}
    (part,) = batch.minibatches(5, np.random.default_rng(0), own=np.arange(5))
    tensors = rollserve.bridges.to_torch(part)
    assert np.array_equal(tensors["own"].numpy(), part["own"])
    found = rollserve.bridges.to_torch(batch.transitions())
    assert found["terminated"].dtype == torch.bool
    assert found["next_observations"]["image"].shape == (5, 2, 1)


def test_read_only_parts_of_a_stream_are_copied(sampler: rollserve.Sampler) -> None:
    for part in sampler.stream_samples(50):
        tensors = part.to_torch()
        tensors["rewards"] += 1
        assert np.array_equal(tensors["rewards"].numpy(), part.rewards + 1)


def test_tensors_are_moved_to_a_device() -> None:
    assert random_batch([2], 0).to_torch("meta")["rewards"].device.type == "meta"


def test_floats_become_the_dtype_of_parameters() -> None:
    columns = {
        "x": np.ones((2, 3)),
        "half": np.ones(2, np.float32),
        "action": np.ones(2, np.int64),
        "end": np.ones(2, bool),
    }
    tensors = rollserve.bridges.to_torch(columns, dtype=torch.float32)
    dtypes = [torch.float32, torch.float32, torch.int64, torch.bool]
    assert [tensor.dtype for tensor in tensors.values()] == dtypes
    assert np.shares_memory(tensors["half"].numpy(), columns["half"])
    assert torch.nn.Linear(3, 1)(tensors["x"]).shape == (2, 1)
    assert random_batch([2], 0).to_torch(dtype=torch.float32)["rewards"].dtype == torch.float32
    with pytest.raises(ValueError, match=r"^dtype: expected a dtype of floats, such as torch.float32, got torch.int64"):
        rollserve.bridges.to_torch(columns, dtype=torch.int64)


def test_other_columns_are_refused() -> None:
    with pytest.raises(TypeError, match="x: expected a dtype that PyTorch has, got <U1"):
        rollserve.bridges.to_torch({"x": np.array(["a"])})
    with pytest.raises(TypeError, match="x: expected a batch, or a mapping of arrays, got list"):
        rollserve.bridges.to_torch({"x": [1]})


def test_clipped_policy_loss_is_the_formula() -> None:
    generator = np.random.default_rng(0)
    new, old, advantages = (generator.normal(size=50).astype(np.float32) for _ in range(3))
    tensors = [torch.from_numpy(each).requires_grad_() for each in (new, old, advantages)]
    for normalize in (False, True):
        gains = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8) if normalize else advantages
        ratios = np.exp(new - old)
        expected = -np.minimum(ratios * gains, np.clip(ratios, 0.7, 1.3) * gains).mean()
        loss = rollserve.bridges.clipped_policy_loss(*tensors, clip=0.3, normalize=normalize)
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        (gradient,) = torch.autograd.grad(loss, tensors[0])
        is_clipped = np.where(gains > 0, ratios > 1.3, ratios < 0.7)
        assert is_clipped.any()
        assert np.array_equal(gradient.numpy() == 0, is_clipped)
