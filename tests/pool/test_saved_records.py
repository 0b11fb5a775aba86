"""A sampler's state as records: complete in a journal, and without anything that reading would execute."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from every_space import EVERY_SPACE
from gymnasium import spaces
from onnx_models import categorical
from support import raises

import rollserve
from rollserve_server import __version__
from rollserve_server.agents import (
    Batching,
    ConstantSpec,
    CoreSpec,
    HeadSettings,
    HeldPolicy,
    InfoSpec,
    InstalledFactory,
    MlpSpec,
    Normalization,
    OnnxModel,
    PickledFactory,
    PolicySet,
    PythonForm,
    PythonSource,
    PythonSpec,
    RandomSpec,
    content_hash,
    is_same,
    prepare_agent,
)
from rollserve_server.agents.onnx import preparing
from rollserve_server.envs import ProfileEnv, RowSpecs, describe_space
from rollserve_server.errors import InvalidValueError
from rollserve_server.pool import WorkerTotals
from rollserve_server.pool.journal.kept_records import KeptRecords
from rollserve_server.pool.state import records as state_records
from rollserve_server.pool.state.checkpoints import Checkpoint
from rollserve_server.pool.state.records import entry_records, read_records, rows_records, sampler_records
from rollserve_server.pool.state.row_sequence import RowSequenceKind, RowSequenceState, RowsMoved
from rollserve_server.pool.state.saved_sampler import (
    SavedAgents,
    SavedEnvs,
    SavedHeader,
    SavedPool,
    SavedRowSequence,
    SavedRun,
    SavedSampler,
)
from rollserve_server.pool.state.versions import AgentSpaces, AgentVersion, EnvVersion
from rollserve_server.sampling import EnvDescription, RowsProgress
from rollserve_server.settings import AgentSettings
from rollserve_wire.environments import Reproducibility
from rollserve_wire.policy_map import PolicyMap
from rollserve_wire.spaces import space_to_proto
from rollserve_wire.v1 import saved_sampler_pb2 as pb

BOX = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 2], np.float32))
DESCRIPTION = EnvDescription(BOX, spaces.Discrete(2), 100, Reproducibility.BLOCK, 2, 8, "why", ("a", "b"))
PARAMETERS = {"0/weight": np.arange(6, dtype=np.float32).reshape(2, 3), "0/bias": np.zeros(0, np.float32)}
COLUMNS = (InfoSpec("h", np.dtype("f8"), (2,)),)
AGENTS = [
    RandomSpec(),
    ConstantSpec({"a/b": np.array(1)}),
    MlpSpec(
        (3, 2),
        None,
        "categorical",
        PARAMETERS,
        value=(4, 5),
        core=CoreSpec("gru", 3),
        normalization=Normalization(1e-6, 5.0),
    ),
    MlpSpec((3, 2), "tanh", "diagonal_gaussian", PARAMETERS, HeadSettings(min_log_std=-2.0), 1e-5, "shared"),
]
FORM = PythonForm(2, COLUMNS, COLUMNS, Batching(1, 16), ("previous_action",))
CODE = [
    PythonSpec(InstalledFactory("agent", {"size": 3, "none": None}), PARAMETERS, BOX, BOX, FORM, {}),
    PythonSpec(PickledFactory(b"pickle"), {}, BOX, BOX, FORM, {}),
]
POLICIES = PolicySet(
    {"main": (HeldPolicy(7, AGENTS[2]), HeldPolicy(3, AGENTS[3])), "other": (HeldPolicy(5, RandomSpec()),)},
    PolicyMap.of({"a": "main", 1: [("main", -1, 0.5), ("other", 0, 0.5)], "b*": ("main", 3)}),
)
PROFILED = ProfileEnv("CartPole-v1", {"key": "secret"}, num_rows=2, profile="short", arguments={"length": 3})


def journal(
    *,
    envs: Sequence[Any] = (rollserve.EnvSpec("CartPole-v1"),),
    description: EnvDescription = DESCRIPTION,
    agents: Sequence[Any] = (),
    software: str = __version__,
    rows: Sequence[SavedRowSequence] = (),
) -> SavedSampler:
    """Return a state that a server has left, with one version of the environments and at most one of the agents."""
    numbers = [1] * bool(agents), [1], [each.number for each in rows]
    pool = SavedPool([WorkerTotals(5, 1, "lost"), WorkerTotals()], WorkerTotals(3, 2), *numbers)
    header = SavedHeader(software, 2.5, 7, 2, None, {"num_steps": 8, "unknown": 1}, len(numbers[0]), pool=pool)
    version = AgentVersion.restored(agents, AgentSpaces.of(description), ["client", "another"], 1.5)
    return SavedSampler(
        header,
        {1: SavedEnvs.of(EnvVersion(list(envs), description, "client"))},
        {1: SavedAgents.of(version)} if agents else {},
        rows,
        SavedRun("run", 1.25, {"rows": 3, "hold_memory": False}, envs[0]),
    )


def kept(saved: SavedSampler) -> KeptRecords:
    return KeptRecords(map(b"".join, sampler_records(saved)))


def read(records: KeptRecords) -> SavedSampler:
    return read_records([pb.SavedRecord.FromString(b"".join(record)) for record in records], in_journal=True)


@pytest.mark.parametrize("space", EVERY_SPACE, ids=str)
def test_journal_keeps_every_space(space: Any) -> None:
    saved = journal(description=dataclasses.replace(DESCRIPTION, observation_space=space))
    version = read(kept(saved)).envs[1].version
    assert version is not None
    again = version.description.observation_space
    assert space_to_proto(describe_space(again)) == space_to_proto(describe_space(space))


def test_journal_keeps_the_order_of_a_dict_space() -> None:
    space = spaces.Dict(OrderedDict(z=copy.deepcopy(BOX), a=spaces.Discrete(4, start=-1)))
    version = read(kept(journal(description=dataclasses.replace(DESCRIPTION, action_space=space)))).envs[1].version
    assert version is not None
    assert version.description.action_space == space
    assert list(version.description.action_space) == ["z", "a"]


@pytest.mark.parametrize(
    "envs",
    [
        [
            rollserve.EnvSpec(
                "A-v0",
                {"MlpSpec": ["tuple", 1], "large": 10**30},
                (rollserve.Wrapper("ClipAction", {"a": {}}),),
                rollserve.Task("set_task", {"a": None}),
                num_rows=3,
            )
        ],
        [PROFILED],
        [RowSpecs((PROFILED, rollserve.EnvSpec("A-v0"))), rollserve.EnvSpec("B-v0")],
    ],
    ids=["one", "profile", "rows"],
)
def test_journal_keeps_environments(envs: list[Any]) -> None:
    saved = dataclasses.replace(journal(envs=envs), run=SavedRun("run", 1.25, {"rows": 3}, PROFILED))
    again = read(kept(saved))
    assert again.envs[1].version == saved.envs[1].version
    assert again.run == saved.run
    assert (again.header, again.agents, again.rows) == (saved.header, {}, [])


def test_file_has_no_arguments_of_the_operators_profiles() -> None:
    file = dataclasses.replace(journal(envs=[PROFILED]), run=None)
    assert b"secret" in b"".join(map(b"".join, sampler_records(journal(envs=[PROFILED]))))
    assert b"secret" not in b"".join(map(b"".join, sampler_records(file)))


@pytest.mark.parametrize("agent", [*AGENTS, POLICIES], ids=lambda agent: type(agent).__name__)
def test_journal_keeps_agents(agent: Any) -> None:
    saved = journal(agents=[agent])
    version = read(kept(saved)).agents[1]
    assert [content_hash(each) for each in version.agents] == [content_hash(agent)]
    assert (list(version.clients), version.updated_seconds) == (["client", "another"], 1.5)
    assert version.spaces == AgentSpaces.of(DESCRIPTION)
    for field in dataclasses.fields(agent):
        assert type(getattr(version.agents[0], field.name)) is type(getattr(agent, field.name)), field.name


@pytest.mark.parametrize("agent", CODE, ids=["installed", "pickled"])
def test_journal_keeps_what_trials_have_found_for_the_same_version(agent: PythonSpec) -> None:
    for software, form in ((__version__, FORM), ("0.0.1", None)):
        (found,) = read(kept(journal(agents=[agent], software=software))).agents[1].agents
        assert isinstance(found, PythonSource)
        assert content_hash(found.parameters) == content_hash(agent.parameters)
        assert (type(found.factory), found.form) == (type(agent.factory), form)


def test_restored_model_is_as_it_was_without_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (observations, actions) = categorical(), (spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    sent = OnnxModel(model.SerializeToString(), {}, {}, "categorical", ())
    spec = prepare_agent(sent, observations, actions, AgentSettings())
    (found,) = read(kept(journal(agents=[spec]))).agents[1].agents
    monkeypatch.setattr(preparing, "run_in_sandbox", None)
    again = prepare_agent(found, observations, actions, AgentSettings())  # type: ignore[arg-type]
    assert content_hash(again) == content_hash(spec)
    assert is_same(again, sent)


def progress(num_steps: int, *, resets: bool) -> RowsProgress:
    """Return where two rows of a worker stand after a call."""
    new, states = np.array([2, 3]), [(("h", np.full(3, num_steps, np.float32)),), ()]
    resets_at = np.array([0, 9 * resets])
    return RowsProgress(resets_at, resets_at, resets_at * 0, new, new, [np.arange(8).reshape(4, 2)], states)


@pytest.mark.parametrize("record_bytes", [1, 1 << 20], ids=["several records", "one record"])
def test_journal_moves_rows_as_the_server_does(monkeypatch: pytest.MonkeyPatch, record_bytes: int) -> None:
    monkeypatch.setattr(state_records, "_RECORD_BYTES", record_bytes)
    kind, initial = RowSequenceKind(1, 50, True, 0.5, (9, 8, 7, 6)), Checkpoint.initial(2, 2)
    first, second = ([progress(n, resets=n > 1), ()] for n in (1, 2))
    states = [initial.after(4, first)]
    states.append(states[0].after(4, second))
    records = kept(journal())
    header = read(records).header
    assert header.pool is not None
    header = dataclasses.replace(header, pool=header.pool._replace(row_sequences=[5]))
    moves = [RowsMoved(5, 3, kind, initial, 4, first), RowsMoved(5, 3, kind, 4, 4, second)]
    for move in (moves[0], moves[1], moves[1]):  # the same entry twice is the same as once
        records.apply(map(b"".join, entry_records(header, moved=move)))
    expected = SavedRowSequence(RowSequenceState(3, kind, states[1], states[0]), number=5)
    for again in (records, kept(read(records))):
        (sequence,) = read(again).rows
        assert list(rows_records(sequence)) == list(rows_records(expected))
    records.apply(map(b"".join, entry_records(read(kept(journal())).header)))
    assert not read(records).rows


def test_journal_keeps_a_version_that_was_not_current_yet() -> None:
    records, version = kept(journal()), AgentVersion([RandomSpec()], AgentSpaces.of(DESCRIPTION))
    header = read(records).header
    records.apply(map(b"".join, entry_records(header, agents=(1, version))))
    records.apply([])  # as the next server renews its lease
    assert list(read(records).agents) == [1] == [read(records).header.policy_version]
    records.apply(map(b"".join, entry_records(header)))
    assert not read(records).agents


@pytest.mark.parametrize("agents", [AGENTS[2:], [POLICIES]], ids=["for each worker", "policies"])
def test_large_parts_of_a_state_take_several_records(monkeypatch: pytest.MonkeyPatch, agents: list[Any]) -> None:
    kind, initial = RowSequenceKind(1, None, False, None), Checkpoint.initial(2, 2)
    reached = [initial.after(4, [progress(1, resets=False), progress(n, resets=True)]) for n in (1, 2)]
    saved = journal(agents=agents, rows=[SavedRowSequence(RowSequenceState(3, kind, *reached), number=5)])
    whole = list(map(b"".join, sampler_records(saved)))
    monkeypatch.setattr(state_records, "_RECORD_BYTES", 1)
    cut = list(map(b"".join, sampler_records(saved)))
    num_agents = 3 if agents == [POLICIES] else len(agents)
    assert len(cut) == len(whole) + num_agents - 1 + 1  # each agent, and the rows of each of 2 workers
    again = read(KeptRecords(cut))
    monkeypatch.undo()
    assert list(map(b"".join, sampler_records(again))) == whole


def test_record_that_goes_on_with_another_part_is_refused() -> None:
    records = [pb.SavedRecord.FromString(b"".join(record)) for record in kept(journal(agents=AGENTS[:1]))]
    records[-1].goes_on = True
    with raises(InvalidValueError, field="goes_on", match="agents before .* environments"):
        read_records(records, in_journal=True)


def test_journal_without_a_run_is_refused() -> None:
    records = [pb.SavedRecord.FromString(b"".join(record)) for record in kept(journal())]
    with raises(InvalidValueError, field="run", match="none"):
        read_records([record for record in records if not record.HasField("run")], in_journal=True)


def test_records_of_a_later_version_are_read_without_what_is_new() -> None:
    records = [pb.SavedRecord.FromString(b"".join(record)) for record in kept(journal())]
    unknown = bytes([0xFA, 0x3F, 1, 7])  # field 1023, with a byte
    later = [pb.SavedRecord.FromString(unknown)]
    for record in records:
        part = record.WhichOneof("part")
        assert part is not None
        getattr(record, part).MergeFromString(unknown)
        later.append(pb.SavedRecord.FromString(record.SerializeToString() + unknown))
    assert read_records(later, in_journal=True) == read(kept(journal()))


def test_state_in_a_later_format_is_refused() -> None:
    records = [pb.SavedRecord.FromString(b"".join(record)) for record in kept(journal())]
    records[0].header.format = 2
    with raises(InvalidValueError, field="header.format", match=r"up to 1.* 2"):
        read_records(records, in_journal=True)
