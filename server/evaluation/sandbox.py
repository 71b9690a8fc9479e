"""Runs the Python that a model wrote in a process of its own, with limits and without a network: see `guard`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

_GUARD: Final = Path(__file__).with_name("guard.py")
# What answers may import without installing anything: the user that they run as must be able to read it.
_PROBE: Final = "import collections, datetime, decimal, functools, heapq, itertools, json, math, random, re, typing\n"
_START_SECONDS: Final = 30.0  # beyond the program's own time: a busy machine starts an interpreter slowly


class SandboxError(Exception):
    """Not even an empty program runs: nothing could be judged."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one program. seconds: of processor time."""

    seconds: int = 5
    memory_bytes: int = 2**30
    file_bytes: int = 2**20
    open_files: int = 64


class Sandbox:
    """Judges programs, several at a time if need be. Immutable after construction."""

    def __init__(self, limits: Limits) -> None:
        """Try what this machine permits. SandboxError if nothing runs."""
        self.limits = limits
        self._drops_user = True
        facts = self._run(_PROBE)
        if facts is None:  # e.g. an interpreter that only its owner may read
            self._drops_user = False
            facts = self._run(_PROBE)
        if facts is None:
            raise SandboxError(f"{sys.executable} does not run an empty program within the limits {limits}")
        self._facts = facts

    @property
    def description(self) -> str:
        """What holds here, in words."""
        limits = self.limits
        network = (
            "no network (a namespace of its own)"
            if self._facts["has_own_network"]
            else "the network is refused by the interpreter only: this system permits no namespace"
        )
        processes = (
            "processes are refused by the interpreter only, as root is not counted"
            if os.geteuid() == 0 and not self._facts["is_nobody"]
            else "no further process"
        )
        user = ", as nobody" if self._facts["is_nobody"] else ""
        return (
            f"{limits.seconds} s, {limits.memory_bytes >> 20} MiB, files of {limits.file_bytes >> 10} KiB at most, "
            f"{network}, {processes}{user}"
        )

    def passes(self, program: str) -> bool:
        """Whether the program runs to its end, without an error and within the limits."""
        return self._run(program) is not None

    def _run(self, program: str) -> dict[str, object] | None:
        """What the guard says of a program that ran to its end, else None."""
        token = secrets.token_hex(16)
        order = {"program": program, "token": token, "drops_user": self._drops_user} | asdict(self.limits)
        # What a program says goes to a file, not through a pipe to memory of ours: the limit on files holds for it.
        with tempfile.TemporaryDirectory(prefix="psd-answer-") as folder, tempfile.TemporaryFile() as said:
            if self._drops_user:
                os.chmod(folder, 0o777)  # the program may run as another user
            process = subprocess.Popen(
                [sys.executable, "-I", str(_GUARD)],
                cwd=folder,
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                process.communicate(json.dumps(order).encode(), self.limits.seconds + _START_SECONDS)
            except subprocess.TimeoutExpired:  # it sleeps: that costs no processor time
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
            said.seek(0)
            return _facts(said.read(), token) if process.returncode == 0 else None


def _facts(said: bytes, token: str) -> dict[str, object] | None:
    try:
        facts = json.loads(said)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and facts.get("token") == token else None
