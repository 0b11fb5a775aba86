"""Errors with unusual classes or texts, for environments and agents of the tests to raise."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable


class Panic(BaseException):
    """An error that is no `Exception`, as panics of code in Rust are."""


class WordlessError(Exception):
    """An error that cannot be converted to text."""

    def __str__(self) -> str:
        raise SystemExit(0)

    __repr__ = __str__


class UnpicklableError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def _cancelled() -> BaseException:
    """Return an error of asyncio, which each process that tries an environment of the tests would import in 50 ms."""
    error: BaseException = importlib.import_module("asyncio").CancelledError("elsewhere")
    return error


_ERRORS: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "generator": lambda: GeneratorExit("of another one"),
    "cancelled": _cancelled,
    "stop": lambda: StopIteration(3),
    "panic": lambda: Panic("index out of bounds"),
    "wordless": WordlessError,
    "huge": lambda: RuntimeError("x" * (1 << 24)),
    "unpicklable": lambda: UnpicklableError("locked"),
}

TEXTS = {
    "exit": "SystemExit: 0",
    "interrupt": "KeyboardInterrupt",
    "generator": "GeneratorExit: of another one",
    "cancelled": "CancelledError: elsewhere",
    "stop": "StopIteration: 3",
    "panic": "Panic: index out of bounds",
    "wordless": "WordlessError: (no text can be made of it)",
    "huge": "RuntimeError: xxxxx",
    "unpicklable": "UnpicklableError: locked",
}
"""Beginning of each error's text as clients receive it."""


def raise_odd(name: str) -> None:
    raise _ERRORS[name]()
