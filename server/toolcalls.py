"""Tool calls in a model's text, in the form that Hermes and the Qwen, SDAR, Dream and LLaDA2 templates teach:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Lisbon"}}
    </tool_call>

Pure functions over a growing text, like `stops`: `push` and `flush` take a state and return the next one. Text that may
belong to a call is held back; what turns out to be no call is text like any other, unchanged. White space that only
sets a call apart from what stands before it, or that ends the text behind one, is left out.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Final, NoReturn

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
MARKERS: Final = (OPEN, CLOSE)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function and its arguments, a JSON object as text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ScanState:
    """held: text that may belong to a call. follows_call: no text has gone out since the last call."""

    held: str = ""
    follows_call: bool = False


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What may go out now; the text stands before the calls, or between them."""

    state: ScanState
    text: str
    calls: tuple[ToolCall, ...]


def push(state: ScanState, text: str) -> ScanResult:
    """Append text."""
    buffer = state.held + text
    follows_call = state.follows_call
    out: list[str] = []
    calls: list[ToolCall] = []
    while (end := _find_close(buffer)) >= 0:
        start = buffer.rindex(OPEN, 0, end)
        call = _parse(buffer[start + len(OPEN) : end])
        end += len(CLOSE)
        if call is None:
            piece = buffer[:end]
        else:
            piece = buffer[:start].rstrip()
            calls.append(call)
        out.append(piece)
        follows_call = call is not None
        buffer = buffer[end:]
    cut = _num_free(buffer)
    out.append(buffer[:cut])
    return ScanResult(ScanState(buffer[cut:], follows_call and not cut), "".join(out), tuple(calls))


def flush(state: ScanState) -> ScanResult:
    """The text has ended. A call that lacks only its closing mark counts: models often end right behind the object."""
    start = state.held.rfind(OPEN)
    call = _parse(state.held[start + len(OPEN) :]) if start >= 0 else None
    if call is not None:
        return ScanResult(ScanState(), state.held[:start].rstrip(), (call,))
    text = state.held.rstrip() if state.follows_call else state.held
    return ScanResult(ScanState(), text, ())


def _find_close(buffer: str) -> int:
    """Where the first closing mark behind an opening one starts, or -1."""
    start = buffer.find(OPEN)
    return buffer.find(CLOSE, start + len(OPEN)) if start >= 0 else -1


def _num_free(buffer: str) -> int:
    """Length of the text that cannot belong to a call: up to an opening mark, whole or begun, and the space before."""
    start = buffer.find(OPEN)
    if start < 0:
        begun = next((n for n in range(len(OPEN) - 1, 0, -1) if buffer.endswith(OPEN[:n])), 0)
        start = len(buffer) - begun
    return len(buffer[:start].rstrip())


def _parse(body: str) -> ToolCall | None:
    """The call, or None if the text between the marks is none."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        if not isinstance(arguments, dict):
            return None
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (value["name"] + text).encode("utf-8")  # escapes may name half a character, which no answer can carry
    except (ValueError, RecursionError):
        return None
    return ToolCall(f"call_{secrets.token_hex(12)}", value["name"], text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
