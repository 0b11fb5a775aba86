"""Errors of third-party code that refuses its arguments."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium

from rollserve_server.errors import InvalidValueError, NotAllowedError, NotFoundError, describe, show
from rollserve_wire.environments import EnvSpec, Wrapper
from rollserve_wire.reasons import Reason

__all__ = ["call_with_arguments", "drawing_hint", "refused_by"]

_MUJOCO_GL = "MUJOCO_GL"
"""Variable that says by which library MuJoCo draws; the library is imported with MuJoCo."""
_DRAWING = "gymnasium.envs.mujoco.mujoco_rendering"


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
            try:
                return make()
            except Exception as error:
                if not _import_mujoco_alone(error):
                    raise
                return make()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            text = (
                f"{owner} needs a package that is not installed on the server: {show(error, str)}{drawing_hint(error)}"
            )
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
        text = f"refused by {owner}: {describe(error)}{drawing_hint(error)}"
        raise InvalidValueError(text, reason=Reason.ENV_REFUSED, field=field) from error


def drawing_hint(error: BaseException) -> str:
    """Return what to do about an error of MuJoCo's drawing, to be put behind its text; empty for another error."""
    if not _is_of_mujoco(error):
        return ""
    libraries = "MUJOCO_GL=egl with the library libegl1, or MUJOCO_GL=osmesa with libosmesa6"
    return f"; without a display, MuJoCo draws if the server's environment has {libraries}"


def _import_mujoco_alone(error: BaseException) -> bool:
    """Import MuJoCo without the library to draw, if that failed with this error; return whether it is imported now.

    Environments that are not rendered need no such library. What renders asks the variable again.
    """
    value = os.environ.get(_MUJOCO_GL)
    if value is None or "mujoco" in sys.modules or not _is_of_mujoco(error):
        return False
    os.environ[_MUJOCO_GL] = "disabled"
    try:
        importlib.import_module("mujoco")
    except Exception:
        return False
    finally:
        os.environ[_MUJOCO_GL] = value
    return True


def _is_of_mujoco(error: BaseException) -> bool:
    """Whether code of MuJoCo, or of gymnasium's drawing with it, has raised the error."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.partition(".")[0] == "mujoco" or name == _DRAWING for name in modules)
