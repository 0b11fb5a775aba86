"""A sampler's state as records, in a file or a journal, as `protos/rollserve/v1/saved_sampler.proto` defines them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import operator
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server import __version__
from rollserve_server.agents import (
    Batching,
    HeldPolicy,
    InfoSpec,
    ModelTrial,
    OnnxModel,
    OnnxSpec,
    PolicySet,
    PythonForm,
    PythonSource,
    PythonSpec,
    agent_from_proto,
    agent_parts,
    exploration_from_proto,
    exploration_to_proto,
)
from rollserve_server.envs import (
    HostStart,
    ProfileEnv,
    RowSpecs,
    environment_from_proto,
    of_profile,
    requested,
    space_from_proto,
    space_to_proto,
)
from rollserve_server.errors import InvalidValueError, within
from rollserve_server.fields import (
    MAX_FIRST_INDEX,
    MAX_STEPS,
    MAX_WORKERS,
    in_field,
    in_range,
    optional,
    seconds_of,
    timestamp_of,
)
from rollserve_server.pool.accounts import WorkerTotals
from rollserve_server.pool.state.checkpoints import ActionLog, Checkpoint, RowPoint
from rollserve_server.pool.state.row_sequence import RowSequenceKind, RowSequenceState, RowsMoved
from rollserve_server.pool.state.saved_sampler import (
    SavedAgents,
    SavedEnvs,
    SavedHeader,
    SavedOwnSequence,
    SavedOwnSequences,
    SavedPool,
    SavedRowSequence,
    SavedRun,
    SavedSampler,
)
from rollserve_server.pool.state.versions import AgentSpaces, EnvVersion
from rollserve_server.sampling import EnvDescription, RowsProgress, SequenceSpec
from rollserve_wire.environments import (
    env_spec_from_proto,
    env_spec_to_proto,
    reproducibility_from_proto,
    reproducibility_to_proto,
)
from rollserve_wire.policy_map import policy_map_from_proto, policy_map_to_proto
from rollserve_wire.protobuf import LENGTH_DELIMITED, key_of, keys_of, length_delimited, text_field
from rollserve_wire.records import message_from_record, record_from_message
from rollserve_wire.tensors import (
    dtype_from_proto,
    dtype_to_proto,
    named_tensors_from_proto,
    named_tensors_to_proto,
    tensor_from_proto,
    tensor_to_proto,
)
from rollserve_wire.v1 import environment_pb2
from rollserve_wire.v1 import saved_sampler_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rollserve_server.agents import AgentSource, PolicySource
    from rollserve_server.envs import WorkerSpecs
    from rollserve_server.pool.state.versions import AgentVersion
    from rollserve_server.sampling import RowProgress
    from rollserve_wire.environments import EnvSpec
    from rollserve_wire.v1 import agent_pb2

__all__ = [
    "Record",
    "agents_records",
    "entry_records",
    "move_from_proto",
    "parts_of",
    "read_records",
    "rows_from_proto",
    "rows_records",
    "sampler_records",
]

Record = list[bytes | memoryview]
"""A serialized SavedRecord, in parts: the parameters of agents are not copied."""

_FORMAT = 1
_RECORD_BYTES = 64 << 20
"""Size of a record above which its part goes on in another one. Messages of 2 GiB cannot be read, and states have no
bound. One agent is always smaller, because a request has brought it."""
_MAX_NUMBER = 1 << 62
"""The highest version or count, which leaves room to count on."""
_AGENTS_RECORD = keys_of(pb.SavedRecord.DESCRIPTOR)["agents"]
_AGENTS, _POLICIES = (keys_of(pb.SavedAgents.DESCRIPTOR)[name] for name in ("agents", "policies"))
_POLICY = keys_of(pb.SavedPolicies.DESCRIPTOR)["policies"]
_VERSIONS_OF_POLICY = keys_of(pb.SavedPolicy.DESCRIPTOR)["agents"]
_MAP_KEY, _MAP_VALUE = key_of(1, LENGTH_DELIMITED), key_of(2, LENGTH_DELIMITED)
_GOES_ON = pb.SavedRecord(goes_on=True).SerializeToString()


def sampler_records(saved: SavedSampler) -> Iterator[Record]:
    """Yield a sampler's state: for a journal if it has a run, else for a file."""
    in_journal = saved.run is not None
    yield _record(pb.SavedRecord(header=_header_to_proto(saved.header)))
    if saved.run is not None:
        yield _record(pb.SavedRecord(run=_run_to_proto(saved.run)))
    for number, envs in sorted(saved.envs.items()):
        yield _record(pb.SavedRecord(environments=_envs_to_proto(number, envs, in_journal=in_journal)))
    for number, agents in sorted(saved.agents.items()):
        yield from _agents_records(number, agents, in_journal=in_journal)
    for sequence in saved.rows:
        yield from rows_records(sequence)


