"""Stop strings as pure functions over a growing text: `push` and `flush` take a state and return the next one.

A stop string may be spread over any number of chunks. Only text that could still become one is held back, and the
text is cut exactly at the earliest match. Of two strings that start at the same place the one that completes
first wins.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopState:
    """held: text that may be the start of a stop string and is not out yet."""

    stops: tuple[str, ...]
    held: str = ""


@dataclass(frozen=True, slots=True)
class StopResult:
    """text: what may go out now. matched: the stop string that ended the text, or None."""

    state: StopState
    text: str
    matched: str | None = None


def push(state: StopState, text: str, *, include_match: bool = False) -> StopResult:
    """Append text. After a match the rest of the text is dropped and the state must not be used again."""
    buffer = state.held + text
    match = _earliest_match(buffer, state.stops)
    if match is not None:
        start, stop = match
        end = start + len(stop) if include_match else start
        return StopResult(StopState(state.stops), buffer[:end], stop)
    keep = _longest_partial(buffer, state.stops)
    cut = len(buffer) - keep
    return StopResult(StopState(state.stops, buffer[cut:]), buffer[:cut])


def flush(state: StopState) -> StopResult:
    """The text has ended: nothing can match any more, so what was held goes out."""
    return StopResult(StopState(state.stops), state.held)


def _earliest_match(buffer: str, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Where the first stop string to complete begins. Ties: the one that begins first, then the shorter."""
    found = [(start + len(stop), start, stop) for stop in stops if (start := buffer.find(stop)) >= 0]
    if not found:
        return None
    _, start, stop = min(found)
    return start, stop


def _longest_partial(buffer: str, stops: tuple[str, ...]) -> int:
    """Length of the longest tail of the buffer that a stop string begins with."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(buffer)), longest, -1):
            if buffer.endswith(stop[:length]):
                longest = length
                break
    return longest
