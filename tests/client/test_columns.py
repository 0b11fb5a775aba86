"""The table of columns beside what it describes: messages, batches, and the options of sampling calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import rollserve
from rollserve_wire.columns import COLUMNS, MANY_COLUMNS, POLICY_COLUMNS, ColumnSpec
from rollserve_wire.v1.episode_batch_pb2 import EpisodeBatch
from rollserve_wire.v1.multi_agent_batch_pb2 import MultiAgentBatch, PolicyBatch
from rollserve_wire.v1.sampler_service_pb2 import SamplingOptions

TABLES = {
    "EpisodeBatch": (COLUMNS, EpisodeBatch, rollserve.EpisodeBatch, {"frame_stacks"}),
    "MultiAgentBatch": (MANY_COLUMNS, MultiAgentBatch, rollserve.MultiAgentBatch, {"agents", "policies"}),
    "PolicyBatch": (POLICY_COLUMNS, PolicyBatch, rollserve.PolicyBatch, {"policy", "batch"}),
}
OTHERS = {"observation_space", "action_space", "account_or_none", "round", "receipt"}
"""Attributes of batches that are no columns."""

tables = pytest.mark.parametrize(("table", "message", "batch", "others"), TABLES.values(), ids=TABLES)


def form_of(field: FieldDescriptor) -> set[str]:
    """Return the kinds of columns that a field of a message can hold."""
    if field.message_type is None:
        return {"header"}
    return {"numbers"} if field.message_type.name == "Tensor" else {"leaves", "infos"}


@tables
def test_fields_of_messages_are_those_of_the_table(
    table: Mapping[str, ColumnSpec], message: type[Message], batch: type, others: set[str]
) -> None:
    fields = {field: spec for spec in table.values() for field in spec.fields}
    described = {field.name: field for field in message.DESCRIPTOR.fields}
    assert fields.keys() | others == described.keys()
    for name, spec in fields.items():
        assert spec.kind in form_of(described[name]), name


@tables
def test_attributes_of_batches_are_those_of_the_table(
    table: Mapping[str, ColumnSpec], message: type[Message], batch: type, others: set[str]
) -> None:
    assert table.keys() == {field.name for field in dataclasses.fields(batch)} - OTHERS - others
    for name in table.keys() & {field.name for field in dataclasses.fields(batch) if field.default is None}:
        assert table[name].default is not None, name


def test_options_of_columns_are_options_of_calls() -> None:
    options = {spec.option for spec in COLUMNS.values()} - {""}
    assert options <= {field.name for field in SamplingOptions.DESCRIPTOR.fields}


def test_own_values_of_the_environment_belong_to_columns_of_steps() -> None:
    for spec in COLUMNS.values():
        if spec.original_of:
            assert (spec.by_step, spec.kind) == (True, COLUMNS[spec.original_of].kind)
