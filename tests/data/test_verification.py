"""Receipts, and episodes replayed in plain gymnasium."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from onnx import TensorProto
from onnx_models import agent_of, model, node
from support import server_environment

import rollserve
from rollserve import EnvSpec, EpisodeBatch, Wrapper, cli
from rollserve.data import save_agent, verify
from rollserve.data.agent_files import agent_digest
from rollserve_server.local import LocalServer
from rollserve_wire.gymnasium_spaces import gymnasium_space


def sampled(
    sampler: rollserve.Sampler, env: EnvSpec | str = "CartPole-v1", **layers: object
) -> tuple[EpisodeBatch, rollserve.MlpAgent]:
    """Return episodes with a receipt, and the agent that acted."""
    updated = sampler.update_env(env)
    agent = rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, seed=0, **layers)  # type: ignore[arg-type]
    sampler.update_agent(agent)
    return sampler.with_receipt(sampler.obtain_samples(120), agent), agent


def test_sampled_episodes_are_verified_from_files_of_each_format(
    thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    batch, agent = sampled(thread_sampler)
    save_agent(agent, tmp_path / "agent")
    batch.save(tmp_path / "a.npz")
    batch.to_parquet(tmp_path / "a.parquet")
    batch.to_minari("a-v0", root=tmp_path, env="CartPole-v1")
    second = thread_sampler.with_receipt(thread_sampler.obtain_samples(50), agent)
    second.to_minari("a-v0", root=tmp_path, append=True)
    for name, number in (("a.npz", len(batch)), ("a.parquet", len(batch)), ("a-v0", len(batch) + len(second))):
        found = verify(tmp_path / name, agent=tmp_path / "agent")
        assert found.is_equal, found
        assert found.packages["gymnasium"] == (gymnasium.__version__, gymnasium.__version__)
        assert (found.num_equal, len(found.episodes)) == (number, number)
        assert all(check.log_prob_error is not None and check.log_prob_error < 1e-5 for check in found.episodes)
    assert batch.receipt is not None
    assert batch.receipt.seed == batch.account.seed  # type: ignore[union-attr]
    assert batch.receipt.account["num_steps"] == batch.num_steps


@pytest.mark.parametrize(
    ("env", "layers"),
    [
        (EnvSpec("Pendulum-v1", wrappers=[Wrapper("TimeLimit", {"max_episode_steps": 30})]), {"layer_norm": True}),
        (EnvSpec("Pendulum-v1", {"max_episode_steps": 20}), {"predicted_log_std": True, "activation": "gelu"}),
        (EnvSpec("FrozenLake-v1", {"is_slippery": True}), {"activation": "silu"}),
        (EnvSpec("CartPole-v1", transforms=[rollserve.transforms.ScaleRewards(0.5)]), {"normalization": True}),
    ],
    ids=["wrapper", "kwargs", "discrete observations", "scaled rewards"],
)
def test_specifications_are_replayed(
    env: EnvSpec, layers: dict[str, object], thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    batch, agent = sampled(thread_sampler, env, **layers)
    batch.save(tmp_path / "a.npz")
    save_agent(agent, tmp_path / "agent")
    found = verify(tmp_path / "a.npz", agent=tmp_path / "agent")
    assert found.is_equal, found
    assert not found.not_compared


POLE = EnvSpec("CartPole-v1")
MASK = rollserve.ActionMask(info="action_mask")


def masked(kind: str, source: str = "info") -> EnvSpec:
    return EnvSpec("sample_envs:Masked", {"kind": kind, "source": source})


AGENTS: dict[str, tuple[EnvSpec, dict[str, object]]] = {
    "gru": (POLE, {"core": "gru", "core_size": 7, "normalization": True, "previous_reward": True}),
    "lstm": (POLE, {"core": "lstm", "hidden_sizes": (), "value": "shared"}),
    "masked lstm": (masked("discrete"), {"action_mask": MASK, "core": "lstm"}),
    "masked observation": (
        masked("discrete", "observation"),
        {"action_mask": rollserve.ActionMask(observation="action_mask")},
    ),
    "hybrid": (
        EnvSpec("sample_envs:Hybrid", transforms=[rollserve.transforms.ClipActions()]),
        {"predicted_log_std": True},
    ),
}
"""Agents that an MLP or a model can be."""
MLPS: dict[str, tuple[EnvSpec, dict[str, object]]] = {
    "previous, gru": (POLE, {"core": "gru", "previous_action": True, "previous_reward": True, "layer_norm": True}),
    "previous": (EnvSpec("Pendulum-v1", {"max_episode_steps": 20}), {"previous_action": True, "previous_reward": True}),
    "masked multi": (
        masked("multi", "observation"),
        {"action_mask": rollserve.ActionMask(observation="action_mask"), "previous_action": True},
    ),
    "masked parts": (EnvSpec("sample_envs:MaskedParts"), {"action_mask": MASK, "previous_action": True}),
}
"""Agents that only an MLP can be."""


def check_log_probs(batch: EpisodeBatch, agent: rollserve.Agent, folder: Path) -> None:
    """Check that log-probabilities are found, and that another one is."""
    batch.save(folder / "a.npz")
    save_agent(agent, folder / "agent")
    found = verify(folder / "a.npz", agent=folder / "agent", allowed_modules=["sample_envs"])
    assert found.is_equal, found
    errors = [check.log_prob_error for check in found.episodes]
    assert all(error is not None and error < 1e-4 for error in errors)
    assert any(errors)
    log_probs = np.array(batch.agent_infos["log_prob"])
    log_probs[3] += 0.01
    changed = dataclasses.replace(batch, agent_infos={**batch.agent_infos, "log_prob": log_probs})
    changed.save(folder / "a.npz")
    found = verify(folder / "a.npz", agent=folder / "agent", allowed_modules=["sample_envs"])
    assert [check.is_equal for check in found.episodes].count(False) == 1


@pytest.mark.parametrize("name", [*AGENTS, *MLPS])
def test_log_probs_of_mlps_are_found(name: str, thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    env, layers = (AGENTS | MLPS)[name]
    check_log_probs(*sampled(thread_sampler, env, **layers), tmp_path)


@pytest.mark.parametrize("name", AGENTS)
def test_log_probs_of_models_are_found(name: str, thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    env, layers = AGENTS[name]
    _, mlp = sampled(thread_sampler, env, **layers)
    status = thread_sampler.status()
    agent = rollserve.OnnxAgent.from_mlp(mlp, status.observation_space, status.action_space)
    thread_sampler.update_agent(agent)
    batch = thread_sampler.with_receipt(thread_sampler.obtain_samples(120), agent)
    check_log_probs(batch, agent, tmp_path)


def test_log_probs_of_a_model_with_the_action_before_are_found(
    thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    made = model(
        [
            node("Cast", "previous_action", "before", to=TensorProto.FLOAT),
            node("Reshape", "before shape", "column"),
            node("Mul", "column factors", "logits"),
        ],
        {"observation": ["N", 4], "previous_action": ["N"]},
        {"logits": ["N", 2]},
        {"factors": np.array([[1.5, -0.5]], np.float32), "shape": np.array([-1, 1])},
        types={"previous_action": TensorProto.INT64},
    )
    thread_sampler.update_env("CartPole-v1")
    agent = agent_of(made, "categorical")
    thread_sampler.update_agent(agent)
    batch = thread_sampler.with_receipt(thread_sampler.obtain_samples(120), agent)
    check_log_probs(batch, agent, tmp_path)


def test_log_probs_of_recurrent_fragments_begin_with_their_states(
    thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    _, agent = sampled(thread_sampler, core="gru", previous_action=True, previous_reward=True)
    thread_sampler.obtain_fragments(40)
    thread_sampler.with_receipt(thread_sampler.obtain_fragments(80), agent).save(tmp_path / "a.npz")
    save_agent(agent, tmp_path / "agent")
    found = verify(tmp_path / "a.npz", agent=tmp_path / "agent")
    assert any(not check.replayed for check in found.episodes)
    assert all((check.log_prob_error or 0) < 1e-5 for check in found.episodes)


def test_agents_that_are_not_evaluated_are_named(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, agent = sampled(thread_sampler)
    batch.save(tmp_path / "a.npz")
    for other, text in (
        (
            dataclasses.replace(agent, head="epsilon_greedy", epsilon=0.1),
            "agent: expected a head among .* epsilon_greedy",
        ),
        (rollserve.OnnxAgent(b"no model", "categorical"), "agent: expected a model of ONNX"),
        (rollserve.OnnxAgent(b"no model", "actions"), "agent: expected a head among .* got actions"),
    ):
        save_agent(other, tmp_path / "agent")
        with pytest.raises(ValueError, match=text):
            verify(tmp_path / "a.npz", agent=tmp_path / "agent")


def test_each_change_is_found_and_named(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, _ = sampled(thread_sampler)
    assert batch.env_seeds is not None
    episode = 1
    start, last = int(batch.lengths[0]), int(batch.lengths[:2].sum()) - 1

    def changed(name: str, row: int, value: object) -> EpisodeBatch:
        array = np.array(getattr(batch, name))
        array[row] = value
        return dataclasses.replace(batch, **{name: array})

    observations = np.asarray(batch.observations)
    for name, row, value, text in (
        ("observations", start + 2, np.nextafter(observations[start + 2], np.float32(9)), "observations before step 2"),
        ("last_observations", episode, 0.5, "last_observations"),
        ("rewards", start + 1, 2.0, "rewards: 2.0 at step 1, replayed 1.0"),
        ("actions", start, 1 - np.asarray(batch.actions)[start], "observations before step 1"),
        ("terminated", episode, False, f"terminated, truncated: (False, False) at step {last - start}, replayed"),
        ("env_seeds", episode, 7, "observations before step 0"),
    ):
        changed(name, row, value).save(tmp_path / "a.npz")
        found = verify(tmp_path / "a.npz")
        assert found.changed_columns == (name,)
        assert [check.is_equal for check in found.episodes] == [i != episode for i in range(len(batch))]
        assert found.episodes[episode].difference.startswith(text)


def test_truncations_that_nothing_made_are_found(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, _ = sampled(thread_sampler)
    dataclasses.replace(batch, truncated=np.ones_like(batch.truncated)).save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz")
    longest = batch.lengths.max()
    assert [check.is_equal for check in found.episodes] == (batch.lengths == longest).tolist()
    assert f"truncated: a limit of the call may have cut episodes after {longest} steps" in found.not_compared
    differences = {check.difference for check in found.episodes if not check.is_equal}
    assert all(text.startswith("terminated, truncated: (True, True) at step") for text in differences)


def test_limits_of_calls_are_not_compared(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    sampled(thread_sampler)
    batch = thread_sampler.with_receipt(thread_sampler.obtain_samples(100, max_episode_length=8))
    batch.save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz")
    assert found.is_equal, found
    assert found.not_compared == ("truncated: a limit of the call may have cut episodes after 8 steps",)


def test_columns_and_agents_without_digest_are_named(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, agent = sampled(thread_sampler)
    assert batch.receipt is not None
    dataclasses.replace(batch, receipt=dataclasses.replace(batch.receipt, digests={}, agent="")).save(
        tmp_path / "a.npz"
    )
    save_agent(agent, tmp_path / "agent")
    found = verify(tmp_path / "a.npz", agent=tmp_path / "agent")
    names = {text.partition(":")[0] for text in found.not_compared}
    assert names == {"agent", *batch.receipt.digests}
    assert "rewards: the receipt has no digest of it" in found.not_compared


def test_errors_of_environments_are_differences(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, _ = sampled(thread_sampler)
    actions = np.array(batch.actions)
    actions[batch.lengths[0]] = 7
    dataclasses.replace(batch, actions=actions).save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz")
    assert [check.is_equal for check in found.episodes] == [i != 1 for i in range(len(batch))]
    assert found.episodes[1].difference.startswith("the environment failed at step 0: AssertionError: ")


def test_another_agent_is_found(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, agent = sampled(thread_sampler)
    batch.save(tmp_path / "a.npz")
    other = dataclasses.replace(agent, parameters={n: a * np.float32(3) for n, a in agent.parameters.items()})
    save_agent(other, tmp_path / "agent")
    found = verify(tmp_path / "a.npz", agent=tmp_path / "agent")
    assert found.num_equal == 0
    assert [text.partition(":")[0] for text in found.changed_columns] == ["agent"]
    save_agent(rollserve.RandomAgent(), tmp_path / "agent")
    with pytest.raises(ValueError, match="agent: expected an MLP or a model of ONNX, to evaluate it here, got random"):
        verify(tmp_path / "a.npz", agent=tmp_path / "agent")
    (tmp_path / "agent").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match="agent: expected an agent, got "):
        verify(tmp_path / "a.npz", agent=tmp_path / "agent")


def test_transformed_observations_are_not_compared(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    env = EnvSpec("CartPole-v1", transforms=[rollserve.transforms.ScaleObservations(0.5)])
    batch, _ = sampled(thread_sampler, env)
    batch.save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz")
    assert found.is_equal
    assert found.not_compared == ("observations: transforms have changed them",)


def test_fragments_are_said_not_to_be_replayed(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    thread_sampler.update_env("CartPole-v1")
    thread_sampler.update_agent(rollserve.RandomAgent())
    thread_sampler.obtain_fragments(80)
    thread_sampler.with_receipt(thread_sampler.obtain_fragments(400)).save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz")
    played = [check for check in found.episodes if check.replayed]
    assert 0 < len(played) < len(found.episodes)
    assert all(check.is_equal for check in played)
    assert not found.is_equal
    assert not found.changed_columns


def driven(
    sampler: rollserve.Sampler, env: EnvSpec, num_steps: int, kill: Callable[[int], object] = lambda _: None
) -> EpisodeBatch:
    """Return what a session of random actions records, with a receipt; call `kill` after each step."""
    sampler.update_env(env)
    with sampler.drive(seed=7, fragment_length=20) as session:
        session.observe()
        space = gymnasium_space(session.action_space)
        space.seed(1)
        for number in range(num_steps):
            session.policy_version = number // 7
            session.step(np.stack([space.sample() for _ in range(session.num_rows)]))
            kill(number)
    return sampler.with_receipt(session.batch())


@pytest.mark.parametrize(
    ("env_id", "num_workers", "num_steps"), [("CartPole-v1", 1, 90), ("HalfCheetah-v5", 2, 50), ("ALE/Pong-v5", 3, 30)]
)
def test_sessions_are_verified(
    env_id: str, num_workers: int, num_steps: int, thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    thread_sampler.resize(num_workers)
    batch = driven(thread_sampler, EnvSpec(env_id, vectorization="rows"), num_steps)
    assert batch.first_steps.any()
    assert batch.receipt is not None
    assert batch.receipt.seed == 7
    batch.save(tmp_path / "a.npz")
    found = verify(tmp_path / "a.npz")
    assert found.is_equal, found
    assert not found.not_compared
    assert sum(check.num_steps for check in found.episodes) == batch.num_steps == num_steps * num_workers * 4
    fragment = int(np.flatnonzero(batch.first_steps)[0])
    step = int(batch.lengths[:fragment].sum())
    for name in ("observations", "rewards"):
        column = np.array(getattr(batch, name))
        column[step : step + 1].reshape(-1).view(np.uint8)[0] ^= 1
        dataclasses.replace(batch, **{name: column}).save(tmp_path / "a.npz")
        found = verify(tmp_path / "a.npz")
        assert found.changed_columns == (name,)
        (check,) = [check for check in found.episodes if not check.is_equal]
        assert check.episode_index == batch.episode_indices[fragment]


def test_session_is_verified_after_its_worker_was_killed(ray_server: LocalServer, tmp_path: Path) -> None:
    with rollserve.connect(ray_server.address) as sampler:

        def kill(step: int) -> None:
            if step == 45:
                os.kill(sampler.status().workers[0].process_id, signal.SIGKILL)

        driven(sampler, EnvSpec("HalfCheetah-v5", vectorization="rows"), 60, kill).save(tmp_path / "a.npz")
    assert verify(tmp_path / "a.npz").is_equal


def test_receipts_of_sessions_have_the_agent_that_the_client_names(
    thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    _, agent = sampled(thread_sampler)
    batch = driven(thread_sampler, EnvSpec("CartPole-v1"), 5)
    assert batch.receipt is not None
    assert not batch.receipt.agent
    save_agent(agent, tmp_path / "agent")
    receipt = thread_sampler.with_receipt(batch, agent).receipt
    assert receipt is not None
    assert receipt.agent == agent_digest(agent)


def test_rounds_of_streams_are_verified(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    _, agent = sampled(thread_sampler)
    with thread_sampler.stream(num_steps=80, total_num_steps=80) as stream:
        thread_sampler.with_receipt(next(stream), agent).save(tmp_path / "a.npz")
    assert verify(tmp_path / "a.npz").is_equal


def test_receipts_run_no_code_that_is_not_allowed(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, _ = sampled(thread_sampler, EnvSpec("sample_envs:Ends"), hidden_sizes=(2,))
    batch.save(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="expected a module that is allowed, got sample_envs: importing it runs its"):
        verify(tmp_path / "a.npz")
    assert verify(tmp_path / "a.npz", allowed_modules=["sample_envs"]).num_equal == len(batch)


def test_files_that_cannot_be_replayed_say_why(thread_sampler: rollserve.Sampler, tmp_path: Path) -> None:
    batch, _ = sampled(thread_sampler)
    receipt = batch.receipt
    assert receipt is not None
    window = {"id": "CartPole-v1", "kwargs_json": '{"render_mode": "human"}', "reset_options_json": "{}"}
    for changes, text in (
        (
            {"receipt": None},
            "receipt: expected a receipt in the files, got none: files without one need the environment",
        ),
        (
            {"receipt": dataclasses.replace(receipt, reproducibility="BLOCK")},
            "receipt.reproducibility: expected EPISODE, so that an episode is a function of its seed, got BLOCK: nat",
        ),
        (
            {"receipt": dataclasses.replace(receipt, num_segments=99)},
            "receipt: expected 99 segments, as the receipts say",
        ),
        (
            {
                "receipt": dataclasses.replace(
                    receipt, environment={"id": "profile:x", "kwargs_json": "{}", "reset_options_json": "{}"}
                )
            },
            "receipt.environment: expected an environment of gymnasium, got profile:x",
        ),
        (
            {"receipt": dataclasses.replace(receipt, environment=window)},
            "receipt.environment.kwargs.render_mode: expected a render mode that opens no window, got 'human'",
        ),
        (
            {
                "receipt": dataclasses.replace(
                    receipt, environment={"id": "No-v0", "kwargs_json": "{}", "reset_options_json": "{}"}
                )
            },
            "receipt.environment: expected an environment No-v0, got ",
        ),
    ):
        dataclasses.replace(batch, **changes).save(tmp_path / "a.npz")
        with pytest.raises(ValueError) as raised:
            verify(tmp_path / "a.npz")
        assert str(raised.value).startswith(text)
    dataclasses.replace(batch, receipt=None).save(tmp_path / "a.npz")
    assert verify(tmp_path / "a.npz", env="CartPole-v1").is_equal


def test_receipts_need_the_whole_result_of_the_present_environment(thread_sampler: rollserve.Sampler) -> None:
    batch, _ = sampled(thread_sampler)
    with pytest.raises(
        ValueError, match="account: expected the whole result of a call, got a batch without an account"
    ):
        thread_sampler.with_receipt(batch.take([0]))
    thread_sampler.update_env("CartPole-v1")
    with pytest.raises(ValueError, match="env_version: expected environment version"):
        thread_sampler.with_receipt(batch)


def test_verify_rejects_arguments_of_other_types(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="agent: expected the path of a file of save_agent, got RandomAgent"):
        verify(tmp_path / "a.npz", agent=rollserve.RandomAgent())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="env: expected the id of an environment, or an EnvSpec, got int"):
        verify(tmp_path / "a.npz", env=5)  # type: ignore[arg-type]


def test_receipts_need_the_agent_that_acted(thread_sampler: rollserve.Sampler) -> None:
    batch, agent = sampled(thread_sampler)
    wide = {name: array.astype(np.float64) for name, array in agent.parameters.items()}
    thread_sampler.with_receipt(batch, dataclasses.replace(agent, parameters=wide))
    other = {name: array * np.float32(2) for name, array in agent.parameters.items()}
    for wrong in (dataclasses.replace(agent, parameters=other), rollserve.RandomAgent()):
        with pytest.raises(ValueError, match="agent: expected the one of policy version 1, got another one"):
            thread_sampler.with_receipt(batch, wrong)
    with pytest.raises(TypeError, match="agent: expected an agent, got dict"):
        thread_sampler.with_receipt(batch, other)  # type: ignore[arg-type]
    thread_sampler.update_agent(other)
    thread_sampler.with_receipt(batch, agent)
    with pytest.raises(ValueError, match="agent: expected the one of policy version 1, got another one"):
        thread_sampler.with_receipt(batch, dataclasses.replace(agent, parameters=other))


def test_command_line_says_episode_by_episode_what_is_equal(
    thread_sampler: rollserve.Sampler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch, agent = sampled(thread_sampler)
    batch.save(tmp_path / "a.npz")
    save_agent(agent, tmp_path / "agent")
    assert cli.main(["verify", str(tmp_path / "a.npz"), "--agent", str(tmp_path / "agent")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"episode 0, {batch.lengths[0]} steps: equal, log-probabilities within ")
    assert lines[-1] == f"{len(batch)} of {len(batch)} episodes equal, 0 columns changed"
    rewards = batch.rewards.copy()
    rewards[0] = 5
    dataclasses.replace(batch, rewards=rewards).save(tmp_path / "a.npz")
    assert cli.main(["verify", str(tmp_path / "a.npz")]) == 1
    shown = capsys.readouterr().out
    assert "steps: differs: rewards: 5.0 at step 0, replayed 1.0" in shown
    assert "changed: rewards" in shown
    assert cli.main(["verify", str(tmp_path / "none")]) == 4
    assert "rollserve: " in capsys.readouterr().err
    changed = {**batch.agent_infos, "log_prob": batch.agent_infos["log_prob"] - np.float32(1)}
    dataclasses.replace(batch, agent_infos=changed).save(tmp_path / "a.npz")
    assert cli.main(["verify", str(tmp_path / "a.npz"), "--agent", str(tmp_path / "agent")]) == 1
    shown = capsys.readouterr().out
    assert "steps: differs: log-probabilities by up to 1.0e+00\n" in shown
    assert ": equal" not in shown


def test_command_line_replays_with_the_hash_seed_of_the_receipt(
    thread_sampler: rollserve.Sampler, tmp_path: Path
) -> None:
    thread_sampler.update_env("sample_envs:Ordered")
    thread_sampler.update_agent(rollserve.RandomAgent())
    thread_sampler.with_receipt(thread_sampler.obtain_samples(20, seed=1)).save(tmp_path / "a.npz")
    command = [Path(sys.executable).with_name("rollserve"), "verify", str(tmp_path / "a.npz")]
    environment = {**server_environment(), "PYTHONHASHSEED": "3"}
    shown = subprocess.run(
        [*command, "--allow-module", "sample_envs"], capture_output=True, text=True, check=False, env=environment
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "PYTHONHASHSEED 0, here 0" in shown.stdout
