"""Requests as large as their bounds allow: the event loop pauses for a fraction of a second of processor time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from raw_calls import SERVICE
from support import server_environment

import rollserve
from rollserve_server.gateway.requests.parsing import MAX_FIELDS, MAX_NAME_BYTES, MAX_TEXT_BYTES, max_elements
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb

MAX_PAUSE_SECONDS = 0.3
"""Three times what the slowest takes on a quiet machine."""
METHODS = list(pb.DESCRIPTOR.services_by_name["SamplerService"].methods)
_MAX_BYTES = 4 << 20
_Path = tuple[FieldDescriptor, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder for datasets."""
    return tmp_path_factory.mktemp("pauses")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "1", "--data-dir", str(folder))
    options += ("--allow-module", "sample_envs", "--allow-path", str(folder))
    with local_server(*options, log=folder / "log", environment=server_environment(), module="pausing_server") as made:
        yield made
        assert "Traceback" not in (folder / "log").read_text()


def growing_fields(message: Descriptor, path: _Path = ()) -> Iterator[_Path]:
    """Yield the paths of all fields of a message that have elements or texts; recursive messages once."""
    for field in message.fields:
        if field.is_repeated or field.type == FieldDescriptor.TYPE_STRING:
            yield (*path, field)
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        if inner is not None and all(field.message_type is not each.message_type for each in path):
            yield from growing_fields(inner, (*path, field))


