"""The judgement of an adapter's answers, by what the server received and sent, and by a plain reader of the bytes."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from rollserve_conformance.description import (
    OPTIONAL_GROUPS,
    OPTIONAL_STATES,
    REQUIRED_GROUPS,
    describe_answer,
    describe_batch,
    describe_error,
    describe_many,
    describe_views,
)
from rollserve_conformance.driving import PlainSession
from rollserve_conformance.many_reading import has_many_agents, read_many_stream
from rollserve_conformance.operations import RPCS, meaning, request_of
from rollserve_conformance.reading import read_stream, unjoined
from rollserve_conformance.recordings import recording
from rollserve_wire.v1 import sampler_service_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from rollserve_conformance.cases import Case
    from rollserve_conformance.server import ConformanceServer
    from rollserve_wire.v1.episode_batch_pb2 import Beginning

__all__ = ["WrongError", "judge"]

_SAMPLING: Mapping[str, type[Message]] = {
    "ObtainSamples": pb.ObtainSamplesRequest,
    "ObtainExactEpisodes": pb.ObtainExactEpisodesRequest,
}
_REFERENCE_MESSAGE_BYTES = 64 << 20
_TOLERANCE = 1e-9
"""Relative: clients add rewards up in different orders."""


class WrongError(Exception):
    """A result is wrong; the text says where, what was expected, and what came."""


def judge(case: Case, server: ConformanceServer, results: Sequence[Mapping[str, Any]]) -> None:
    """Check the results of a case.

    Args:
        case: the case.
        server: the server, in the state in which the adapter left it.
        results: the adapter's results.

    Raises:
        WrongError: one of them is wrong.
    """
    if len(results) != len(case.operations):
        raise WrongError(f"results: expected {len(case.operations)}, got {len(results)}")
    rpcs = _Rpcs(server.records())
    num_resumptions = 0
    for place, (operation, result) in enumerate(zip(case.operations, results, strict=True)):
        where = f"operation {place + 1}, {operation['do']}"
        if operation["do"] not in RPCS:
            _check(case.expected[place], result, where)
            continue
        if place in case.client_errors:
            rpcs.skip(operation)
            _check({"error": case.client_errors[place]}, result, where)
            continue
        calls = rpcs.next_of(operation, where)
        num_resumptions += len(calls) - 1
        if operation["do"] == "drive":
            _check_session(operation, calls, server, result, where)
            _check(case.expected.get(place, {}), result, where)
            continue
        request = _parsed(calls[0])
        if request is not None:
            _check(meaning(request_of(operation)), meaning(request), f"{where}, request", is_whole=True)
        expected = _expected(case, place, operation, calls, server)
        if "batch" in expected and "batch" in result:
            _check_batch(expected["batch"], result["batch"], f"{where}.batch")
        elif "multi_agent_batch" in expected and "multi_agent_batch" in result:
            _check_many(expected, result, where)
        else:
            _check(expected, result, where)
        _check(case.expected.get(place, {}), result, where)
    if case.resumes and not num_resumptions:
        raise WrongError("expected a stream that is taken up again, got none: its fault was not made")
    try:
        server.faulty.check_faults()
    except AssertionError as error:
        raise WrongError(str(error)) from None


class _Rpcs:
    """The records of the RPCs of a case, which the operations take one after the other."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._records = list(records)

    def next_of(self, operation: Mapping[str, Any], where: str) -> list[Mapping[str, Any]]:
        """Return the RPC of an operation, and the calls that resume it."""
        name = RPCS[operation["do"]]
        while self._records and self._records[0]["rpc"] != name:
            self._records.pop(0)  # clients may ask for the status, say, when they like
        if not self._records:
            raise WrongError(f"{where}: expected a call of {name}, got none")
        calls = [self._records.pop(0)]
        while self._records and self._records[0]["rpc"] == name and _resumes(self._records[0]):
            calls.append(self._records.pop(0))
        return calls

    def skip(self, operation: Mapping[str, Any]) -> None:
        """Drop the RPC of an operation whose error the client makes itself, if the server has seen one."""
        if self._records and self._records[0]["rpc"] == RPCS[operation["do"]]:
            self._records.pop(0)


def _parsed(record: Mapping[str, Any]) -> Message | None:
    """Return the first request of an RPC; None if the server has refused to read it."""
    if not record["requests"] and record["status"] != "OK":
        return None
    kind = pb.DESCRIPTOR.services_by_name["SamplerService"].methods_by_name[record["rpc"]].input_type.name
    request: Message = getattr(pb, kind).FromString(base64.b64decode(record["requests"][0]))
    return request


def _resumes(record: Mapping[str, Any]) -> bool:
    request: Any = _parsed(record)
    if isinstance(request, pb.DriveEnvironmentsRequest):
        return request.HasField("resumption")
    return bool(getattr(getattr(request, "options", None), "sampler_run", ""))