def entry_records(
    header: SavedHeader,
    *,
    agents: tuple[int, AgentVersion] | None = None,
    env: tuple[int, EnvVersion] | None = None,
    moved: RowsMoved | None = None,
) -> list[Record]:
    """Return an entry of a journal: the header, and what is new.

    Args:
        header: the single values after the change.
        agents: a new version of the agents, with its number.
        env: a new version of the environments, with its number.
        moved: a completed fragment call.
    """
    records = [_record(pb.SavedRecord(header=_header_to_proto(header)))]
    if env is not None:
        number, made = env
        records.append(
            _record(pb.SavedRecord(environments=_envs_to_proto(number, SavedEnvs.of(made), in_journal=True)))
        )
    if moved is not None:
        records += _move_records(moved)
    if agents is not None:
        records += agents_records(*agents)
    return records


def agents_records(number: int, version: AgentVersion) -> list[Record]:
    """Return what an entry of a journal has of a new version of the agents."""
    return list(_agents_records(number, SavedAgents.of(version), in_journal=True))


def parts_of(records: Iterable[pb.SavedRecord]) -> Iterator[Sequence[pb.SavedRecord]]:
    """Yield the records of each part of a state: several where records go on with the one before them.

    Raises:
        InvalidValueError: a record goes on with one of another part, or with none.
    """
    part: list[pb.SavedRecord] = []
    for record in records:
        if not record.goes_on:
            if part:
                yield part
            part = []
        elif not part or part[0].WhichOneof("part") != record.WhichOneof("part"):
            got = part[0].WhichOneof("part") if part else "no record"
            expected = f"{record.WhichOneof('part')} before the record that goes on with them"
            raise InvalidValueError.of("goes_on", expected=expected, got=got)
        part.append(record)
    if part:
        yield part


def read_records(
    records: Collection[pb.SavedRecord], *, in_journal: bool = False, allowed_paths: Collection[Path] = ()
) -> SavedSampler:
    """Return the state of a sampler.

    Args:
        records: all records.
        in_journal: whether they come from a journal, which only servers write. What trials of agents have found there
            holds for this version. What only a journal has counts nowhere else.
        allowed_paths: paths that arguments of environments and agents may have in a file.

    Raises:
        InvalidValueError: the state is incomplete, of a newer format, or has a malformed part.
        NotAllowedError: an argument is a path that is not allowed; see `check_paths`.
    """
    headers = [record.header for record in records if record.HasField("header")]
    if len(headers) != 1:
        raise InvalidValueError.of("header", expected="one header", got=len(headers))
    with in_field("header"):
        if not 0 < headers[0].format <= _FORMAT:
            expected = f"a format up to {_FORMAT}, which this server reads"
            raise InvalidValueError.of("format", expected=expected, got=headers[0].format)
        header = _header_from_proto(headers[0], in_journal=in_journal)
    reader = _VersionReader(
        None if in_journal else allowed_paths, has_trials=in_journal and header.software == __version__
    )
    envs: dict[int, SavedEnvs] = {}
    agents: dict[int, SavedAgents] = {}
    rows: list[SavedRowSequence] = []
    run = None
    for part in parts_of(records):
        record = part[0]
        match record.WhichOneof("part"):
            case "environments":
                number = _new_version("environments", record.environments.environment_version, envs)
                with in_field(f"environments[{number}]"):
                    envs[number] = reader.envs(record.environments)
            case "agents":
                number = _new_version("agents", record.agents.policy_version, agents)
                with in_field(f"agents[{number}]"):
                    agents[number] = reader.agents([each.agents for each in part])
            case "rows":
                with in_field(f"rows[{len(rows)}]"):
                    in_range("row_step_count", record.rows.row_step_count, 1, MAX_STEPS)
                    messages = [each.rows for each in part]
                    state = rows_from_proto(messages, header.num_workers, has_previous=in_journal)
                    number = record.rows.number if in_journal else 0
                    rows.append(SavedRowSequence(state, record.rows.is_own, number))
            case "run" if in_journal:
                with in_field("run"):
                    run = reader.run(record.run)
    if in_journal and run is None:
        raise InvalidValueError.of("run", expected="the run of a sampler", got="none")
    highest = max(agents, default=0)
    # An entry with new agents is written before they are current, and its header has the version before.
    current = max(header.policy_version, highest) if in_journal else header.policy_version or highest
    with in_field("header"):
        policy_version = in_range("policy_version", current, highest, _MAX_NUMBER)
    return SavedSampler(dataclasses.replace(header, policy_version=policy_version), envs, agents, rows, run)


