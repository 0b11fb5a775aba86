"""A program that makes JSON events of the lines on standard input, and passes on lines that are JSON objects.

It ends with the last process that holds the other end of the pipe, whatever signals it gets before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

_MAX_LINE_BYTES = 1 << 16
_READ_BYTES = 1 << 16


def main() -> None:
    """Read to the end of the input. If events cannot be written, go on reading: writers would wait, or end."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    rest = b""
    while data := os.read(0, _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        _write(lines)
    _write([rest])


def _write(lines: list[bytes]) -> None:
    data = "".join(f"{_event(line)}\n" for line in lines if line.strip()).encode()
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(1, data) :]


def _event(line: bytes) -> str:
    text = line.decode(errors="backslashreplace").rstrip()
    if text.startswith("{"):
        with contextlib.suppress(ValueError):
            json.loads(text)
            return text
    now = time.time()
    moment = time.localtime(now)
    zone = time.strftime("%z", moment)
    shown = f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(now % 1 * 1000):03}{zone[:3]}:{zone[3:]}"
    return json.dumps({"time": shown, "level": "WARNING", "logger": "stderr", "event": "output", "text": text})


if __name__ == "__main__":
    main()
