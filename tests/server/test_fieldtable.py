"""docs/api.md tells the truth about every request field."""

from __future__ import annotations

from pathlib import Path
from typing import get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from server import fieldtable
from server.body import JsonObject
from server.errors import ApiError
from server.metrics import ERROR_CODES
from server.schema import ChatRequest, CompletionRequest, parse_chat, parse_completion
from server.unsupported import CHAT_NEUTRAL, COMPLETION_NEUTRAL, NO_EFFECT

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
COMPLETION: JsonObject = {"model": "m", "prompt": "a"}
CHAT: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
ENDPOINTS = ((COMPLETION, parse_completion, COMPLETION_NEUTRAL), (CHAT, parse_chat, CHAT_NEUTRAL))


def test_the_page_holds_the_table_as_the_code_makes_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == fieldtable.replace_table(page), "run: python -m server.fieldtable docs/api.md"


def test_every_error_code_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [code for code in ERROR_CODES if f"`{code}`" not in page] == []


def test_every_field_of_openai_s_client_is_classified() -> None:
    completion = get_type_hints(completion_create_params.CompletionCreateParamsBase)
    chat = get_type_hints(chat_create_params.CompletionCreateParamsBase)
    for names, model, neutral in (
        (completion, CompletionRequest, COMPLETION_NEUTRAL),
        (chat, ChatRequest, CHAT_NEUTRAL),
    ):
        assert [name for name in names if fieldtable.status(name, model, neutral) == fieldtable.ABSENT] == []
    assert set(fieldtable.OPENAI_COMPLETION) >= {*completion}
    assert set(fieldtable.OPENAI_CHAT) >= {*chat}


def test_every_extension_of_vllm_is_classified() -> None:
    assert [row for row in fieldtable.rows(fieldtable.VLLM) if row[1] == row[2] == fieldtable.ABSENT] == []


def test_no_field_is_both_supported_and_refused() -> None:
    for model, neutral in ((CompletionRequest, COMPLETION_NEUTRAL), (ChatRequest, CHAT_NEUTRAL)):
        assert not set(model.model_fields).intersection(neutral)
        assert not NO_EFFECT.keys() & neutral.keys()


def test_a_refused_field_is_a_400_that_names_it_and_its_neutral_value_is_none() -> None:
    for base, parse, neutral in ENDPOINTS:
        expected = parse(base)
        for name, values in neutral.items():
            for value in (*values, None):
                assert parse(base | {name: value}) == expected, name
            with pytest.raises(ApiError) as caught:
                parse(base | {name: "something else"})
            assert (caught.value.status, caught.value.param) == (400, name)


def test_a_field_without_effect_may_hold_anything() -> None:
    for base, parse, _ in ENDPOINTS:
        for name in NO_EFFECT:
            parse(base | {name: "x"})
