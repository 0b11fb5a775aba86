"""Cases about the ends of segments: values, recurrent states and returns there, over messages, fragments and breaks."""

from __future__ import annotations

import numpy as np

from rollserve_server.conformance.cases.case import Case, Json
from rollserve_server.conformance.cases.parts import breaking, env, fragments, mlp, samples
from rollserve_server.conformance.operations import array

__all__ = ["segment_cases"]

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
    """Return the cases."""
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
