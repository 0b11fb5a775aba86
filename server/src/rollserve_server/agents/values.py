"""Values that agents return beside their actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollserve_server.agents.agent import VALUE
from rollserve_server.agents.specs.kinds import kind_of
from rollserve_server.agents.specs.mlp import MlpSpec
from rollserve_server.agents.specs.onnx import OnnxSpec
from rollserve_server.agents.specs.policies import PolicySet
from rollserve_server.agents.specs.python import PythonSpec
from rollserve_server.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollserve_server.agents.specs.kinds import AgentSpec, PolicySpec

__all__ = ["check_value"]


def check_value(spec: AgentSpec, policies: Sequence[str] = ()) -> None:
    """Raise InvalidValueError, without a field, if the agent has no value after a segment.

    It needs a float `value` among its infos. Of policies by name, each that acts and is delivered needs one.

    Args:
        spec: the agent.
        policies: names of the policies that are delivered; empty for all.
    """
    if isinstance(spec, PolicySet):
        for name, held in spec.acting:
            if name in (policies or spec.policies):
                _check_value(held.spec, f" as policy {name!r}")
    else:
        _check_value(spec, "")


def _check_value(spec: PolicySpec, role: str) -> None:
    match spec:
        case MlpSpec():
            has_value = spec.value is not None
        case OnnxSpec():
            has_value = VALUE.name in spec.outputs
        case PythonSpec():
            infos = (info for info in spec.form.infos if info.name == VALUE.name)
            has_value = any(info.dtype.kind == "f" and not info.shape for info in infos)
        case _:
            has_value = False
    if not has_value:
        expected = "false for an agent without a number `value` among its infos"
        raise InvalidValueError.of("", expected=expected, got=f"true for an agent of kind {kind_of(spec)}{role}")
