"""A streamed answer as `psd bench` reads it: whole events however the bytes come, and words for what is none."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.bench.reading import MAX_EVENT_BYTES, EventLines, ProtocolError, Reading


@example(["\u2028\x85"], [3, 9], "\r\n")
@settings(max_examples=40)
@given(
    st.lists(st.text(max_size=5), max_size=5),
    st.lists(st.integers(0, 200), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], cuts: list[int], end: str) -> None:
    texts = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    raw = "".join(f": ping{end}{end}id: 7{end}data: {text}{end}{end}" for text in texts).encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    lines = EventLines()
    got = [event for start, stop in itertools.pairwise(edges) for event in lines.push(raw[start:stop])]
    assert got == texts


def test_only_line_feeds_end_a_line() -> None:
    assert list(EventLines().push('data: {"a": "\u2028\x85\x0b"}\n\n'.encode())) == ['{"a": "\u2028\x85\x0b"}']


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b'data: {"choices": ' + b"[" * 100_000 + b"\n\n", "an event that is not JSON"),
        (b"x" * (MAX_EVENT_BYTES + 1), "an event of more than 16 MiB"),
        ((b"data: " + b"x" * (MAX_EVENT_BYTES // 2 + 1) + b"\n") * 2, "an event of more than 16 MiB"),
        (b"data: \xff\n\n", "a stream that is not UTF-8"),
    ],
    ids=["deep", "long", "many lines", "latin"],
)
def test_a_stream_that_is_none_ends_in_words(sent: bytes, words: str) -> None:
    reading, lines = Reading(), EventLines()

    def read() -> None:
        for event in lines.push(sent):
            reading.take(event, 0.0)

    with pytest.raises(ProtocolError, match=words):
        read()
