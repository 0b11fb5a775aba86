"""Sampling requests that the server rejects, with the field at fault."""

from __future__ import annotations

import numpy as np
from rejections import Rejection, check_status, rejection_of, rejections

from rollserve import Reason
from rollserve_wire.v1 import sampler_service_pb2 as pb
from rollserve_wire.v1.sampler_service_pb2_grpc import SamplerServiceStub


def request(step_count: int = 1, **options: object) -> pb.ObtainSamplesRequest:
    return pb.ObtainSamplesRequest(step_count=step_count, options=pb.SamplingOptions(**options))


def exploration(**fields: object) -> pb.ObtainSamplesRequest:
    return request(exploration=pb.Exploration(**fields))


def fragments(step_count: int = 8, *, seed: int | None = None, **fields: object) -> pb.ObtainSamplesRequest:
    options = pb.SamplingOptions(seed=seed)
    return pb.ObtainSamplesRequest(step_count=step_count, fragments=pb.Fragments(**fields), options=options)


def exactly(count: int) -> pb.ObtainExactEpisodesRequest:
    return pb.ObtainExactEpisodesRequest(episode_count_per_worker=count)


CASES = {
    "no step count": Rejection(pb.ObtainSamplesRequest(), "step_count", ("0", "1")),
    "negative step count": Rejection(request(-3), "step_count", ("-3",)),
    "huge step count": Rejection(request(2**63 - 1), "step_count", (str(2**63 - 1),)),
    "no episode count": Rejection(pb.ObtainExactEpisodesRequest(), "episode_count_per_worker", ("0",)),
    "negative episode count": Rejection(exactly(-1), "episode_count_per_worker", ("-1",)),
    "huge episode count": Rejection(exactly(2**62), "episode_count_per_worker", (str(2**62),)),
    "huge first index": Rejection(
        request(seed=2**64 - 1, first_episode_index=2**64 - 1), "options.first_episode_index", (str(2**64 - 1),)
    ),
    "first index without a seed": Rejection(
        request(first_episode_index=1), "options.first_episode_index", ("options.seed",)
    ),
    "unknown sampler": Rejection(
        pb.ObtainSamplesRequest(sampler="other", step_count=1),
        "sampler",
        ("'other'", "'default'"),
        Reason.SAMPLER_NOT_FOUND,
    ),
    "no run": Rejection(request(sampler_run=""), "options.sampler_run", ("Beginning",)),
    "other run": Rejection(request(sampler_run="x"), "options.sampler_run", ("'x'",), Reason.SAMPLER_RUN),
    "other environment version": Rejection(
        request(expected_environment_version=999),
        "options.expected_environment_version",
        ("999",),
        Reason.UNEXPECTED_VERSION,
    ),
    "long id of a client": Rejection(request(client_id="x" * 65), "options.client_id", ("64", "65")),
    "small messages": Rejection(request(max_message_bytes=100), "options.max_message_bytes", ("100", "4096")),
    "huge messages": Rejection(request(max_message_bytes=1 << 30), "options.max_message_bytes", (str(1 << 30),)),
    "unset compression": Rejection(
        request(accept_compression=[1, 0]), "options.accept_compression[1]", ("COMPRESSION",)
    ),
    "temperature of 0": Rejection(
        exploration(temperatures=[0]), "options.exploration.temperatures[0]", ("1e-06", "1e+06")
    ),
    "temperature of NaN": Rejection(
        exploration(temperatures=[np.nan]), "options.exploration.temperatures[0]", ("nan",)
    ),
    "negative noise scale": Rejection(exploration(noise_scales=[-1]), "options.exploration.noise_scales[0]", ("-1",)),
    "epsilon above 1": Rejection(exploration(epsilons=[1.5]), "options.exploration.epsilons[0]", ("1.5",)),
    "temperature beside deterministic": Rejection(
        exploration(temperatures=[2], deterministic=True), "options.exploration.temperatures", ("deterministic",)
    ),
    "too many epsilons": Rejection(exploration(epsilons=[0] * 1025), "options.exploration.epsilons", ("1025", "1024")),
    "noise scale without meaning": Rejection(
        exploration(noise_scales=[2]), "options.exploration.noise_scales", ("categorical",)
    ),
    "noise scale of 1 without meaning": Rejection(
        exploration(noise_scales=[1]), "options.exploration.noise_scales", ("categorical", "1.0")
    ),
    "epsilon without meaning": Rejection(exploration(epsilons=[0]), "options.exploration.epsilons", ("categorical",)),
    "other policy version": Rejection(
        request(expected_policy_version=999), "options.expected_policy_version", ("999",), Reason.UNEXPECTED_VERSION
    ),
    "fragments that rows cannot share": Rejection(fragments(12), "step_count", ("12", "8 or 16")),
    "first index of fragments": Rejection(
        pb.ObtainSamplesRequest(
            step_count=8, fragments=pb.Fragments(), options=pb.SamplingOptions(seed=1, first_episode_index=1)
        ),
        "options.first_episode_index",
        ("1", "fragments"),
    ),
    "soft horizon without a limit": Rejection(
        fragments(soft_horizon=True), "fragments.soft_horizon", ("options.max_episode_length",)
    ),
    "too many skipped steps": Rejection(fragments(skip_step_count=9), "fragments.skip_step_count", ("9", "8")),
    "row step count without a seed": Rejection(
        fragments(row_step_count=0), "fragments.row_step_count", ("options.seed",)
    ),
    "huge row step count": Rejection(
        fragments(seed=1, row_step_count=2**64 - 1), "fragments.row_step_count", (str(2**64 - 1),)
    ),
    "row step count of no sequence": Rejection(
        fragments(seed=2**63, row_step_count=77), "fragments.row_step_count", ("77",), Reason.ROW_STEP_COUNT
    ),
    "fragments beyond the buffer": Rejection(fragments(2**50), "step_count", (str(2**50),), Reason.FRAGMENTS_TOO_LARGE),
}


@rejections(CASES)
def test_sampling_request_is_rejected(unchanged_stub: SamplerServiceStub, rejection: Rejection) -> None:
    is_exact = isinstance(rejection.request, pb.ObtainExactEpisodesRequest)
    error = rejection_of(
        unchanged_stub.ObtainExactEpisodes if is_exact else unchanged_stub.ObtainSamples, rejection.request
    )
    check_status(error, rejection.reason, field=rejection.field, quotes=rejection.quotes)
