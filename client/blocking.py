"""Generates the client's modules that block from those for asyncio: `blocking.py`, or `blocking.py --check`.

Each module `async_*.py` is the source of the one without `async_` beside it, because code that blocks is the same
without `async` and `await`. Only `_calls/waiting.py` is no copy: it has the names of `_calls/async_waiting.py` in which
threads and tasks differ.
"""

import re
import subprocess
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parent / "src" / "rollserve"
_TWINS = "async_waiting.py"
_TEXTS = {
    ", for asyncio": "",
    " for asyncio": "",
    ", in its event loop": "",
    "For one event loop.": "Thread-safe.",
    "    Await all methods except `stream*` and `read*`. Cancelling a task that awaits a call cancels the call.\n": "",
    "An `async with` block": "A `with` block",
    "Async iterator": "Iterator",
    "concatenate(*batches)": "concatenate(*stream)",
    "A task receives": "A thread receives",
    "The task that": "The thread that",
    "Another task": "Another thread",
}
_TOKENS = {
    r"\(await ([\w.]+\([^()]*\))\)(?=\.)": r"\1",
    r"\b(async|await) ": "",
    r"\b__a(?=(enter|exit|next)__)": "__",
    r"\bStopAsync(?=Iteration\b)": "Stop",
    r"\bAsync(?=[A-Z])|\basync_|\ba(?=connect\b)": "",
    r"\bgrpc\.aio\b": "grpc",
}


def main() -> None:
    """Write the modules, or compare them and exit with the name of one that differs."""
    unused = set(_TEXTS)
    for source in sorted(_PACKAGE.rglob("async_*.py")):
        if source.name == _TWINS:
            continue
        text, target = source.read_text(encoding="utf-8"), source.with_name(source.name.removeprefix("async_"))
        unused -= {each for each in _TEXTS if each in text}
        text = f"# Generated from {source.name} by `make blocking`.\n{_blocking(text)}"
        # Imports have another order without `async_`, and `[each async for each in stream]` another form.
        text = _ruff(text, target, "check", "--quiet", "--fix-only", "--unsafe-fixes", "--select", "I,C416")
        text = _ruff(text, target, "format")
        if "--check" not in sys.argv:
            target.write_text(text, encoding="utf-8")
        elif target.read_text(encoding="utf-8") != text:
            sys.exit(f"{target}: expected what `make blocking` writes, got another text")
    if unused:
        sys.exit(f"{__file__}: expected texts that modules have, got {sorted(unused)}")


def _blocking(text: str) -> str:
    for old, new in _TEXTS.items():
        text = text.replace(old, new)
    for pattern, new in _TOKENS.items():
        text = re.sub(pattern, new, text)
    return text


def _ruff(text: str, path: Path, *arguments: str) -> str:
    """Return a text as a command of ruff changes it, by the settings for a path."""
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(path), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    main()
