"""Stop strings: exact cuts, nothing of a match leaks, nothing else is lost, whatever the chunks."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from server import stops

TEXTS = st.text(alphabet="abc\n", max_size=30)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=4).map(tuple)


def run(chunks: list[str], stop_strings: tuple[str, ...], *, include_match: bool = False) -> tuple[str, str | None]:
    state, text = stops.StopState(stop_strings), ""
    for chunk in chunks:
        result = stops.push(state, chunk, include_match=include_match)
        text += result.text
        state = result.state
        if result.matched is not None:
            return text, result.matched
    return text + stops.flush(state).text, None


def cut_by_hand(text: str, stop_strings: tuple[str, ...]) -> str:
    """The first prefix of the text that ends in a stop string, without it; the longest such one."""
    for end in range(1, len(text) + 1):
        matching = [stop for stop in stop_strings if text[:end].endswith(stop)]
        if matching:
            return text[: end - max(map(len, matching))]
    return text


@given(text=TEXTS, stop_strings=STOPS, cuts=st.lists(st.integers(0, 30), max_size=6))
def test_any_chunking_gives_the_cut_of_the_whole_text(
    text: str, stop_strings: tuple[str, ...], cuts: list[int]
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[a:b] for a, b in pairwise(edges)]
    expected = cut_by_hand(text, stop_strings)
    assert run(chunks, stop_strings)[0] == expected
    assert run(list(text), stop_strings)[0] == expected


@given(text=TEXTS, stop_strings=STOPS)
def test_held_text_is_always_the_beginning_of_a_stop_string(text: str, stop_strings: tuple[str, ...]) -> None:
    state = stops.StopState(stop_strings)
    for char in text:
        result = stops.push(state, char)
        state = result.state
        assert result.matched or not state.held or any(stop.startswith(state.held) for stop in stop_strings)


def test_a_match_over_three_chunks_is_cut_exactly() -> None:
    assert run(["one E", "N", "D two"], ("END",)) == ("one ", "END")


def test_the_match_is_kept_on_request() -> None:
    assert run(["one E", "ND two"], ("END",), include_match=True) == ("one END", "END")


def test_a_prefix_that_does_not_become_a_match_goes_out() -> None:
    assert run(["one E", "N", "d two"], ("END",)) == ("one ENd two", None)
