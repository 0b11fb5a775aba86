"""Python agents before workers get them: checked here, and probed in a sandbox."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve_server.agents.action_masks import action_mask_of
from rollserve_server.agents.agent import InfoSpec
from rollserve_server.agents.parameters import check_finite
from rollserve_server.agents.python.policy import find_installed
from rollserve_server.agents.sandbox import SandboxError, run_in_sandbox
from rollserve_server.agents.specs import (
    Batching,
    InstalledFactory,
    PickledFactory,
    PythonForm,
    PythonSource,
    PythonSpec,
    shapes_of,
)
from rollserve_server.envs import is_same_space
from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, OverLimitError
from rollserve_wire.errors import mismatch
from rollserve_wire.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gymnasium import Space

    from rollserve_server.settings import AgentSettings

__all__ = ["check_python", "prepare_python"]

_log = logging.getLogger(__name__)

_PROGRAM = ("-m", "rollserve_server.agents.python.probe")


def prepare_python(
    source: PythonSource, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> PythonSpec:
    """Probe an agent in a sandbox unless it was tried before. None of its code runs in this process.

    Raises:
        NotFoundError: no agent of the name is installed, or its module cannot be imported.
        NotAllowedError: the agent is a pickle, and the operator does not allow pickles.
        OverLimitError: the pickle is too large.
        InvalidValueError: the agent fails, or its parameters are not finite; the error names the field.
    """
    num_bytes = sum(value.nbytes for value in source.parameters.values())
    match source.factory:
        case InstalledFactory(name):
            find_installed(name)
        case PickledFactory(data):
            _check_pickle(data, settings)
            num_bytes += len(data)
    check_finite(source.parameters)
    form = source.form or _run_probe(source, observation_space, action_space, settings, num_bytes)
    shapes = shapes_of(source.parameters)
    return PythonSpec(source.factory, source.parameters, observation_space, action_space, form, shapes, source.inputs)


def _run_probe(
    source: PythonSource,
    observation_space: Space[Any],
    action_space: Space[Any],
    settings: AgentSettings,
    num_bytes: int,
) -> PythonForm:
    mask = action_mask_of(source.inputs.action_mask, observation_space, action_space)
    arguments = {
        "factory": source.factory,
        "observation_space": observation_space,
        "action_space": action_space,
        "parameters": dict(source.parameters),
        "mask": mask,
    }
    try:
        found = run_in_sandbox(_PROGRAM, arguments, num_bytes, settings.python_sandbox, runs_code=True)
    except SandboxError as error:
        raise _refused(source, error) from None
    return PythonForm(
        found["noise_width"],
        tuple(_columns(found["states"])),
        tuple(_columns(found["infos"])),
        Batching(*found["batching"]),
        tuple(found["inputs"]),
    )


def check_python(
    spec: PythonSpec, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> PythonSpec:
    """Check an agent that was probed before; probe it again if its parameters changed their names, dtypes or shapes.

    Raises:
        InvalidValueError: the agent was made for other spaces.
        NotFoundError, NotAllowedError, OverLimitError: see `prepare_python`.
    """
    spaces = (("observation", spec.observation_space, observation_space), ("action", spec.action_space, action_space))
    for kind, agent_space, space in spaces:
        if not is_same_space(agent_space, space):
            hint = "the agent was made for that space, send it again"
            raise InvalidValueError(f"{kind} space: {mismatch(agent_space, space, hint)}")
    if shapes_of(spec.parameters) != spec.shapes:
        source = PythonSource(spec.factory, spec.parameters, spec.inputs)
        return prepare_python(source, observation_space, action_space, settings)
    check_finite(spec.parameters)
    return spec


def _check_pickle(data: bytes, settings: AgentSettings) -> None:
    if not settings.allow_pickle:
        raise NotAllowedError.of(
            "data",
            expected="an agent that is not pickled, because the server's operator does not allow pickles "
            "(option --allow-pickle)",
            got="a pickled agent",
            hint="reading a pickle runs whatever code it holds. Send an agent as parameters or in the ONNX format, or "
            "have its code installed beside the server",
            reason=Reason.PICKLE_NOT_ALLOWED,
        )
    if len(data) > settings.max_model_bytes:
        raise OverLimitError.of(
            "data",
            expected=f"at most {settings.max_model_bytes} bytes (--max-model-bytes)",
            got=len(data),
            reason=Reason.MODEL_TOO_LARGE,
        )


def _refused(source: PythonSource, error: SandboxError) -> InvalidValueError | NotFoundError:
    details = error.details
    agent = source.factory.name if isinstance(source.factory, InstalledFactory) else "pickled"
    if details.get("trace"):
        _log.warning("agent failed", extra={"agent": agent, "error": error.text, "trace": details["trace"]})
    kind = NotFoundError if details.get("not_found") else InvalidValueError
    return kind(error.text, reason=Reason(details.get("reason", Reason.AGENT_REFUSED)), field=details.get("field", ""))


def _columns(columns: Iterable[Any]) -> Iterable[InfoSpec]:
    """Return the columns that a probe describes as JSON."""
    return (InfoSpec(name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in columns)
