"""Truths about batches of environments with many agents, from plain loops over PettingZoo."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pettingzoo.env_registry.registration import make as make_registered
from support import equal

import rollserve
from rollserve import ActionMask, EnvSpec, MultiAgentBatch, Policies, RandomAgent

CROWD = EnvSpec("sample_envs:crowd", {"length": 15}, multi_agent="parallel")
PHOENIX = EnvSpec("sample_envs:phoenix", multi_agent="aec")
RELAY = EnvSpec("sample_envs:relay", {"num_agents": 4}, multi_agent="aec")
SPREAD = EnvSpec("mpe/simple_spread-v3", {"max_cycles": 10}, multi_agent="parallel")
DUEL = EnvSpec("classic/rps-v2", {"max_cycles": 1}, multi_agent="aec")
CONNECT_FOUR = EnvSpec("classic/connect_four-v3", multi_agent="aec")

MASKED = RandomAgent(ActionMask(observation="action_mask"))
MASKED_BY_INFO = RandomAgent(ActionMask(info="action_mask"))
POLICIES = {
    CROWD.id: Policies({"runner": RandomAgent(), "guard": MASKED, "late": RandomAgent()}),
    RELAY.id: Policies({"first": MASKED_BY_INFO, "rest": MASKED_BY_INFO}, {"relay_0": "first", "relay_*": "rest"}),
    PHOENIX.id: Policies({"main": RandomAgent()}, {"*": "main"}),
    SPREAD.id: Policies({"main": RandomAgent()}),
    CONNECT_FOUR.id: Policies({"main": MASKED, "other": MASKED}, {0: "main", "*": "other"}),
}


def plain_env(spec: EnvSpec) -> Any:
    """Return the environment in its wrappers as a user of PettingZoo and SuperSuit makes it."""
    env = _plain_env(spec)
    for wrapper in spec.wrappers:
        module, _, name = wrapper.name.rpartition(":")
        owner = module or ("supersuit" if re.search(r"_v\d$", name) else "pettingzoo.utils.wrappers")
        kwargs = {key: tuple(value) if isinstance(value, list) else value for key, value in wrapper.kwargs.items()}
        env = getattr(importlib.import_module(owner), name)(env, **kwargs)
    return env


def _plain_env(spec: EnvSpec) -> Any:
    kwargs: dict[str, Any] = dict(spec.kwargs)
    if spec.id.startswith("mpe/"):
        module = importlib.import_module("mpe2." + spec.id[len("mpe/") :].replace("-", "_"))
        return (module.env if spec.multi_agent == "aec" else module.parallel_env)(**kwargs)
    if ":" in spec.id:
        module, _, name = spec.id.partition(":")
        return getattr(importlib.import_module(module), name)(**kwargs)
    return make_registered(spec.multi_agent, spec.id, **kwargs)  # type: ignore[call-overload]


def leaves(value: Any) -> dict[str, Any]:
    """Return the leaves of an observation by name, as batches have them."""
    return dict(value) if isinstance(value, dict) else {"": value}


class Segment(NamedTuple):
    """A segment of a batch, with its agent, its environment steps and its rewards before."""

    agent: str
    batch: rollserve.EpisodeBatch
    env_steps: np.ndarray
    reward_before: float


def segments_of(batch: MultiAgentBatch) -> dict[int, list[Segment]]:
    """Return the segments of each episode, by its index."""
    found: dict[int, list[Segment]] = {int(index): [] for index in batch.episode_indices}
    for part in batch.policies:
        for position, segment in enumerate(part.batch.split()):
            steps = part.env_steps[part.batch.steps_of(np.array([position]))]
            agent = batch.agents[part.agent_positions[position]]
            entry = Segment(agent, segment, steps, float(part.rewards_before[position]))
            found[int(segment.episode_indices[0])].append(entry)
    return found


def whole_episodes(parts: list[MultiAgentBatch]) -> MultiAgentBatch:
    """Return the episodes of fragments that have ended, as one batch of whole episodes by their indices."""
    joined = MultiAgentBatch.concatenate(*parts)
    order = np.lexsort((joined.first_steps, joined.episode_indices))
    headers = ("episode_indices", "first_steps", "lengths", "terminated", "truncated", "agent_step_counts")
    values: Any = {name: getattr(joined, name)[order] for name in headers}
    whole = MultiAgentBatch(joined.agents, **values, policies=joined.policies).joined()
    ended = whole.terminated | whole.truncated
    indices = whole.episode_indices[ended]
    values = {name: getattr(whole, name)[ended] for name in headers}
    policies = [part.take(np.flatnonzero(np.isin(part.batch.episode_indices, indices))) for part in whole.policies]
    return MultiAgentBatch(whole.agents, **values, policies=tuple(policies))


def check_against_plain_loops(batch: MultiAgentBatch, spec: EnvSpec) -> None:
    """Replay each episode in a plain environment, with the batch's actions, and compare all that agents got."""
    for index, segments in segments_of(batch).items():
        num_steps = int(batch.lengths[batch.episode_indices == index][0])
        env = plain_env(spec)
        seed = int(segments[0].batch.env_seeds[0])  # type: ignore[index]
        events = list((_replay_aec if spec.multi_agent == "aec" else _replay)(env, seed, segments, num_steps))
        by_agent: dict[str, list[Any]] = {}
        for agent, *event in events:
            by_agent.setdefault(agent, []).append(event if event[0] is not None else None)
        for agent in {segment.agent for segment in segments}:
            own = [segment for segment in segments if segment.agent == agent]
            _check_agent(own, by_agent[agent])
        env.close()


