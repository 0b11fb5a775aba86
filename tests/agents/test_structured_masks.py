"""Action masks of MultiBinary actions, and of the leaves of Dict and Tuple actions."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import gymnasium
import numpy as np
import onnx_models as models
import pytest
from fragment_calls import in_calls
from mlp_agents import spec_of
from pools import pool_of, sample
from sample_envs import MaskedParts
from sample_envs.masks import STRUCTURES, structured_mask
from support import equal, raises
from unreliable import MortalBackend

import rollserve
from rollserve_server.agents import AgentInputs, ConstantSpec, MaskSource, RandomSpec, build_agent
from rollserve_server.agents.action_masks import action_mask_of
from rollserve_server.envs import leaves_of_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import AtLeast, InProcessBackend
from rollserve_wire.columns import leaves_of

MASKS = {
    "info": rollserve.ActionMask(info="action_mask"),
    "observation": rollserve.ActionMask(observation="action_mask"),
}
ROWS = rollserve.EnvSpec("sample_envs:MaskedParts-v0", vectorization="rows", num_rows=3)
NATIVE = rollserve.EnvSpec("sample_envs:MaskedParts-v0", vectorization="native", num_rows=3)
MODULES = {"allow_module": ("sample_envs",)}


def env_of(kind: str, source: str = "info", env: rollserve.EnvSpec = ROWS, **kwargs: Any) -> rollserve.EnvSpec:
    return dataclasses.replace(env, kwargs={"kind": kind, "source": source, **kwargs})


def mlp(sampler: rollserve.Sampler, source: str = "info", **options: Any) -> rollserve.MlpAgent:
    """Return an agent with large random weights for the environment of the sampler."""
    status = sampler.status()
    agent = rollserve.MlpAgent.initial(
        status.observation_space, status.action_space, action_mask=MASKS[source], seed=0, hidden_sizes=(8,), **options
    )
    assert agent.layer_sizes[0] == 3  # without the mask
    larger = {name: value if "log_std" in name else 5 * value for name, value in agent.parameters.items()}
    return dataclasses.replace(agent, parameters=larger)


def by_value(space: Any, mask: Any, name: str = "action_mask") -> dict[str, np.ndarray]:
    """Return which values of each element a mask allows, by the names of infos, as plain loops."""
    parts: Any = ()
    match space:
        case gymnasium.spaces.Dict():
            parts = [(key, part, mask[key]) for key, part in space.spaces.items()]
        case gymnasium.spaces.Tuple():
            parts = [(key, part, mask[key]) for key, part in enumerate(space.spaces)]
        case gymnasium.spaces.MultiBinary():
            return {name: np.array([value in (number, 2) for value in mask.ravel() for number in (0, 1)])}
        case gymnasium.spaces.MultiDiscrete():
            return {name: np.concatenate(mask) == 1}
        case gymnasium.spaces.Discrete():
            return {name: mask == 1}
    return {leaf: found for key, part, own in parts for leaf, found in by_value(part, own, f"{name}/{key}").items()}


def nested(space: Any, leaves: dict[str, np.ndarray], name: str = "") -> Any:
    """Return one action as its space has it."""
    prefix = f"{name}/" if name else ""
    match space:
        case gymnasium.spaces.Dict():
            return {key: nested(part, leaves, f"{prefix}{key}") for key, part in space.spaces.items()}
        case gymnasium.spaces.Tuple():
            return tuple(nested(part, leaves, f"{prefix}{key}") for key, part in enumerate(space.spaces))
    return leaves[name]


def check_masks(batch: rollserve.EpisodeBatch, kind: str, source: str) -> None:
    """Check the recorded masks of whole episodes against a plain loop, in which masked actions raise errors."""
    assert batch.num_steps > 20
    space = STRUCTURES[kind]
    for episode in batch.split():
        env = MaskedParts(kind, source)
        env.reset(seed=int(episode.env_seeds[0]))  # type: ignore[index]
        for step in range(episode.num_steps):
            for name, legal in by_value(space, env._legal).items():
                assert episode.agent_infos[name][step].tolist() == legal.tolist()
            env.step(nested(space, {name: leaf[step] for name, leaf in leaves_of(episode.actions).items()}))


COMBINATIONS = [
    pytest.param(
        kind, source, env, marks=() if kind == "dict" or (source == "info") == (env is ROWS) else pytest.mark.slow
    )
    for (kind, source), env in itertools.product(itertools.product(STRUCTURES, MASKS), (ROWS, NATIVE))
]
"""Spaces, sources of masks and kinds of rows; all combinations are fast only for the space that has all others."""


@pytest.mark.parametrize(("kind", "source", "env"), COMBINATIONS)
def test_mlp_and_random_agent_take_legal_actions(
    fed: rollserve.Sampler, kind: str, source: str, env: rollserve.EnvSpec
) -> None:
    fed.update_env(env_of(kind, source, env, **({"mode": "SameStep"} if env is NATIVE else {})))
    for agent in (mlp(fed, source), rollserve.RandomAgent(MASKS[source])):
        fed.update_agent(agent)
        batch = fed.obtain_samples(80)
        if env is ROWS:
            check_masks(batch, kind, source)
        assert fed.obtain_fragments(60 * 6).num_steps == 360  # a masked action would fail the call
    fed.update_agent(mlp(fed, source))
    assert fed.obtain_samples(60, deterministic=True).num_steps >= 60
    assert fed.obtain_samples(60, temperature=[0.5, 3.0]).num_steps >= 60


def test_log_prob_is_of_the_legal_values(fed: rollserve.Sampler) -> None:
    for kind in ("binary", "dict"):
        fed.update_env(env_of(kind))
        fed.update_agent(
            mlp(
                fed,
                **(
                    {
                        "head": {
                            "bits": "bernoulli",
                            "more/0": "multi_categorical",
                            "more/1": "diagonal_gaussian",
                            "turn": "boltzmann",
                        }
                    }
                    if kind == "dict"
                    else {}
                ),
            )
        )
        batch = fed.obtain_samples(200, noise_scale=1.0) if kind == "dict" else fed.obtain_samples(200)
        infos, actions = batch.agent_infos, leaves_of(batch.actions)
        bits, suffix = ("bits", "/bits") if kind == "dict" else ("", "")
        logits = infos[f"logits{suffix}"].reshape(batch.num_steps, -1).astype(np.float64)
        legal = infos[f"action_mask{suffix}"].reshape(batch.num_steps, -1, 2)
        ones = actions[bits].reshape(batch.num_steps, -1) == 1
        log_prob = np.where(legal.all(axis=2), -np.logaddexp(0, np.where(ones, -logits, logits)), 0.0).sum(axis=1)
        assert (legal.sum(axis=2) == 1).any()
        if kind == "dict":
            for name, scores, counts, start in (
                ("turn", "q_values", (4,), np.array([2])),
                ("more/0", "logits", (2, 3), np.array([0, -1])),
            ):
                masked = np.where(infos[f"action_mask/{name}"], infos[f"{scores}/{name}"].astype(np.float64), -np.inf)
                positions = actions[name].reshape(batch.num_steps, -1) - start
                for element, part in enumerate(np.split(masked, np.cumsum(counts)[:-1], axis=1)):
                    chosen = np.take_along_axis(part, positions[:, element : element + 1], axis=1)[:, 0]
                    log_prob += chosen - np.logaddexp.reduce(part, axis=1)
            mean, log_std = infos["mean/more/1"], infos["log_std/more/1"]
            deviations = (actions["more/1"] - mean) / np.exp(log_std)
            log_prob += (-0.5 * deviations**2 - log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        assert np.allclose(infos["log_prob"], log_prob, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", list(STRUCTURES))
def test_random_agent_draws_as_gymnasium_samples_with_a_mask(kind: str) -> None:
    space, num_rows = STRUCTURES[kind], 20_000
    observed = gymnasium.spaces.Box(-1, 1, (1,))
    agent = build_agent(RandomSpec(AgentInputs(MaskSource("info", "mask"))), observed, space, num_rows)
    generator = np.random.default_rng(0)
    space.seed(0)
    leaves = leaves_of_space(space)
    for _ in range(3):
        mask = structured_mask(space, generator)
        legal = np.concatenate(list(by_value(space, mask).values()))
        noise = np.empty((num_rows, agent.noise_width))
        agent.draw_noise(generator, noise)
        actions, infos = agent.act([np.zeros((num_rows, 1)), np.tile(legal, (num_rows, 1))], noise)
        assert sum(column.shape[1] for column in infos.values()) == len(legal)
        sampled = [space.sample(mask) for _ in range(4000)]
        for leaf, column in zip(leaves, actions, strict=True):
            known = []
            for value in sampled:
                for step in leaf.path:
                    value = value[step]
                known.append(np.ravel(value))
            drawn, expected = column.reshape(num_rows, -1), np.array(known)
            assert np.allclose(drawn.mean(axis=0), expected.mean(axis=0), atol=0.05)
            assert np.allclose(drawn.std(axis=0), expected.std(axis=0), atol=0.05)
            if column.dtype.kind != "f":
                assert {*map(bytes, np.unique(drawn, axis=0).astype(np.int64))} == {
                    *map(bytes, np.unique(expected, axis=0).astype(np.int64))
                }


def test_constant_agent_fails_where_a_leaf_is_masked(fed: rollserve.Sampler) -> None:
    fed.update_env(env_of("dict"))
    action = {
        "bits": np.ones(3, np.int8),
        "more/0": np.array([0, 0]),
        "more/1": np.zeros(2, np.float32),
        "turn": np.array(3),
    }
    fed.update_agent(rollserve.ConstantAgent(action, MASKS["info"]))
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match=r"action\['.*legal"):
        fed.obtain_samples(500)
    spec = ConstantSpec(action, AgentInputs(MaskSource("info", "mask")))
    agent = build_agent(spec, gymnasium.spaces.Box(-1, 1, (1,)), STRUCTURES["dict"], 4)
    mask = action_mask_of(MaskSource("info", "mask"), gymnasium.spaces.Box(-1, 1, (1,)), STRUCTURES["dict"])
    assert mask is not None
    legal = np.ones((4, mask.size), bool)
    for row, column in ((1, 1), (2, 6), (3, mask.size - 3)):  # a one of `bits`, the 0 of `more/0`, and the 3 of `turn`
        legal[row, column] = False
    agent.act([np.zeros((4, 1), np.float32), legal], np.zeros((4, 0)))
    assert list(agent.failures()) == [1, 2, 3]


def test_model_gets_the_mask_flat(fed: rollserve.Sampler) -> None:
    fed.update_env(env_of("dict"))
    mask = action_mask_of(MaskSource("info", "action_mask"), gymnasium.spaces.Discrete(2), STRUCTURES["dict"])
    assert mask is not None
    sizes = {"logits/bits": 3, "logits/more/0": 5, "mean/more/1": 2, "log_std/more/1": 2, "logits/turn": 4}
    generator = np.random.default_rng(0)
    weights = {f"w.{name}": generator.normal(size=(3, size)).astype(np.float32) for name, size in sizes.items()}
    weights["w.value"] = generator.normal(size=(mask.size, 1)).astype(np.float32)
    nodes = [models.node("Gemm", f"observation w.{name}", name) for name in sizes]
    nodes.append(models.node("Gemm", "action_mask w.value", "value"))
    ports: dict[str, list[int | str | None]] = {name: ["N", size] for name, size in {**sizes, "value": 1}.items()}
    model = models.model(nodes, {"observation": ["N", 3], "action_mask": ["N", mask.size]}, ports, weights)
    heads: Any = {
        "bits": "bernoulli",
        "more/0": "multi_categorical",
        "more/1": "diagonal_gaussian",
        "turn": "categorical",
    }
    fed.update_agent(dataclasses.replace(models.agent_of(model, heads), action_mask=MASKS["info"]))
    batch = fed.obtain_samples(100, max_episode_length=5, return_last_values=True)
    check_masks(batch, "dict", "info")
    names = [info.name for info in mask.infos]
    assert names == ["action_mask/bits", "action_mask/more/0", "action_mask/turn"]
    legal = np.concatenate([batch.agent_infos[name] for name in names], axis=1)
    assert np.allclose(batch.agent_infos["value"], (legal @ weights["w.value"])[:, 0], atol=1e-4)
    # The mask of `more` is a tuple, which is no column of infos: all its values count as legal.
    ends = np.cumsum(batch.lengths) - 1
    bits, turn = batch.env_infos["action_mask/bits"][ends], batch.env_infos["action_mask/turn"][ends]
    shown = np.stack([bits != 1, bits != 0], axis=2).reshape(len(ends), -1)
    last = np.concatenate([shown, np.ones((len(ends), 5)), turn], axis=1) @ weights["w.value"]
    assert batch.last_values is not None
    assert np.allclose(batch.last_values, np.where(batch.terminated, 0, last[:, 0]), atol=1e-4)
    assert (~batch.terminated).any()


def test_policy_in_python_gets_the_mask_flat(fed: rollserve.Sampler) -> None:
    fed.update_env(env_of("tuple"))
    fed.update_agent(rollserve.PythonAgent("masked_parts", action_mask=MASKS["info"]))
    check_masks(fed.obtain_samples(100), "tuple", "info")
    fed.update_env(env_of("tuple", "observation"))
    fed.update_agent(rollserve.PythonAgent("masked_parts", action_mask=MASKS["observation"]))
    check_masks(fed.obtain_samples(100), "tuple", "observation")
    fed.update_agent(rollserve.AgentChange({"heeds": False}))
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match=r"action\['2'\].*legal"):
        fed.obtain_samples(500)


@pytest.mark.parametrize("source", list(MASKS))
async def test_masked_episodes_and_fragments_do_not_depend_on_workers(source: str) -> None:
    env = env_of("dict", source)
    space = rollserve.spaces
    board = space.Box(np.float32(-np.inf), np.float32(np.inf), (3,), np.dtype(np.float32))
    actions = space.Dict(
        {
            "bits": space.MultiBinary((3,)),
            "more": space.Tuple(
                (
                    space.MultiDiscrete(np.array([2, 3]), np.array([0, -1]), np.dtype(np.int64)),
                    space.Box(np.float32(-1), np.float32(1), (2,), np.dtype(np.float32)),
                )
            ),
            "turn": space.Discrete(4, 2),
        }
    )
    made = rollserve.MlpAgent.initial(board, actions, seed=0, hidden_sizes=(8,))
    agent = spec_of(dataclasses.replace(made, action_mask=MASKS[source]))
    batches, cut = [], list[rollserve.EpisodeBatch]()
    for workers in (1, 2, 3):
        async with pool_of(InProcessBackend(), env, workers=workers, rows=2, **MODULES) as pool:
            await pool.update_agent([agent])
            batches.append(await sample(pool, AtLeast(150), seed=5))
            if workers == 3:
                cut = await in_calls(pool, [7, 20], seed=5)
    assert all(equal(batch, batches[0]) for batch in batches[1:])
    for seed in range(9):
        backend, options = MortalBackend(seed, 4, with_machines=True), {"unit_retries": 1000, **MODULES}
        async with pool_of(backend, env, workers=3, rows=2, call_window_bytes=5000, **options) as pool:
            await pool.update_agent([agent])
            again = await in_calls(pool, [7, 20], seed=5, max_message_bytes=4096)
            assert all(map(equal, again, cut))
            again.append(await sample(pool, AtLeast(150), seed=5, max_message_bytes=4096))
            assert equal(again[-1], batches[0])
        if any(batch.account.num_lost_steps for batch in again if batch.account_or_none):
            return
    raise AssertionError("no worker was lost while it had steps")


def test_evaluations_and_populations_take_legal_actions(fed: rollserve.Sampler) -> None:
    """The environment raises an error at a masked action."""
    for kind, source in (("binary", "observation"), ("dict", "info")):
        fed.update_env(env_of(kind, source))
        agent = mlp(fed, source)
        fed.update_agent(agent)
        expected = fed.evaluate(12, seed=1).returns
        stacked = {name: np.stack([value, -value]) for name, value in agent.parameters.items() if "log_std" not in name}
        returns = fed.evaluate_population(stacked, 12, seed=1).returns
        assert returns[0].tolist() == expected.tolist()
        assert returns.shape == (2, 12)


# Errors.


FAULTS: dict[str, tuple[rollserve.EnvSpec, str, tuple[str, ...]]] = {
    "missing": (ROWS, "missing", ("'action_mask'", "'bits'")),
    "shape": (ROWS, "shape", ("(3,)", "'bits'")),
    "values": (ROWS, "values", ("zeros, ones and twos", "'bits'")),
    "booleans": (ROWS, "bools", ("zeros, ones and twos", "'bits'", "bool")),
    # Of other masks, gymnasium's vector environments convert infos to one dtype and shape.
    "missing, native": (NATIVE, "missing", ("'action_mask'", "'bits'")),
    "values, native": (NATIVE, "values", ("zeros, ones and twos", "'bits'")),
}


@pytest.mark.parametrize("case", list(FAULTS))
def test_invalid_mask_of_a_leaf_fails_the_call(fed: rollserve.Sampler, case: str) -> None:
    env, fault, quotes = FAULTS[case]
    fed.update_env(env_of("dict", env=env, fault=fault, free=True))
    fed.update_agent(rollserve.RandomAgent(MASKS["info"]))
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, quotes=("action mask", *quotes)):
        fed.obtain_samples(500)


def test_leaf_whose_mask_is_none_is_free(fed: rollserve.Sampler) -> None:
    fed.update_env(env_of("dict", fault="none"))
    fed.update_agent(rollserve.RandomAgent(MASKS["info"]))
    batch = fed.obtain_samples(300)
    starts = np.cumsum(batch.lengths) - batch.lengths
    assert batch.agent_infos["action_mask/bits"][starts[batch.lengths > 2] + 2].all()
    assert not batch.agent_infos["action_mask/bits"].all()


def test_misfitting_masks_are_rejected(fed: rollserve.Sampler) -> None:
    fed.update_env(env_of("dict", "observation"))
    field = "all_workers.agent.random.action_mask"
    for name, quotes in (("board", "board/bits"), ("action_mask/bits", "action_mask/bits/bits"), ("mask", "mask")):
        with raises(rollserve.InvalidArgumentError, field=f"{field}.observation", quotes=quotes):
            fed.update_agent(rollserve.RandomAgent(rollserve.ActionMask(observation=name)))
    fed.update_env("Pendulum-v1")
    with raises(rollserve.InvalidArgumentError, field=field, quotes="Box"):
        fed.update_agent(rollserve.RandomAgent(MASKS["info"]))
    observed = gymnasium.spaces.Dict({"mask": gymnasium.spaces.MultiBinary(4), "x": gymnasium.spaces.Discrete(2)})
    with raises(InvalidValueError, field="action_mask.observation", quotes="0, 1 and 2"):
        action_mask_of(MaskSource("observation", "mask"), observed, gymnasium.spaces.MultiBinary((2, 2)))


def test_normalization_leaves_out_all_parts_of_the_mask(fed: rollserve.Sampler) -> None:
    fed.update_env(env_of("dict", "observation"))
    agent = mlp(fed, "observation", normalization=True)
    moments = rollserve.RunningMoments()
    fed.update_agent(agent)
    batch = fed.obtain_samples(200, observation_moments=True)
    assert batch.account.observation_moments is not None
    moments.merge(batch.account.observation_moments)
    fed.update_agent(agent, observation_moments=moments)
    held = fed.agent_parameters()["observation/mean"]
    assert np.allclose(held, leaves_of(batch.observations)["board"].mean(axis=0))


# EnvPool.


@pytest.mark.parametrize(
    ("env", "source", "name"),
    [("Game2048-v1", "observation", "action_mask"), ("Play2048-v1", "info", "legal_action_mask")],
)
def test_envpool_rows_have_masks(fed: rollserve.Sampler, env: str, source: Any, name: str) -> None:
    fed.update_env(rollserve.EnvSpec(env, {"max_episode_steps": 30}, vectorization="envpool", num_rows=3))
    mask = rollserve.ActionMask(**{source: name})
    status = fed.status()
    agent = rollserve.MlpAgent.initial(
        status.observation_space, status.action_space, action_mask=mask, seed=0, hidden_sizes=(8,)
    )
    num_masked = 0
    for each in (agent, rollserve.RandomAgent(mask)):
        fed.update_agent(each)
        for batch in (fed.obtain_samples(300), fed.obtain_fragments(6 * 25), fed.obtain_fragments(6 * 25)):
            legal = batch.agent_infos["action_mask"]
            assert np.take_along_axis(legal, batch.actions[:, np.newaxis], axis=1).all()
            num_masked += int((~legal).sum())
            for segment in batch.split():
                own = segment.agent_infos["action_mask"]
                if source == "observation":
                    assert np.array_equal(own, leaves_of(segment.observations)[name] == 1)
                else:
                    assert np.array_equal(own[1:], segment.env_infos[name][:-1] == 1)
                    if segment.first_steps[0] == 0:
                        assert np.array_equal(own[0], segment.episode_infos[name][0] == 1)
    assert num_masked > 0
