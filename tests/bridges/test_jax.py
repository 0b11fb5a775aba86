"""Batches as arrays of JAX."""

from __future__ import annotations

import numpy as np
import pytest
from learner_batches import random_batch

import rollserve

jax = pytest.importorskip("jax", reason="JAX is an extra: make test-bridges")
pytestmark = pytest.mark.filterwarnings("ignore")  # JAX's own


def test_arrays_equal_the_columns() -> None:
    batch = random_batch([3, 2], 0, dtype=np.float32, nested=True)
    arrays = batch.to_jax()
    assert isinstance(batch.observations, dict)
    assert arrays["observations"].keys() == batch.observations.keys()
    assert np.array_equal(arrays["observations"]["image"], batch.observations["image"])
    assert np.array_equal(arrays["rewards"], batch.rewards)
    assert arrays["rewards"].dtype == np.float32
    assert arrays["terminated"].dtype == np.bool_
    assert np.array_equal(arrays["agent_infos"]["value"], batch.agent_infos["value"])
    assert "account" not in arrays


def test_arrays_share_aligned_memory() -> None:
    raw = np.zeros(4 * 1024 + 64, np.uint8)
    start = -raw.ctypes.data % 64  # JAX uses memory that is aligned to 64 bytes
    column = raw[start : start + 4 * 1024].view(np.float32)
    shared = rollserve.bridges.to_jax(column)
    assert shared.unsafe_buffer_pointer() == column.ctypes.data


def test_numbers_of_64_bits_become_those_that_jax_has() -> None:
    batch = random_batch([3], 0)
    assert batch.to_jax()["rewards"].dtype == np.float32
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        assert batch.to_jax()["rewards"].dtype == np.float64


def test_read_only_parts_of_a_stream_are_copied(sampler: rollserve.Sampler) -> None:
    for part in sampler.stream_samples(50):
        assert np.array_equal(part.to_jax()["observations"], part.observations)


def test_dtypes_that_jax_lacks_are_refused() -> None:
    with pytest.raises(TypeError, match="x: expected a dtype that JAX has, got <U1"):
        rollserve.bridges.to_jax({"x": np.array(["a"])})
