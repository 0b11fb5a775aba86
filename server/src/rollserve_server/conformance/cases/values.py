"""Cases about the values of batches: spaces, infos, ends, compression, recorded streams."""

from __future__ import annotations

from typing import Any

from rollserve_server.conformance.cases.case import Case
from rollserve_server.conformance.cases.parts import RANDOM, env, samples

__all__ = ["value_cases"]


def _sampling(name: str, about: str, **kwargs: Any) -> Case:
    """Return a case that samples once in an environment with these arguments."""
    return Case(name, about, [env(**kwargs), RANDOM, samples()])


def _recorded(name: str, about: str, **connect: Any) -> Case:
    """Return a case in which the server sends a recorded stream."""
    return Case(f"recorded-{name}", about, [samples(1)], connect, recorded={0: name})


def value_cases() -> list[Case]:
    """Return the cases."""
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
