"""Whether a completion answers a problem. Code runs in a process of its own, with limits."""

from __future__ import annotations

import json
import resource
import secrets
import subprocess
import sys
import tempfile

from demo_model.problem import Problem
from demo_model.prose import is_right

_SECONDS = 5
_MEMORY_BYTES = 512 * 2**20


def grade(problem: Problem, completion: str) -> bool:
    """True if `completion` (the text after the prompt) is right."""
    text = completion.strip()
    match problem.task:
        case "word" | "arith":
            return _final_number(text) is not None and _final_number(text) == _final_number(problem.answer)
        case "code":
            return _passes(problem, completion)
        case "json":
            try:
                return bool(json.loads(text) == json.loads(problem.answer))
            except (ValueError, RecursionError):
                return False
        case "prose":
            return is_right(problem.prompt, text)
        case _:
            return " ".join(text.split()) == " ".join(problem.answer.split())


def _final_number(text: str) -> str | None:
    """What follows the last `####`, or None."""
    _, mark, number = text.rpartition("####")
    return number.strip() if mark else None


def _passes(problem: Problem, completion: str) -> bool:
    """Run the completed function against the problem's asserts."""
    # The token shows that the asserts were reached: a completion may end the process early with status 0.
    token = secrets.token_hex(16)
    program = problem.prompt + completion.strip("\n") + "\n\n" + "\n".join(problem.tests) + f"\nprint({token!r})\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = subprocess.run(
                [sys.executable, "-I", "-c", program],
                cwd=folder,
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                preexec_fn=_limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return result.returncode == 0 and result.stdout.strip().endswith(token.encode())


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