def filled(kind: Descriptor, path: _Path) -> Message:
    """Return a request whose field at a path is at its bound."""
    request = GetMessageClass(kind)()
    message: Any = request
    for field in path[:-1]:
        message = _element(message, field, 0)
    field = path[-1]
    if not field.is_repeated:
        setattr(message, field.name, _text(field))
        return request
    num_elements, num_bytes = min(max_elements(field), MAX_FIELDS // 8), 0
    for number in range(num_elements):
        element = _element(message, field, number)
        num_bytes += element.ByteSize() + 16 if isinstance(element, Message) else 9
        if num_bytes > _MAX_BYTES - (1 << 16):
            break
    return request


def _element(message: Any, field: FieldDescriptor, number: int) -> Any:
    """Add an element with a name of its own to a field, or set the field, and return the value."""
    value = getattr(message, field.name)
    entry = field.message_type if field.message_type is not None and field.message_type.GetOptions().map_entry else None
    if entry is not None:
        if entry.fields_by_name["value"].message_type is None:
            value[str(number)] = "x"
            return None
        return _named(value[str(number)], number)
    if not field.is_repeated:
        value.SetInParent()
        return value
    if field.message_type is not None:
        return _named(value.add(), number)
    value.append(str(number) if field.type == FieldDescriptor.TYPE_STRING else 1)
    return None


def _named(message: Any, number: int) -> Any:
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated and not field.name.endswith("_json"):
            setattr(message, field.name, str(number))
            break
    message.SetInParent()
    return message


def _text(field: FieldDescriptor) -> str:
    if field.name.endswith("_json"):
        members = ", ".join(f'"{number}": [{{}}, "/a"]' for number in range(MAX_TEXT_BYTES // 24))
        return f"{{{members}}}"
    return "a/" * ((MAX_TEXT_BYTES if field.name == "description" else MAX_NAME_BYTES) // 2)


def pause_of(server: LocalServer, method: str, request: Message) -> tuple[float, grpc.StatusCode]:
    """Return how long the loop paused for a request, and the status, OK if there is any response."""
    server.request("pause")
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(f"{SERVICE}/{method}")
        responses = call(iter([request.SerializeToString()]), timeout=60)
        try:
            next(responses, None)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
        responses.cancel()
    return float(server.request("pause")), code


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_loop_pauses_shortly_for_each_field_at_its_bound(server: LocalServer, method: Any) -> None:
    long = {}
    for path in growing_fields(method.input_type):
        pause, code = pause_of(server, method.name, filled(method.input_type, path))
        if pause > MAX_PAUSE_SECONDS or code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
            long[".".join(field.name for field in path)] = pause, code
    assert not long


def policies(num_policies: int) -> pb.UpdateAgentRequest:
    """Return an update of so many policies; each agent draws one of them."""
    request = pb.UpdateAgentRequest()
    update = request.all_workers.policies
    for number in range(num_policies):
        update.policies[f"p{number}"].agent.random.SetInParent()
    rule = update.policy_map.rules.add(prefix="")
    for number in range(num_policies):
        rule.choices.add(policy=f"p{number}", weight=1)
    return request


def lineups() -> pb.EvaluateRequest:
    request = pb.EvaluateRequest(episode_count=1)
    for _ in range(4096):
        policy_map = request.options.policy_maps.add()
        for number in range(10):
            policy_map.rules.add(prefix=f"relay_{number}").choices.add(policy=f"p{number}", weight=1)
        policy_map.rules.add(prefix="").choices.add(policy="p0", weight=1)
    return request


def reads(num_sources: int, num_paths: int, path: str) -> pb.ReadDatasetRequest:
    request = pb.ReadDatasetRequest()
    for _ in range(num_sources):
        request.sources.add().files.paths.extend([path] * num_paths)
    return request


def env_with_path() -> pb.UpdateEnvRequest:
    request = pb.UpdateEnvRequest()
    request.all_workers.environment.id = "CartPole-v1"
    request.all_workers.environment.kwargs_json = f'{{"path": "/{"a/" * (MAX_TEXT_BYTES // 2 - 10)}"}}'
    return request


@pytest.mark.parametrize(
    ("method", "request_", "expected"),
    [
        pytest.param("UpdateAgent", policies(50_000), grpc.StatusCode.RESOURCE_EXHAUSTED, id="policies"),
        pytest.param("UpdateAgent", policies(1024), grpc.StatusCode.INVALID_ARGUMENT, id="most-policies"),
        pytest.param("ReadDataset", reads(12, 1024, "a"), grpc.StatusCode.NOT_FOUND, id="paths"),
        pytest.param("ReadDataset", reads(1, 1, "a/" * (1 << 19)), grpc.StatusCode.RESOURCE_EXHAUSTED, id="path"),
        pytest.param("UpdateEnv", env_with_path(), grpc.StatusCode.PERMISSION_DENIED, id="argument"),
    ],
)
def test_loop_pauses_shortly_for_large_requests(
    server: LocalServer, method: str, request_: Message, expected: grpc.StatusCode
) -> None:
    pause, code = pause_of(server, method, request_)
    assert code is expected
    assert pause < MAX_PAUSE_SECONDS


def test_folders_of_a_read_are_walked_in_another_process(server: LocalServer, folder: Path) -> None:
    """A walk in a thread of the server would take its processor time, and the interpreter's lock, from all others."""
    walked = folder / "walked"
    (walked / "files").mkdir(parents=True)
    for number in range(2000):
        (walked / "files" / str(number)).touch()
    for number in range(128):  # each is another path to the same files
        (walked / f"link-{number}").symlink_to("files")
    request = pb.ReadDatasetRequest()
    for first in range(0, 128, 32):
        request.sources.add().files.paths.extend(f"walked/link-{number}" for number in range(first, first + 32))
    request.sources[-1].files.paths.append("walked/none")

    began = time.process_time()
    for number in range(128):
        for path, _, files in os.walk(walked / f"link-{number}"):
            assert not any(os.path.islink(os.path.join(path, name)) for name in files)
    walk_seconds = time.process_time() - began

    process, answers = psutil.Process(server.process.pid), 0
    before = process.cpu_times()
    with grpc.insecure_channel(server.address) as channel, rollserve.connect(server.address) as other:
        call = channel.stream_stream(f"{SERVICE}/ReadDataset")(iter([request.SerializeToString()]), timeout=120)
        while call.is_active():
            other.status()
            answers += 1
            time.sleep(0.1 if answers < 5 else 0.5)  # answers take processor time, too
        assert call.code() is grpc.StatusCode.NOT_FOUND
    after = process.cpu_times()
    server_seconds = after.user + after.system - before.user - before.system  # without its child processes
    assert server_seconds < walk_seconds / 2
    assert answers >= 5


@pytest.mark.slow
def test_loop_pauses_shortly_for_many_policies_of_many_agents(server: LocalServer) -> None:
    relay = rollserve.EnvSpec("sample_envs:relay", {"num_agents": 64}, multi_agent="aec")
    with rollserve.connect(server.address) as sampler:
        sampler.update_env(relay)
        pause, code = pause_of(server, "UpdateAgent", policies(1024))
        assert code is grpc.StatusCode.OK
        assert pause < MAX_PAUSE_SECONDS
        pause, code = pause_of(server, "Evaluate", lineups())
        assert code is grpc.StatusCode.OK
        assert pause < MAX_PAUSE_SECONDS
        sampler.update_env("CartPole-v1")
