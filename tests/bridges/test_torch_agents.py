"""Agents from modules of PyTorch: what the server computes with them equals what the modules compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rollserve
from rollserve.bridges import module_parameters
from rollserve.spaces import Box, Dict, Discrete

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own
CARTPOLE = Box(np.array(-1.0), np.array(1.0), (4,), np.dtype(np.float32))
ACTIVATIONS = [nn.Tanh(), nn.ReLU(), nn.ELU(), nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh")]


def outputs_of(module: nn.Module, batch: rollserve.EpisodeBatch) -> Any:
    with torch.no_grad():
        return module(batch.to_torch()["observations"])


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_mlp_acts_as_the_module(activation: nn.Module, layer_norm: bool, sampler: rollserve.Sampler) -> None:
    norm = [nn.LayerNorm(16, eps=1e-3)] if layer_norm else []
    module = nn.Sequential(nn.Linear(4, 16), *norm, activation, nn.Linear(16, 2))
    value = nn.Sequential(nn.Flatten(), nn.Linear(4, 16, bias=False), *norm, activation, nn.Linear(16, 1))
    sampler.update_agent(rollserve.MlpAgent.from_torch(module, "categorical", value=value))
    batch = sampler.obtain_samples(50)
    assert np.allclose(batch.agent_infos["logits"], outputs_of(module, batch), atol=1e-5)
    assert np.allclose(batch.agent_infos["value"], outputs_of(value, batch)[:, 0], atol=1e-5)


def test_mlp_follows_the_optimizer(sampler: rollserve.Sampler) -> None:
    body, head, critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2), nn.Linear(8, 1)
    agent = rollserve.MlpAgent.from_torch(nn.Sequential(body, head), "categorical", value=critic)
    sampler.update_agent(agent)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters(), *critic.parameters()], lr=0.5)
    inputs = torch.ones(1, 4)
    (head(body(inputs))[0, 0] + critic(body(inputs)).sum()).backward()
    optimizer.step()
    sampler.update_agent(agent.parameters)
    batch = sampler.obtain_samples(50)
    assert np.allclose(batch.agent_infos["logits"], outputs_of(nn.Sequential(body, head), batch), atol=1e-5)
    assert np.allclose(batch.agent_infos["value"], outputs_of(nn.Sequential(body, critic), batch)[:, 0], atol=1e-5)


def test_gaussian_heads_have_their_log_std() -> None:
    log_std = nn.Parameter(torch.full((2,), -0.5))
    agent = rollserve.MlpAgent.from_torch(nn.Linear(4, 2), "diagonal_gaussian", log_std=log_std, min_log_std=-3)
    assert np.shares_memory(agent.parameters["log_std"], log_std.detach().numpy())
    assert agent.min_log_std == -3
    predicted = rollserve.MlpAgent.from_torch(nn.Linear(4, 4), "squashed_gaussian")
    assert "log_std" not in predicted.parameters


class Odd(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x)


def linear(inputs: int, *sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [nn.Linear(inputs, size), nn.Tanh()]
        inputs = size
    return layers[:-1]


@pytest.mark.parametrize(
    ("module", "options", "error", "text"),
    [
        (Odd(*linear(4, 8, 2)), {}, ValueError, "module: expected outputs that its layers alone account for"),
        (nn.Sequential(*linear(4, 8, 2), nn.Tanh()), {}, ValueError, "module: expected a torch.nn.Linear as the last"),
        (nn.Sequential(*linear(4, 8), nn.Linear(8, 2)), {}, TypeError, r"module\[1\]: expected an activation of Tanh"),
        (nn.Sequential(nn.Conv1d(1, 1, 1)), {}, TypeError, r"module\[0\]: expected a torch.nn.Linear, got Conv1d"),
        (nn.Sequential(nn.Linear(4, 8), nn.ELU(2.0), nn.Linear(8, 2)), {}, ValueError, r"module\[1\]: .*alpha of 1"),
        (
            nn.Sequential(*linear(4, 8, 8), nn.ReLU(), nn.Linear(8, 2)),
            {},
            ValueError,
            r"module: expected the same activation in all hidden layers, got \['relu', 'tanh'\]",
        ),
        (
            nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), *linear(8, 8, 2)),
            {},
            ValueError,
            r"module: expected layer norm in all hidden layers or in none, got in module\[0\] alone",
        ),
        (nn.Tanh(), {}, TypeError, "module: expected a torch.nn.Sequential, got Tanh"),
        (nn.Sequential(*linear(4, 8, 2)), {"value": nn.Linear(4, 1)}, ValueError, "value: expected 8 inputs"),
        (nn.Sequential(*linear(4, 8, 2)), {"value": nn.Linear(8, 2)}, ValueError, "value: expected one output, got 2"),
        (nn.Sequential(*linear(4, 8, 2)), {"log_std": torch.zeros(2)}, ValueError, "log_std: expected None for"),
    ],
)
def test_modules_that_are_no_mlp_are_refused(
    module: nn.Module, options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"^{text}"):
        rollserve.MlpAgent.from_torch(module, "categorical", **options)  # type: ignore[arg-type]


class Policy(nn.Module):
    """A body with dropout, which evaluation mode turns off, and two heads."""

    def __init__(self, num_inputs: int = 4, num_actions: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(num_inputs, 16), nn.Mish(), nn.Dropout(0.5))
        self.logits, self.critic = nn.Linear(16, num_actions), nn.Linear(16, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(observation)
        return self.logits(features), self.critic(features)


def test_model_acts_as_the_module_and_follows_it(sampler: rollserve.Sampler) -> None:
    module = Policy()
    sampler.update_agent(rollserve.OnnxAgent.from_torch(module, sampler.status().observation_space, "categorical"))
    assert module.training
    module.eval()
    for _ in range(2):
        batch = sampler.obtain_samples(50)
        with torch.no_grad():
            logits, value = module(batch.to_torch()["observations"])
        assert np.allclose(batch.agent_infos["logits"], logits, atol=1e-5)
        assert np.allclose(batch.agent_infos["value"], value[:, 0], atol=1e-5)
        nn.init.normal_(module.logits.weight)
        sampler.update_agent(module_parameters(module))


def test_equal_parameters_stay_apart_in_a_model(sampler: rollserve.Sampler) -> None:
    module = Policy()
    for layer in (module.body[0], module.logits, module.critic):
        nn.init.zeros_(layer.bias)
        nn.init.ones_(layer.weight)
    sampler.update_agent(rollserve.OnnxAgent.from_torch(module, sampler.status().observation_space, "categorical"))
    assert set(sampler.agent_parameters()) == set(module.state_dict())
    sampler.update_agent(module_parameters(module))
    batch = sampler.obtain_samples(50)
    assert np.allclose(batch.agent_infos["logits"], outputs_of(module.eval(), batch)[0], atol=1e-5)


class Recurrent(nn.Module):
    """A GRU cell that names its outputs: logits, the next state and an info."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.logits = nn.GRUCell(4, 8), nn.Linear(8, 2)

    def forward(self, observation: torch.Tensor, h: torch.Tensor) -> dict[str, torch.Tensor]:
        after = self.cell(observation, h)
        return {"logits": self.logits(after), "next_state/h": after, "norm": after.norm(dim=1)}


