"""Environment variables of child processes that try foreign code."""

from __future__ import annotations

import os
import re

from rollserve_wire.receipts import HASH_SEED, HASH_SEED_NAME

__all__ = ["variables_for_code", "variables_for_models"]

_SECRET = re.compile(
    r"^RAY_|TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|AUTH|COOKIE|(^|_)(API|ACCESS)?_?KEYS?(_|$)", re.IGNORECASE
)
"""Names of variables that may hold secrets; `RAY_AUTH_TOKEN` opens the server's own cluster."""

_FOR_MODELS = re.compile(
    r"(PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|(LD|OMP|OPENBLAS|MKL|ORT|CUDA|NVIDIA|ROCM|HIP)_\w+|PYTHON\w+)"
)
"""Names of variables that Python and ONNX Runtime read."""


def variables_for_code() -> dict[str, str]:
    """Return this process's variables without secrets and with the hash seed, for code that may need any of them."""
    variables = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    return {**variables, HASH_SEED_NAME: HASH_SEED}


def variables_for_models() -> dict[str, str]:
    """Return the variables of this process that running a model needs."""
    return {name: value for name, value in variables_for_code().items() if _FOR_MODELS.fullmatch(name)}
