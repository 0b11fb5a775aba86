"""A boundary around a program that is not trusted: `boundary.py JSON PROGRAM ARGUMENT…` runs the program behind it.

The program is in namespaces of its own for users, files, processes, network, IPC and names. Its root is an empty
`tmpfs` with the paths that the JSON names, read-only, and one folder that it may write, `/scratch`. It has limits, and
no rights. No program runs with less of a boundary: where the kernel refuses a step, this one ends instead.

Three processes: this one stays outside, watches the memory, and is the one whose end ends the others; its child is the
first process of the namespace, with which the kernel kills all others there, and waits for orphans; the grandchild
becomes the program. Run as a script with nothing else loaded: only a process with a single thread can enter a namespace
of users.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["BOUNDARY", "SCRATCH"]

BOUNDARY = __file__
"""The script."""
SCRATCH = "/scratch"
"""The folder that a program may write, as it sees it."""

_NAMESPACES = 0x7E020000  # CLONE_NEW: USER, NS, PID, NET, IPC, UTS, CGROUP
_USER, _NOBODY = 1000, 65534
"""The user behind the boundary, as the program sees it, and as others do where root starts it."""

_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 2, 4, 4096, 16384, 1 << 18, 2
_MOUNT_SETATTR, _ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _AT_FDCWD, _AT_RECURSIVE = 442, 1, 2, 4, -100, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CAPABILITY_VERSION = 0x20080522

_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "fd/0",
    "/dev/stdout": "fd/1",
    "/dev/stderr": "fd/2",
    "/dev/shm": SCRATCH,  # noqa: S108  # shared memory counts as files
}
_FILES = {
    "/etc/passwd": f"sandbox:x:{_USER}:{_USER}::{SCRATCH}:/bin/sh\n",
    "/etc/group": f"sandbox:x:{_USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n",
}

_MAX_FILES = 1024
_LOOK_SECONDS = 0.1

_MACHINES = {
    "x86_64": (0xC000003E, 41, 56, (29, 64, 68, 203, 248, 249, 250, 272, 298, 308, 319, 321, 323)),
    "aarch64": (0xC00000B7, 198, 220, (194, 190, 186, 122, 217, 218, 219, 97, 241, 268, 279, 280, 282)),
}
"""By machine: its number in the kernel, those of `socket` and `clone`, and those of the system calls that are refused.

