"""Environments that are not trusted: they attempt what a boundary forbids, and their rewards say what succeeded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["ATTEMPTS", "LEFT", "Counting", "Drawing", "Hoarding", "Hostile", "Leaving", "let_others_trace"]

LEFT = "864213"
"""Argument of `sleep`, which tells a process that was left behind from others."""
_MARK = bytes(range(65, 91)) * 4
_PTRACE_SEIZE, _PR_SET_PTRACER = 0x4206, 0x59616D61
_SCRATCH_BYTES = 64 << 20
_MEMORY_BYTES = 3 << 29
_NUM_PROCESSES = 100

_libc: Any = ctypes.CDLL(None)


def let_others_trace() -> None:
    """Let others look into this process, where a module of the kernel lets parents alone."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1 & (1 << 64) - 1), 0, 0, 0)


def read_file(path: str) -> bool:
    """Read a file that has a secret."""
    return b"BEGIN" in Path(path).read_bytes() or b"alice" in Path(path).read_bytes()


def read_variables(variable: str) -> bool:
    """Find a variable in this process, or in any other one."""
    return variable in os.environ or any(
        f"{variable}=".encode() in text for text in _of_processes("environ", Path.read_bytes)
    )


def read_another_row() -> bool:
    """Find a mark in the memory of another process that has this environment."""
    return any(_of_processes("mem", _has_mark))


def _of_processes(name: str, read: Callable[[Path], Any]) -> Iterator[Any]:
    for folder in Path("/proc").glob("[0-9]*"):
        if folder.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                if name != "mem" or b"hostile_envs:Hostile" in (folder / "cmdline").read_bytes():
                    yield read(folder / name)


def _has_mark(memory: Path) -> bool:
    places = (line.split() for line in memory.with_name("maps").read_text().splitlines())
    with memory.open("rb", buffering=0) as file:
        for place in places:
            begin, end = (int(each, 16) for each in place[0].split("-"))
            if place[1].startswith("rw") and end - begin < 1 << 26:
                with contextlib.suppress(OSError):
                    file.seek(begin)
                    if _MARK[:4] + b"!" in file.read(end - begin):
                        return True
    return False


def connect(port: int, path: str) -> bool:
    """Reach somebody by TCP, or by a socket in a file."""
    places: list[tuple[int, Any]] = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_UNIX, path)]
    for family, address in places:
        with contextlib.suppress(OSError), socket.socket(family) as stream:
            stream.connect(address)
            return True
    return False


def reach_ray(server: int) -> bool:
    """Reach the Ray that a server has started."""
    return any(connect(0, str(path)) for path in Path("/tmp/ray").glob(f"session_*_{server}/sockets/raylet"))


def send_signal(pid: int) -> bool:
    """Send a signal that does nothing."""
    os.kill(pid, signal.SIGCONT)
    return True


def trace(pid: int) -> bool:
    """Trace a process, from one that ends with it."""
    tracer = os.fork()
    if not tracer:
        os._exit(0 if _libc.ptrace(_PTRACE_SEIZE, pid, None, None) == 0 else 1)
    return os.waitpid(tracer, 0)[1] == 0


def fill_disk() -> bool:
    """Write files of 64 MiB in all, and remove them."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(16):
            Path(folder, str(number)).write_bytes(bytes(_SCRATCH_BYTES // 16))
    return True


def fill_memory() -> bool:
    """Take 1.5 GiB, and give them back."""
    return len(bytearray(_MEMORY_BYTES)) == _MEMORY_BYTES


def fill_process_table() -> bool:
    """Start a hundred processes, and end them."""
    started: list[int] = []
    try:
        for _ in range(_NUM_PROCESSES):
            pid = os.fork()
            if not pid:
                time.sleep(60)
                os._exit(0)
            started.append(pid)
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return True


def write_outside(folder: str) -> bool:
    """Write a file in a folder, or beside what a program reads."""
    for place in (folder, Path(__file__).parent, sys.prefix, "/usr", "/etc", "/"):
        with contextlib.suppress(OSError):
            path = Path(place, "written-by-a-test")
            path.touch()
            path.unlink()
            return True
    return False


ATTEMPTS: dict[str, Callable[..., bool]] = {
    "read the TLS key": read_file,
    "read the token file": read_file,
    "read the server's variables": read_variables,
    "read another row's memory": read_another_row,
    "open a socket": connect,
    "reach Ray": reach_ray,
    "signal": send_signal,
    "trace": trace,
    "fill the disk": fill_disk,
    "fill the memory": fill_memory,
    "fill the process table": fill_process_table,
    "write outside": write_outside,
}
"""What is attempted, in the order of the steps."""


class Hostile(gymnasium.Env[Any, Any]):
    """An environment that makes an attempt in each step; the reward is 1 if it succeeded."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, targets: dict[str, list[Any]], server: int = 0, row: int = 0) -> None:
        """Begin, given the arguments of attempts by their names, the server's process, and what tells rows apart."""
        self._targets = {**targets, "reach Ray": [server]}
        self.row = row
        self._secret = bytearray(_MARK[:4] + b"!" * 64)  # what another row looks for
        self._steps = 0
        let_others_trace()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin again."""
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make the next attempt."""
        name = list(ATTEMPTS)[self._steps]
        succeeded = False
        with contextlib.suppress(OSError, MemoryError):
            succeeded = ATTEMPTS[name](*self._targets.get(name, []))
        self._steps += 1
        return np.zeros(1, np.float32), float(succeeded), self._steps == len(ATTEMPTS), False, {}


class Hoarding(Hostile):
    """An environment whose processes take 200 MiB each, and more together than one may have."""

    def __init__(self) -> None:
        super().__init__({})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Start eight of these processes, and wait for them."""
        started = []
        for _ in range(8):
            pid = os.fork()
            if not pid:
                try:
                    taken = np.ones(25 << 20)
                    time.sleep(60)
                finally:  # also where one process alone has no room: it must not go on as a host
                    os._exit(taken.ndim)
            started.append(pid)
        for pid in started:
            os.waitpid(pid, 0)
        return np.zeros(1, np.float32), 1.0, True, False, {}


class Leaving(Hostile):
    """An environment that starts a process in each step, which has nothing to do with it any more."""

    def __init__(self) -> None:
        super().__init__({})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Start a process."""
        subprocess.Popen(["sleep", LEFT], start_new_session=True)
        return np.zeros(1, np.float32), 0.0, True, False, {}


class Counting(Hostile):
    """An environment whose reward is the number of processes that it sees."""

    def __init__(self) -> None:
        super().__init__({})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count them."""
        return np.zeros(1, np.float32), float(len(list(Path("/proc").glob("[0-9]*")))), True, False, {}


class Drawing(Hostile):
    """An environment that draws what it returns, where a path is hidden."""

    def __init__(self, hidden: str = "/no/such/path") -> None:
        super().__init__({})
        if Path(hidden).exists():
            raise ValueError(f"hidden: expected nothing there, got {hidden}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to draw anew."""
        self._generator = np.random.default_rng(seed)
        return self._generator.random(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Draw an observation, a reward, and whether this is the end."""
        drawn = self._generator.random(1, np.float32)
        return drawn, float(np.exp(np.sin(drawn[0]))), bool(drawn[0] > 0.9), False, {"drawn": self._generator.random()}
