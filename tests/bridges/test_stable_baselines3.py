"""Rollout buffers of Stable-Baselines3: filled with fragments, they hold what it collects from the same steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rollserve

torch = pytest.importorskip("torch", reason="Stable-Baselines3 needs PyTorch: make test-bridges")
sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is an extra: make test-bridges")
gymnasium = pytest.importorskip("gymnasium")
pytestmark = pytest.mark.filterwarnings("ignore")  # Stable-Baselines3's own
NUM_STEPS, NUM_ROWS = 40, 4


def replayed(rows: dict[str, Any], spaces: tuple[Any, Any]) -> Any:
    """Return a vector environment that goes through the steps of some rows, whatever the actions are."""
    from stable_baselines3.common.vec_env import VecEnv

    class Replayed(VecEnv):
        def __init__(self) -> None:
            super().__init__(NUM_ROWS, *spaces)
            self._step = 0

        def reset(self) -> Any:
            return rows["observations"][0]

        def step_async(self, actions: Any) -> None: ...

        def step_wait(self) -> Any:
            step = self._step
            self._step += 1
            terminated, truncated = rows["terminated"][step], rows["truncated"][step]
            after, infos = rows["next_observations"][step], []
            for row in range(NUM_ROWS):
                infos.append({"TimeLimit.truncated": truncated[row] and not terminated[row]})
                if terminated[row] or truncated[row]:
                    infos[row]["terminal_observation"] = after[row]
            following = rows["observations"][step + 1] if self._step < NUM_STEPS else after
            return following, rows["rewards"][step].astype(np.float32), terminated | truncated, infos

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> Any:
            return [None] * NUM_ROWS

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any: ...

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
            return [False] * NUM_ROWS

    return Replayed()


@pytest.fixture
def model() -> Any:
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env("CartPole-v1", NUM_ROWS)
    return sb3.PPO("MlpPolicy", env, n_steps=NUM_STEPS, batch_size=32, n_epochs=2, seed=0, device="cpu")


def agent_of(policy: Any) -> rollserve.MlpAgent:
    nn, extractor = torch.nn, policy.mlp_extractor
    actor = nn.Sequential(*extractor.policy_net, policy.action_net)
    critic = nn.Sequential(*extractor.value_net, policy.value_net)
    return rollserve.MlpAgent.from_torch(actor, "categorical", value=critic)


def test_buffer_equals_what_the_library_collects(model: Any, sampler: rollserve.Sampler) -> None:
    from stable_baselines3.common.callbacks import CallbackList

    sampler.update_agent(agent_of(model.policy))
    batch = sampler.obtain_fragments(NUM_STEPS * NUM_ROWS)
    assert (batch.truncated & ~batch.terminated).any()
    assert batch.terminated.any()
    rows = batch.as_rows()
    env = replayed(rows, (model.observation_space, model.action_space))
    callback, collected = CallbackList([]), model.rollout_buffer
    model.set_env(env)
    model._setup_learn(0, callback)
    model._last_obs, model._last_episode_starts = env.reset(), np.ones(NUM_ROWS, np.bool_)
    callback.init_callback(model)
    assert model.collect_rollouts(env, callback, collected, NUM_STEPS)

    filled = type(collected)(
        NUM_STEPS, model.observation_space, model.action_space, "cpu", model.gae_lambda, model.gamma, NUM_ROWS
    )
    for filler in (model, model.policy):
        rollserve.bridges.fill_rollout_buffer(filled, batch, filler)
        for name in ("observations", "rewards", "values", "episode_starts", "advantages", "returns"):
            assert np.allclose(getattr(filled, name), getattr(collected, name), atol=1e-5), name
        assert np.array_equal(filled.actions[..., 0], rows["actions"])
        assert np.array_equal(filled.log_probs, rows["agent_infos"]["log_prob"])  # type: ignore[index,call-overload]


def test_advantages_of_a_filled_buffer_equal_those_of_the_batch(model: Any, sampler: rollserve.Sampler) -> None:
    sampler.obtain_fragments(28)
    batch = sampler.obtain_fragments(NUM_STEPS * NUM_ROWS)
    assert batch.first_steps.any()
    last_values = np.random.default_rng(0).normal(size=len(batch)).astype(np.float32)
    buffer = model.rollout_buffer
    rollserve.bridges.fill_rollout_buffer(buffer, batch, last_values=last_values)
    steps = np.argsort(np.repeat(np.asarray(batch.row_indices), batch.lengths), kind="stable")
    expected = batch.advantages(model.gamma, model.gae_lambda, last_values=last_values).advantages[steps]
    assert np.allclose(buffer.advantages.T.ravel(), expected, atol=1e-4)


def test_library_learns_from_a_filled_buffer(model: Any, sampler: rollserve.Sampler) -> None:
    model._setup_learn(1000)
    agent = agent_of(model.policy)
    before = {name: array.copy() for name, array in agent.parameters.items()}
    for _ in range(2):
        sampler.update_agent(agent.parameters if sampler.status().policy_version > 1 else agent)
        batch = sampler.obtain_fragments(NUM_STEPS * NUM_ROWS)
        rollserve.bridges.fill_rollout_buffer(model.rollout_buffer, batch, model)
        model.train()
        assert abs(model.logger.name_to_value["train/approx_kl"]) < 0.1
    assert all((agent.parameters[name] != array).any() for name, array in before.items())


def test_batches_of_another_size_leave_the_buffer_as_it_was(model: Any, sampler: rollserve.Sampler) -> None:
    buffer = model.rollout_buffer
    buffer.values[...] = 7
    text = "batch: expected 40 steps of each of 4 rows, as the buffer holds, got 20 of 4"
    with pytest.raises(ValueError, match=text):
        rollserve.bridges.fill_rollout_buffer(buffer, sampler.obtain_fragments(20 * NUM_ROWS), model)
    with pytest.raises(ValueError, match="row_indices: expected the row of each segment, got None"):
        rollserve.bridges.fill_rollout_buffer(buffer, sampler.obtain_samples(160), model)
    with pytest.raises(ValueError, match="last_values: expected the value of each segment's last observation"):
        rollserve.bridges.fill_rollout_buffer(buffer, sampler.obtain_fragments(NUM_STEPS * NUM_ROWS))
    assert (buffer.values == 7).all()