def _record(message: pb.SavedRecord) -> Record:
    return [message.SerializeToString()]


def _part(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records of one part: each goes on with the one before it."""
    for position, record in enumerate(records):
        yield [*record, _GOES_ON] if position else record


def _ranges(sizes: Iterable[int]) -> list[slice]:
    """Return the positions of consecutive values that records have, given their bytes; at least one record."""
    ranges, start, num_bytes = [], 0, 0
    for position, size in enumerate(sizes):
        if num_bytes and num_bytes + size > _RECORD_BYTES:
            ranges.append(slice(start, position))
            start, num_bytes = position, 0
        num_bytes += size
    return [*ranges, slice(start, None)]


def _new_version(field: str, number: int, known: Mapping[int, object]) -> int:
    """Return the number of a version; raise InvalidValueError unless versions rise from 1."""
    in_range(field, number, 0, _MAX_NUMBER)
    if number <= max(known, default=0):
        raise InvalidValueError.of(field, expected="versions from 1, in rising order", got=number)
    return number


def _header_to_proto(header: SavedHeader) -> pb.SavedHeader:
    message = pb.SavedHeader(
        format=_FORMAT,
        software_version=header.software,
        saved=timestamp_of(header.saved_seconds),
        seed=header.seed,
        worker_count=header.num_workers,
        max_episode_length=header.max_episode_length or 0,
        counters=header.counters,
        policy_version=header.policy_version,
        worker_count_is_set=header.number_is_set,
    )
    if header.own is not None:
        message.own_seed, message.sequence_seed_count = header.own.seed, header.own.num_drawn
        message.row_seed_count = header.own.num_row_seeds
        for each in header.own.sequences:
            episodes = None if each.spec is None else _episodes_to_proto(each.spec)
            message.own_sequences.add(seed=each.seed, next_episode_index=each.next_index, episodes=episodes)
    if header.pool is not None:
        pool = message.pool
        pool.workers.extend(message_from_record(pb.SavedWorker, each) for each in header.pool.workers)
        pool.departed.CopyFrom(message_from_record(pb.SavedWorker, header.pool.departed))
        pool.policy_versions.extend(header.pool.policy_versions)
        pool.environment_versions.extend(header.pool.env_versions)
        pool.row_sequences.extend(header.pool.row_sequences)
        pool.orders_format = header.pool.orders_format
    return message


def _header_from_proto(header: pb.SavedHeader, *, in_journal: bool) -> SavedHeader:
    num_workers = in_range("worker_count", header.worker_count, 1, MAX_WORKERS)
    counters = {name: in_range(f"counters[{name!r}]", n, 0, _MAX_NUMBER) for name, n in header.counters.items()}
    pool = header.pool
    return SavedHeader(
        software=header.software_version,
        saved_seconds=seconds_of("saved", header.saved),
        seed=header.seed,
        num_workers=num_workers,
        max_episode_length=_length_from_proto(header.max_episode_length),
        counters=counters,
        policy_version=header.policy_version,
        number_is_set=header.worker_count_is_set,
        own=None if in_journal else _own_from_proto(header),
        pool=SavedPool(
            [record_from_message(WorkerTotals, each) for each in pool.workers],
            record_from_message(WorkerTotals, pool.departed),
            pool.policy_versions,
            pool.environment_versions,
            pool.row_sequences,
            pool.orders_format,
        )
        if in_journal
        else None,
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
    num_row_seeds = in_range("row_seed_count", header.row_seed_count, 0, _MAX_NUMBER)
    return SavedOwnSequences(header.own_seed, num_drawn, sequences, num_row_seeds)


def _episodes_to_proto(spec: SequenceSpec) -> pb.SavedEpisodes:
    return pb.SavedEpisodes(
        policy_version=spec.policy_version,
        environment_version=spec.env_version,
        max_episode_length=spec.max_episode_length or 0,
        exploration=exploration_to_proto(spec.exploration),
    )


def _episodes_from_proto(episodes: pb.SavedEpisodes, seed: int) -> SequenceSpec:
    versions, exploration = (episodes.policy_version, episodes.environment_version), episodes.exploration
    length = _length_from_proto(episodes.max_episode_length)
    return SequenceSpec(0, seed, *versions, length, exploration_from_proto(exploration))


def _run_to_proto(run: SavedRun) -> pb.SavedRun:
    return pb.SavedRun(
        run=run.name,
        started=timestamp_of(run.started_seconds),
        worker_settings_json=json.dumps(run.worker_settings),
        first_environment=_worker_to_proto(run.first_env, in_journal=True),
    )


def _envs_to_proto(number: int, envs: SavedEnvs, *, in_journal: bool) -> pb.SavedEnvironments:
    message = pb.SavedEnvironments(
        environment_version=number,
        workers=[_worker_to_proto(specs, in_journal=in_journal) for specs in envs.specs],
        row_count=envs.num_rows,
        episodes_per_row=envs.num_episodes_per_row or 0,
    )
    if in_journal and envs.version is not None:
        message.client_id, description = envs.version.client_id, envs.version.description
        spaces = description.observation_space, description.action_space
        observation_space, action_space = map(space_to_proto, spaces)
        message.description.CopyFrom(
            message_from_record(
                pb.SavedDescription,
                description,
                observation_space=observation_space,
                action_space=action_space,
                reproducibility=reproducibility_to_proto(description.reproducibility),
            )
        )
    return message


def _worker_to_proto(specs: WorkerSpecs, *, in_journal: bool) -> pb.SavedRowEnvironments:
    rows = specs.specs if isinstance(specs, RowSpecs) else (specs,)
    message = pb.SavedRowEnvironments(is_per_row=isinstance(specs, RowSpecs))
    message.rows.extend(env_spec_to_proto(requested(each)) for each in rows)
    if in_journal and any(isinstance(each, ProfileEnv) for each in rows):
        none = environment_pb2.Environment()
        message.profiled.extend(env_spec_to_proto(each) if isinstance(each, ProfileEnv) else none for each in rows)
        hosts = [each.host if isinstance(each, ProfileEnv) else None for each in rows]
        message.hosts_json.extend(host.to_json() if host else "" for host in hosts)
    return message


def _agents_records(number: int, agents: SavedAgents, *, in_journal: bool) -> Iterator[Record]:
    head = pb.SavedAgents(policy_version=number, updated=timestamp_of(agents.updated_seconds))
    if in_journal:
        head.client_ids.extend(agents.clients)
        if agents.spaces is not None:
            head.spaces.CopyFrom(_spaces_to_proto(agents.spaces))
    with within(f"agents[{number}]"):
        contents = list(_agents_contents(agents.agents, in_journal=in_journal))
    contents[0].insert(0, head.SerializeToString())
    return _part(_nested(_AGENTS_RECORD, content) for content in contents)


def _spaces_to_proto(spaces: AgentSpaces) -> pb.SavedSpaces:
    observation_space, action_space = map(space_to_proto, spaces[:2])
    return pb.SavedSpaces(observation_space=observation_space, action_space=action_space, agents=spaces.agents)


def _agents_contents(agents: Sequence[AgentSource], *, in_journal: bool) -> Iterator[Record]:
    """Yield the agents of a version, as each of its records has them."""
    policies = next((each for each in agents if isinstance(each, PolicySet)), None)
    if policies is not None:
        yield from _policies_contents(policies, in_journal=in_journal)
        return
    singles = [each for each in agents if not isinstance(each, PolicySet)]
    parts = list(map(agent_parts, singles))
    for chosen in _ranges(map(_num_bytes, parts)):
        trials = map(_trial_to_proto, singles[chosen]) if in_journal else ()
        content: Record = [pb.SavedAgents(trials=trials).SerializeToString()]
        for each in parts[chosen]:
            content += length_delimited(_AGENTS, each)
        yield content


def _policies_contents(policies: PolicySet[PolicySource], *, in_journal: bool) -> Iterator[Record]:
    named = [(name, each, agent_parts(each.spec)) for name, held in policies.policies.items() for each in held]
    head = pb.SavedPolicies(policy_map=policy_map_to_proto(policies.policy_map))
    for chosen in _ranges(_num_bytes(parts) for _, _, parts in named):
        content: Record = [head.SerializeToString()]
        for name, group in itertools.groupby(named[chosen], operator.itemgetter(0)):
            versions = list(group)
            policy = pb.SavedPolicy(versions=[each.version for _, each, _ in versions])
            if in_journal:
                policy.trials.extend(_trial_to_proto(each.spec) for _, each, _ in versions)
            value: Record = [policy.SerializeToString()]
            for _, _, parts in versions:
                value += length_delimited(_VERSIONS_OF_POLICY, parts)
            content += length_delimited(_POLICY, [text_field(_MAP_KEY, name), *length_delimited(_MAP_VALUE, value)])
        yield _nested(_POLICIES, content)
        head = pb.SavedPolicies()


def _nested(key: int, content: Record) -> Record:
    """Return a field with a message in parts."""
    return [*length_delimited(key, content)]


def _num_bytes(record: Record) -> int:
    return sum(map(len, record))


def _trial_to_proto(agent: PolicySource) -> pb.SavedTrial:
    match agent:
        case OnnxSpec():
            return pb.SavedTrial(
                model_digest=agent.source or b"",
                outputs=[_column_to_proto(*port[1:]) for port in agent.outputs.values()],
                row_multiple=agent.batching.multiple,
                max_row_count=agent.batching.max_rows,
                providers=agent.providers,
            )
        case PythonSpec(form=form):
            return pb.SavedTrial(
                outputs=[_column_to_proto(*info) for info in form.infos],
                states=[_column_to_proto(*state) for state in form.states],
                noise_width=form.noise_width,
                inputs=form.inputs,
                row_multiple=form.batching.multiple,
                max_row_count=form.batching.max_rows,
            )
    return pb.SavedTrial()


def _column_to_proto(name: str, dtype: np.dtype, shape: Sequence[int]) -> pb.SavedColumn:
    return pb.SavedColumn(name=name, data_type=dtype_to_proto(dtype), shape=shape)


class _VersionReader:
    """Reads what the versions of environments and agents are."""

    def __init__(self, allowed_paths: Collection[Path] | None, *, has_trials: bool) -> None:
        """Begin to read.

        Args:
            allowed_paths: paths that arguments may have; None in a journal.
            has_trials: whether what trials of agents have found holds here.
        """
        self._allowed_paths = allowed_paths
        self._has_trials = has_trials

    def run(self, message: pb.SavedRun) -> SavedRun:
        """Return the run."""
        (env,) = self._rows(message.first_environment)
        settings: Mapping[str, object] = json.loads(message.worker_settings_json)
        return SavedRun(message.run, seconds_of("started", message.started), settings, env)

    def envs(self, message: pb.SavedEnvironments) -> SavedEnvs:
        """Return a version of the environments."""
        specs: list[WorkerSpecs] = []
        for position, worker in enumerate(message.workers):
            with in_field(f"workers[{position}]"):
                rows = self._rows(worker)
                if not rows or (len(rows) > 1 and not worker.is_per_row):
                    raise InvalidValueError.of("rows", expected="one environment, or one for each row", got=len(rows))
                specs.append(RowSpecs(tuple(rows)) if worker.is_per_row else rows[0])
        if not specs:
            raise InvalidValueError.of("workers", expected="at least one", got="none")
        num_rows, num_episodes_per_row = message.row_count, message.episodes_per_row or None
        if self._allowed_paths is not None:
            return SavedEnvs(specs, num_rows, num_episodes_per_row)
        its = message.description
        description = EnvDescription(
            space_from_proto(its.observation_space),
            space_from_proto(its.action_space),
            optional(its, "max_episode_steps"),
            reproducibility_from_proto(its.reproducibility),
            num_rows,
            num_episodes_per_row,
            its.why_not_single,
            tuple(its.agents),
        )
        version = EnvVersion(specs, description, message.client_id)
        return SavedEnvs(specs, num_rows, num_episodes_per_row, version)

    def agents(self, messages: Sequence[pb.SavedAgents]) -> SavedAgents:
        """Return a version of the agents, given the messages of all its records."""
        first = messages[0]
        agents: list[AgentSource] = [agent for message in messages for agent in self._tried(message, "agents")]
        if first.HasField("policies"):
            with in_field("policies"):
                agents.append(self._policies([message.policies for message in messages]))
        updated_seconds = seconds_of("updated", first.updated)
        if self._allowed_paths is not None:
            return SavedAgents(agents, updated_seconds)
        spaces = first.spaces
        found = AgentSpaces(
            space_from_proto(spaces.observation_space), space_from_proto(spaces.action_space), tuple(spaces.agents)
        )
        return SavedAgents(agents, updated_seconds, first.client_ids, found)

    def _rows(self, message: pb.SavedRowEnvironments) -> list[EnvSpec]:
        if self._allowed_paths is not None:
            return [environment_from_proto(each, self._allowed_paths) for each in message.rows]
        specs = list(map(env_spec_from_proto, message.rows))
        if not message.profiled:
            return specs
        made = map(env_spec_from_proto, message.profiled)
        hosts = [HostStart.from_json(text) if text else None for text in message.hosts_json] or [None] * len(specs)
        parts = zip(specs, made, hosts, strict=True)
        return [of_profile(spec, env, host) if env.id else spec for spec, env, host in parts]

    def _policies(self, messages: Sequence[pb.SavedPolicies]) -> PolicySet[PolicySource]:
        policies: dict[str, list[HeldPolicy[PolicySource]]] = {}
        for name, policy in (each for message in messages for each in sorted(message.policies.items())):
            with in_field(f"policies[{name!r}]"):
                if not policy.versions or len(policy.versions) != len(policy.agents):
                    expected = f"as many as agents, {len(policy.agents)}, and at least one"
                    raise InvalidValueError.of("versions", expected=expected, got=len(policy.versions))
                held = map(HeldPolicy, policy.versions, self._tried(policy, "agents"))
                policies.setdefault(name, []).extend(held)
        with in_field("policy_map"):
            policy_map = policy_map_from_proto(messages[0].policy_map)
        return PolicySet({name: tuple(held) for name, held in sorted(policies.items())}, policy_map)

    def _tried(self, message: pb.SavedAgents | pb.SavedPolicy, field: str) -> Iterator[PolicySource]:
        """Yield the agents of a message, with what their trials have found."""
        for position, agent in enumerate(message.agents):
            with in_field(f"{field}[{position}]"):
                source = self._agent(agent)
                yield _with_trial(source, message.trials[position]) if self._has_trials else source

    def _agent(self, agent: agent_pb2.Agent) -> PolicySource:
        if self._allowed_paths is not None and agent.HasField("pickled"):
            raise InvalidValueError.of("", expected="an agent without pickles", got="a pickled one")
        return agent_from_proto(agent, self._allowed_paths)


def _with_trial(agent: PolicySource, trial: pb.SavedTrial) -> PolicySource:
    batching = Batching(trial.row_multiple, trial.max_row_count)
    outputs, states = ([_column_from_proto(each) for each in columns] for columns in (trial.outputs, trial.states))
    match agent:
        case OnnxModel():
            found = {name: (dtype, shape) for name, dtype, shape in outputs}
            model_trial = ModelTrial(found, batching, tuple(trial.providers), trial.model_digest or None)
            return dataclasses.replace(agent, trial=model_trial)
        case PythonSource():
            form = PythonForm(trial.noise_width, tuple(states), tuple(outputs), batching, tuple(trial.inputs))
            return dataclasses.replace(agent, form=form)
    return agent


def _column_from_proto(column: pb.SavedColumn) -> InfoSpec:
    return InfoSpec(column.name, dtype_from_proto(column.data_type), tuple(column.shape))


def rows_records(sequence: SavedRowSequence) -> Iterator[Record]:
    """Return the records of a row sequence."""
    state = sequence.state
    current = state.current.workers
    previous: Sequence[Sequence[RowPoint]] = [()] * len(current)
    if state.previous is not None:
        previous = state.previous.workers
    head = _rows_to_proto(state, state.current.clock)
    head.is_own, head.number = sequence.is_own, sequence.number
    head.previous_row_step_count = 0 if state.previous is None else state.previous.clock
    messages = []
    for chosen in _ranges(map(operator.add, map(_points_bytes, current), map(_points_bytes, previous))):
        head.rows.extend(_points_to_proto(current[chosen]))
        head.previous_rows.extend(_points_to_proto(previous[chosen]))
        messages.append(head)
        head = pb.SavedRows()
    return _part(_record(pb.SavedRecord(rows=message)) for message in messages)


def rows_from_proto(
    messages: Sequence[pb.SavedRows], num_workers: int, *, has_previous: bool = True
) -> RowSequenceState:
    """Return where the rows of a sequence stand.

    Args:
        messages: the messages of all its records.
        num_workers: number of workers.
        has_previous: whether they may tell where the rows stood before the last call.

    Raises:
        InvalidValueError: a part is malformed, or there is not the same number of rows for each worker.
    """
    first = messages[0]
    rows = [row for message in messages for row in message.rows]
    previous_rows = [row for message in messages if has_previous for row in message.previous_rows]
    kind, current = _kind_from_proto(first), _checkpoint_from_proto("rows", rows, num_workers)
    previous = None
    if previous_rows:
        points = _checkpoint_from_proto("previous_rows", previous_rows, num_workers)
        previous = Checkpoint(first.previous_row_step_count, points)
    return RowSequenceState(first.seed, kind, Checkpoint(first.row_step_count, current), previous)


def _rows_to_proto(sequence: RowSequenceState | RowsMoved, clock: int) -> pb.SavedRows:
    """Return a sequence without its rows."""
    kind = sequence.kind
    return pb.SavedRows(
        seed=sequence.seed,
        environment_version=kind.env_version,
        max_episode_length=kind.max_episode_length or 0,
        soft_horizon=kind.soft_horizon,
        row_step_count=clock,
        return_discount=kind.return_discount,
        environment_seeds=kind.first_env_seeds,
    )


def _kind_from_proto(message: pb.SavedRows) -> RowSequenceKind:
    length = _length_from_proto(message.max_episode_length)
    discount = optional(message, "return_discount")
    if discount is not None and not 0 <= discount <= 1:
        raise InvalidValueError.of("return_discount", expected="a number from 0 to 1", got=discount)
    seeds = tuple(message.environment_seeds)
    return RowSequenceKind(message.environment_version, length, message.soft_horizon, discount, seeds)


def _points_to_proto(workers: Sequence[Sequence[RowPoint]]) -> Iterator[pb.SavedRow]:
    return (_row_to_proto(point) for worker in workers for point in worker)


def _points_bytes(points: Sequence[RowPoint]) -> int:
    """Return about how many bytes the positions of a worker's rows take."""
    states = sum(value.nbytes for point in points for _, value in point.recurrent_state)
    return states + sum(point.log.num_bytes for point in points if point.log is not None)


def _checkpoint_from_proto(field: str, rows: Sequence[pb.SavedRow], num_workers: int) -> list[Sequence[RowPoint]]:
    points = []
    for position, row in enumerate(rows):
        with in_field(f"{field}[{position}]"):
            points.append(_row_from_proto(row))
    num_rows, rest = divmod(len(points), num_workers)
    if rest or not num_rows:
        expected = f"rows of {num_workers} workers, as many of each"
        raise InvalidValueError.of(field, expected=expected, got=len(points))
    return [points[start : start + num_rows] for start in range(0, len(points), num_rows)]


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


def _move_records(moved: RowsMoved) -> Iterator[Record]:
    clock: int
    points: Sequence[Sequence[RowPoint]]
    if isinstance(moved.start, int):
        clock, points = moved.start, [()] * len(moved.progress)
    else:
        clock, points = moved.start.clock, moved.start.workers
    head = pb.SavedMove(start=_rows_to_proto(moved, clock), step_count=moved.num_row_steps)
    head.start.number = moved.number
    messages = []
    for chosen in _ranges(map(operator.add, map(_points_bytes, points), map(_progress_bytes, moved.progress))):
        head.start.rows.extend(_points_to_proto(points[chosen]))
        head.workers.extend(map(_progress_to_proto, moved.progress[chosen]))
        messages.append(head)
        head = pb.SavedMove()
    return _part(_record(pb.SavedRecord(move=message)) for message in messages)


def move_from_proto(messages: Sequence[pb.SavedMove]) -> RowsMoved:
    """Return a fragment call that has moved rows, given the messages of all its records."""
    start = messages[0].start
    workers = [worker for message in messages for worker in message.workers]
    rows = [row for message in messages for row in message.start.rows]
    at: Checkpoint | int = start.row_step_count
    if rows:
        at = Checkpoint(start.row_step_count, _checkpoint_from_proto("rows", rows, len(workers)))
    progress = [_progress_from_proto(each) for each in workers]
    return RowsMoved(start.number, start.seed, _kind_from_proto(start), at, messages[0].step_count, progress)


def _progress_bytes(progress: Collection[RowProgress]) -> int:
    """Return about how many bytes a worker's report of its rows takes."""
    if not isinstance(progress, RowsProgress):
        return 0
    states = sum(value.nbytes for state in progress.recurrent_states for _, value in state)
    return states + sum(actions.nbytes for actions in progress.actions or ())


def _progress_to_proto(progress: Collection[RowProgress]) -> pb.SavedProgress:
    message = pb.SavedProgress()
    if isinstance(progress, RowsProgress):
        its = progress
        positions = its.reset_indices, its.episode_indices, its.first_steps, its.num_steps, its.new_steps
        message.positions.CopyFrom(tensor_to_proto(np.array(positions, np.int64)))
        message.actions.extend(map(tensor_to_proto, its.actions or ()))
        for state in its.recurrent_states:
            message.recurrent_states.add(tensors=named_tensors_to_proto(dict(state)))
    return message


def _progress_from_proto(message: pb.SavedProgress) -> Collection[RowProgress]:
    if not message.HasField("positions"):
        return ()
    states = [tuple(named_tensors_from_proto(each.tensors).items()) for each in message.recurrent_states]
    actions = [tensor_from_proto(tensor) for tensor in message.actions]
    reset_indices, episode_indices, first_steps, num_steps, new_steps = tensor_from_proto(message.positions)
    return RowsProgress(reset_indices, episode_indices, first_steps, num_steps, new_steps, actions or None, states)


def _length_from_proto(length: int) -> int | None:
    return in_range("max_episode_length", length, 0, MAX_STEPS) or None
