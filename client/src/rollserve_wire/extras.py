"""Imports of libraries that the client does not depend on."""

from __future__ import annotations

import importlib
from typing import Any

from rollserve_wire.errors import mismatch

__all__ = ["load"]


def load(module: str, extra: str) -> Any:
    """Return a module of an optional library.

    Args:
        module: name of the module, such as `ray.rllib.policy.sample_batch`.
        extra: extra of this package that installs the library.

    Raises:
        ImportError: the library is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"pip install 'rollserve[{extra}]'"
        text = mismatch("an installed module", f"none named {error.name}", hint)
        raise ImportError(f"{module}: {text}", name=error.name) from error
