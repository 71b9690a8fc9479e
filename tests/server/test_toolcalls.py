"""Calls in a text: found however it is cut into chunks, and what is no call stays the text that it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import toolcalls

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
Found = tuple[str, list[tuple[str, str]]]


def scan(pieces: list[str]) -> Found:
    state, text = toolcalls.ScanState(), ""
    calls: list[toolcalls.ToolCall] = []
    for piece in pieces:
        result = toolcalls.push(state, piece)
        state, text, calls = result.state, text + result.text, [*calls, *result.calls]
    rest = toolcalls.flush(state)
    return text + rest.text, [(call.name, call.arguments) for call in (*calls, *rest.calls)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text \n", ("plain text \n", [])),
        (CALL, ("", [("f", '{"a": "é"}')])),
        (f"Let me look.\n{CALL}\n", ("Let me look.", [("f", '{"a": "é"}')])),
        (f"{CALL}\n{CALL}", ("", [("f", '{"a": "é"}')] * 2)),
        (f"{CALL}\nDone.", ("\nDone.", [("f", '{"a": "é"}')])),
        (CALL.removesuffix("</tool_call>"), ("", [("f", '{"a": "é"}')])),
        ('<tool_call>{"name": "f"}</tool_call>', ("", [("f", "{}")])),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ("", [("f", '{"a": 1}')])),
    ],
)
def test_calls_are_taken_out_of_the_text(text: str, expected: Found) -> None:
    assert scan([text]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "\\ud83d"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000 + "</tool_call>",
        "a </tool_call> b <tool_cal",
        " <tool_call>{} ",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_call_is_text(text: str) -> None:
    assert scan([text]) == (text, [])
    assert scan([*text[:500], text[500:]]) == (text, [])


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", CALL, '{"name": "f"}', " ", "\n", "<", "<tool_", "call>", "x", "é"]
)


@given(parts=st.lists(PIECES, max_size=8), data=st.data())
def test_how_the_text_is_cut_changes_nothing(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert scan(pieces) == scan([text])


@given(text=st.text(max_size=60), name=st.text(min_size=1, max_size=9), value=st.text(max_size=9))
def test_no_name_or_argument_is_lost(text: str, name: str, value: str) -> None:
    body = json.dumps({"name": name, "arguments": {"x": value}}, ensure_ascii=False)
    if "</tool_call>" in body or "<tool_call>" in text + body:
        return
    said, calls = scan([f"{text}<tool_call>{body}</tool_call>"])
    assert said == text.rstrip()
    assert [(found, json.loads(arguments)) for found, arguments in calls] == [(name, {"x": value})]
