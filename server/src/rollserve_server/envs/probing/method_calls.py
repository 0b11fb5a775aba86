"""Calls of environments' methods for their values, each in an environment that is made for it."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollserve_server.activity import Phase, current_activity
from rollserve_server.envs.making import close_env, find_method, make_env, refused_by
from rollserve_server.envs.probing.memory import naming_memory_limit
from rollserve_server.envs.row_specs import WorkerSpecs, identity_of, specs_of_rows
from rollserve_server.errors import InvalidValueError, describe
from rollserve_wire.json_arguments import value_from_json
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.settings import HealthSettings
    from rollserve_wire.environments import EnvSpec

__all__ = ["MethodCall", "call_method"]

_MAX_VALUE_BYTES = 1 << 16


@dataclass(frozen=True)
class MethodCall:
    """A call of a method.

    Attributes:
        method: name of the method, which is allowed.
        arguments: values from JSON.
    """

    method: str
    arguments: Sequence[object]


def call_method(call: MethodCall, specs: WorkerSpecs, health: HealthSettings) -> list[str]:
    """Make environments, call a method of each, and close them.

    Args:
        call: the call.
        specs: environments of a worker.
        health: has the limit of memory, for errors.

    Returns:
        The values as JSON: one for all rows, or one for each row. Equal environments are asked once.

    Raises:
        NotFoundError, InvalidValueError: an environment cannot be made, as of `make_env`; it has no such method, the
            method raises an error, or JSON cannot hold its value.
        OverLimitError: an environment needs more memory than it has here.
    """
    values: dict[bytes, str] = {}
    rows = specs_of_rows(specs, num_rows=1)
    for spec in rows:
        if identity_of(spec) not in values:
            with naming_memory_limit(spec.id, health):
                values[identity_of(spec)] = _value(call, spec)
    return [values[identity_of(spec)] for spec in rows]


def _value(call: MethodCall, spec: EnvSpec) -> str:
    env = make_env(spec)
    try:
        current_activity().begin(Phase.MAKING)
        method = find_method(env, call.method, "method")
        with refused_by(call.method, "arguments_json"):
            return _as_json(method(*copy.deepcopy(call.arguments)))
    finally:
        close_env(env)


def _as_json(value: object) -> str:
    """Return a value as JSON that clients can read; arrays become lists."""
    try:
        text = json.dumps(value, allow_nan=False, default=_as_list)
        value_from_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        got = f"{type(value).__name__} ({describe(error)})"
        raise _not_sendable("what JSON can hold", got) from None
    if len(text.encode()) > _MAX_VALUE_BYTES:
        raise _not_sendable(f"at most {_MAX_VALUE_BYTES} bytes as JSON", len(text.encode()))
    return text


def _not_sendable(expected: str, got: object) -> InvalidValueError:
    expected = f"a method that returns {expected}"
    return InvalidValueError.of("method", expected=expected, got=got, reason=Reason.ENV_REFUSED)


def _as_list(value: object) -> object:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither a JSON value nor an array")
