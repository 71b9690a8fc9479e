"""`psd generate` and `psd chat` as processes: the same answers as the API's, from an engine here or from a server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from rich.text import Text

from server.terminal.canvas import SUPERSCRIPTS, CanvasState, draw, harmless
from server.terminal.remote import RemoteModel
from server.terminal.shades import BEHIND, decided_style, guess_style
from server.terminal.source import COMPLETIONS, SourceError
from tests.server.process import ServerProcess
from tests.server.sse import joined_text, read_stream

PROMPT = "What is 7 + 5?"
FLAGS = ("--max-tokens", "24", "--ignore-eos", "--policy", "topk", "--k", "4", "--draft-depth", "2")
FIELDS: dict[str, object] = {
    "max_tokens": 24,
    "ignore_eos": True,
    "psd": {"policy": "topk", "k": 4, "draft_depth": 2},
}


def psd(*arguments: str, typed: str = "", key: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PSD_")}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "PSD_DTYPE": "float32"} | (
        {} if key is None else {"PSD_API_KEY": key}
    )
    return subprocess.run(
        [sys.executable, "-m", "server.cli", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
        cwd=Path(__file__).parents[2],
    )


def test_generate_writes_the_servers_text_from_both_sources(server: ServerProcess, model_path: Path) -> None:
    whole = server.complete(prompt=PROMPT, **FIELDS).json()
    for where in (("--url", server.url), ("--model", str(model_path))):
        result = psd("generate", PROMPT, *where, *FLAGS)
        assert result.returncode == 0, result.stderr
        assert result.stdout == whole["choices"][0]["text"] + "\n"
        assert f"24 tokens · {whole['psd']['forwards']} forwards" in result.stderr


def test_watching_ends_with_the_whole_canvas_and_the_text(server: ServerProcess) -> None:
    result = psd("generate", "-", "--url", f"{server.url}/v1", "--watch", *FLAGS, typed=PROMPT)
    assert result.returncode == 0, result.stderr
    assert "24 of 32 decided" in result.stdout or "32 of 32 decided" in result.stdout
    text = server.complete(prompt=PROMPT, **FIELDS).json()["choices"][0]["text"]
    assert result.stdout.endswith(harmless(text) + "\n")


def test_a_canvas_wider_than_the_terminal_is_folded_not_cut(server: ServerProcess) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 30, 0, 0))
    command = [sys.executable, "-m", "server.cli", "generate", PROMPT, "--url", server.url, "--watch", *FLAGS]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment | {"TERM": "xterm"},
        cwd=Path(__file__).parents[2],
    )
    os.close(theirs)
    seen = b""
    # A terminal whose programs have ended answers a read with an error.
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 65_536):
            seen += piece
    assert process.wait(60) == 0
    frame = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).rpartition(" decided ·")[2]
    assert "undecided" in frame
    assert "held" in frame


def test_a_chat_remembers_its_turns_until_told_otherwise(server: ServerProcess) -> None:
    lines = "Hello.\n/what\nAgain?\n/new\nHello.\n/quit\nnever read\n"
    result = psd("chat", "--url", server.url, "--system", "Be brief.", *FLAGS, typed=lines)
    assert result.returncode == 0, result.stderr
    assert "unknown command /what" in result.stderr
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
    first = server.chat(messages=messages, **FIELDS).json()["choices"][0]["message"]["content"]
    more = [{"role": "assistant", "content": first}, {"role": "user", "content": "Again?"}]
    second = server.chat(messages=messages + more, **FIELDS).json()["choices"][0]["message"]["content"]
    assert result.stdout == f"{first}\n{second}\n{first}\n"


def test_faults_are_said_and_end_with_a_status(server: ServerProcess, tmp_path: Path) -> None:
    refused = psd("generate", PROMPT, "--url", server.url, "--max-tokens", "100000")
    assert refused.returncode == 1
    assert "psd generate: error:" in refused.stderr
    assert "512" in refused.stderr
    for arguments, words in (
        (["--url", "localhost:8000"], "--url must be like"),
        (["--url", "http://127.0.0.1:9"], "cannot be reached"),
        (["--model", str(tmp_path)], str(tmp_path)),
    ):
        result = psd("generate", PROMPT, *arguments)
        assert result.returncode == 1, arguments
        assert words in result.stderr
    wrong = psd("generate", PROMPT, "--url", server.url, "--threshold", "2")
    assert (wrong.returncode, "must be a number between 0 and 1, got '2'" in wrong.stderr) == (2, True)
    wrong = psd("generate", PROMPT, "--temperature", "9")
    assert (wrong.returncode, "must be a number between 0 and 2, got '9'" in wrong.stderr) == (2, True)


def test_the_canvas_of_a_stream_holds_every_token(server: ServerProcess) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "diffusing": True} | FIELDS
    chunks = read_stream(server.client, "/v1/completions", body)
    state = CanvasState()
    changes = sum(state.take(chunk) for chunk in chunks)
    assert changes == state.forwards == chunks[-1]["psd"]["forwards"]
    assert joined_text(chunks)
    assert set(range(24)) <= set(state.cells)
    assert state.accepted == chunks[-1]["psd"]["accepted_tokens"]
    assert sum(bar.num_decided for bar in state.bars) == len(state.cells)
    canvases = [chunk["psd"]["canvas"] for chunk in chunks if not chunk["choices"]]
    depths = {c["start"] + i: depth for c in canvases for i, depth in enumerate(c["depths"]) if depth is not None}
    assert {position: cell.depth for position, cell in state.cells.items()} == depths
    shown = "".join(line.plain for line in draw(state).renderables if isinstance(line, Text))
    assert all(str(depth).translate(SUPERSCRIPTS) in shown for depth in set(depths.values()) if depth)


def test_shades_deepen_with_depth_and_fade_with_doubt() -> None:
    drafts = [decided_style("draft", depth, 1.0) for depth in (1, 2, 3, 4)]
    assert len(set(drafts)) == 4
    assert decided_style("draft", 9, 1.0) == drafts[-1]
    faded = [decided_style("policy", 0, confidence) for confidence in (1.0, 0.7, 0.4, 0.1)]
    assert len(set(faded)) == 4
    assert ["italic" in style for style in faded] == [False, False, True, True]
    assert guess_style(0.9) != guess_style(0.1) != guess_style(0.1, is_rejected=True)


def test_what_is_decided_behind_the_end_is_faint_and_the_latest_tokens_stand_out() -> None:
    state = CanvasState()
    canvas = {
        "start": 0, "length": 3, "tokens": ["a", "b", None], "candidates": [None, None, "\x1b[2Jc"],
        "confidences": [0.9, 0.3, 0.2], "depths": [0, 2, None], "rejected": [2], "phase": "denoise",
        "forwards": 1, "steps": 2, "drafted": 2, "accepted": 1,
    }  # fmt: skip
    assert state.take({"psd": {"canvas": canvas}})
    running = _styles(state)
    assert "reverse" in running["a"]
    assert "\x1b" not in "".join(running)
    state.finish(1)
    over = _styles(state)
    assert over["a"] == decided_style("policy", 0, 0.9)
    assert over["b"] == BEHIND


def _styles(state: CanvasState) -> dict[str, str]:
    """What stands in the canvas, piece by piece, and in which style."""
    canvas = draw(state).renderables[0]
    assert isinstance(canvas, Text)
    return {canvas.plain[span.start : span.end]: str(span.style) for span in canvas.spans}


@pytest.mark.parametrize("text", ["\x1b[2J", "\x07", "\x9b31m", "\r"])
def test_nothing_that_a_terminal_obeys_gets_through(text: str) -> None:
    assert (
        harmless(f"a\n\t{text}b") == "a\n\t" + "".join("�" if not char.isprintable() else char for char in text) + "b"
    )
    assert text not in harmless(text)


class Stranger(BaseHTTPRequestHandler):
    """A web server that is none of ours: whatever is asked, it says the last part of the path in its own way."""

    SAYS: ClassVar = {
        "html": b"<html></html>",
        "empty": b'{"data": []}',
        "garbage": b"data: {\n\n",
        "latin": b"data: \xe9\n\n",
        "list": b"data: [1]\n\n",
        "text": b'data: {"error": "\x1b[31mred"}\n\n',
        "escape": b'data: {"error": {"message": "\\u001b]0;owned\\u0007"}}\n\n',
        "openai": b'data: {"choices": [{"text": "Hi"}]}\n\ndata: [DONE]\n\n',
    }
    DAMAGED: ClassVar = {
        "deep": b"data: " + b"[" * 100_000 + b"\n\n",
        "choice": b'data: {"choices": [7]}\n\n',
        "number": b'data: {"choices": [{"text": 7}]}\n\n',
        "nothing": b'data: {"choices": [{}]}\n\n',
        "usage": b'data: {"choices": [], "usage": {}}\n\n',
    }

    def _say(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write((self.SAYS | self.DAMAGED)[self.path.split("/")[1]])

    do_GET = do_POST = _say  # the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests read what psd says."""


