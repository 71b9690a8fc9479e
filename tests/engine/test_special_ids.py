"""Special ids come from the tokenizer by their text, and nobody who knows them may disagree."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from psd_core.errors import CheckpointError
from psd_core.models.checkpoint import open_checkpoint
from psd_core.models.dream import DREAM
from psd_core.models.families import FAMILIES
from psd_core.models.family import Family
from psd_core.models.llada import LLADA
from psd_core.models.llada2 import LLADA_2
from psd_core.models.loader import load_model
from psd_core.models.tokens import TokenTexts, read_token_texts, resolve_special_ids

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FULL_VOCAB = 200_000  # more than any family's published ids


def published(family: Family) -> TokenTexts:
    known = [family.mask, *family.stops]
    return TokenTexts(Path("tok"), {token.text: token.token_id or 199_000 for token in known}, None)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_published_tokenizer_agrees_with_the_table(family: Family) -> None:
    special = resolve_special_ids(family, {}, {}, published(family), FULL_VOCAB)
    assert special.mask_id == family.mask.token_id
    assert set(special.stop_ids) == {token.token_id or 199_000 for token in family.stops}


def test_without_a_tokenizer_the_table_speaks() -> None:
    special = resolve_special_ids(LLADA, {}, {}, TokenTexts(Path(), {}, None), FULL_VOCAB)
    assert (special.mask_id, special.stop_ids) == (126336, (126081, 126348))


@pytest.mark.parametrize(
    ("tokens", "config", "message"),
    [
        (
            {"<|mdm_mask|>": 7},
            {},
            r"'<\|mdm_mask\|>' has id 7 in the tokenizer of tok, but 126336 in the family's table",
        ),
        ({}, {"mask_token_id": 9}, r"has id 9 in config.json \(mask_token_id\), but 126336 in the family's table"),
        (
            {"<|mdm_mask|>": 126336},
            {"mask_token_id": 9},
            r"has id 126336 in the tokenizer of tok, but 9 in config.json",
        ),
        (
            {"<|mdm_mask|>": 126336, "<|eot_id|>": 5},
            {},
            r"the stop token '<\|eot_id\|>' has id 5 in the tokenizer of tok, but 126348 in the family's table",
        ),
        ({}, {"eos_token_id": 200_000}, r"eos_token_id 200000 is outside the vocabulary \(200000\)"),
        ({}, {"eos_token_id": [1, "2"]}, "eos_token_id must be a token id or a list of them"),
        ({}, {"eos_token_id": 126336}, "token id 126336 is the mask and also ends a text"),
    ],
)
def test_a_contradiction_is_refused_with_both_values(
    tokens: dict[str, int], config: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        resolve_special_ids(LLADA, config, {}, TokenTexts(Path("tok"), tokens, None), FULL_VOCAB)


def test_a_small_vocabulary_is_not_held_against_the_published_ids() -> None:
    tokens = TokenTexts(Path("tok"), {"<|mdm_mask|>": 7, "<|eot_id|>": 5}, None)
    special = resolve_special_ids(LLADA, {"mask_token_id": 7}, {}, tokens, 100)
    assert (special.mask_id, special.stop_ids) == (7, (5,))
    with pytest.raises(CheckpointError, match="no mask token: the tokenizer does not know"):
        resolve_special_ids(LLADA, {}, {}, TokenTexts(Path("tok"), {}, None), 100)


def test_stop_ids_are_the_union_of_all_who_name_some() -> None:
    tokens = TokenTexts(Path("tok"), {"<|mask|>": 1, "<|role_end|>": 2, "<end>": 3}, "<end>")
    special = resolve_special_ids(LLADA_2, {"eos_token_id": 4}, {"eos_token_id": [5, 4]}, tokens, 100)
    assert set(special.stop_ids) == {2, 3, 4, 5}


def test_added_tokens_are_found_without_a_tokenizer_json(tmp_path: Path) -> None:
    added = {"7": {"content": "<|mask|>"}, "8": {"content": "<|im_end|>"}}
    config = {"added_tokens_decoder": added, "eos_token": {"content": "<|im_end|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = read_token_texts(tmp_path)
    assert (found.ids, found.eos_id) == ({"<|mask|>": 7, "<|im_end|>": 8}, 8)
    assert resolve_special_ids(DREAM, {}, {}, found, 100).mask_id == 7
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|mask|>": 7}))
    assert read_token_texts(tmp_path).ids == {"<|mask|>": 7}
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|mask|>": "seven"}))
    with pytest.raises(CheckpointError, match=r"added_tokens\.json: an added token must have a text and an id"):
        read_token_texts(tmp_path)


def test_the_tokenizer_of_another_folder_is_held_against_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 3, "content": "<|mdm_mask|>"}]}))
    with pytest.raises(CheckpointError, match=f"has id 3 in the tokenizer of {tmp_path}, but 508 in config.json"):
        load_model(GOLDEN / "llada" / "ckpt", tokenizer_path=tmp_path)


def test_contexts_come_from_the_config_and_dreams_is_what_it_was_trained_with() -> None:
    assert open_checkpoint(GOLDEN / "llada" / "ckpt").spec.max_positions == 4096
    assert open_checkpoint(GOLDEN / "dream" / "ckpt").spec.max_positions == 2048  # config.json says 131072
    assert open_checkpoint(GOLDEN / "sdar" / "ckpt").spec.max_positions == 32768


def test_a_research_licence_is_told_when_a_checkpoint_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notice = DREAM.notices[0].text
    load_model(GOLDEN / "dream" / "ckpt", device="cpu")
    assert notice not in caplog.text
    named = Path(shutil.copytree(GOLDEN / "dream" / "ckpt", tmp_path / "DiffuCoder-7B-Instruct"))
    with caplog.at_level(logging.WARNING):
        load_model(named, device="cpu")
    assert caplog.text.count(notice) == 1
    cached = tmp_path / "models--apple--DiffuCoder-7B-Base" / "snapshots" / "0123"
    shutil.copytree(GOLDEN / "dream" / "ckpt", cached)
    assert open_checkpoint(cached).notices == (notice,)
    tokenizer = {"added_tokens": [{"id": 9, "content": "<|dlm_pad|>"}, {"id": 508, "content": "<|mask|>"}]}
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert open_checkpoint(GOLDEN / "dream" / "ckpt", tmp_path / "tok").notices == (notice,)
