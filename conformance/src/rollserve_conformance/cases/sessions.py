"""Cases about sessions: steps, what is recorded of them, idle rows, refused actions, losses, rows that do not wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollserve_conformance.cases.case import Case, Json, breaking, env
from rollserve_conformance.operations import array

__all__ = ["session_cases"]

_NUM_ROWS = 4
"""Rows of all workers of the kit's servers."""
_OBSERVE: Json = {"do": "observe"}
_BATCH: Json = {"do": "batch"}
_END: Json = {"do": "end"}


def _drive(*operations: Json | Sequence[Json], **fields: Any) -> Json:
    """Return a session, whose operations may come as lists; `fields` are those of the operation `drive`."""
    flat = [each for given in operations for each in ([given] if isinstance(given, Mapping) else given)]
    options = {"seed": "5", "return_returns_before": True, **fields.pop("options", {})}
    return {"do": "drive", "fragment_length": 8, "options": options, **fields, "operations": flat}


def _steps(num_steps: int, seed: int, infos: Sequence[str] = ()) -> list[Json]:
    """Return steps with random actions, and infos of the kinds of `_INFOS`."""
    generator, steps = np.random.default_rng(seed), list[Json]()
    for _ in range(num_steps):
        step: dict[str, Any] = {"do": "step", "actions": {"": array(generator.integers(2, size=_NUM_ROWS), "int64")}}
        if infos:
            step["agent_infos"] = {
                name: array(generator.normal(size=(_NUM_ROWS, *_INFOS[name]["shape"])), _INFOS[name]["dtype"])
                for name in infos
            }
        steps.append(step)
    return steps


_INFOS: Mapping[str, Json] = {"log_prob": array(0, "float32"), "pair": array(np.zeros(2), "float64")}
"""Examples of infos of the client, by name."""


def _rows(num_steps: int, seed: int) -> Json:
    """Return random actions for so many steps of each row, which rows make as they become ready."""
    generator, shape = np.random.default_rng(seed), (num_steps, _NUM_ROWS)
    infos = {
        name: array(generator.normal(size=(*shape, *info["shape"])), info["dtype"]) for name, info in _INFOS.items()
    }
    return {"do": "rows", "actions": {"": array(generator.integers(2, size=shape), "int64")}, "agent_infos": infos}


def _steering(num_steps: int) -> list[Json]:
    """Return steps with random actions of several leaves."""
    generator = np.random.default_rng(2)
    return [
        {
            "do": "step",
            "actions": {
                "gear": array(generator.integers(5, size=_NUM_ROWS), "int64"),
                "steer": array(generator.uniform(-1, 1, (_NUM_ROWS, 1)), "float32"),
            },
        }
        for _ in range(num_steps)
    ]


def session_cases() -> list[Case]:
    """Return the cases about sessions."""
    infos = list(_INFOS)
    wrong = {"do": "step", "actions": {"": array([0, 1, 2, 0], "int64")}}
    short = env(max_length=6)
    return [
        Case(
            "drive",
            "a session: its steps, and what is recorded of them, with the client's infos, in the middle and at the end",
            [
                env(infos="gaps", max_length=6),
                _drive(
                    *(_OBSERVE, _steps(11, 0, infos), _BATCH, _OBSERVE, _steps(9, 1, infos), _END, _BATCH),
                    agent_infos=_INFOS,
                    options={"max_episode_length": 4},
                ),
            ],
        ),
        Case(
            "drive-next-step",
            "a session whose rows are reset in the step behind the end of an episode",
            [short, _drive(_steps(20, 2), _BATCH, _steps(5, 3), _END, _BATCH, next_step=True)],
        ),
        Case(
            "drive-spaces",
            "a session with nested spaces of observations and actions",
            [env(observations="nested", actions="dict", max_length=4), _drive(_steering(12), _BATCH, _END)],
        ),
        Case(
            "drive-unrecorded",
            "sessions that record nothing: one with the environments' infos in its steps, and one without steps",
            [
                env(infos="gaps", max_length=5),
                _drive(_OBSERVE, _steps(12, 4), _END, infos=True, record=False),
                _drive(_OBSERVE, _END, record=False),
            ],
        ),
        Case(
            "drive-refused",
            "actions that the server refuses, which end the session, and a session that it refuses",
            [
                short,
                _drive(_steps(2, 5), wrong, _steps(1, 6)),
                _drive(_OBSERVE, options={"environment_version": 99}),
            ],
            expected={
                1: {
                    "results": [{}, {}, {"error": {"kind": "invalid_argument", "field": "actions.actions[''][2]"}}, {}]
                },
                2: {"results": [{"error": {"kind": "precondition", "reason": "ENVIRONMENT_VERSION"}}]},
            },
        ),
        Case(
            "drive-worker-lost",
            "a session that goes on as if it had not lost a worker",
            [short, _drive(_steps(13, 7, infos), _BATCH, _steps(3, 8, infos), _END, _BATCH, agent_infos=_INFOS)],
            faults=[{"fault": "kill-worker", "worker_index": 1, "after_orders": 6}],
        ),
        Case(
            "drive-resumed",
            "a session that is taken up by its token in the middle, with what was recorded before",
            [
                env(infos="gaps", max_length=6),
                _drive(
                    *(_OBSERVE, _steps(5, 9, infos), {"do": "resume"}, _OBSERVE, _steps(9, 10, infos), _BATCH),
                    *(_steps(2, 11, infos), {"do": "resume"}, _steps(3, 12, infos), _END, _BATCH),
                    agent_infos=_INFOS,
                    lease_seconds=60,
                ),
            ],
            resumes=True,
        ),
        Case(
            "drive-reconnected",
            "a session that goes on by itself as if it had not lost its connection",
            [
                short,
                _drive(
                    *(_steps(13, 12, infos), _BATCH, _steps(3, 13, infos), _END, _BATCH),
                    agent_infos=_INFOS,
                    lease_seconds=60,
                ),
            ],
            faults=breaking(6, times=3),
            resumes=True,
        ),
        Case(
            "drive-lease-over",
            "a session that is taken up when its lease is over",
            [short, _drive(_steps(2, 14), {"do": "resume", "after_seconds": 1}, _OBSERVE, lease_seconds=0.1)],
            expected={
                1: {"results": [*[{}] * 3, {"error": {"kind": "invalid_argument", "reason": "SESSION_NOT_FOUND"}}]}
            },
            resumes=True,
        ),
        Case(
            "drive-apart",
            "a session whose rows do not wait for each other, and make the same steps",
            [env(infos="gaps", max_length=6), _drive(_rows(20, 15), _BATCH, _END, agent_infos=_INFOS, min_ready=2)],
        ),
    ]
