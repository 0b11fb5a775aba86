"""The package's own codec for updates of parameters beside the generated classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollserve_wire.parameter_updates import read_parameters_update, write_parameters_update
from rollserve_wire.tensors import named_tensors_from_proto, named_tensors_to_proto
from rollserve_wire.v1 import agent_pb2, tensor_pb2
from rollserve_wire.v1 import sampler_service_pb2 as pb

DTYPES = ["?", "i1", "u1", "i2", "f2", "i4", "u4", ">f4", "f4", "i8", "u8", "f8"]


@st.composite
def parameter_sets(draw: st.DrawFn) -> dict[str, np.ndarray]:
    source = np.random.default_rng(draw(st.integers(0, 1000)))
    names = draw(st.lists(st.text(max_size=5), unique=True, max_size=4))
    shapes = st.lists(st.integers(0, 200), max_size=2)
    return {name: source.integers(0, 2, draw(shapes)).astype(draw(st.sampled_from(DTYPES))) for name in names}


def generated(sampler: str, parameters: dict[str, np.ndarray], skip: bool = False) -> pb.UpdateAgentRequest:
    tensors = agent_pb2.Parameters(tensors=named_tensors_to_proto(parameters))
    update = pb.AgentUpdate(parameters=tensors)
    return pb.UpdateAgentRequest(sampler=sampler, all_workers=update, skip_if_identical=skip)


@given(
    sampler=st.text(max_size=5),
    client_id=st.text(max_size=5),
    parameters=parameter_sets(),
    skip=st.booleans(),
    expected=st.none() | st.integers(-(2**63), 2**63 - 1),
)
def test_written_update_equals_the_generated_classes(
    sampler: str, client_id: str, parameters: dict[str, np.ndarray], skip: bool, expected: int | None
) -> None:
    request = pb.UpdateAgentRequest(sampler=sampler, skip_if_identical=skip, client_id=client_id)
    if expected is not None:
        request.expected_policy_version = request.expected_environment_version = expected
    data = write_parameters_update(request, parameters)
    whole = generated(sampler, parameters, skip)
    whole.MergeFrom(request)
    assert pb.UpdateAgentRequest.FromString(data) == whole
    for written in (data, whole.SerializeToString()):
        read = read_parameters_update(written)
        assert read is not None
        assert read.request == request
        assert list(read.parameters) == list(parameters)
        for name, array in read.parameters.items():
            assert (array.dtype, array.shape) == (parameters[name].dtype.newbyteorder("<"), parameters[name].shape)
            assert np.array_equal(array, parameters[name])
            assert array.flags.aligned
            assert not array.flags.writeable


@given(parameters=parameter_sets(), skip=st.booleans(), data=st.data())
def test_corrupt_update_is_read_as_the_generated_classes_read_it(
    parameters: dict[str, np.ndarray], skip: bool, data: st.DataObject
) -> None:
    """The codec may also leave such bytes to the generated classes."""
    changed = bytearray(generated("s", parameters, skip).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(changed) - 1))
        changed[start : start + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    read = read_parameters_update(bytes(changed))
    if read is not None:
        request = pb.UpdateAgentRequest.FromString(bytes(changed))
        assert request.WhichOneof("update") == "all_workers"
        assert request.all_workers.WhichOneof("update") == "parameters"
        expected = named_tensors_from_proto(request.all_workers.parameters.tensors)
        rest = pb.UpdateAgentRequest.FromString(bytes(changed))
        rest.ClearField("all_workers")
        assert read.request == rest
        assert {name: array.tobytes() for name, array in read.parameters.items()} == {
            name: array.tobytes() for name, array in expected.items()
        }


def test_other_requests_are_not_read() -> None:
    tensors = named_tensors_to_proto({"a": np.zeros(2)})
    twice = pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(parameters=agent_pb2.Parameters(tensors=[*tensors] * 2)))
    compressed = generated("", {"a": np.zeros(2)})
    compressed.all_workers.parameters.tensors[0].tensor.compression = 1
    for request in (
        pb.UpdateAgentRequest(),
        pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(agent=agent_pb2.Agent(random=agent_pb2.RandomAgent()))),
        pb.UpdateAgentRequest(per_worker=pb.AgentUpdatePerWorker()),
        twice,
        compressed,
    ):
        assert read_parameters_update(request.SerializeToString()) is None
    assert read_parameters_update(b"\xff") is None


def _of_tensors(*tensors: tensor_pb2.NamedTensor) -> pb.UpdateAgentRequest:
    return pb.UpdateAgentRequest(all_workers=pb.AgentUpdate(parameters=agent_pb2.Parameters(tensors=tensors)))


@pytest.mark.parametrize(
    "data",
    [
        _of_tensors(*named_tensors_to_proto({f"{i}": np.zeros(()) for i in range(4097)})).SerializeToString(),
        _of_tensors(tensor_pb2.NamedTensor(name="n" * 4097)).SerializeToString(),
        _of_tensors(tensor_pb2.NamedTensor(tensor=tensor_pb2.Tensor(shape=[1] * 2000))).SerializeToString(),
        pb.UpdateAgentRequest(sampler="s" * 4097, all_workers=_of_tensors().all_workers).SerializeToString(),
        pb.UpdateAgentRequest(skip_if_identical=True).SerializeToString() * 17 + _of_tensors().SerializeToString(),
    ],
    ids=["tensors", "name", "shape", "sampler", "fields"],
)
def test_update_with_more_than_clients_write_is_left_to_the_generated_classes(data: bytes) -> None:
    """The gateway bounds such a request before it parses it."""
    assert read_parameters_update(data) is None
    assert read_parameters_update(_of_tensors().SerializeToString()) is not None
