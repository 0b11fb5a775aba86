"""Messages of sessions, in which a client acts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents import STATE, InfoSpec
from rollserve_server.errors import InvalidValueError
from rollserve_server.fields import MAX_STEPS, in_field, in_range, set_fields
from rollserve_server.gateway.messages.dataset_requests import metadata_from_proto
from rollserve_server.gateway.messages.sample_requests import message_format_of, sampling_options_of
from rollserve_server.pool import DriveRequest, DriveResumption, NewDataset, RowFragments, SessionReading, StepActions
from rollserve_server.sampling import External
from rollserve_wire.protobuf import keys_of, length_delimited, varint_field
from rollserve_wire.tensors import named_tensors_from_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from rollserve_server.pool import DrivenStep

__all__ = ["drive_request_from_proto", "driven_step_to_bytes", "step_actions_from_proto"]

_Columns = Mapping[str, np.ndarray]

_OF_AGENTS = ("policy_version", "expected_policy_version", "min_policy_version", "exploration")
_OF_OTHER_CALLS = (
    "agent_update",
    "return_states",
    "return_last_states",
    "return_last_values",
    "prefetch",
    "skip_failed_episodes",
    "first_episode_index",
    "observation_moments",
    "return_discount",
)
_STEP = keys_of(pb.DriveEnvironmentsResponse.DESCRIPTOR)["step"]
_WORKERS = keys_of(pb.DrivenStep.DESCRIPTOR)["workers"]
_ROWS = keys_of(pb.DrivenRows.DESCRIPTOR)
_MAX_LEASE_SECONDS = 3600
_MAX_VERSION = (1 << 63) - 1


def drive_request_from_proto(
    spec: pb.DriveSpec | pb.DriveResumption | pb.SessionReading, _: Collection[Path]
) -> DriveRequest | DriveResumption | SessionReading:
    """Return the request for a session, to go on with one, or to read its rounds.

    Raises:
        InvalidValueError: a field is out of range, or does not fit the others.
    """
    if isinstance(spec, pb.DriveResumption):
        return DriveResumption(spec.token, spec.round_count)
    if isinstance(spec, pb.SessionReading):
        return SessionReading(spec.token, spec.round_count)
    given = set_fields(spec.options)
    with in_field("options"):
        for name in (*(() if spec.agents else _OF_AGENTS), *_OF_OTHER_CALLS):
            if name in given:
                raise InvalidValueError.of(name, expected="none for a session, in which the client acts", got="one")
        messages, options = message_format_of(given), sampling_options_of(given)
    # Steps may not wait for other messages.
    messages = dataclasses.replace(messages, accepts_joined=False)
    length = in_range("fragment_length", spec.fragment_length, 1, MAX_STEPS)
    with in_field("agent_infos"):
        infos = named_tensors_from_proto(spec.agent_infos)
        for name, array in infos.items():
            if not name or name.startswith(("_", STATE)):
                expected = f"a name that begins with neither '_' (masks) nor {STATE!r} (recurrent states)"
                raise InvalidValueError.of(f"[{name!r}]", expected=expected, got="this one" if name else "none")
            if array.shape[:1] != (0,):
                raise InvalidValueError.of(f"[{name!r}]", expected="shape (0, *I)", got=f"shape {array.shape}")
    return DriveRequest(
        RowFragments(length, first_env_seeds=tuple(spec.environment_seeds)),
        messages,
        External(
            tuple(InfoSpec(name, array.dtype, array.shape[1:]) for name, array in infos.items()),
            spec.return_infos,
            tuple(spec.agents),
        ),
        options,
        num_workers=given.get("worker_count"),
        return_spaces=given.get("return_spaces", False),
        min_ready=spec.min_ready_row_count,
        lease_seconds=_lease_seconds(spec),
        dataset=_dataset_of(spec, given),
        to_reader=spec.to_reader,
    )


def _dataset_of(spec: pb.DriveSpec, options: Mapping[str, Any]) -> NewDataset | None:
    if spec.dataset and spec.to_reader:
        raise InvalidValueError.of("dataset", expected="none beside to_reader", got="one")
    if options.get("blackhole") and (spec.dataset or spec.to_reader):
        raise InvalidValueError.of("options.blackhole", expected="false beside a dataset or to_reader", got="true")
    return NewDataset(spec.dataset, metadata_from_proto(spec.description)) if spec.dataset else None


def _lease_seconds(spec: pb.DriveSpec) -> float:
    given = spec.lease_seconds
    if spec.to_reader and not given:
        expected = "a lease beside to_reader, for which rounds are kept that the reader has not got"
        raise InvalidValueError.of("lease_seconds", expected=expected, got=given)
    if not 0 <= given <= _MAX_LEASE_SECONDS:
        raise InvalidValueError.of("lease_seconds", expected=f"from 0 to {_MAX_LEASE_SECONDS}", got=given)
    return given


def step_actions_from_proto(actions: pb.DrivenActions) -> StepActions:
    """Return the actions of a step; raise InvalidValueError for a malformed tensor or version."""
    agents = [_columns(kind, f"actions.agents[{position}]") for position, kind in enumerate(actions.agents)]
    idle, rows, counts = actions.idle, actions.rows, actions.row_step_counts
    version = None
    if actions.HasField("policy_version"):
        version = in_range("actions.policy_version", actions.policy_version, 0, _MAX_VERSION)
    return StepActions(
        actions.step,
        *_columns(actions, "actions"),
        np.array(idle, np.bool_),
        np.array(rows, np.int64),
        np.array(counts, np.int64),
        agents,
        version,
    )


def _columns(actions: pb.DrivenActions | pb.AgentActions, field: str) -> tuple[_Columns, _Columns]:
    """Return columns of actions and of infos."""
    with in_field(f"{field}.actions"):
        columns = named_tensors_from_proto(actions.actions)
    with in_field(f"{field}.agent_infos"):
        return columns, named_tensors_from_proto(actions.agent_infos)


def driven_step_to_bytes(step: DrivenStep) -> bytes:
    """Return a serialized response with a step; what workers have serialized passes through as it is."""
    parts = [varint_field(pb.DrivenStep.STEP_FIELD_NUMBER, step.step)]
    for worker in step.workers:
        content = [worker.data]
        if worker.rows is not None:
            content += length_delimited(_ROWS["rows"], [np.array(worker.rows, np.int64).tobytes()])
            counts = np.full(len(worker.rows), worker.num_steps)
            content += length_delimited(_ROWS["row_step_counts"], [counts.tobytes()])
        parts += length_delimited(_WORKERS, content)
    return b"".join(length_delimited(_STEP, parts))
