"""Files of saved samplers: written and read record by record, as `protos/rollserve/v1/saved_sampler.proto` defines."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeVar

from rollserve_server.agents import HeldPolicy, PolicySet
from rollserve_server.envs import RowSpecs
from rollserve_server.errors import InvalidValueError, within
from rollserve_server.gateway.messages.agents import agent_from_proto, agent_to_proto
from rollserve_server.gateway.messages.environments import environment_from_proto
from rollserve_server.gateway.messages.fields import (
    MAX_FIRST_INDEX,
    MAX_STEPS,
    MAX_WORKERS,
    in_field,
    in_range,
    optional,
    seconds_of,
    timestamp_of,
)
from rollserve_server.gateway.messages.sample_requests import exploration_from_proto
from rollserve_server.pool import (
    ActionLog,
    Checkpoint,
    RowPoint,
    RowSequenceKind,
    RowSequenceState,
    SavedAgents,
    SavedEnvs,
    SavedOwnSequence,
    SavedOwnSequences,
    SavedRowSequence,
    SavedRowSequences,
    SavedSampler,
)
from rollserve_server.sampling import SequenceSpec
from rollserve_wire.environments import env_spec_to_proto
from rollserve_wire.policy_map import policy_map_from_proto, policy_map_to_proto
from rollserve_wire.tensors import (
    named_tensors_from_proto,
    named_tensors_to_proto,
    tensor_from_proto,
    tensor_to_proto,
)
from rollserve_wire.v1 import agent_pb2, sampler_service_pb2
from rollserve_wire.v1 import saved_sampler_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from rollserve_server.agents import AgentSource, Exploration, PolicySource
    from rollserve_server.envs import WorkerSpecs

__all__ = ["read_saved_sampler", "saved_sampler_parts"]

_MAGIC = b"rollserve saved\n"
_FORMAT = 1
_LENGTH_BYTES = 8
_MAX_RECORDS = 1 << 14
_MAX_NUMBER = 1 << 62
"""The highest version or count, which leaves room to count on."""

_T = TypeVar("_T")


def saved_sampler_parts(saved: SavedSampler) -> Iterator[bytes]:
    """Yield the file of a saved sampler in parts.

    Raises:
        NotReadyError: an agent is a pickle.
    """
    digest = hashlib.sha256(_MAGIC)
    yield _MAGIC
    for record in _records(saved):
        data = record.SerializeToString()
        for part in (len(data).to_bytes(_LENGTH_BYTES, "little"), data):
            digest.update(part)
            yield part
    data = pb.SavedRecord(end=pb.SavedEnd(sha256=digest.digest())).SerializeToString()
    yield len(data).to_bytes(_LENGTH_BYTES, "little") + data


def read_saved_sampler(
    data: bytes, parse: Callable[[bytes], pb.SavedRecord], allowed_paths: Collection[Path]
) -> SavedSampler:
    """Return the saved sampler of a file.

    Args:
        data: content of the file.
        parse: returns a serialized record; its errors are raised.
        allowed_paths: paths that arguments of environments and agents may have.

    Raises:
        InvalidValueError: the file is incomplete or changed, of a newer format, or has a malformed part.
        NotAllowedError: an argument is a path that is not allowed; see `check_paths`.
    """
    header: pb.SavedHeader | None = None
    envs: dict[int, SavedEnvs] = {}
    agents: dict[int, SavedAgents] = {}
    rows: list[pb.SavedRows] = []
    for record in _read_records(data, parse):
        match record.WhichOneof("part"):
            case "header" if header is not None:
                raise InvalidValueError.of("header", expected="one header", got="two")
            case "header":
                header = record.header
                _check_format(header.format)
            case "environments":
                number = _new_version("environments", record.environments.environment_version, envs)
                with in_field(f"environments[{number}]"):
                    envs[number] = _envs_from_proto(record.environments, allowed_paths)
            case "agents":
                number = _new_version("agents", record.agents.policy_version, agents)
                with in_field(f"agents[{number}]"):
                    agents[number] = _agents_from_proto(record.agents, allowed_paths)
            case "rows":
                rows.append(record.rows)
    if header is None:
        raise InvalidValueError.of("header", expected="a header", got="none")
    with in_field("header"):
        num_workers = in_range("worker_count", header.worker_count, 1, MAX_WORKERS)
        own = _own_from_proto(header)
        highest = max(agents, default=0)
        policy_version = in_range("policy_version", header.policy_version or highest, highest, _MAX_NUMBER)
        counters = {name: in_range(f"counters[{name!r}]", n, 0, _MAX_NUMBER) for name, n in header.counters.items()}
        num_row_seeds = in_range("row_seed_count", header.row_seed_count, 0, _MAX_NUMBER)
    sequences = []
    for position, each in enumerate(rows):
        with in_field(f"rows[{position}]"):
            sequences.append(_rows_from_proto(each, num_workers))
    return SavedSampler(
        software=header.software_version,
        saved_seconds=seconds_of("header.saved", header.saved),
        seed=header.seed,
        num_workers=num_workers,
        max_episode_length=_length_from_proto(header.max_episode_length),
        counters=counters,
        envs=envs,
        agents=agents,
        policy_version=policy_version,
        own=own,
        rows=SavedRowSequences(num_row_seeds, sequences),
    )


def _records(saved: SavedSampler) -> Iterator[pb.SavedRecord]:
    yield pb.SavedRecord(header=_header_to_proto(saved))
    for number, envs in sorted(saved.envs.items()):
        yield pb.SavedRecord(environments=_envs_to_proto(number, envs))
    for number, agents in sorted(saved.agents.items()):
        with within(f"agents[{number}]"):
            message = _agents_to_proto(agents)
        message.policy_version = number
        yield pb.SavedRecord(agents=message)
    for sequence in saved.rows.sequences:
        yield pb.SavedRecord(rows=_rows_to_proto(sequence))


def _read_records(data: bytes, parse: Callable[[bytes], pb.SavedRecord]) -> Sequence[pb.SavedRecord]:
    """Return all records but the end, once its digest is that of the bytes before it."""
    if not data.startswith(_MAGIC):
        raise InvalidValueError.of("", expected="the file of a saved sampler", got="other bytes")
    view, place = memoryview(data), len(_MAGIC)
    contents: list[memoryview] = []
    while place < len(data):
        start = place + _LENGTH_BYTES
        stop = start + int.from_bytes(view[place:start], "little")
        if stop > len(data):
            raise _changed_error()
        if len(contents) > _MAX_RECORDS:
            raise InvalidValueError.of("", expected=f"at most {_MAX_RECORDS} records", got="more")
        contents.append(view[start:stop])
        end_place, place = place, stop
    if not contents or _digest_in(contents[-1], parse) != hashlib.sha256(view[:end_place]).digest():
        raise _changed_error()
    return [parse(bytes(content)) for content in contents[:-1]]


def _digest_in(content: memoryview, parse: Callable[[bytes], pb.SavedRecord]) -> bytes | None:
    """Return the digest in the last record of a file; None if that is no end."""
    try:
        record = parse(bytes(content))
    except InvalidValueError:
        return None
    return record.end.sha256 if record.HasField("end") else None


def _changed_error() -> InvalidValueError:
    return InvalidValueError.of("", expected="the bytes that were saved", got="a file that was changed or cut off")


def _check_format(number: int) -> None:
    if not 0 < number <= _FORMAT:
        expected = f"a format up to {_FORMAT}, which this server reads"
        raise InvalidValueError.of("header.format", expected=expected, got=number)


def _new_version(field: str, number: int, known: Mapping[int, object]) -> int:
    """Return the number of a version; raise InvalidValueError unless versions rise from 1."""
    in_range(field, number, 0, _MAX_NUMBER)
    if number <= max(known, default=0):
        raise InvalidValueError.of(field, expected="versions from 1, in rising order", got=number)
    return number


def _header_to_proto(saved: SavedSampler) -> pb.SavedHeader:
    return pb.SavedHeader(
        format=_FORMAT,
        software_version=saved.software,
        saved=timestamp_of(saved.saved_seconds),
        seed=saved.seed,
        worker_count=saved.num_workers,
        max_episode_length=saved.max_episode_length or 0,
        counters=saved.counters,
        own_sequences=[
            pb.SavedSequence(
                seed=each.seed,
                next_episode_index=each.next_index,
                episodes=None if each.spec is None else _episodes_to_proto(each.spec),
            )
            for each in saved.own.sequences
        ],
        own_seed=saved.own.seed,
        sequence_seed_count=saved.own.num_drawn,
        row_seed_count=saved.rows.num_drawn,
        policy_version=saved.policy_version,
    )


def _own_from_proto(header: pb.SavedHeader) -> SavedOwnSequences:
    sequences = []
    for position, each in enumerate(header.own_sequences):
        with in_field(f"own_sequences[{position}]"):
            in_range("next_episode_index", each.next_episode_index, 0, MAX_FIRST_INDEX)
            spec = _episodes_from_proto(each.episodes, each.seed) if each.HasField("episodes") else None
            sequences.append(SavedOwnSequence(each.seed, each.next_episode_index, spec))
    if not sequences:
        raise InvalidValueError.of("own_sequences", expected="at least one", got="none")
    num_drawn = in_range("sequence_seed_count", header.sequence_seed_count, 0, _MAX_NUMBER)
    return SavedOwnSequences(header.own_seed, num_drawn, sequences)


def _episodes_to_proto(spec: SequenceSpec) -> pb.SavedEpisodes:
    exploration = spec.exploration
    return pb.SavedEpisodes(
        policy_version=spec.policy_version,
        environment_version=spec.env_version,
        max_episode_length=spec.max_episode_length or 0,
        exploration=sampler_service_pb2.Exploration(
            deterministic=exploration.deterministic,
            temperatures=exploration.temperature,
            noise_scales=exploration.noise_scale,
            epsilons=exploration.epsilon,
        ),
    )


def _episodes_from_proto(episodes: pb.SavedEpisodes, seed: int) -> SequenceSpec:
    exploration: Exploration = exploration_from_proto(episodes.exploration)
    versions = episodes.policy_version, episodes.environment_version
    return SequenceSpec(0, seed, *versions, _length_from_proto(episodes.max_episode_length), exploration)


def _envs_to_proto(number: int, envs: SavedEnvs) -> pb.SavedEnvironments:
    return pb.SavedEnvironments(
        environment_version=number,
        workers=map(_worker_to_proto, envs.specs),
        row_count=envs.num_rows,
        episodes_per_row=envs.num_episodes_per_row or 0,
    )


def _worker_to_proto(specs: WorkerSpecs) -> pb.SavedRowEnvironments:
    is_per_row = isinstance(specs, RowSpecs)
    rows = specs.specs if isinstance(specs, RowSpecs) else (specs,)
    return pb.SavedRowEnvironments(rows=map(env_spec_to_proto, rows), is_per_row=is_per_row)


def _envs_from_proto(message: pb.SavedEnvironments, allowed_paths: Collection[Path]) -> SavedEnvs:
    specs: list[WorkerSpecs] = []
    for position, worker in enumerate(message.workers):
        with in_field(f"workers[{position}]"):
            rows = [environment_from_proto(each, allowed_paths) for each in worker.rows]
            if not rows or (len(rows) > 1 and not worker.is_per_row):
                raise InvalidValueError.of("rows", expected="one environment, or one for each row", got=len(rows))
            specs.append(RowSpecs(tuple(rows)) if worker.is_per_row else rows[0])
    if not specs:
        raise InvalidValueError.of("workers", expected="at least one", got="none")
    return SavedEnvs(specs, message.row_count, message.episodes_per_row or None)


def _agents_to_proto(agents: SavedAgents) -> pb.SavedAgents:
    message = pb.SavedAgents(updated=timestamp_of(agents.updated_seconds))
    for agent in agents.agents:
        if isinstance(agent, PolicySet):
            message.policies.policy_map.CopyFrom(policy_map_to_proto(agent.policy_map))
            for name, held in agent.policies.items():
                message.policies.policies[name].versions.extend(each.version for each in held)
                message.policies.policies[name].agents.extend(agent_to_proto(each.spec) for each in held)
        else:
            message.agents.append(agent_to_proto(agent))
    return message


def _agents_from_proto(message: pb.SavedAgents, allowed_paths: Collection[Path]) -> SavedAgents:
    agents: list[AgentSource] = []
    for position, agent in enumerate(message.agents):
        with in_field(f"agents[{position}]"):
            agents.append(_agent_from_proto(agent, allowed_paths))
    if message.HasField("policies"):
        with in_field("policies"):
            agents.append(_policies_from_proto(message.policies, allowed_paths))
    return SavedAgents(agents, seconds_of("updated", message.updated))


def _policies_from_proto(message: pb.SavedPolicies, allowed_paths: Collection[Path]) -> PolicySet[PolicySource]:
    policies = {}
    for name, policy in sorted(message.policies.items()):
        with in_field(f"policies[{name!r}]"):
            if not policy.versions or len(policy.versions) != len(policy.agents):
                expected = f"as many as agents, {len(policy.agents)}, and at least one"
                raise InvalidValueError.of("versions", expected=expected, got=len(policy.versions))
            agents = [_agent_from_proto(agent, allowed_paths) for agent in policy.agents]
            policies[name] = tuple(map(HeldPolicy, policy.versions, agents))
    with in_field("policy_map"):
        return PolicySet(policies, policy_map_from_proto(message.policy_map))


def _agent_from_proto(agent: agent_pb2.Agent, allowed_paths: Collection[Path]) -> PolicySource:
    if agent.HasField("pickled"):
        raise InvalidValueError.of("", expected="an agent without pickles", got="a pickled one")
    return agent_from_proto(agent, allowed_paths)


def _rows_to_proto(sequence: SavedRowSequence) -> pb.SavedRows:
    state = sequence.state
    points = (point for worker in state.current.workers for point in worker)
    return pb.SavedRows(
        seed=state.seed,
        environment_version=state.kind.env_version,
        max_episode_length=state.kind.max_episode_length or 0,
        soft_horizon=state.kind.soft_horizon,
        is_own=sequence.is_own,
        row_step_count=state.current.clock,
        rows=map(_row_to_proto, points),
        return_discount=state.kind.return_discount,
    )


def _row_to_proto(point: RowPoint) -> pb.SavedRow:
    actions = point.log.first(point.num_steps) if point.log is not None and point.num_steps else ()
    return pb.SavedRow(
        reset_index=point.reset_index,
        episode_index=point.episode_index,
        first_step=point.first_step,
        step_count=point.num_steps,
        actions=map(tensor_to_proto, actions),
        recurrent_state=named_tensors_to_proto(dict(point.recurrent_state)),
    )


def _rows_from_proto(message: pb.SavedRows, num_workers: int) -> SavedRowSequence:
    length = _length_from_proto(message.max_episode_length)
    discount = optional(message, "return_discount")
    if discount is not None and not 0 <= discount <= 1:
        raise InvalidValueError.of("return_discount", expected="a number from 0 to 1", got=discount)
    kind = RowSequenceKind(message.environment_version, length, message.soft_horizon, discount)
    in_range("row_step_count", message.row_step_count, 1, MAX_STEPS)
    points = []
    for position, row in enumerate(message.rows):
        with in_field(f"rows[{position}]"):
            points.append(_row_from_proto(row))
    num_rows, rest = divmod(len(points), num_workers)
    if rest or not num_rows:
        expected = f"rows of {num_workers} workers, as many of each"
        raise InvalidValueError.of("rows", expected=expected, got=len(points))
    workers = _grouped(points, num_rows)
    return SavedRowSequence(
        RowSequenceState(message.seed, kind, Checkpoint(message.row_step_count, workers), None), message.is_own
    )


def _row_from_proto(row: pb.SavedRow) -> RowPoint:
    columns = []
    for position, tensor in enumerate(row.actions):
        with in_field(f"actions[{position}]"):
            columns.append(tensor_from_proto(tensor))
    with in_field("recurrent_state"):
        state: Mapping[str, np.ndarray] = named_tensors_from_proto(row.recurrent_state)
    numbers = (
        in_range("reset_index", row.reset_index, 0, MAX_FIRST_INDEX),
        in_range("episode_index", row.episode_index, 0, MAX_FIRST_INDEX),
        in_range("first_step", row.first_step, 0, MAX_STEPS),
        in_range("step_count", row.step_count, 0, MAX_STEPS),
    )
    return RowPoint(*numbers, ActionLog(columns) if columns else None, tuple(state.items()))


def _grouped(values: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


def _length_from_proto(length: int) -> int | None:
    return in_range("max_episode_length", length, 0, MAX_STEPS) or None
