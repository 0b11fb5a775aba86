"""The trainers in `examples` that use PyTorch or V-trace: their commands, and what their models compute."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rollserve
from rollserve_server.local import LocalServer

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r" *([\d,]+) steps, mean return (\S+), .*, [\d,]+ steps/s")
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own


def run(trainer: str, server: LocalServer, out: Path, *options: str) -> list[str]:
    """Run a trainer on a server; return the lines that it prints."""
    command = [sys.executable, EXAMPLES / f"{trainer}.py", "--server", server.address, "--out", out, *options]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    return shown.stdout.splitlines()


@pytest.mark.parametrize(
    ("trainer", "env", "num_steps"),
    [
        ("impala_numpy", "CartPole-v1", 2048),
        ("ppo_torch", "CartPole-v1", 2048),
        ("ppo_torch", "Pendulum-v1", 4096),
        ("sac_torch", "Pendulum-v1", 1100),
    ],
)
def test_trainer_resumes_from_its_checkpoint(
    trainer: str, env: str, num_steps: int, small_server: LocalServer, tmp_path: Path
) -> None:
    if trainer.endswith("_torch"):
        pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    options = ("--env", env, "--steps")
    lines = run(trainer, small_server, tmp_path, *options, str(num_steps))
    steps = [int(found[1].replace(",", "")) for found in map(LINE.fullmatch, lines) if found]
    assert len(steps) >= 2
    assert num_steps <= steps[-1] < num_steps + 64 or steps[-1] == num_steps
    assert re.match(r"evaluation: return \S+ ± .* \(20 episodes of policy version \d+\)", lines[-1])
    more = run(trainer, small_server, tmp_path, *options, str(2 * num_steps), "--resume")
    first = next(found for found in map(LINE.fullmatch, more) if found)
    assert steps[-1] < int(first[1].replace(",", "")) <= 2 * num_steps
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert [point[0] for point in curve] == sorted({point[0] for point in curve})
    assert curve[-1][0] >= 2 * num_steps
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_trainer_stops_at_its_target(small_server: LocalServer, tmp_path: Path) -> None:
    lines = run("impala_numpy", small_server, tmp_path, "--steps", "100000", "--target", "5")
    assert len(lines) < 10


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "num_steps"), [("impala_numpy", 500_000), ("ppo_torch", 200_000)])
def test_trainer_learns_cartpole(trainer: str, num_steps: int, small_server: LocalServer, tmp_path: Path) -> None:
    if trainer.endswith("_torch"):
        pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    lines = run(trainer, small_server, tmp_path, "--steps", str(num_steps), "--target", "475")
    found = re.match(r"evaluation: return (\S+) ", lines[-1])
    assert found is not None
    assert float(found[1]) >= 450


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "ALE/Pong-v5"])
def test_model_of_ppo_computes_what_the_server_does(env: str, sampler: rollserve.Sampler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    import ppo_torch

    settings = ppo_torch.settings_of(env)
    spaces = sampler.update_env(ppo_torch.spec_of(env, settings, 2))
    model = ppo_torch.ActorCritic(spaces.observation_space, spaces.action_space)
    settings = dataclasses.replace(settings, num_rows=4, row_steps=16, minibatch_size=64, max_policy_lag=0)
    learner = ppo_torch.Ppo(model, settings, seed=0)
    learn, ratios = learner.learn, []

    def compare(batch: rollserve.EpisodeBatch, rate: float) -> dict[str, float]:
        tensors = batch.to_torch()
        with torch.no_grad():
            log_probs, _, values = model.evaluate(tensors["observations"], tensors["actions"])
        assert np.allclose(log_probs, batch.agent_infos["log_prob"], atol=1e-4)
        assert np.allclose(values, batch.agent_infos["value"], atol=1e-4)
        losses: dict[str, float] = learn(batch, rate)
        assert all(np.isfinite(list(losses.values())))
        ratios.append(rate)
        return losses

    learner.learn = compare
    ppo_torch.train(sampler, learner, 192)
    assert ratios == pytest.approx([2 / 3, 1 / 3, 0])


def test_actor_of_sac_computes_what_the_server_does(sampler: rollserve.Sampler) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is an extra: make test-bridges")
    import sac_torch

    spaces = sampler.update_env(rollserve.EnvSpec("Pendulum-v1", vectorization="rows", num_rows=2))
    learner = sac_torch.Sac(spaces.observation_space, spaces.action_space, sac_torch.Settings(batch_size=32), seed=0)
    sampler.update_agent(learner.actor.agent())
    batch = sampler.obtain_fragments(64)
    mean, log_std = (torch.from_numpy(batch.agent_infos[name]) for name in ("mean", "log_std"))
    computed = learner.actor.layers(batch.to_torch()["observations"]).detach().chunk(2, dim=1)
    assert np.allclose(mean, computed[0], atol=1e-5)
    assert np.allclose(log_std, computed[1].clamp(-20, 2), atol=1e-5)

    # The actor's own draws have the density that the server's formula gives them.
    torch.manual_seed(0)
    actions, log_probs = learner.actor(batch.to_torch()["observations"])
    unit = (actions / 2).double().clamp(-1 + 1e-6, 1 - 1e-6)
    normal = torch.distributions.Normal(*(each.double() for each in (computed[0], computed[1].exp())))
    squashed = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(0, 2)]
    )
    assert np.allclose(log_probs.detach(), squashed.log_prob(2 * unit).sum(1).detach(), atol=1e-2)

    learner.buffer.add(batch)
    assert np.isfinite(list(learner.learn(3).values())).all()