@pytest.mark.parametrize(("says", "status"), [(says, 0 if says == "openai" else 1) for says in Stranger.SAYS])
def test_a_server_that_is_none_of_ours_is_an_error_in_words(says: str, status: int) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name = () if says in ("html", "empty") else ("--model", "m")
        result = psd("generate", "Hi", "--url", f"http://127.0.0.1:{server.server_port}/{says}", *name)
        server.shutdown()
    assert result.returncode == status
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert ("error: " in result.stderr) == bool(status)


def test_a_reader_that_has_heard_enough_and_a_broken_url_end_quietly(server: ServerProcess) -> None:
    command = [sys.executable, "-m", "server.cli", "generate", PROMPT, "--url", server.url, *FLAGS]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=120)
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
    assert psd("generate", PROMPT, "--url", "http://[").returncode == 1


@pytest.mark.parametrize("says", Stranger.DAMAGED)
def test_a_chunk_of_another_shape_is_an_error_in_words(says: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        model = RemoteModel(f"http://127.0.0.1:{server.server_port}/{says}", None, "m")
        with pytest.raises(SourceError, match=r"no chunk of an answer|does not answer as a PSD server"):
            list(model.stream(COMPLETIONS, {}))
        server.shutdown()


@pytest.mark.parametrize(
    "url", ["localhost:8000", "http://", "http://[", "http://a:99999", "http://a:0", "http://a:b", "http://u:p@a"]
)
def test_what_is_no_address_is_said_before_anybody_is_asked(url: str) -> None:
    with pytest.raises(SourceError, match=r"--url must be like http://localhost:8000, got"):
        RemoteModel(url, None, "m")
