"""Messages about a request speak of JSON, not of what Python or a library calls it."""

from __future__ import annotations

import json

import pytest

from server.body import in_json, parse_object
from server.errors import ApiError
from server.schema import parse_chat, parse_completion

COMPLETION = {"model": "m", "prompt": "a"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"psd": "fast"}, "psd: should be an object, got 'fast'"),
        ({"stream_options": [1]}, "stream_options: should be an object, got an array"),
        ({"stop_token_ids": {"5": 1}}, "stop_token_ids: should be an array, got an object"),
        ({"stop_token_ids": 5}, "stop_token_ids: should be an array, got 5"),
        ({"logit_bias": {"5": None}}, "logit_bias: must map to numbers between -100 and 100, got null for token 5"),
        ({"logit_bias": {"5": True}}, "logit_bias: must map to numbers between -100 and 100, got true for token 5"),
        ({"logit_bias": {"5": [1]}}, "logit_bias: must map to numbers between -100 and 100, got an array for token 5"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_wrong_kind_is_named_as_json_does(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion({**COMPLETION, **fields})
    assert caught.value.message == message


def test_a_message_that_is_no_object_is_called_so() -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat({"model": "m", "messages": ["hello"]})
    assert caught.value.message == "messages.0: should be an object, got 'hello'"
    with pytest.raises(ApiError) as caught:
        parse_chat({"model": "m", "messages": "hello"})
    assert caught.value.message == "messages: should be an array, got 'hello'"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"seed": ' + b"9" * 5000 + b"}", "an integer in the body has more than 4300 digits"),
        (b'{"seed": NaN}', "the body is not valid JSON: NaN is not a JSON number"),
        (b'{"seed": 1e999}', "the body is not valid JSON: number 1e999 is out of range"),
        (b'{"seed": 1, "seed": 2}', "the body is not valid JSON: the key 'seed' stands twice in one object"),
        (b'{"seed": }', "the body is not valid JSON: Expecting value: line 1 column 10 (char 9)"),
    ],
)
def test_a_body_that_cannot_be_taken_says_what_is_wrong(body: bytes, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert caught.value.message == message


def test_values_are_shown_as_json_and_not_at_any_length() -> None:
    values: list[object] = [None, True, 1.5, "ä", [1], {}]
    assert [in_json(value) for value in values] == ["null", "true", "1.5", '"ä"', "an array", "an object"]
    assert len(in_json("x" * 5000)) == 40
