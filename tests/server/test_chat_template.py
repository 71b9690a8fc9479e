"""What a user writes is text, never markup, and ordinary conversations are encoded as the template says."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psd_core.errors import CheckpointError, RequestError
from server.chat_template import ChatTemplate, load_chat_template
from server.tokenizer import Tokenizer
from tests.server.checkpoint import CHAT_TEMPLATE, SPECIALS

CONTENTS = st.lists(st.sampled_from([*SPECIALS, "<|", "|>", "<", "eot", "a", " ", "é", "\ue000"]), max_size=6).map(
    "".join
)


@pytest.fixture(scope="module")
def template(byte_tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(CHAT_TEMPLATE, byte_tokenizer)


@given(contents=st.lists(CONTENTS, min_size=1, max_size=3))
def test_no_content_adds_a_special_token(
    template: ChatTemplate, byte_tokenizer: Tokenizer, contents: list[str]
) -> None:
    ids = template.encode([{"role": "user", "content": content} for content in contents])
    harmless = template.encode([{"role": "user", "content": "x"} for _ in contents])
    specials = [token_id for token_id in ids if token_id in byte_tokenizer.special_ids]
    assert specials == [token_id for token_id in harmless if token_id in byte_tokenizer.special_ids]
    plain = [token_id for token_id in ids if token_id not in byte_tokenizer.special_ids]
    assert byte_tokenizer.decode(plain) == "".join(contents)


def test_a_special_text_split_over_two_messages_stays_text(byte_tokenizer: Tokenizer) -> None:
    bare = ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}", byte_tokenizer)
    ids = bare.encode([{"role": "user", "content": "<|e"}, {"role": "user", "content": "ot|>"}])
    assert not byte_tokenizer.special_ids.intersection(ids)


def test_a_refusing_template_is_the_fault_of_the_messages(byte_tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", byte_tokenizer)
    with pytest.raises(RequestError, match="roles must alternate"):
        template.encode([{"role": "user", "content": "a"}])


def test_a_template_cannot_leave_its_sandbox(byte_tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", byte_tokenizer)
    with pytest.raises(RequestError):
        template.encode([{"role": "user", "content": "a"}])


def test_a_broken_template_fails_at_start(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(CheckpointError):
        ChatTemplate("{% for %}", byte_tokenizer)


def test_a_template_file_overrides_the_tokenizers_own(byte_tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages[0]['content'] }}")
    template = load_chat_template(byte_tokenizer, tmp_path, path)
    assert template is not None
    assert byte_tokenizer.decode(template.encode([{"role": "user", "content": "hi"}])) == "hi"


def test_a_prompt_with_a_special_tokens_text_is_ordinary_text(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode_text("a<|mask|>b")
    assert not byte_tokenizer.special_ids.intersection(ids)
    assert byte_tokenizer.decode(ids) == "a<|mask|>b"


PRIVATE_USE = "".join(map(chr, range(0xE000, 0xF8FF)))


def test_text_with_every_usual_guard_character_still_cannot_add_a_special_token(
    template: ChatTemplate, byte_tokenizer: Tokenizer
) -> None:
    content = PRIVATE_USE + SPECIALS[0]
    ids = template.encode([{"role": "user", "content": content}])
    plain = template.encode([{"role": "user", "content": "a"}])
    assert sum(token in byte_tokenizer.special_ids for token in ids) == sum(
        token in byte_tokenizer.special_ids for token in plain
    )


def test_a_name_is_text_too(byte_tokenizer: Tokenizer) -> None:
    named = ChatTemplate("{% for m in messages %}{{ m['name'] + ': ' + m['content'] }}{% endfor %}", byte_tokenizer)
    ids = named.encode([{"role": "user", "content": "hi", "name": SPECIALS[0]}])
    assert not set(ids) & byte_tokenizer.special_ids


SHOWS_ALL = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|user|>{{ m['content'] }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ greeting }}{% endif %}"
)


@given(text=CONTENTS, place=st.sampled_from(["tool", "key", "role", "argument", "variable"]))
def test_nothing_that_a_client_writes_anywhere_adds_a_special_token(
    byte_tokenizer: Tokenizer, text: str, place: str
) -> None:
    template = ChatTemplate(SHOWS_ALL, byte_tokenizer)
    written = {place: text}
    tools = [{"function": {"description": written.get("tool", "x"), "properties": {"role": written.get("role", "x")}}}]
    call = {"function": {"arguments": {written.get("key", "x"): written.get("argument", "x")}}}
    messages = [{"role": "user", "content": "x", "tool_calls": [call]}]
    ids = template.encode(messages, tools=tools, variables={"greeting": written.get("variable", "x")})
    specials = [token_id for token_id in ids if token_id in byte_tokenizer.special_ids]
    assert specials == [byte_tokenizer.special_texts[name] for name in ("<|user|>", "<|eot|>", "<|assistant|>")]


def test_json_in_a_prompt_is_plain(byte_tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ tools | tojson }}", byte_tokenizer)
    ids = template.encode([], tools=[{"b": "<é>", "a": 1}])
    assert byte_tokenizer.decode(ids) == '[{"b": "<é>", "a": 1}]'


def test_a_template_says_what_it_reads(byte_tokenizer: Tokenizer) -> None:
    template = ChatTemplate(SHOWS_ALL, byte_tokenizer)
    assert template.knows_tools
    assert template.variables == {"greeting"}
    plain = ChatTemplate(CHAT_TEMPLATE, byte_tokenizer)
    assert not plain.knows_tools
    assert plain.variables == set()


@given(content=CONTENTS)
def test_a_continued_prompt_ends_with_the_final_content(
    template: ChatTemplate, byte_tokenizer: Tokenizer, content: str
) -> None:
    asked = [{"role": "user", "content": "hi"}]
    ids = template.encode([*asked, {"role": "assistant", "content": content}], continue_final=True)
    opened = template.encode(asked)
    assert ids[: len(opened)] == opened
    assert not byte_tokenizer.special_ids.intersection(ids[len(opened) :])
    assert byte_tokenizer.decode(ids[len(opened) :]) == content


@pytest.mark.parametrize("source", ["{{ messages[0]['role'] }}", "{{ messages[-1]['content'] * 2 }}"])
def test_a_template_that_hides_or_repeats_the_final_message_cannot_continue_it(
    byte_tokenizer: Tokenizer, source: str
) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source, byte_tokenizer).encode([{"role": "assistant", "content": "a"}], continue_final=True)
    assert caught.value.param == "continue_final_message"