These make memory that no limit counts (shmget, semget, msgget, memfd_create), choose processors (sched_setaffinity),
reach keys of the user (add_key, request_key, keyctl), make or enter namespaces (unshare, setns), or offer much of the
kernel to whoever seeks its faults (perf_event_open, bpf, userfaultfd).
"""
_REFUSED = (425, 435)  # on all machines: io_uring_setup, whose rings make sockets; clone3, whose flags no filter sees
_NETLINK = 16  # the module has it on Linux alone
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, _NETLINK)
"""Families of sockets that a namespace bounds; others, such as vsock, leave it."""

_libc: Any = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(_libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def enter_namespaces() -> None:
    """Enter new namespaces, with an own user in them: another one than root outside, too."""
    is_root = os.geteuid() == 0
    maps = {"uid": os.geteuid(), "gid": os.getegid()}
    parent, (ready, entered) = os.getpid(), os.pipe()
    helper = os.fork()
    if not helper:  # only a process that stays outside may map more than one user
        os.close(entered)
        if not os.read(ready, 1):
            os._exit(1)
        with _reported():
            if not is_root:
                Path(f"/proc/{parent}/setgroups").write_text("deny")
            for kind, own in maps.items():
                text = f"0 {own} 1\n{_USER} {_NOBODY} 1\n" if is_root else f"{_USER} {own} 1\n"
                Path(f"/proc/{parent}/{kind}_map").write_text(text)
            os._exit(0)
    _call("unshare", _NAMESPACES)
    os.write(entered, b"1")
    os.close(entered)
    os.close(ready)
    if os.waitpid(helper, 0)[1]:
        os._exit(1)


def make_root(paths: list[tuple[str, str]], scratch_bytes: int) -> None:
    """Make the root: paths of the old one, each where the program finds it, what all programs need, and the scratch."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")  # noqa: S108
    os.mkdir("/tmp/old")  # noqa: S108
    _call("pivot_root", b"/tmp", b"/tmp/old")  # the old root shows what `/tmp` has again
    os.chdir("/")
    for folder in ("/dev", "/etc", "/proc", SCRATCH):
        os.mkdir(folder)
    with contextlib.suppress(PermissionError):  # of a container that hides parts of its own: there is none then
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV)
    owner = f"mode=700,uid={_USER},gid={_USER}"
    _mount("tmpfs", SCRATCH, "tmpfs", _MS_NOSUID | _MS_NODEV, f"size={scratch_bytes},nr_inodes=65536,{owner}")
    for name, text in _FILES.items():
        Path(name).write_text(text)
    for device in _DEVICES:
        _bind(f"/old/dev/{device}", f"/dev/{device}", _ATTR_RDONLY | _ATTR_NOSUID)
    for link, target in _LINKS.items():
        os.symlink(target, link)
    for source, target in paths:
        _bind(f"/old{source}", target, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV)
    with contextlib.suppress(FileExistsError):  # there are paths in it
        os.symlink(SCRATCH, "/tmp")  # noqa: S108
    _call("umount2", b"/old", _MNT_DETACH)
    os.rmdir("/old")
    _set_attributes("/", _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, 0)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    parts = (None if part is None else os.fsencode(part) for part in (source, target, kind))
    _call("mount", *parts, ctypes.c_ulong(flags), options.encode())


def _bind(source: str, target: str, attributes: int) -> None:
    if Path(source).is_dir():
        Path(target).mkdir(parents=True, exist_ok=True)
    else:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, _MS_BIND | _MS_REC)
    _set_attributes(target, attributes, _AT_RECURSIVE)


def _set_attributes(target: str, attributes: int, flags: int) -> None:
    packed = ctypes.create_string_buffer(struct.pack("=QQQQ", attributes, 0, 0, 0), 32)
    _call("syscall", _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, packed, ctypes.c_size_t(32))


