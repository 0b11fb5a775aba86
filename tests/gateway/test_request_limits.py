"""Limits of fields and texts of a request, checked before it is parsed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from support import raises

from rollserve import Reason
from rollserve_server.errors import OverLimitError
from rollserve_server.gateway.requests.parsing import MAX_FIELDS, MAX_NAME_BYTES, MAX_TEXT_BYTES, check_fields
from rollserve_wire.tensors import named_tensors_to_proto
from rollserve_wire.v1 import sampler_service_pb2 as pb

KINDS: list[type[Message]] = [pb.UpdateAgentRequest, pb.UpdateEnvRequest, pb.EvaluateRequest, pb.ObtainSamplesRequest]


def num_fields(message: Message) -> int:
    """Return the number of set fields of a message, counting nested ones and the elements of lists of numbers."""
    count = 0
    for field, value in message.ListFields():
        values: Any = value if field.is_repeated else [value]
        if field.message_type is not None:
            count += len(values) + sum(map(num_fields, values))
        elif field.is_repeated and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            count += 1 + len(values)
        else:
            count += len(values)
    return count


def is_refused(kind: type[Message], data: bytes) -> bool:
    try:
        check_fields(kind, data)
    except OverLimitError as error:
        return error.reason == Reason.REQUEST_TOO_LARGE
    return False


@st.composite
def requests(draw: st.DrawFn) -> pb.UpdateEnvRequest | pb.UpdateAgentRequest | pb.ObtainSamplesRequest:
    names = st.text(max_size=3)
    match draw(st.sampled_from(["env", "agent", "samples"])):
        case "env":
            env = pb.UpdateEnvRequest(sampler=draw(names))
            for name in draw(st.lists(names, max_size=4)):
                update = env.per_worker.updates.add()
                update.environment.id = name
                for wrapper in draw(st.lists(names, max_size=3)):
                    update.environment.wrappers.add(name=wrapper, kwargs_json="{}")
            return env
        case "agent":
            agent = pb.UpdateAgentRequest()
            agent.all_workers.agent.mlp.layer_sizes.extend(draw(st.lists(st.integers(0, 127), max_size=5)))
            arrays = {name: np.zeros((2, 3)) for name in draw(st.sets(names, max_size=3))}
            agent.all_workers.agent.mlp.parameters.tensors.extend(named_tensors_to_proto(arrays))
            return agent
        case _:
            samples = pb.ObtainSamplesRequest(step_count=draw(st.integers(0, 1 << 60)))
            samples.options.exploration.temperatures.extend(draw(st.lists(st.floats(0, 1), max_size=5)))
            samples.options.seed = draw(st.integers(0, (1 << 64) - 1))
            return samples


@given(request=requests())
def test_number_of_fields_is_counted(request: Message) -> None:
    data, count = request.SerializeToString(), num_fields(request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rollserve_server.gateway.requests.parsing.MAX_FIELDS", count)
        assert not is_refused(type(request), data)
        if count:
            patch.setattr("rollserve_server.gateway.requests.parsing.MAX_FIELDS", count - 1)
            assert is_refused(type(request), data)


@given(data=st.binary(max_size=200), kind=st.sampled_from(KINDS))
def test_malformed_bytes_are_left_to_the_parser(data: bytes, kind: type[Message]) -> None:
    assert not is_refused(kind, data)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        # 16 Mi empty updates, a varint that does not end, and nested messages.
        pytest.param(pb.UpdateEnvRequest, b"\x1a\x80\x80\x80\x10" + b"\x0a\x00" * (1 << 24), id="messages"),
        pytest.param(pb.ObtainSamplesRequest, b"\xff" * (1 << 24), id="number"),
        pytest.param(pb.UpdateEnvRequest, b"\x12\x80\x80\x80\x08" * (1 << 20), id="depth"),
    ],
)
@pytest.mark.timeout(60)  # a full count would take minutes
def test_hostile_bytes_are_checked_quickly(kind: type[Message], data: bytes) -> None:
    is_refused(kind, data)


def test_too_many_fields_or_bytes_are_rejected() -> None:
    env = pb.UpdateEnvRequest()
    env.per_worker.updates.extend([type(env.all_workers)()] * MAX_FIELDS)
    assert is_refused(pb.UpdateEnvRequest, env.SerializeToString())
    samples = pb.ObtainSamplesRequest()
    samples.options.exploration.temperatures.extend([1.0] * MAX_FIELDS)
    assert is_refused(pb.ObtainSamplesRequest, samples.SerializeToString())
    text = pb.UpdateEnvRequest()
    text.all_workers.change.kwargs_json = " " * MAX_TEXT_BYTES
    check_fields(pb.UpdateEnvRequest, text.SerializeToString())
    text.all_workers.change.kwargs_json += " "
    quotes = (str(MAX_TEXT_BYTES + 1), str(MAX_TEXT_BYTES))
    with raises(OverLimitError, field="all_workers.change.kwargs_json", reason=Reason.REQUEST_TOO_LARGE, quotes=quotes):
        check_fields(pb.UpdateEnvRequest, text.SerializeToString())
    paths: dict[str, Message] = {}
    env = pb.UpdateEnvRequest()
    for _ in range(3):
        env.per_worker.updates.add().environment.wrappers.add()
    env.per_worker.updates[2].environment.wrappers.add(name="x" * (2 << 20))
    paths["per_worker.updates[2].environment.wrappers[1].name"] = env
    agent = pb.UpdateAgentRequest()
    agent.all_workers.agent.onnx.infos.extend(["a", "x" * (2 << 20)])
    paths["all_workers.agent.onnx.infos[1]"] = agent
    mapped = pb.UpdateAgentRequest()
    mapped.all_workers.agent.onnx.inputs["x" * (2 << 20)] = "a"
    paths["all_workers.agent.onnx.inputs"] = mapped
    for path, request in paths.items():
        with raises(OverLimitError, field=path, reason=Reason.REQUEST_TOO_LARGE):
            check_fields(type(request), request.SerializeToString())
    large = pb.UpdateAgentRequest()
    large.all_workers.agent.onnx.model = bytes(8 << 20)
    check_fields(pb.UpdateAgentRequest, large.SerializeToString())


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GetSamplerRequest(sampler="x" * (MAX_NAME_BYTES + 1)), "sampler"),
        (pb.ReadDatasetRequest(sources=[{}, {"files": {"paths": ["x"] * 4097}}]), "sources[1].files.paths"),
        (pb.RenderEpisodeRequest(overlays=[1] * 4097), "overlays"),
        (pb.UpdateEnvRequest(per_worker={"updates": [{}] * 10_001}), "per_worker.updates"),
    ],
)
def test_long_names_and_many_elements_are_rejected(request_: Message, field: str) -> None:
    with raises(OverLimitError, field=field, reason=Reason.REQUEST_TOO_LARGE):
        check_fields(type(request_), request_.SerializeToString())


def test_elements_of_all_parts_of_a_message_count() -> None:
    request = pb.UpdateAgentRequest()
    for number in range(600):
        request.all_workers.policies.policies[str(number)].agent.random.SetInParent()
    part = request.SerializeToString()
    check_fields(pb.UpdateAgentRequest, part)
    with raises(OverLimitError, field="all_workers.policies.policies", reason=Reason.REQUEST_TOO_LARGE, quotes="1024"):
        check_fields(pb.UpdateAgentRequest, part + part)
