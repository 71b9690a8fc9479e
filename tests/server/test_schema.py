"""Request bodies: strict types, null as default, and nothing that would change the answer is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psd_core.config import POLICY_NAMES, DecoderConfig
from server.body import JsonObject, parse_object
from server.errors import ApiError
from server.figures import POLICY_SETTINGS
from server.schema import PsdFields, parse_chat, parse_completion

BASE: JsonObject = {"model": "m", "prompt": "a"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "prompt",
    "messages",
    "n",
    "stop",
    "seed",
    "temperature",
    "logprobs",
    "stream",
    "stream_options",
    "psd",
    "tools",
)


def status_of(call: Callable[[], object]) -> int:
    """200 if the call returns; whatever is no ApiError passes through and fails the test."""
    try:
        call()
    except ApiError as error:
        return error.status
    return 200


@given(fields=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_json_is_either_parsed_or_a_400(fields: JsonObject) -> None:
    for parse in (parse_completion, parse_chat):
        assert status_of(partial(parse, BASE | fields)) in (200, 400)


@given(body=st.binary(max_size=60))
def test_any_bytes_are_either_an_object_or_a_400(body: bytes) -> None:
    assert status_of(lambda: parse_object(body)) in (200, 400)


def test_null_is_the_default_of_every_optional_field() -> None:
    optional = (
        "max_tokens",
        "n",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "logprobs",
        "stream",
        "psd",
        "best_of",
        "user",
    )
    assert parse_completion(BASE | dict.fromkeys(optional)) == parse_completion(BASE)


def test_whole_floats_are_integers_and_integers_are_numbers() -> None:
    request = parse_completion(BASE | {"n": 2.0, "temperature": 1, "frequency_penalty": 0})
    assert request.n == 2
    assert request.temperature == 1.0


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_every_form_of_prompt_becomes_a_list_of_prompts(prompt: object, parsed: object) -> None:
    assert parse_completion(BASE | {"prompt": prompt}).prompt == parsed


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": ["x"]}, "suffix"),
        ({"best_of": 0}, "best_of"),
        ({"logit_bias": {"a": 5}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"repetition_penalty": True}, "repetition_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"psd": {"speed": 1}}, "psd.speed"),
        ({"psd": {"k": "2"}}, "psd.k"),
        ({"n": True}, "n"),
        ({"stream": "no"}, "stream"),
        ({"stop": ["a", 1]}, "stop"),
        ({"seed": 2**63}, "seed"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: JsonObject, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion(BASE | fields)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": ""},
        {"logit_bias": {}},
        {"min_p": 0.0},
        {"response_format": {"type": "text"}},
        {"x": 1},
    ],
)
def test_neutral_values_and_unknown_fields_are_accepted(fields: JsonObject) -> None:
    assert parse_completion(BASE | fields) == parse_completion(BASE)


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"temperature": "hot"}, "got 'hot'"),
        ({"temperature": [1]}, "got an array"),
        ({"psd": {"draft_depth": [3]}}, "got an array"),
        ({"psd": {"cache": {"a": 1}}}, "got an object"),
        ({"psd": 3}, "got 3"),
        ({"stream_options": []}, "got an array"),
    ],
)
def test_a_message_shows_what_was_given(fields: JsonObject, shown: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_completion(BASE | fields)
    assert caught.value.message.endswith(shown)


def test_text_parts_of_a_message_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse_chat({"model": "m", "messages": [{"role": "user", "content": parts}]}).messages[0].content == "ab"


def test_an_image_part_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        parse_chat({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
    assert caught.value.param == "messages.0.content"


def test_every_decoder_setting_can_be_set_by_a_request_and_is_reported() -> None:
    assert set(PsdFields.model_fields) == set(DecoderConfig.__dataclass_fields__)
    assert set(POLICY_SETTINGS) == set(POLICY_NAMES)