def drop_rights() -> None:
    """Become the user without rights, which no program of others that it runs gives it back."""
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() != _USER:
        os.setgroups([])
        os.setresgid(_USER, _USER, _USER)
        os.setresuid(_USER, _USER, _USER)
    _call("capset", struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program cannot look into this process, nor trace it


def set_limits(memory_bytes: int, processes: int, scratch_bytes: int) -> None:
    """Limit each process, and their number."""
    for kind, limit in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_NPROC, processes + 2),  # this process, and the one outside
        (resource.RLIMIT_FSIZE, scratch_bytes),
        (resource.RLIMIT_NOFILE, _MAX_FILES),
        (resource.RLIMIT_CORE, 1),  # with 0, a program of the machine would still be given it
    ):
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def filter_calls() -> None:
    """Have the kernel refuse system calls that limits and namespaces do not bound."""
    machine, make_socket, clone, refused = _MACHINES[os.uname().machine]
    load, equals, exceeds, has, give = 0x20, 0x15, 0x35, 0x45, 0x06
    number, architecture, first_argument = 0, 4, 16
    allowed, unknown, unsupported = 0x7FFF0000, 0x50000 | errno.ENOSYS, 0x50000 | errno.EAFNOSUPPORT
    # Each line: what to do, how many lines to skip if that holds and if not, and a number.
    lines = [(load, 0, 0, architecture), (equals, 1, 0, machine), (give, 0, 0, unknown), (load, 0, 0, number)]
    lines += [(exceeds, 0, 1, 0x40000000), (give, 0, 0, unknown)]  # calls of the x32 interface
    for each in (*refused, *_REFUSED):
        lines += [(equals, 0, 1, each), (give, 0, 0, unknown)]
    lines += [(equals, 0, 4, clone), (load, 0, 0, first_argument)]
    lines += [(has, 0, 1, _NAMESPACES), (give, 0, 0, unknown), (give, 0, 0, allowed)]
    lines += [(equals, 1, 0, make_socket), (give, 0, 0, allowed), (load, 0, 0, first_argument)]
    for family in _FAMILIES:
        lines += [(equals, 0, 1, family), (give, 0, 0, allowed)]
    lines += [(give, 0, 0, unsupported)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    header = ctypes.create_string_buffer(struct.pack("=H6xQ", len(lines), ctypes.addressof(program)), 16)
    _call("prctl", _PR_SET_SECCOMP, 2, header, 0, 0)


def begin(connection: int, paths: list[tuple[str, str]], limits: dict[str, int], command: list[str]) -> NoReturn:
    """Run the program as a child of this process, the first one of the namespace, until it ends."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != connection:
            with contextlib.suppress(OSError):  # the one that the folder was read by
                os.close(descriptor)
    os.umask(0o022)
    make_root(paths, limits["scratch_bytes"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # its processes may talk to each other
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    _call("sethostname", b"sandbox", ctypes.c_size_t(7))
    drop_rights()
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setpgid(0, 0)  # else the program could stop the process outside, by a signal to its group
    set_limits(**limits)
    filter_calls()
    program = os.fork()
    if not program:
        os.chdir(SCRATCH)
        os.execvp(command[0], command)  # noqa: S606
    os.close(connection)
    while True:
        ended, status = os.wait()
        if ended == program:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def watch(first: int, memory_bytes: int) -> NoReturn:
    """Wait for the first process of the namespace, and kill it when all in it take more memory than is theirs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        ended, status = os.waitpid(first, os.WNOHANG)
        if not ended and all(sum(_taken_bytes(name)) > memory_bytes for name in ("statm", "smaps_rollup")):
            sys.stderr.write(f"sandbox.memory_bytes: expected at most {memory_bytes} of all processes, got more\n")
            sys.stderr.flush()
            os.kill(first, signal.SIGKILL)
            ended, status = os.waitpid(first, 0)
        if ended:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        signal.sigtimedwait([signal.SIGCHLD], _LOOK_SECONDS)


def _taken_bytes(name: str) -> Iterator[int]:
    """Yield the memory of each process of the namespace, whose `/proc` this process sees.

    Args:
        name: the file that says it: `statm`, which is fast, and counts what processes share for each of them; or
            `smaps_rollup`, which divides it among them, and which processes may hide.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            try:
                yield 1024 * int(re.findall(rb"^Pss: +(\d+)", (folder / name).read_bytes(), re.MULTILINE)[0])
            except (PermissionError, IndexError):
                yield resource.getpagesize() * int((folder / "statm").read_bytes().split()[1])


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """End this process if the block fails, and say what the kernel has refused."""
    try:
        yield
    except (OSError, AttributeError, KeyError) as error:
        expected = "Linux 5.14 or newer on x86_64 or aarch64, which lets this user make namespaces"
        sys.stderr.write(f"sandbox: expected {expected}, got {error}\n")
        sys.stderr.flush()
        os._exit(1)


def _main() -> NoReturn:
    setting, *command = sys.argv[1:]
    given = json.loads(setting)
    connection, processors = given["connection"], given["processors"]
    with _reported():
        if processors:
            usable = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, random.sample(usable, min(processors, len(usable))))
        os.chdir("/")
        enter_namespaces()
        first = os.fork()
        if not first:
            begin(connection, given["paths"], given["limits"], command)
        os.close(connection)
        drop_rights()
        watch(first, given["limits"]["memory_bytes"])


if __name__ == "__main__":
    _main()
