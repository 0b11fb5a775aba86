"""Examples of docs/bridges.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollserve

PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- bridge: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own


def run(example: str, sampler: rollserve.Sampler, **names: Any) -> dict[str, Any]:
    """Run an example; return its global names."""
    names |= {"sampler": sampler, "rollserve": rollserve, "__name__": "example"}
    exec(EXAMPLES[example], names)
    return names


def test_tables_example(sampler: rollserve.Sampler) -> None:
    pytest.importorskip("pandas", reason="pandas is an extra")
    pytest.importorskip("pyarrow", reason="Arrow is an extra")
    batch = sampler.obtain_samples(100)
    names = run("tables", sampler, batch=batch)
    assert np.allclose(names["means"], batch.returns / batch.lengths)
    assert names["table"].num_rows == batch.num_steps


def test_torch_example_updates_and_sends_the_modules(sampler: rollserve.Sampler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    updates: list[Any] = []
    tools = {"torch": torch, "nn": torch.nn, "generator": np.random.default_rng(0)}
    names = run("torch", sampler, update=lambda *columns: updates.append(columns), **tools)
    assert len(updates) == 4 * 5
    assert sampler.status().policy_version == 3
    assert names["agent"].parameters.keys() == {
        f"{p}{i}/{n}" for p in ("", "value/") for i in "01" for n in ("weight", "bias")
    }


def test_onnx_example_has_infos_and_states(sampler: rollserve.Sampler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    batch = run("onnx", sampler, torch=torch, nn=torch.nn)["batch"]
    assert {"logits", "value", "size", "log_prob"} <= batch.agent_infos.keys()
    assert batch.initial_states["h"].shape == (len(batch), 32)


def test_jax_example_computes(sampler: rollserve.Sampler) -> None:
    jax = pytest.importorskip("jax", reason="JAX is an extra: make test-bridges")
    names = run("jax", sampler, jnp=jax.numpy)
    assert np.allclose(names["logits"][:, 0], names["batch"].observations.sum(axis=1), atol=1e-5)


def test_torchrl_example_has_losses(sampler: rollserve.Sampler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    pytest.importorskip("torchrl", reason="TorchRL is an extra: make test-bridges")
    from tensordict.nn import TensorDictModule
    from torchrl.modules import ProbabilisticActor
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    body = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        body, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True
    )
    value_network = TensorDictModule(torch.nn.Linear(4, 1), in_keys=["observation"], out_keys=["state_value"])
    names = run("torchrl", sampler, GAE=GAE, ClipPPOLoss=ClipPPOLoss, actor=actor, value_network=value_network)
    assert all(torch.isfinite(names["losses"][name]).all() for name in ("loss_objective", "loss_critic"))


def test_stable_baselines3_example_learns(sampler: rollserve.Sampler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is an extra: make test-bridges")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.logger import configure

    model = sb3.PPO("MlpPolicy", make_vec_env("CartPole-v1", 4), n_steps=40, n_epochs=1, batch_size=40, device="cpu")
    model.set_logger(configure(format_strings=[]))
    run("sb3", sampler, model=model, nn=torch.nn)
    assert model.logger.name_to_value["train/n_updates"] == 2
