"""Runs an answer's Python under limits. Started by `server.evaluation.sandbox` as a script: the standard library only.

Standard input: a JSON object with program, token and the limits below. What the program prints goes nowhere; the token
on standard output says that it ran to its end, which a program that leaves early does not reach.

Kernel limits hold whatever the program does: time, memory, file size, open files, processes (unless this is root that
could not become another user), and the network where the kernel gives this process one of its own. The audit hook
refuses sockets, processes, more than a few changes of files and writing outside the working folder as well, in the
interpreter: the second line of defence, which a program made to break out can circumvent, and the only one against the
network where namespaces are not permitted. Reading files is not restricted.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
NOBODY = 65534
MAX_CHANGES = 100  # files opened for writing, removed, made …: each may be as large as a file may be
Name = str | bytes | os.PathLike[Any]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REFUSED = ("socket.", "subprocess.", "ctypes.", "sqlite3.", "pty.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
           "os.kill", "os.system", "signal.pthread_kill", "syslog.", "webbrowser.", "ftplib.", "smtplib.",
           "http.")  # fmt: skip  # prefixes of audit events
CHANGING = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
            "os.chown", "os.utime", "shutil.")  # fmt: skip  # these, too


def main() -> None:
    order = json.loads(sys.stdin.buffer.read())
    result = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    has_own_network = leave_network(0)
    is_nobody = order["drops_user"] and become_nobody()
    has_own_network = has_own_network or leave_network(CLONE_NEWUSER)
    limit(order)
    sys.dont_write_bytecode = True
    sys.addaudithook(Hook(os.path.realpath(os.getcwd())).check)
    exec(compile(order["program"], "<answer>", "exec"), {"__name__": "__main__"})
    facts = {"token": order["token"], "has_own_network": has_own_network, "is_nobody": is_nobody}
    os.write(result, json.dumps(facts).encode())


def leave_network(more: int) -> bool:
    """Move into a network of our own, without any device; whether the kernel permits that.

    more   0 asks with the rights at hand; CLONE_NEWUSER for those of a user namespace, from which no user can be left
    """
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    return bool(unshare(more | CLONE_NEWNET | CLONE_NEWIPC) == 0)


def become_nobody() -> bool:
    """Give up root; whether that was needed and possible. The kernel does not count root's processes."""
    if os.geteuid() != 0:
        return False
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except OSError:
        return False
    return True


def limit(order: dict[str, Any]) -> None:
    seconds, memory = order["seconds"], order["memory_bytes"]
    for kind, value in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, order["file_bytes"]),
        (resource.RLIMIT_NOFILE, order["open_files"]),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


class Hook:
    """Refuses what an answer has no business with."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._num_changes = 0

    def check(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Called by the interpreter before it acts."""
        if event.startswith(REFUSED):
            raise PermissionError(f"answers may not use {event}")
        if event == "open":
            self._check_open(*arguments)
        elif event.startswith(CHANGING):
            for argument in arguments:
                if isinstance(argument, str | bytes | os.PathLike):
                    self._check_change(argument)

    def _check_open(self, path: Name | int, mode: str | None, flags: int) -> None:
        if isinstance(path, int):
            return
        if flags & WRITING:
            self._check_change(path)
        elif mode is None and os.path.isdir(path):
            # What is opened relative to a folder is named without it, and could be anywhere.
            raise PermissionError("answers may not open folders")

    def _check_change(self, path: Name) -> None:
        self._num_changes += 1
        if self._num_changes > MAX_CHANGES:
            raise PermissionError(f"answers may not change files more than {MAX_CHANGES} times")
        place = os.path.realpath(os.fsdecode(path))
        if place != self._folder and not place.startswith(self._folder + os.sep):
            raise PermissionError("answers may only write into their own folder")


if __name__ == "__main__":
    main()
