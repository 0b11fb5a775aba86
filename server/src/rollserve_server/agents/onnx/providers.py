"""Execution providers of ONNX Runtime that this machine has."""

from __future__ import annotations

from collections.abc import Sequence

from rollserve_server.errors import InvalidValueError

__all__ = ["check_providers"]

_ALWAYS_AVAILABLE = "CPUExecutionProvider"


def check_providers(names: Sequence[str]) -> None:
    """Raise InvalidValueError unless all execution providers are available: ONNX Runtime leaves out the others."""
    if set(names) <= {_ALWAYS_AVAILABLE}:
        return
    import onnxruntime  # imported late: it takes a while

    available = onnxruntime.get_available_providers()
    for name in names:
        if name not in available:
            expected = f"execution providers of this machine ({', '.join(available)})"
            raise InvalidValueError.of("onnx_providers", expected=expected, got=repr(name))
