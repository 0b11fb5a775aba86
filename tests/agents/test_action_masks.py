"""Action masks from infos and observations, in agents of all kinds, rows of all kinds, and calls of all kinds."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import gymnasium
import numpy as np
import onnx_models as models
import pytest
from fragment_calls import fragments, in_calls, of_episodes
from gymnasium import spaces as gym_spaces
from mlp_agents import network, spec_of
from pools import lose_worker, pool_of, sample
from sample_envs import Masked
from support import equal, raises

import rollserve
from rollserve_server.agents import AgentInputs, ConstantSpec, MaskSource, RandomSpec, build_agent
from rollserve_server.pool import AtLeast, InProcessBackend

INFO = rollserve.ActionMask(info="action_mask")
LEAF = rollserve.ActionMask(observation="action_mask")
MASKS = {
    "info": INFO,
    "nested": rollserve.ActionMask(info="inner/legal"),
    "list": INFO,
    "observation": LEAF,
}
ROWS = rollserve.EnvSpec("Masked-v0", vectorization="rows")
NATIVE = rollserve.EnvSpec("Masked-v0", vectorization="native", num_rows=3)
SOURCES = [
    ("discrete", "info"),
    ("discrete", "nested"),
    ("discrete", "observation"),
    ("multi", "info"),
    ("multi", "list"),
    ("multi", "observation"),
]
HEADS = {"discrete": ("categorical", "epsilon_greedy", "boltzmann"), "multi": ("multi_categorical",)}


def mlp(
    sampler: rollserve.Sampler, env: rollserve.EnvSpec | str = "sample_envs:Masked", *, mask: Any = INFO, **options: Any
) -> rollserve.MlpAgent:
    """Set the environment, with keyword arguments; return an agent for it with large random weights."""
    arguments = options.pop("kwargs", None)
    spec = env if isinstance(env, rollserve.EnvSpec) else rollserve.EnvSpec(env)
    updated = sampler.update_env(dataclasses.replace(spec, kwargs=arguments or {}))
    agent = rollserve.MlpAgent.initial(
        updated.observation_space, updated.action_space, action_mask=mask, seed=0, hidden_sizes=(8,), **options
    )
    return dataclasses.replace(agent, parameters={name: 20 * value for name, value in agent.parameters.items()})


def spec_with_mask(core: Any = None) -> Any:
    """Return an MLP for the environment `Masked` with discrete actions."""
    board = rollserve.spaces.Box(np.float32(-1), np.float32(1), (3,), np.dtype(np.float32))
    agent = rollserve.MlpAgent.initial(
        board, rollserve.spaces.Discrete(5, 2), action_mask=INFO, seed=0, core=core, core_size=4, hidden_sizes=(8,)
    )
    return spec_of(dataclasses.replace(agent, parameters={name: 20 * each for name, each in agent.parameters.items()}))


def positions_of(actions: np.ndarray, kind: str) -> np.ndarray:
    """Return the columns of masks that actions have, (T, elements)."""
    space: Any = Masked(kind).action_space
    if kind == "discrete":
        return (actions - space.start)[:, np.newaxis]
    counts = space.nvec.ravel()
    return (actions - space.start).reshape(len(actions), -1) + (np.cumsum(counts) - counts)


def check_masks(batch: rollserve.EpisodeBatch, kind: str = "discrete", source: str = "info") -> None:
    """Check masks and actions of whole episodes against a plain loop over the environment."""
    assert batch.num_steps > 20
    assert (batch.first_steps == 0).all()
    for episode in batch.split():
        env = Masked(kind, source)  # raises an error at masked actions
        env.reset(seed=int(episode.env_seeds[0]))
        for step, action in enumerate(episode.actions):
            assert episode.agent_infos["action_mask"][step].tolist() == env._legal.astype(bool).tolist()
            env.step(action)
        assert np.take_along_axis(episode.agent_infos["action_mask"], positions_of(episode.actions, kind), 1).all()


def check_shown_masks(batch: rollserve.EpisodeBatch) -> None:
    """Check that each mask is the info that came with the observation, at the reset or the step before."""
    for segment in batch.split():
        shown = segment.env_infos["action_mask"].astype(bool)
        if segment.first_steps[0] == 0:
            assert np.array_equal(segment.agent_infos["action_mask"][0], segment.episode_infos["action_mask"][0] == 1)
        assert np.array_equal(segment.agent_infos["action_mask"][1:], shown[:-1])


# Agents of all kinds.


@pytest.mark.parametrize(("kind", "source"), SOURCES)
def test_mlp_and_random_agent_take_legal_actions(fed: rollserve.Sampler, kind: str, source: str) -> None:
    agent = mlp(fed, mask=MASKS[source], kwargs={"kind": kind, "source": source, "free": True})
    assert agent.layer_sizes[0] == 3  # without the mask
    for head in HEADS[kind]:
        fed.update_agent(dataclasses.replace(agent, head=head, epsilon=0.5 if head == "epsilon_greedy" else None))
        check_masks(fed.obtain_samples(60), kind, source)
        check_masks(fed.obtain_samples(60, deterministic=True), kind, source)
    option = {"temperature": [0.5, 3.0]}
    if kind == "discrete":
        fed.update_agent(dataclasses.replace(agent, head="epsilon_greedy"))
        option = {"epsilon": [0.0, 0.3, 1.0]}
    check_masks(fed.obtain_samples(60, **option), kind, source)
    fed.update_agent(rollserve.RandomAgent(MASKS[source]))
    check_masks(fed.obtain_samples(60), kind, source)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_log_prob_is_of_the_masked_distribution(fed: rollserve.Sampler, kind: str, temperature: float) -> None:
    agent = mlp(fed, kwargs={"kind": kind})
    fed.update_agent(dataclasses.replace(agent, parameters={k: v / 20 for k, v in agent.parameters.items()}))
    batch = fed.obtain_samples(200, temperature=temperature)
    legal, logits = batch.agent_infos["action_mask"], batch.agent_infos["logits"].astype(np.float64) / temperature
    assert np.isfinite(logits).all()  # as the network gives them
    weights = np.where(legal, np.exp(logits), 0.0)
    counts = [5] if kind == "discrete" else [2, 3, 4, 1]
    expected = np.zeros(batch.num_steps)
    parts = np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1])
    for part, positions in zip(parts, positions_of(batch.actions, kind).T, strict=True):
        chosen = np.take_along_axis(weights, positions[:, np.newaxis], 1)[:, 0]
        expected += np.log(chosen / weights[:, part].sum(axis=1))
    assert np.allclose(batch.agent_infos["log_prob"], expected, atol=1e-5)


def test_epsilon_greedy_draws_from_legal_actions_with_equal_chance(fed: rollserve.Sampler) -> None:
    fed.update_agent(mlp(fed, head="epsilon_greedy"))
    batch = fed.obtain_samples(3000, epsilon=0.6)
    legal, values = batch.agent_infos["action_mask"], batch.agent_infos["q_values"]
    best = np.where(legal, values, -np.inf).argmax(axis=1)
    num_legal, choices = legal.sum(axis=1), batch.actions - 2
    expected = np.where(choices == best, 0.4 + 0.6 / num_legal, 0.6 / num_legal)
    assert np.allclose(np.exp(batch.agent_infos["log_prob"]), expected, atol=1e-6)
    for count in (2, 3, 4):
        rows = num_legal == count
        ranks = (legal.cumsum(axis=1)[np.arange(len(choices)), choices] - 1)[rows & (choices != best)]
        best_ranks = (legal.cumsum(axis=1)[np.arange(len(choices)), best] - 1)[rows]
        # Each rank that is not the best is drawn with the chance 0.6 / count.
        chances = [0.6 / count * (best_ranks != rank).sum() for rank in range(count)]
        assert np.allclose(np.bincount(ranks, minlength=count), chances, rtol=0.3, atol=12)
    greedy = fed.obtain_samples(200, epsilon=0.0)
    scores = np.where(greedy.agent_infos["action_mask"], greedy.agent_infos["q_values"], -np.inf)
    assert (greedy.actions - 2 == scores.argmax(axis=1)).all()


@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_random_agent_draws_as_gymnasium_samples_with_a_mask(kind: str) -> None:
    """The chances are the same; without masked actions, so are the actions of an agent without a mask."""
    space, legal = Masked(kind).action_space, np.tile(np.array([1, 0, 1, 1, 0, 1, 0, 1, 1, 1], bool), (4000, 1))
    legal = legal[:, : 5 if kind == "discrete" else 10]
    spec, board = RandomSpec(AgentInputs(MaskSource("info", "mask"))), gym_spaces.Box(-1, 1, (1,))
    observations, generator = np.zeros((4000, 1), np.float32), np.random.default_rng(0)
    agent, plain = (build_agent(each, board, space, 4000) for each in (spec, RandomSpec()))
    noise = np.zeros((4000, agent.noise_width))
    agent.draw_noise(generator, noise)
    (actions,), _ = agent.act([observations, legal], noise)
    (free,), infos = agent.act([observations, np.ones_like(legal)], noise)
    (expected,), _ = plain.act([observations], noise)
    assert np.array_equal(free, expected)
    assert infos["action_mask"].all()
    mask: Any = legal[0].astype(np.int8)
    if kind == "multi":
        a, b, c, d = np.split(mask, [2, 5, 9])
        mask = ((a, b), (c, d))
    space.seed(0)
    samples = np.stack([space.sample(mask=mask) for _ in range(4000)])
    for drawn, sampled in zip(actions.reshape(4000, -1).T, samples.reshape(4000, -1).T, strict=True):
        values = np.unique(sampled)
        assert set(drawn) == set(values)
        assert np.allclose([(drawn == value).mean() - (sampled == value).mean() for value in values], 0, atol=0.04)


def test_constant_agent_fails_where_its_action_is_masked(fed: rollserve.Sampler) -> None:
    fed.update_env("sample_envs:Masked")
    fed.update_agent(rollserve.ConstantAgent(3, INFO))
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match=r"episode \d+.*legal.*\b3\b"):
        fed.obtain_samples(1000)
    spec = ConstantSpec({"": np.array(3)}, AgentInputs(MaskSource("info", "mask")))
    agent = build_agent(spec, gym_spaces.Box(-1, 1, (1,)), gym_spaces.Discrete(5, start=2), 2)
    legal = np.array([[1, 1, 0, 0, 0], [1, 0, 1, 1, 1]], bool)
    (actions,), infos = agent.act([np.zeros((2, 1), np.float32), legal], np.zeros((2, 0)))
    assert actions.tolist() == [3, 3]
    assert np.array_equal(infos["action_mask"], legal)
    assert list(agent.failures()) == [1]


@pytest.mark.parametrize("source", ["info", "observation"])
@pytest.mark.parametrize("asks", [False, True])
def test_model_takes_legal_actions(fed: rollserve.Sampler, source: str, asks: bool) -> None:
    """The head masks logits; a model may have the mask as an input, too."""
    board = "observation/board" if source == "observation" else "observation"
    nodes, inputs = [models.node("Gemm", f"{board} w", "logits")], {board: ["N", 3]}
    types, names = {}, {}
    if asks:
        nodes = [
            models.node("Gemm", f"{board} w", "scores"),
            models.node("Cast", "legal", "floats", to=models.FLOAT),
            models.node("Add", "scores floats", "logits"),
        ]
        inputs["legal"], types["legal"], names["action_mask"] = ["N", 5], models.INT64, "legal"
    weight = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    model = models.model(nodes, inputs, {"logits": ["N", 5]}, {"w": weight}, types=types)
    fed.update_env("sample_envs:Masked", kwargs={"source": source})
    fed.update_agent(models.agent_of(model, inputs=names, action_mask=MASKS[source]))
    batch = fed.obtain_samples(100)
    check_masks(batch, source=source)
    observed = batch.observations["board"] if source == "observation" else batch.observations
    assert np.allclose(
        batch.agent_infos["logits"], observed @ weight + asks * batch.agent_infos["action_mask"], atol=1e-4
    )
    fed.update_agent({"w": -weight})
    check_masks(fed.obtain_samples(100, deterministic=True), source=source)


def test_model_that_outputs_actions_is_checked(fed: rollserve.Sampler) -> None:
    """The model takes the first legal action, or with another parameter always the first action."""
    nodes = [
        models.node("Cast", "action_mask", "floats", to=models.FLOAT),
        models.node("Mul", "floats scale", "scaled"),
        models.node("ArgMax", "scaled", "positions", axis=1, keepdims=0),
        models.node("Mul", "observation zero", "nothing"),
        models.node("ReduceSum", "nothing axes", "none", keepdims=0),
        models.node("Cast", "none", "integers", to=models.INT64),
        models.node("Add", "positions integers", "sum"),
        models.node("Add", "sum start", "action"),
    ]
    constants = {
        "scale": np.ones(1, np.float32),
        "zero": np.zeros(1, np.float32),
        "axes": np.array([1]),
        "start": np.array(2),
    }
    inputs = {"observation": ["N", 3], "action_mask": ["N", 5]}
    types = {"action": models.INT64, "action_mask": models.BOOL}
    model = models.model(nodes, inputs, {"action": ["N"]}, constants, types=types)
    fed.update_env("sample_envs:Masked")
    fed.update_agent(models.agent_of(model, "actions", action_mask=INFO))
    batch = fed.obtain_samples(100)
    check_masks(batch)
    assert (batch.actions == 2 + batch.agent_infos["action_mask"].argmax(axis=1)).all()
    fed.update_agent({"scale": np.zeros(1, np.float32)})
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match=r"episode \d+.*legal.*\b2\b"):
        fed.obtain_samples(1000)


def test_python_agent_gets_the_mask(fed: rollserve.Sampler) -> None:
    fed.update_env("sample_envs:Masked", kwargs={"source": "observation"})
    fed.update_agent(rollserve.PythonAgent("masked", action_mask=LEAF))
    batch = fed.obtain_samples(100)
    check_masks(batch, source="observation")
    assert (batch.agent_infos["num_legal"] == batch.agent_infos["action_mask"].sum(axis=1)).all()
    fed.update_env("sample_envs:Masked")
    fed.update_agent(rollserve.PythonAgent("masked", action_mask=INFO))
    fed.update_agent(rollserve.AgentChange({"asks": False}))  # keeps the mask
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match=r"episode \d+.*legal.*\b2\b"):
        fed.obtain_samples(1000)


@pytest.mark.parametrize(
    "env", ["sample_envs:Masked", dataclasses.replace(NATIVE, kwargs={"mode": "SameStep"})], ids=["rows", "native"]
)
def test_last_values_heed_the_mask_of_the_last_observation(fed: rollserve.Sampler, env: Any) -> None:
    """The value of the model shows which actions are legal."""
    weights = 2.0 ** np.arange(5, dtype=np.float32)
    nodes = [
        models.node("Gemm", "observation w", "logits"),
        models.node("Cast", "action_mask", "floats", to=models.FLOAT),
        models.node("MatMul", "floats weights", "value"),
    ]
    constants = {"w": np.zeros((3, 5), np.float32), "weights": weights}
    inputs = {"observation": ["N", 3], "action_mask": ["N", 5]}
    outputs = {"logits": ["N", 5], "value": ["N"]}
    model = models.model(nodes, inputs, outputs, constants, types={"action_mask": models.BOOL})
    fed.update_env(env)
    fed.update_agent(models.agent_of(model, action_mask=INFO))
    batches = [fed.obtain_samples(200, max_episode_length=5, return_last_values=True)]
    batches += [fed.obtain_fragments(6 * num_steps, return_last_values=True) for num_steps in (1, 20, 7)]
    for batch in batches:
        assert np.array_equal(batch.agent_infos["value"], batch.agent_infos["action_mask"] @ weights)
        shown = batch.env_infos["action_mask"][np.cumsum(batch.lengths) - 1] @ weights
        assert batch.last_values is not None
        assert np.array_equal(batch.last_values, np.where(batch.terminated, 0, shown))
    assert len({*np.concatenate([batch.last_values for batch in batches])}) > 3  # type: ignore[misc]


# Rows and calls of all kinds.


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("source", ["info", "observation"])
def test_native_rows_have_masks(fed: rollserve.Sampler, source: str, mode: str) -> None:
    agent = mlp(fed, NATIVE, mask=MASKS[source], kwargs={"mode": mode, "source": source})
    fed.update_agent(agent)
    batches = [fed.obtain_samples(200)]
    if mode == "SameStep":
        batches += [fed.obtain_fragments(6 * num_steps) for num_steps in (1, 20, 7, 40)]
    for batch in batches:
        assert np.take_along_axis(batch.agent_infos["action_mask"], positions_of(batch.actions, "discrete"), 1).all()
        if source == "info":
            check_shown_masks(batch)
        else:
            assert np.array_equal(batch.agent_infos["action_mask"], batch.observations["action_mask"] == 1)


def test_taxi_equals_a_plain_loop(fed: rollserve.Sampler) -> None:
    updated = fed.update_env("Taxi-v4")
    for agent in (
        rollserve.RandomAgent(INFO),
        rollserve.MlpAgent.initial(updated.observation_space, updated.action_space, action_mask=INFO, seed=0),
    ):
        fed.update_agent(agent)
        batch = fed.obtain_samples(600)
        env = gymnasium.make("Taxi-v4")
        for episode in batch.split():
            observation, info = env.reset(seed=int(episode.env_seeds[0]))
            for step, action in enumerate(episode.actions):
                assert observation == episode.observations[step]
                assert np.array_equal(info["action_mask"], episode.agent_infos["action_mask"][step])
                assert info["action_mask"][action]
                observation, reward, _, _, info = env.step(action)
                assert reward == episode.rewards[step]


def test_evaluations_and_populations_take_legal_actions(fed: rollserve.Sampler) -> None:
    """The environment raises an error at a masked action."""
    for source in ("info", "observation"):
        agent = mlp(fed, mask=MASKS[source], kwargs={"source": source})
        fed.update_agent(agent)
        expected = fed.evaluate(12, seed=1).returns
        stacked = {name: np.stack([value, -value]) for name, value in agent.parameters.items()}
        returns = fed.evaluate_population(stacked, 12, seed=1).returns
        assert returns[0].tolist() == expected.tolist()
        fed.update_agent(mlp(fed, mask=MASKS[source], kwargs={"source": source}, core="gru", core_size=4))
        assert fed.evaluate_population({"1/bias": np.ones((2, 5), np.float32)}, 4, seed=1).returns.shape == (2, 4)


@pytest.mark.parametrize("core", [None, "lstm"])
async def test_episodes_and_fragments_do_not_depend_on_workers(core: Any) -> None:
    spec, whole = spec_with_mask(core), []
    episodes: list[dict[int, rollserve.EpisodeBatch]] = []
    for num_workers, num_rows in ((1, 6), (2, 3), (3, 2), (5, 1)):
        changes = {"workers": num_workers, "rows": num_rows, "allow_module": ("sample_envs",)}
        async with pool_of(InProcessBackend(), ROWS, **changes) as pool:
            await pool.update_agent([spec])
            whole.append(await sample(pool, AtLeast(300), seed=5))
            batches = await in_calls(pool, [1, 5, 2, 30], seed=5)
            for batch in batches:
                check_shown_masks(batch)
            episodes.append(await of_episodes(batches))
    assert all(equal(each, whole[0]) for each in whole[1:])
    by_index = await of_episodes([whole[0]])
    num_compared = 0
    for each in episodes:
        for index, episode in each.items():
            if (episode.terminated | episode.truncated).all() and index in by_index:
                assert equal(without_states(episode), without_states(by_index[index]))
                num_compared += 1
    assert num_compared > 50


def without_states(batch: rollserve.EpisodeBatch) -> rollserve.EpisodeBatch:
    """Return the batch without what depends on the worker."""
    return dataclasses.replace(batch, worker_indices=None, row_indices=None)


@pytest.mark.parametrize("env", [ROWS, NATIVE], ids=["rows", "native"])
async def test_fragments_are_the_same_when_workers_are_lost(env: rollserve.EnvSpec) -> None:
    """Rows that are restored have the masks of their present observations; a new agent gets them, too."""
    calls, agents = [3, 4, 6, 20, 5], [spec_with_mask(), RandomSpec(AgentInputs(MaskSource("info", "action_mask")))]
    async with pool_of(InProcessBackend(), env, workers=2, rows=3, allow_module=("sample_envs",)) as pool:

        async def act(*, loses: bool) -> list[rollserve.EpisodeBatch]:
            batches, clock = [], 0
            for number, num_steps in enumerate(calls):
                await pool.update_agent([agents[number % 2]])
                batches.append(await fragments(pool, 6 * num_steps, clock or None, seed=9))
                if loses:
                    lose_worker(pool, number % 2)
                    await asyncio.sleep(0)
                clock += num_steps
            return batches

        expected = await act(loses=False)
        for batch in expected:
            check_shown_masks(batch)
        batches = await act(loses=True)
        for batch, other in zip(batches, expected, strict=True):
            assert batch.account.num_broken_off_episodes == 0
            for name in ("actions", "observations", "rewards"):
                assert np.array_equal(getattr(batch, name), getattr(other, name))
            assert np.array_equal(batch.agent_infos["action_mask"], other.agent_infos["action_mask"])
        assert sum(batch.account.num_lost_steps for batch in batches if batch.account_or_none) > 0


async def test_new_agent_gets_the_mask_of_the_present_observation() -> None:
    """The agent before had no mask, and the environment shows one at steps, too."""
    env = rollserve.EnvSpec("Masked-v0", {"free": True})
    for vectorization in ("rows", "native"):
        spec = dataclasses.replace(env, vectorization=vectorization, num_rows=2 if vectorization == "native" else None)
        async with pool_of(InProcessBackend(), spec, workers=1, rows=2, allow_module=("sample_envs",)) as pool:
            await pool.update_agent([RandomSpec()])
            before = await fragments(pool, 4, None, seed=1)
            await pool.update_agent([RandomSpec(AgentInputs(MaskSource("info", "action_mask")))])
            after = await fragments(pool, 4, 2, seed=1)
            assert after.first_steps.tolist() == [2, 2]
            shown = before.env_infos["action_mask"][[1, 3]]
            assert np.array_equal(after.agent_infos["action_mask"][[0, 2]], shown == 1)


# Errors.


@pytest.mark.parametrize(
    ("kwargs", "mask", "quotes"),
    [
        ({"fault": "missing"}, INFO, ("'action_mask'", "none")),
        ({}, rollserve.ActionMask(info="inner/legal"), ("'inner/legal'", "none")),
        ({"fault": "zeros"}, INFO, ("legal", "[0 0 0 0 0]")),
        ({"fault": "shape"}, INFO, ("(5,)", "(4,)")),
        ({"fault": "values"}, INFO, ("zeros and ones", "2")),
        ({"fault": "zeros", "source": "observation"}, LEAF, ("legal", "[0 0 0 0 0]")),
        ({"fault": "zeros", "kind": "multi"}, INFO, ("legal value of each element",)),
    ],
)
def test_invalid_mask_fails_the_call(
    fed: rollserve.Sampler, kwargs: dict[str, Any], mask: Any, quotes: tuple[str, ...]
) -> None:
    fed.update_env("sample_envs:Masked", kwargs={"free": True, **kwargs})
    fed.update_agent(rollserve.RandomAgent(mask))
    for obtain in (fed.obtain_samples, fed.obtain_fragments):
        with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match="episode", quotes=quotes):
            obtain(300)


@pytest.mark.parametrize("fault", ["missing", "zeros", "values"])
def test_invalid_mask_of_a_native_row_fails_the_call(fed: rollserve.Sampler, fault: str) -> None:
    fed.update_env(dataclasses.replace(NATIVE, kwargs={"free": True, "fault": fault}))
    fed.update_agent(rollserve.RandomAgent(INFO))
    with raises(rollserve.PreconditionError, reason=rollserve.Reason.AGENT_FAILED, match="action mask"):
        fed.obtain_samples(300)


@pytest.mark.parametrize(
    ("agent", "env", "field", "quotes"),
    [
        (rollserve.RandomAgent(INFO), "Pendulum-v1", "random.action_mask", "Box("),
        (rollserve.RandomAgent(LEAF), "CartPole-v1", "random.action_mask.observation", "'action_mask'"),
        (rollserve.RandomAgent(rollserve.ActionMask(info="")), "CartPole-v1", "random.action_mask.info", "none"),
        (rollserve.ConstantAgent(0, LEAF), "CartPole-v1", "constant.action_mask.observation", "'action_mask'"),
        (rollserve.PythonAgent("masked"), "CartPole-v1", "", "action_mask"),
        (rollserve.PythonAgent("masked", action_mask=LEAF), "CartPole-v1", "python.action_mask.observation", ""),
    ],
)
def test_misfitting_mask_is_rejected(fed: rollserve.Sampler, agent: Any, env: str, field: str, quotes: str) -> None:
    fed.update_env(env)
    version = fed.update_agent(rollserve.RandomAgent())
    path = f"all_workers.agent.{field}" if field else "all_workers.agent.python"
    with raises(rollserve.InvalidArgumentError, field=path, quotes=quotes):
        fed.update_agent(agent)
    assert fed.status().policy_version == version


def test_mlp_with_the_mask_in_its_input_is_rejected(fed: rollserve.Sampler) -> None:
    agent = mlp(fed, mask=None, kwargs={"source": "observation"})
    assert agent.layer_sizes[0] == 8
    fed.update_agent(agent)
    with raises(
        rollserve.InvalidArgumentError, field="all_workers.agent.mlp.layer_sizes[0]", quotes=("3,", "without", "8")
    ):
        fed.update_agent(dataclasses.replace(agent, action_mask=LEAF))
    with raises(ValueError, field="action_mask", quotes="'legal'"):
        mlp(fed, mask=rollserve.ActionMask(observation="legal"), kwargs={"source": "observation"})


def test_normalization_leaves_out_the_mask(fed: rollserve.Sampler) -> None:
    agent = mlp(fed, mask=LEAF, kwargs={"source": "observation"}, normalization=True)
    fed.update_agent(agent)
    moments = fed.obtain_samples(100, observation_moments=True).account.observation_moments
    fed.update_agent(agent, observation_moments=moments)
    parameters = fed.agent_parameters()
    assert np.allclose(parameters["observation/mean"], moments.mean["board"])
    fed.update_agent({**agent.parameters, **moments.parameters(without="action_mask")})
    assert fed.agent_parameters()["observation/mean"].tobytes() == parameters["observation/mean"].tobytes()
    batch = fed.obtain_samples(50)
    check_masks(batch, source="observation")
    scale = np.sqrt(moments.variance["board"] + 1e-8)
    normal = np.clip((batch.observations["board"] - moments.mean["board"]) / scale, -10, 10)
    _, expected = network(dataclasses.replace(agent), normal)
    assert np.allclose(batch.agent_infos["logits"], expected, atol=1e-2)


def test_client_rejects_invalid_masks() -> None:
    for arguments in ({}, {"info": "a", "observation": "b"}):
        with raises(ValueError, field="info"):
            rollserve.ActionMask(**arguments)
    with raises(TypeError, field="info"):
        rollserve.ActionMask(info=3)  # type: ignore[arg-type]
    for make in (rollserve.RandomAgent, lambda mask: rollserve.ConstantAgent(0, mask)):
        with raises(TypeError, field="action_mask"):
            make("action_mask")  # type: ignore[arg-type]


def test_equal_agents_with_other_masks_differ(fed: rollserve.Sampler) -> None:
    fed.update_env("sample_envs:Masked")
    version = fed.update_agent(rollserve.RandomAgent(INFO))
    assert fed.update_agent(rollserve.RandomAgent(INFO), skip_if_identical=True) == version
    assert fed.update_agent(rollserve.RandomAgent(), skip_if_identical=True) == version + 1


def test_size_of_the_input_mentions_the_mask(thread_sampler: rollserve.Sampler) -> None:
    thread_sampler.update_env("sample_envs:Masked-v0", kwargs={"source": "observation"})
    layers = {"0/weight": np.zeros((5, 3), np.float32), "0/bias": np.zeros(5, np.float32)}
    field = "all_workers.agent.mlp.layer_sizes[0]"
    with raises(
        rollserve.InvalidArgumentError, field=field, match="8, the flat size .* leaf action_mask, which ActionMask"
    ):
        thread_sampler.update_agent(rollserve.MlpAgent(layers, "categorical"))
    thread_sampler.update_agent(
        rollserve.MlpAgent(layers, "categorical", action_mask=rollserve.ActionMask(observation="action_mask"))
    )