def _check_agent(segments: list[Segment], events: list[Any]) -> None:
    """Compare an agent's segments with what it got, in the order of time: (observation, reward, flags)."""
    position, expected = 0, list(events)
    if expected[-1] is None:  # the rest is unknown, because a last action of an absent agent is not delivered
        expected += [None] * 8
    for segment in segments:
        batch = segment.batch
        if expected[position] is None:
            return
        observation, reward, *_ = expected[position]
        assert reward == segment.reward_before
        position += 1
        for step in range(batch.num_steps):
            _same(batch.observations, step, observation)
            if expected[position] is None:
                return
            observation, reward, terminated, truncated = expected[position]
            assert reward == batch.rewards[step]
            position += 1
            is_last = step == batch.num_steps - 1
            if is_last and batch.truncated[0] and expected[position : position + 1] == [None]:
                assert not terminated  # the life ends here, because the next action is not delivered
                truncated = True
            assert (terminated, truncated) == (
                (bool(batch.terminated[0]), bool(batch.truncated[0])) if is_last else (False, False)
            )
        _same(batch.last_observations, 0, observation)
    # An agent may appear at the end, and not act.
    assert (
        events[-1] is None
        or position == len(events)
        or (position == len(events) - 1 and events[-1][1:] == [0.0, False, False])
    )


def _same(columns: Any, row: int, observation: Any) -> None:
    columns = columns if isinstance(columns, dict) else {"": columns}
    for name, value in leaves(observation).items():
        np.testing.assert_array_equal(columns[name][row], value)


def actions_of(segments: list[Segment]) -> dict[tuple[str, int], Any]:
    """Return the action of each agent in each environment step."""
    return {
        (segment.agent, int(step)): segment.batch.actions[row]  # type: ignore[index]
        for segment in segments
        for row, step in enumerate(segment.env_steps)
    }


def _replay(env: Any, seed: int, segments: list[Segment], num_steps: int) -> Iterator[tuple[Any, ...]]:
    """Yield what each agent gets in a parallel environment: agent, observation, reward, terminated, truncated."""
    actions = actions_of(segments)
    observations, _ = env.reset(seed=seed)
    alive = set(env.agents)
    for agent in env.agents:
        yield agent, observations[agent], 0.0, False, False
    held: dict[str, float] = {}
    for step in range(num_steps):
        if any((agent, step) not in actions for agent in env.agents):
            assert step >= num_steps - 3
            yield from ((agent, None) for agent in env.possible_agents)
            return
        acting = {agent: actions.pop((agent, step)) for agent in env.agents}
        observations, rewards, terminated, truncated, _ = env.step(acting)
        is_cut = step == num_steps - 1 and bool(env.agents)
        for agent in env.possible_agents:
            if agent not in alive and agent not in env.agents:
                continue
            reward = held.pop(agent, 0.0) + float(rewards.get(agent, 0.0))
            flags = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            if any(flags):
                alive.discard(agent)
                yield agent, observations[agent], reward, *flags
            elif agent in env.agents:
                is_new = agent not in alive
                alive.add(agent)
                yield agent, observations[agent], reward, False, is_cut and not is_new
            else:
                held[agent] = reward
    assert not actions


def _replay_aec(env: Any, seed: int, segments: list[Segment], num_steps: int) -> Iterator[tuple[Any, ...]]:
    """Yield the same of an AEC environment: what `last` returns."""
    actions, step = actions_of(segments), 0
    env.reset(seed=seed)
    for agent in env.agent_iter(max_iter=1 << 20):
        observation, reward, terminated, truncated, _ = env.last()
        is_cut = step == num_steps and not (terminated or truncated)
        yield agent, observation, float(reward), bool(terminated), bool(truncated) or is_cut
        if is_cut:
            for other in env.agents:
                if other != agent:
                    flags = bool(env.terminations[other]), bool(env.truncations[other])
                    flags = flags if any(flags) else (False, True)
                    yield other, env.observe(other), float(env._cumulative_rewards[other]), *flags
            break
        if terminated or truncated:
            env.step(None)
        else:
            env.step(actions.pop((agent, step)))
            step += 1
    assert not actions


