"""What counts as right; and programs that a model wrote run within limits, or not at all."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.evaluation.judge import judge, program
from server.evaluation.problem import Check, NumberCheck, ProgramCheck, TextCheck
from server.evaluation.sandbox import Limits, Sandbox

BODY = ProgramCheck('import math\n\n\ndef one():\n    """1"""\n', "assert one() == 1", "one", is_body=True)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(Limits(seconds=1, memory_bytes=2**28, file_bytes=2**16))


@pytest.mark.parametrize(
    ("check", "text", "is_right"),
    [
        (TextCheck("4, 7, 9"), "\n4,  7,\n9 ", True),
        (TextCheck("Rome"), "rome", False),
        (NumberCheck("18"), "5 + 13 = 18\n#### 18", True),
        (NumberCheck("18"), "It is 18.0 dollars.", True),
        (NumberCheck("1,000"), "#### $1000", True),
        (NumberCheck("18"), "18 or 19", False),
        (NumberCheck("18"), "#### 19, not 18", False),
        (NumberCheck("18"), "eighteen", False),
        (NumberCheck("-3"), "so -3", True),
    ],
)
def test_texts_and_numbers(check: Check, text: str, is_right: bool) -> None:
    assert judge(check, text, None, None) is is_right


def test_extraction_takes_the_last_match_or_its_group() -> None:
    check = TextCheck("B")
    assert judge(check, "(A) no. (B) yes", re.compile(r"\((\w)\)"), None)
    assert not judge(check, "B", re.compile(r"\((\w)\)"), None)
    assert judge(NumberCheck("5"), "x = 4, y = 5; 9", re.compile(r"y = \d"), None)


@pytest.mark.parametrize(
    "text",
    [
        "    return 1\n",
        "    return 1\n\nprint(one())\nraise ValueError\n",  # what follows the body does not count
        "```python\ndef one():\n    return 1\n```\nThat is it.",
        "Here:\n```\ndef one():\n    return math.isqrt(1)\n```",  # the prompt's imports stay
        "def one():\n    return 1\n",
    ],
)
def test_a_body_a_fenced_function_and_a_repeated_one_are_all_completions(sandbox: Sandbox, text: str) -> None:
    assert judge(BODY, text, None, sandbox), program(BODY, text)


def test_a_wrong_body_fails_its_asserts(sandbox: Sandbox) -> None:
    assert not judge(BODY, "    return 2\n", None, sandbox)
    assert not judge(BODY, "    return (", None, sandbox)


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_programs_end_at_their_limits(sandbox: Sandbox, tmp_path: Path, listener: int) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    bad = {
        "runs for ever": "while True: pass",
        "takes the memory": "x = bytearray(2**30)",
        "writes a large file": "open('f', 'wb').write(bytes(2**20))",
        "writes elsewhere": f"open({str(outside)!r}, 'w').write('changed')",
        "removes elsewhere": f"import os\nos.remove({str(outside)!r})",
        "removes elsewhere by a path object": f"import pathlib\npathlib.Path({str(outside)!r}).unlink()",
        "writes relative to a folder": "import os\n"
        f"folder = os.open({str(tmp_path)!r}, os.O_RDONLY)\n"
        "os.write(os.open('outside', os.O_WRONLY | os.O_TRUNC, dir_fd=folder), b'changed')",
        "writes elsewhere as a database": "import sqlite3\n"
        f"sqlite3.connect({str(tmp_path / 'new')!r}).execute('VACUUM')",
        "writes many files": "for name in range(200):\n    open(str(name), 'w').close()",
        "makes folders without end": "import os\nwhile True:\n    os.mkdir('a')\n    os.chdir('a')",
        "floods what is read of it": "import os\nfor number in range(3, 9):\n"
        "    try:\n        while os.write(number, bytes(2**16)):\n            pass\n    except OSError:\n        pass",
        "forks": "import os\nos.fork()",
        "starts a program": "import subprocess\nsubprocess.run(['true'])",
        "connects": f"import socket\nsocket.create_connection(('127.0.0.1', {listener}), 1)",
        "leaves before the end": "import os\nos._exit(0)",
    }
    for name, text in bad.items():
        assert not sandbox.passes(text), name
    assert outside.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert sandbox.passes("import json, math, random\nopen('f', 'w').write('x')\nprint('x')\nassert math.isqrt(4) == 2")


def test_the_limits_are_described(sandbox: Sandbox) -> None:
    assert "1 s, 256 MiB" in sandbox.description
    assert "network" in sandbox.description
    assert "process" in sandbox.description
