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
