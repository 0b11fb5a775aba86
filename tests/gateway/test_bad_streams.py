"""Streams that the server rejects, with the field at fault; and messages of clients that it does not expect."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator

import grpc
import pytest
from rejections import Rejection, check_status, rejections

import rollserve
from rollserve import Reason
from rollserve_server.local import LocalServer, local_server
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1 import tensor_pb2
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


@pytest.fixture(scope="module")
def address() -> Iterator[LocalServer]:
    options = ("--env", "CartPole-v1", "--backend", "in-process", "--workers", "2", "--vectorization", "rows", "--rows")
    with local_server(*options, "4", "--seed", "0") as server:
        with rollserve.connect(server.address) as sampler:
            sampler.update_agent(rollserve.RandomAgent())
        yield server


@pytest.fixture
def stub(address: LocalServer) -> Iterator[SamplerServiceStub]:
    with grpc.insecure_channel(address.address) as channel:
        yield SamplerServiceStub(channel)


def episodes(step_count: int = 10, **fields: object) -> pb.StreamSamplesRequest:
    options = pb.SamplingOptions(**fields.pop("options", {}))  # type: ignore[arg-type]
    spec = pb.StreamSpec(episodes=pb.StreamedEpisodes(step_count=step_count), options=options, **fields)  # type: ignore[arg-type]
    return pb.StreamSamplesRequest(spec=spec)


def fragments(
    fragment_length: int = 4, *, row_step_count: int | None = None, **fields: object
) -> pb.StreamSamplesRequest:
    rounds = pb.StreamedFragments(fragment_length=fragment_length, row_step_count=row_step_count)
    options = pb.SamplingOptions(**fields.pop("options", {}))  # type: ignore[arg-type]
    return pb.StreamSamplesRequest(spec=pb.StreamSpec(fragments=rounds, options=options, **fields))  # type: ignore[arg-type]


RECEIPT = pb.StreamSamplesRequest(receipt=pb.StreamReceipt(round_count=1))
CASES = {
    "nothing": Rejection(pb.StreamSamplesRequest(), "content", ("spec",)),
    "a receipt first": Rejection(RECEIPT, "content", ("spec", "receipt")),
    "no rounds": Rejection(pb.StreamSamplesRequest(spec=pb.StreamSpec()), "spec.rounds", ("episodes",)),
    "no steps": Rejection(episodes(0), "spec.episodes.step_count", ("0", "1")),
    "no length": Rejection(fragments(0), "spec.fragments.fragment_length", ("0",)),
    "no total": Rejection(fragments(step_count=0), "spec.step_count", ("0",)),
    "no bytes": Rejection(fragments(max_ahead_bytes=0), "spec.max_ahead_bytes", ("0",)),
    "no unread rounds": Rejection(fragments(max_unread_rounds=0), "spec.max_unread_rounds", ("0",)),
    "few steps ahead": Rejection(fragments(max_ahead_steps=31), "spec.max_ahead_steps", ("31", "32")),
    "few steps of a version": Rejection(episodes(max_steps_per_version=9), "spec.max_steps_per_version", ("9", "10")),
    "a position without a seed": Rejection(fragments(row_step_count=1), "spec.fragments.row_step_count", ("seed",)),
    "an unknown position": Rejection(
        fragments(row_step_count=7, options={"seed": 1}), "spec.fragments.row_step_count", ("7",), Reason.ROW_STEP_COUNT
    ),
    "episodes at the next step": Rejection(
        episodes(apply_update=pb.APPLY_UPDATE_NEXT_STEP), "spec.apply_update", ("NEXT_STEP",)
    ),
    "fragments at the next episode": Rejection(
        fragments(apply_update=pb.APPLY_UPDATE_NEXT_EPISODE), "spec.apply_update", ("NEXT_EPISODE",)
    ),
    "an unknown time": Rejection(fragments(apply_update=9), "spec.apply_update", ("9",)),
    "an unknown way": Rejection(fragments(when_full=9), "spec.when_full", ("9",)),
    "a version": Rejection(fragments(options={"policy_version": 1}), "spec.options.policy_version", ("1",)),
    "prefetch": Rejection(episodes(options={"prefetch": True}), "spec.options.prefetch", ("true",)),
    "blackhole": Rejection(episodes(options={"blackhole": True}), "spec.options.blackhole", ("true",)),
    "a discount": Rejection(fragments(options={"return_discount": 1.5}), "spec.options.return_discount", ("1.5",)),
    "an index of fragments": Rejection(
        fragments(options={"seed": 1, "first_episode_index": 1}), "spec.options.first_episode_index", ("fragments",)
    ),
    "an index without a seed": Rejection(
        episodes(options={"first_episode_index": 1}), "spec.options.first_episode_index", ("options.seed",)
    ),
    "skipped episodes of fragments": Rejection(
        fragments(options={"skip_failed_episodes": True}), "spec.options.skip_failed_episodes", ("true",)
    ),
    "another number of workers": Rejection(
        fragments(options={"worker_count": 5}), "spec.options.worker_count", ("5", "2"), Reason.WORKER_COUNT
    ),
    "another run": Rejection(
        episodes(options={"sampler_run": "x"}), "spec.options.sampler_run", ("'x'",), Reason.SAMPLER_RUN
    ),
    "no compression": Rejection(
        episodes(options={"accept_compression": [tensor_pb2.COMPRESSION_UNSPECIFIED]}),
        "spec.options.accept_compression[0]",
    ),
    "an unknown sampler": Rejection(
        pb.StreamSamplesRequest(spec=pb.StreamSpec(sampler="x")), "spec.sampler", ("'x'",), Reason.SAMPLER_NOT_FOUND
    ),
}


@rejections(CASES)
def test_bad_stream_is_rejected(stub: SamplerServiceStub, rejection: Rejection) -> None:
    error = error_of(stub, [rejection.request])
    if rejection.reason is Reason.WORKER_COUNT:
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        return
    check_status(error, rejection.reason, field=rejection.field, quotes=rejection.quotes)


@pytest.mark.parametrize("later", [pb.StreamSamplesRequest(), fragments()], ids=["nothing", "a second spec"])
def test_later_message_that_is_no_receipt_ends_the_stream(
    stub: SamplerServiceStub, later: pb.StreamSamplesRequest
) -> None:
    check_status(error_of(stub, [fragments(), later]), Reason.INVALID_VALUE, field="content", quotes="receipt")


def test_messages_of_a_stream_come_in_their_order(stub: SamplerServiceStub) -> None:
    """Read a stream as any client does: rounds after their batches, within the window, and one account at the end."""
    requests: queue.SimpleQueue[pb.StreamSamplesRequest | None] = queue.SimpleQueue()
    requests.put(fragments(4, max_unread_rounds=1, max_ahead_steps=32))
    kinds, num_steps = [], 0
    for response in stub.StreamSamples(iter(requests.get, None)):
        kinds.append(response.WhichOneof("content"))
        if response.HasField("batch"):
            num_steps += sum(response.batch.lengths)
        if response.HasField("round"):
            assert response.round.step_count == num_steps == 32
            assert response.round.row_count == 8
            assert response.round.next_row_step_count == response.round.row_step_count + 4
            num_steps = 0
            if response.round.round_number == 3:
                requests.put(None)
            else:
                requests.put(pb.StreamSamplesRequest(receipt=pb.StreamReceipt(round_count=kinds.count("round"))))
    assert kinds[0] == "beginning"
    assert kinds[-1] == "account"
    assert [kind for kind in kinds if kind == "round"] == ["round"] * 4
    assert kinds.count("account") == kinds.count("beginning") == 1


def error_of(stub: SamplerServiceStub, requests: Iterable[pb.StreamSamplesRequest]) -> grpc.RpcError:
    """Return the error of a stream whose client sends these messages and does not end it."""
    sent: queue.SimpleQueue[pb.StreamSamplesRequest | None] = queue.SimpleQueue()
    for request in requests:
        sent.put(request)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in stub.StreamSamples(iter(sent.get, None)):
            pass
    sent.put(None)
    return caught.value
