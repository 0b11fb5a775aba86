"""A launcher of programs: `launcher.py DESCRIPTOR free|confined PROGRAM ARGUMENT…` replaces itself by the program.

The descriptor is the end of a `Lifeline`. The program leads a group of processes, has no terminal, and yields to others
as Ray's workers do. The group is in its parent's session, not in one of its own: on Linux, sessions may share the
processors equally, whatever they run (`sched_autogroup`), and one trial would take as much as all workers.

A confined program has no network and cannot write files, as far as the kernel allows that; where it does not, the
program runs all the same. Devices can be written, because some execution providers need them.

Run as a script with nothing else loaded: only a process with a single thread can enter a namespace of users.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import struct
import sys
import termios

_NICENESS = 15  # `RAY_worker_niceness`, unless it is set

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_RULE_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
"""Rights to write, remove and make files of every kind, as the first version of Landlock has them."""

_libc = ctypes.CDLL(None)


def live_by(end: int) -> None:
    """Have the kernel kill this process's group as soon as nobody holds the other end of a pipe, whatever it does."""
    with contextlib.suppress(AttributeError, OSError):  # kernels that are not Linux, or do less
        fcntl.fcntl(end, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    look = select.poll()  # descriptors may be too large for `select.select`
    look.register(end, 0)
    if look.poll(0):  # nobody held it any more before the kernel began to watch it
        os._exit(1)


def leave_terminal() -> None:
    """Give up the terminal of the session, if there is one: whoever has it can type into it."""
    with contextlib.suppress(OSError), open("/dev/tty", "rb") as terminal:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)


def yield_to_others() -> None:
    """Take no higher priority than Ray's workers have."""
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), _NICENESS))


def leave_network() -> None:
    """Enter a namespace without network interfaces, if the kernel allows it."""
    # Without a namespace of users where possible: in one, root loses its rights to files of others.
    if _libc.unshare(_CLONE_NEWNET):
        _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)


def forbid_writing() -> None:
    """Forbid this process to change files outside `/dev`, if the kernel has Landlock."""
    handled = ctypes.create_string_buffer(struct.pack("=Q", _CHANGES), 8)
    ruleset = _libc.syscall(_LANDLOCK_CREATE_RULESET, handled, ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return
    devices = os.open("/dev", os.O_PATH)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", _WRITE_FILE, devices), 12)
    _libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0)
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    for descriptor in (devices, ruleset):
        os.close(descriptor)


if __name__ == "__main__":
    descriptor, mode, *command = sys.argv[1:]
    live_by(int(descriptor))
    leave_terminal()
    yield_to_others()
    if mode == "confined":
        leave_network()
        forbid_writing()
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")
