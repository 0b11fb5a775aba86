"""Whether agents in Python are of use: looked at here, and tried in a process of their own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from rollserve import Reason
from rollserve_server.agents.agent import InfoSpec
from rollserve_server.agents.parameters import check_finite
from rollserve_server.agents.python.loading import find_installed
from rollserve_server.agents.python.specs import (
    InstalledFactory,
    PickledFactory,
    PythonForm,
    PythonSource,
    PythonSpec,
)
from rollserve_server.agents.sandbox.run import SandboxError, run_in_sandbox
from rollserve_server.agents.specs import Batching
from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, OverLimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gymnasium import Space

    from rollserve_server.agents.python.specs import Shapes
    from rollserve_server.settings import AgentSettings

__all__ = ["check_python", "prepare_python"]

_log = logging.getLogger(__name__)

_PROGRAM = ("-m", "rollserve_server.agents.python.probe")


def prepare_python(
    source: PythonSource, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> PythonSpec:
    """Tries an agent in a process of its own: nothing of it runs in this one.

    Raises:
        NotFoundError: nothing of the name is installed, or it cannot be imported.
        NotAllowedError: it comes as a pickle, and the operator allows none.
        OverLimitError: the pickle is too large.
        InvalidValueError: it fails, or its parameters are not finite; the message names the field.
    """
    num_bytes = sum(value.nbytes for value in source.parameters.values())
    match source.factory:
        case InstalledFactory(name):
            find_installed(name)
        case PickledFactory(data):
            _check_pickle(data, settings)
            num_bytes += len(data)
    check_finite(source.parameters)
    arguments = {
        "factory": source.factory,
        "observation_space": observation_space,
        "action_space": action_space,
        "parameters": dict(source.parameters),
    }
    try:
        found = run_in_sandbox(_PROGRAM, arguments, num_bytes, settings.python_sandbox, writes_files=True)
    except SandboxError as error:
        raise _refused(source, error) from None
    form = PythonForm(
        found["noise_width"],
        tuple(_described(found["states"])),
        tuple(_described(found["infos"])),
        Batching(*found["batching"]),
    )
    shapes = _shapes(source.parameters)
    return PythonSpec(source.factory, source.parameters, observation_space, action_space, form, shapes)


def check_python(
    spec: PythonSpec, observation_space: Space[Any], action_space: Space[Any], settings: AgentSettings
) -> PythonSpec:
    """The agent that was tried before, tried again if its parameters have other names, types or shapes now.

    Raises:
        InvalidValueError: it was made for other spaces; or as of `prepare_python`.
    """
    spaces = (("observation", spec.observation_space, observation_space), ("action", spec.action_space, action_space))
    for kind, made_for, there in spaces:
        if made_for != there:
            text = f"the {kind} space {there} came, {made_for} was expected: it was made for that one, send it again"
            raise InvalidValueError(text)
    if _shapes(spec.parameters) != spec.shapes:
        return prepare_python(PythonSource(spec.factory, spec.parameters), observation_space, action_space, settings)
    check_finite(spec.parameters)
    return spec


def _check_pickle(data: bytes, settings: AgentSettings) -> None:
    if not settings.allow_pickle:
        text = (
            "a pickled agent came, which the server's operator does not allow (option --allow-pickle): to read a "
            "pickle is to run whatever code it holds. Send an agent as parameters or in the ONNX format, or have its "
            "code installed beside the server"
        )
        raise NotAllowedError(text, reason=Reason.PICKLE_NOT_ALLOWED, field="data")
    if len(data) > settings.max_model_bytes:
        text = f"{len(data)} bytes came, at most {settings.max_model_bytes} (--max-model-bytes) were expected"
        raise OverLimitError(text, reason=Reason.MODEL_TOO_LARGE, field="data")


def _refused(source: PythonSource, error: SandboxError) -> InvalidValueError | NotFoundError:
    details = error.details
    agent = source.factory.name if isinstance(source.factory, InstalledFactory) else "pickled"
    if details.get("trace"):
        _log.warning("agent failed", extra={"agent": agent, "error": error.text, "trace": details["trace"]})
    kind = NotFoundError if details.get("not_found") else InvalidValueError
    return kind(error.text, reason=Reason(details.get("reason", Reason.AGENT_REFUSED)), field=details.get("field", ""))


def _described(columns: Iterable[Any]) -> Iterable[InfoSpec]:
    return (InfoSpec(name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in columns)


def _shapes(parameters: Mapping[str, np.ndarray]) -> Shapes:
    return {name: (value.dtype, value.shape) for name, value in parameters.items()}
