"""Errors of third-party code that refuses its arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium

from rollserve import EnvSpec, Reason, Wrapper
from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, describe, show

__all__ = ["call_with_arguments", "refused_by"]


def call_with_arguments(spec: EnvSpec | Wrapper, make: Callable[[], Any]) -> Any:
    """Return the result of `make`; blame its errors on the arguments, or on a missing package.

    Args:
        spec: the environment or wrapper that is made.
        make: function that uses the arguments of the request.

    Raises:
        NotFoundError: a package is not installed.
        InvalidValueError: `make` raised another error; the field is `kwargs_json`, or the name without arguments.
    """
    owner, field = (spec.id, "id") if isinstance(spec, EnvSpec) else (spec.name, "name")
    with refused_by(owner, "kwargs_json" if spec.kwargs else field):
        try:
            return make()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            text = f"{owner} needs a package that is not installed on the server: {show(error, str)}"
            raise NotFoundError(text, reason=Reason.PACKAGE_NOT_FOUND) from error


@contextlib.contextmanager
def refused_by(owner: str, field: str) -> Iterator[None]:
    """Turn exceptions in the block into an error of the field, except errors that name a field themselves."""
    try:
        yield
    except (InvalidValueError, NotAllowedError, NotFoundError):
        raise
    # The worker survives any exception, including SystemExit.
    except BaseException as error:
        text = f"refused by {owner}: {describe(error)}"
        raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field=field) from error