def _expected(
    case: Case,
    place: int,
    operation: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    server: ConformanceServer,
) -> dict[str, Any]:
    rpc, last = calls[0]["rpc"], calls[-1]
    if place in case.recorded:
        if last["status"] == "UNIMPLEMENTED":
            raise WrongError(f"request: {last['details']}")
        recorded = recording(case.recorded[place]).expected
        is_stream = operation["do"] == "stream_samples"
        return {"num_steps": sum(recorded["lengths"])} if is_stream else {"batch": recorded}
    if case.stops and place == len(case.operations) - 1:
        if last["status"] != "CANCELLED":
            raise WrongError(f"expected the client to cancel the stream, got its end: {last['status'] or 'none yet'}")
        return {"num_batches": operation["stop_after"]}
    if last["status"] != "OK":
        return {"error": describe_error(last)}
    if rpc not in _SAMPLING:
        return describe_answer(rpc, [base64.b64decode(response) for response in last["responses"]])
    reference = _reference(operation, _beginning_of(calls[0]), server)
    batch = reference["multi_agent_batch" if "multi_agent_batch" in reference else "batch"]
    if operation["do"] == "stream_samples":
        return {"num_steps": sum(batch["lengths"])}
    batch["account"]["num_resumptions"] = len(calls) - 1
    if len(calls) > 1:
        batch["account"].pop("dropped_infos", None)  # no account has those before the interruption
    return reference


def _check_session(
    operation: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    server: ConformanceServer,
    result: Mapping[str, Any],
    where: str,
) -> None:
    """Check the requests and results of a session, by a plain one that does the same in one stream."""
    record = records[-1]
    expected: list[dict[str, Any]] = []
    with _channel(server) as channel:
        method = channel.stream_stream(
            f"/rollserve.v1.SamplerService/{RPCS[operation['do']]}",
            pb.DriveEnvironmentsRequest.SerializeToString,
            pb.DriveEnvironmentsResponse.FromString,
        )
        session = PlainSession(operation, method)
        try:
            expected += (session.result(each) for each in operation["operations"])
        except grpc.RpcError:
            num_left = len(operation["operations"]) - len(expected)
            expected += [{"error": describe_error(record)}] * num_left
        finally:
            session.close()
    wanted, requests = list(map(meaning, session.requests)), _sent(records, where)
    if operation.get("min_ready"):  # which rows act together is up to chance
        wanted, requests = ([each for each in sent if "actions" not in each] for sent in (wanted, requests))
    if record["status"] == "OK" or len(requests) < len(wanted):
        _check(len(wanted), len(requests), f"{where}, requests")
    for place, (one, other) in enumerate(zip(wanted, requests, strict=False)):
        _check(one, other, f"{where}, request {place + 1}", is_whole=True)
    results = result.get("results", [])
    _check(len(expected), len(results), f"{where}, results")
    for asked, reference, each in zip(operation["operations"], expected, results, strict=True):
        if "batch" in reference and "batch" in each:
            _check_batch(reference["batch"], each["batch"], f"{where}.batch")
        else:
            _check(reference, each, f"{where}, {asked['do']}")


def _sent(records: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
    """Return what a client has sent in the streams of a session, as it would have in a single one.

    Raises:
        WrongError: a stream takes up another session.
    """
    sent: list[Any] = []
    for record in records:
        requests = [pb.DriveEnvironmentsRequest.FromString(base64.b64decode(each)) for each in record["requests"]]
        if sent:
            resumption = requests.pop(0).resumption
            _check(_token_of(records[0]), resumption.token, f"{where}, resumption.token")
        new = list(map(meaning, requests))
        again = next(count for count in range(len(new), -1, -1) if new[:count] == sent[len(sent) - count :])
        sent += new[again:]
    return sent


def _token_of(record: Mapping[str, Any]) -> str:
    """Return the token of a session."""
    responses = map(pb.DriveEnvironmentsResponse.FromString, map(base64.b64decode, record["responses"]))
    return next(response.beginning.session_token for response in responses if response.HasField("beginning"))


def _beginning_of(record: Mapping[str, Any]) -> Beginning:
    """Return the beginning of a stream; messages that tell what it waits for may come before."""
    messages = unjoined(base64.b64decode(response) for response in record["responses"])
    return next(message.beginning for message in messages if message.HasField("beginning"))


def _reference(operation: Mapping[str, Any], beginning: Beginning, server: ConformanceServer) -> dict[str, Any]:
    """Return the description of the result of a plain call for the same episodes."""
    request: Any = request_of(operation)
    options, fragments = request.options, getattr(request, "fragments", None)
    options.ClearField("agent_update")
    options.policy_version, options.environment_version = beginning.policy_version, beginning.environment_version
    options.max_message_bytes = _REFERENCE_MESSAGE_BYTES
    if not options.HasField("seed"):
        options.seed, options.first_episode_index = beginning.seed, beginning.first_episode_index
    if fragments is not None and request.HasField("fragments"):
        options.ClearField("first_episode_index")
    with _channel(server) as channel:
        method = f"/rollserve.v1.SamplerService/{RPCS[operation['do']]}"
        token = server.connect.get("token")
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        call = channel.unary_stream(method, type(request).SerializeToString, bytes)
        return _described(list(call(request, metadata=metadata)), operation)


def _described(responses: list[bytes], operation: Mapping[str, Any]) -> dict[str, Any]:
    if not has_many_agents(responses):
        return {"batch": describe_batch(read_stream(responses))}
    arrays = read_many_stream(responses)
    return {"multi_agent_batch": describe_many(arrays), **describe_views(arrays, operation.get("views", ()))}


def _channel(server: ConformanceServer) -> grpc.Channel:
    options = [
        ("grpc.max_receive_message_length", _REFERENCE_MESSAGE_BYTES),
        ("grpc.enable_http_proxy", 0),  # a proxy has another loopback address
    ]
    target = server.connect["target"]
    if "ca" not in server.connect:
        return grpc.insecure_channel(target, options)
    with open(server.connect["ca"], "rb") as file:
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(file.read()), options)