def test_recurrent_model_passes_on_its_states(sampler: rollserve.Sampler) -> None:
    module, space = Recurrent(), sampler.status().observation_space
    sampler.update_agent(rollserve.OnnxAgent.from_torch(module, space, "categorical", states={"h": (8,)}))
    for episode in sampler.obtain_samples(50).split():
        h = torch.zeros(1, 8)
        for step, observation in enumerate(episode.to_torch()["observations"]):
            with torch.no_grad():
                outputs = module(observation[None], h)
            h = outputs["next_state/h"]
            assert np.allclose(episode.agent_infos["logits"][step], outputs["logits"][0], atol=1e-5)
            assert np.allclose(episode.agent_infos["norm"][step], outputs["norm"][0], atol=1e-5)


class Pieces(nn.Module):
    """A module for a Dict space, with noise, whose parameter has the name of an output."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_std = nn.Linear(3 + 2, 2), nn.Parameter(torch.zeros(2))

    def forward(self, observation: dict[str, torch.Tensor], noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        image = observation["image"].float().flatten(1)[:, :3] / 255
        mean = self.mean(torch.cat([image, noise], dim=1)) + observation["goal/kind"].unsqueeze(1)
        return mean, self.log_std.expand_as(mean)


def test_leaves_noise_and_names_get_their_roles() -> None:
    image = Box(np.array(0), np.array(255), (2, 4), np.dtype(np.uint8))
    space = Dict({"image": image, "goal": Dict({"kind": Discrete(3)})})
    agent = rollserve.OnnxAgent.from_torch(Pieces(), space, "diagonal_gaussian", noise_width=2)
    assert agent.outputs == {"log_std": "log_std/port"}
    assert agent.inputs == {}
    assert agent.infos == ()


class Broken(Policy):
    """Models that are refused, by the name of the fault."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.spread = fault, nn.Parameter(torch.zeros(2))

    def forward(self, observation: torch.Tensor) -> object:
        logits, value = super().forward(observation)
        if self.fault == "draws":
            return logits + torch.rand_like(logits)
        if self.fault == "branches":
            return logits if len(observation) == 3 else -logits
        if self.fault == "not expanded":
            return {"logits": logits, "value": value, "spread": self.spread}
        if self.fault == "too many":
            return logits, value, value
        return {"value": value}


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("draws", r"outputs\['logits'\]: expected a model that returns what the module returns, got a difference of"),
        ("branches", r"outputs\['logits'\]: expected a model that returns what the module returns"),
        ("not expanded", r"outputs\['spread'\]: expected a row for each of 3 observations, got shape \(2,\)"),
        ("too many", r"outputs: expected 1: \['logits'\], got 3 tensors"),
        ("no logits", r"outputs: expected outputs named \['logits'\], got \['value'\]"),
    ],
)
def test_modules_that_no_model_equals_are_refused(fault: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        rollserve.OnnxAgent.from_torch(Broken(fault), CARTPOLE, "categorical")


def test_normalized_module_follows_running_moments(sampler: rollserve.Sampler) -> None:
    policy, critic = nn.Sequential(*linear(4, 16, 2)), nn.Sequential(*linear(4, 16, 1))
    agent = rollserve.MlpAgent.from_torch(policy, "categorical", value=critic, normalization=True)
    moments = rollserve.RunningMoments()
    sampler.update_agent(agent, observation_moments=moments)
    for _ in range(3):
        batch = sampler.obtain_fragments(64, observation_moments=True)
        observations = torch.from_numpy(moments.normalized(batch.flat_observations()))
        with torch.no_grad():
            assert np.allclose(batch.agent_infos["logits"], policy(observations), atol=1e-5)
            assert np.allclose(batch.agent_infos["value"], critic(observations)[:, 0], atol=1e-5)
        nn.init.normal_(policy[0].weight)
        moments.merge(batch.account.observation_moments)
        sampler.update_agent(agent.parameters, observation_moments=moments)


MASKED = rollserve.ActionMask(observation="action_mask")


class WithAllInputs(nn.Module):
    """A module that gets the action and the reward before, and a Dict observation."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(3 + 1 + 1, 5)

    def forward(self, observation: Any, previous_action: torch.Tensor, previous_reward: torch.Tensor) -> torch.Tensor:
        assert set(observation) == {"board"}
        parts = [observation["board"], previous_action.float()[:, None], previous_reward[:, None]]
        return self.logits(torch.cat(parts, dim=1))


def test_modules_get_the_step_before_and_no_mask(thread_sampler: rollserve.Sampler) -> None:
    sampler, env = thread_sampler, thread_sampler.update_env("sample_envs:Masked-v0", kwargs={"source": "observation"})
    policy = nn.Sequential(*linear(3 + 5 + 1, 16, 5))
    inputs = {"previous_action": True, "previous_reward": True}
    agent = rollserve.MlpAgent.from_torch(policy, "categorical", normalization=True, action_mask=MASKED, **inputs)
    assert agent.parameters["observation/mean"].shape == (3,)
    sampler.update_agent(agent)
    options = {"return_spaces": True, "return_states": True}
    batch = sampler.obtain_samples(50, **options)
    states = [
        batch.agent_infos[f"state/previous_{name}"].reshape(len(batch.rewards), -1) for name in ("action", "reward")
    ]
    observed = rollserve.RunningMoments().normalized(batch.flat_observations(action_mask=MASKED))  # clipped
    inputs_of_policy = torch.from_numpy(np.concatenate([observed, *states], axis=1).astype(np.float32))
    legal = batch.agent_infos["action_mask"]
    with torch.no_grad():
        assert np.allclose(batch.agent_infos["logits"][legal], policy(inputs_of_policy).numpy()[legal], atol=1e-5)

    model = WithAllInputs()
    spaces = {"previous_action": env.action_space, "previous_reward": True}
    sampler.update_agent(
        rollserve.OnnxAgent.from_torch(model, env.observation_space, "categorical", action_mask=MASKED, **spaces)
    )
    batch = sampler.obtain_samples(50, **options)
    legal = batch.agent_infos["action_mask"]
    states = [torch.from_numpy(batch.agent_infos[f"state/previous_{name}"]).float() for name in ("action", "reward")]
    with torch.no_grad():
        logits = model({"board": torch.from_numpy(batch.observations["board"])}, *states).numpy()
    assert np.allclose(batch.agent_infos["logits"][legal], logits[legal], atol=1e-5)