def check_soft_horizons(episodes: MultiAgentBatch, spec: EnvSpec, num_rows: int, actions: dict[str, Any]) -> None:
    """Replay the episodes of each row in a plain environment, which is reset where the seed changes, and compare.

    Args:
        episodes: whole episodes of a row sequence.
        spec: their environment.
        num_rows: number of rows of the sequence.
        actions: the actions that agents always take which may be absent: their last ones are not delivered.
    """
    segments = segments_of(episodes)
    lengths = dict(zip(episodes.episode_indices.tolist(), episodes.lengths.tolist(), strict=True))
    rows: dict[tuple[int, int], list[int]] = {}
    for index in sorted(lengths):
        seed = int(segments[index][0].batch.env_seeds[0])  # type: ignore[index]
        rows.setdefault((index % num_rows, seed), []).append(index)
    for (_, seed), indices in rows.items():
        env = plain_env(spec)
        steps = [(actions_of(segments[index]), lengths[index]) for index in indices]
        found = (_soft_aec if spec.multi_agent == "aec" else _soft)(env, seed, steps, actions)
        for index, events in zip(indices, found, strict=True):
            for agent in {segment.agent for segment in segments[index]}:
                its = [list(event[1:]) if len(event) > 2 else None for event in events if event[0] == agent]
                _check_agent([segment for segment in segments[index] if segment.agent == agent], its)
        env.close()


def _soft(env: Any, seed: int, episodes: list[Any], constant: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield what agents get in each of the episodes that follow each other in a parallel environment."""
    observations, _ = env.reset(seed=seed)
    for actions, num_steps in episodes:
        events: list[Any] = [(agent, observations[agent], 0.0, False, False) for agent in env.agents]
        alive, held = set(env.agents), dict[str, float]()
        for step in range(num_steps):
            acting = {agent: actions.get((agent, step), constant.get(agent)) for agent in env.agents}
            observations, rewards, terminated, truncated, _ = env.step(acting)
            for agent in env.possible_agents:
                if agent not in alive and agent not in env.agents:
                    continue
                reward = held.pop(agent, 0.0) + float(rewards.get(agent, 0.0))
                flags = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
                if any(flags):
                    alive.discard(agent)
                elif agent not in env.agents:
                    held[agent] = reward
                    continue
                else:
                    flags = False, step == num_steps - 1 and agent in alive
                    alive.add(agent)
                events.append((agent, observations[agent], reward, *flags))
        yield [*events, *((agent, None) for agent in held)]


def _soft_aec(env: Any, seed: int, episodes: list[Any], constant: dict[str, Any]) -> Iterator[list[Any]]:
    """Yield the same of an AEC environment: what `last` returns, less what agents got in the episode before."""
    env.reset(seed=seed)
    paid: dict[str, float] = {}
    for actions, num_steps in episodes:
        events: list[Any] = []
        step, is_cut = 0, False
        while env.agents and not is_cut:
            agent = env.agent_selection
            observation, reward, terminated, truncated, _ = env.last()
            is_cut = step == num_steps and not (terminated or truncated)
            flags = bool(terminated), bool(truncated) or is_cut
            events.append((agent, observation, reward - paid.pop(agent, 0.0), *flags))
            if is_cut:
                for other in env.agents:
                    flags = bool(env.terminations[other]), bool(env.truncations[other])
                    total = env._cumulative_rewards[other]
                    if other != agent:
                        flags = flags if any(flags) else (False, True)
                        events.append((other, env.observe(other), total - paid.get(other, 0.0), *flags))
                    paid[other] = total
            elif terminated or truncated:
                env.step(None)
            else:
                env.step(actions[agent, step])
                step += 1
        yield events


def many_equal(first: MultiAgentBatch, second: MultiAgentBatch) -> bool:
    """Whether two batches have the same columns, to the last bit; their accounts may differ."""
    names = ("episode_indices", "first_steps", "lengths", "terminated", "truncated")
    if first.agents != second.agents or len(first.policies) != len(second.policies):
        return False
    headers = all(np.array_equal(getattr(first, name), getattr(second, name)) for name in names)
    for name in ("global_states", "last_global_states"):
        one_states, other_states = getattr(first, name), getattr(second, name)
        headers = headers and (one_states is None) == (other_states is None)
        headers = headers and (one_states is None or np.array_equal(one_states, other_states))
    return headers and all(
        one.policy == other.policy
        and equal(one.batch, other.batch)
        and all(
            np.array_equal(getattr(one, name), getattr(other, name))
            for name in ("agent_positions", "env_steps", "rewards_before")
        )
        for one, other in zip(first.policies, second.policies, strict=True)
    )
