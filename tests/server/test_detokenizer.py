"""Incremental decoding: joined pieces are the whole text, and no piece holds half a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.detokenizer import Detokenizer
from server.tokenizer import Tokenizer


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(text=st.text(max_size=40))
def test_pieces_of_any_text_join_to_it_without_broken_characters(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode_text(text, with_prefix=False)
    parts = pieces(byte_tokenizer, ids)
    assert "".join(parts) == text
    assert text.count("�") == sum(part.count("�") for part in parts)


@given(ids=st.lists(st.integers(8, 263), max_size=60))
def test_pieces_of_any_bytes_join_to_the_whole_decoding(byte_tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(pieces(byte_tokenizer, ids)) == byte_tokenizer.decode(ids)


def test_an_emoji_comes_out_whole_with_its_last_byte(byte_tokenizer: Tokenizer) -> None:
    ids = byte_tokenizer.encode_text("👩‍🚀", with_prefix=False)
    parts = pieces(byte_tokenizer, ids)
    assert [part for part in parts if part] == ["👩", "\u200d", "🚀"]


def test_special_tokens_are_left_out_unless_asked_for(byte_tokenizer: Tokenizer) -> None:
    ids = [*byte_tokenizer.encode_text("a", with_prefix=False), byte_tokenizer.special_texts["<|eot|>"]]
    assert "".join(pieces(byte_tokenizer, ids)) == "a"
    detokenizer = Detokenizer(byte_tokenizer, skip_special=False)
    assert "".join(map(detokenizer.push, ids)) == "a<|eot|>"