def _check_batch(expected: Mapping[str, Any], result: Mapping[str, Any], where: str) -> None:
    """Check the description of a batch, which has to have no other columns."""
    groups = (*REQUIRED_GROUPS, *OPTIONAL_GROUPS)
    _check({name: value for name, value in expected.items() if name not in groups}, result, where)
    for group in groups:
        absent: Any = {} if group in OPTIONAL_GROUPS else "nothing"
        _check(expected.get(group, {}), result.get(group, absent), f"{where}.{group}", is_whole=True)


def _check_many(expected: Mapping[str, Any], result: Mapping[str, Any], where: str) -> None:
    """Check the description of a batch of many agents and of its views, which have to have no other agents."""
    for name, value in expected.items():
        if name == "multi_agent_batch":
            _check_many_batch(value, result[name], f"{where}.batch")
        elif name == "by_agent":
            _check_batches(value, result.get(name, {}), f"{where}.{name}")
        else:
            _check(value, result.get(name, {}), f"{where}.{name}", is_whole=True)


def _check_many_batch(expected: Mapping[str, Any], result: Mapping[str, Any], where: str) -> None:
    _check({name: value for name, value in expected.items() if name != "policies"}, result, where)
    if more := [name for name in OPTIONAL_STATES if name in result and name not in expected]:
        raise WrongError(f"{where}: expected no {more[0]}, got {_text(result[more[0]])}")
    _check_batches(expected["policies"], result.get("policies", {}), f"{where}.policies")


def _check_batches(expected: Mapping[str, Any], result: Mapping[str, Any], where: str) -> None:
    """Check batches by name, of which there have to be no others."""
    _check(sorted(expected), sorted(result), where)
    for name, batch in expected.items():
        _check_batch(batch, result[name], f"{where}.{name}")


def _check(expected: Any, result: Any, where: str, *, is_whole: bool = False) -> None:
    """Check that a result has what is expected; it may have more, unless it has to be the whole."""
    for path, wanted, got in _differences(expected, result, "", is_whole):
        raise WrongError(f"{where}{path}: expected {_text(wanted)}, got {_text(got)}")


def _differences(expected: Any, result: Any, path: str, is_whole: bool) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(expected, Mapping) and isinstance(result, Mapping):
        for name, value in expected.items():
            if name not in result:
                yield f"{path}.{name}", value, "nothing"
            else:
                yield from _differences(value, result[name], f"{path}.{name}", is_whole)
        if is_whole and (more := sorted(result.keys() - expected.keys())):
            yield path, sorted(expected), f"{more} as well"
    elif path.endswith(".message"):
        if _plain(expected) not in _plain(str(result)):
            yield path, expected, result
    elif _has_elements(expected, is_whole) and isinstance(result, list) and len(expected) == len(result):
        for place, (one, other) in enumerate(zip(expected, result, strict=True)):
            yield from _differences(one, other, f"{path}[{place}]", is_whole)
    elif not _equals(expected, result):
        yield path, expected, result


def _has_elements(expected: Any, is_whole: bool) -> bool:
    """Whether the elements are compared one by one, as parts of a whole or as objects that may have more."""
    return isinstance(expected, list) and (is_whole or any(isinstance(each, Mapping) for each in expected))


def _plain(message: str) -> str:
    """Return a message without what differs between names of RPCs and of a client's methods."""
    return message.lower().replace("_", "")


def _equals(expected: Any, result: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(result, list) and len(result) == len(expected) and all(map(_equals, expected, result))
    if isinstance(expected, float):
        is_number = isinstance(result, int | float) and not isinstance(result, bool)
        return is_number and math.isclose(expected, result, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
    return type(expected) is type(result) and expected == result


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}…"
