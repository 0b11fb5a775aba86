"""Cases about the ends of segments, over messages, fragments and breaks, and about the values of columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollserve_conformance.cases.case import RANDOM, Case, Json, breaking, env, fragments, mlp, samples
from rollserve_conformance.operations import array

__all__ = ["segment_cases", "value_cases"]


_SMALL = {"max_message_bytes": 4096}
"""Messages of three steps, whose observations have 1 KiB."""
_ENDS = {"return_last_values": True, "return_last_states": True, "return_returns_before": True}


def _recurrent() -> Json:
    """Return an update to an MLP with a GRU and a value."""
    generator, num_inputs, size = np.random.default_rng(6), 256, 3
    shapes = {
        "core/weight_ih": (3 * size, num_inputs),
        "core/weight_hh": (3 * size, size),
        "core/bias_ih": (3 * size,),
        "core/bias_hh": (3 * size,),
        "0/weight": (2, size),
        "0/bias": (2,),
        "value/weight": (1, size),
        "value/bias": (1,),
    }
    parameters = {name: array(generator.normal(size=shape) / 10, "float32") for name, shape in shapes.items()}
    return {"do": "update_agent", "agent": mlp(0, (num_inputs, 2), parameters=parameters)}


def segment_cases() -> list[Case]:
    """Return the cases about the ends of segments."""
    start = [env(observations="vector", max_length=30), _recurrent()]
    exact = {"do": "obtain_exact_episodes", "num_episodes_per_worker": 2, "options": {"seed": "3", **_ENDS}}
    whole = samples(120, **_ENDS)
    parts = fragments(96, **_ENDS)
    later = fragments(96, row_step_count=24, **_ENDS)
    ended = {"do": "stream_samples", "num_steps": 1, "progress": True}
    return [
        Case("last-values", "values after the last steps", [*start, samples(return_last_values=True)]),
        Case("last-states", "recurrent states after the last steps", [*start, samples(return_last_states=True)]),
        Case("ends-of-episodes", "all of what ends of segments have", [*start, whole, exact]),
        Case("ends-of-fragments", "the same of fragments, which begin within episodes", [*start, parts, later]),
        Case("small-messages", "episodes and fragments in messages of three steps", [*start, whole, parts], _SMALL),
        *(
            Case(f"resume-ends-of-{name}", about, [*start, *calls], _SMALL, faults=breaking(*fault), resumes=True)
            for name, about, calls, fault in (
                ("episodes", "ends of episodes whose stream breaks twice", [whole], (7, 2)),
                ("fragments", "ends of fragments whose stream breaks twice", [parts, later], (7, 2)),
            )
        ),
        Case(
            "recorded-ends",
            "recorded: ends of segments, and rewards and actions of the environment that messages lack",
            [samples(1, **_ENDS)],
            recorded={0: "ends"},
        ),
        Case(
            "recorded-ended-episodes",
            "recorded: progress that counts ended episodes",
            [ended],
            recorded={0: "ended-episodes"},
            expected={0: {"progress": {"num_simulated_steps": 40, "num_ended_episodes": 9}}},
        ),
    ]


def _sampling(name: str, about: str, **kwargs: Any) -> Case:
    """Return a case that samples once in an environment with these arguments."""
    return Case(name, about, [env(**kwargs), RANDOM, samples()])


def _recorded(name: str, about: str, **connect: Any) -> Case:
    """Return a case in which the server sends a recorded stream."""
    return Case(f"recorded-{name}", about, [samples(1)], connect, recorded={0: name})


def value_cases() -> list[Case]:
    """Return the cases about the values of columns."""
    stack = {"name": "FrameStackObservation", "kwargs": {"stack_size": 4}}
    stacked = {**env(observations="frame"), "wrappers": [stack]}
    return [
        _sampling("plain-box", "whole episodes of a Box, Discrete actions"),
        _sampling("dtypes", "a Dict with a leaf of each dtype that environments have", observations="dtypes"),
        _sampling("nested", "leaves of Dict and Tuple spaces within a Dict", observations="nested"),
        _sampling("discrete-observations", "observations that are one number", observations="discrete"),
        *(
            _sampling(f"actions-{kind.replace('_', '-')}", f"actions of a space of kind {kind}", actions=kind)
            for kind in ("box", "multi_discrete", "multi_binary", "dict")
        ),
        *(
            _sampling(f"ends-{end}", f"episodes whose end is {text}", end=end)
            for end, text in (("terminated", "terminated"), ("truncated", "truncated"), ("both", "both at once"))
        ),
        _sampling("infos-none", "no infos at all"),
        _sampling("infos-full", "infos of several types and shapes, and of the reset", infos="full"),
        _sampling("infos-gaps", "infos that some steps lack, with their masks", infos="gaps"),
        _sampling("one-step-episodes", "episodes of one step", max_length=1),
        Case("frames-once", "stacks of frames", [stacked, RANDOM, samples(200)]),
        Case("frames-plain", "stacks of frames as they are", [stacked, RANDOM, samples(200, plain_frames=True)]),
        *(
            Case(
                f"compressed-{codec}",
                f"stacks of frames in columns that are compressed by {codec}",
                [stacked, RANDOM, samples(400), samples(400, plain_frames=True)],
                {"compression": [codec]},
            )
            for codec in ("lz4", "zstd")
        ),
        Case(
            "large-episode",
            "an episode of 200 MB, in messages under gRPC's limit",
            [env(observations="large", max_length=200, exact_length=True), RANDOM, samples(1)],
            seconds=300,
        ),
        _recorded("dtypes", "recorded: each dtype, NaN and infinities, columns without elements"),
        _recorded("parts", "recorded: an episode in three messages, with states, flags and infos of its parts"),
        _recorded("gaps", "recorded: infos that messages lack, and whose type and shape change"),
        _recorded("integers", "recorded: integers whose digits no dtype holds beside the other messages' numbers"),
        _recorded("non-finite", "recorded: observations that are not finite, and how many steps have them"),
        _recorded("joined", "recorded: several messages in one"),
        _recorded("progress", "recorded: progress before and between batches"),
        _recorded("unknown", "recorded: unknown fields, enum values and kinds of content"),
        _recorded("frames", "recorded: each frame once in some messages, not in others"),
        _recorded("lz4", "recorded: columns compressed by lz4 in one message, plain in the next", compression=["lz4"]),
        _recorded(
            "zstd", "recorded: columns compressed by zstd in one message, plain in the next", compression=["zstd"]
        ),
        _recorded("lz4-frames", "recorded: each frame once, compressed by lz4", compression=["lz4"]),
        _recorded("fragments", "recorded: fragments, whose episode indices do not rise"),
    ]
