"""vocab.json and merges.txt without tokenizer.json: read as transformers reads Qwen2's, and served."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import pre_tokenizers, trainers
from tokenizers.models import BPE

from psd_core.errors import CheckpointError
from server.tokenizer import Tokenizer
from server.tokenizer_files import open_tokenizer
from tests.server.checkpoint import CHAT_TEMPLATE, SPECIALS, write_checkpoint
from tests.server.hub import Hub
from tests.server.process import ServerProcess

CORPUS = [
    "the quick brown fox isn't lazy",
    "we're 1234 strong, they've 5678",
    "naïve café — déjà vu",
    "x = y + z;\n\n\treturn",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "a  b   c ",
    "I'LL DON'T they'Ve",
    "line\r\nline\n\n  indented",
    "2026-11-30 12:34:56.789",
    "cafe\u0301 = café",  # composed and decomposed
    "日本語のテキスト、句読点。",
    "🙂👍🏽 emoji",
    "<|mask|> is text here",
    "tabs\t\tand trailing   ",
]


def write_qwen2_files(folder: Path, tokenizer_class: str = "DreamTokenizer") -> None:
    """vocab.json, merges.txt and a tokenizer_config.json like Dream's; no tokenizer.json."""
    trained = RustTokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(CORPUS * 5, trainer)
    trained.model.save(str(folder))
    first = trained.get_vocab_size()
    added = {
        str(first + index): {"content": text, "special": True, "normalized": False}
        for index, text in enumerate(("<|endoftext|>", "<|im_end|>", "<|mask|>"))
    }
    config = {"tokenizer_class": tokenizer_class, "added_tokens_decoder": added, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_ids_equal_those_of_transformers(tmp_path: Path) -> None:
    write_qwen2_files(tmp_path)
    # In a process of its own: transformers brings half the world along.
    code = (
        "import json, sys\n"
        "from transformers import Qwen2Tokenizer\n"
        "tokenizer = Qwen2Tokenizer.from_pretrained(sys.argv[1])\n"
        "settings = {'add_special_tokens': False, 'split_special_tokens': True}\n"
        "print(json.dumps([tokenizer(text, **settings).input_ids for text in json.loads(sys.argv[2])]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), json.dumps(TEXTS)], capture_output=True, text=True, check=True
    )
    tokenizer = Tokenizer(tmp_path)
    assert [tokenizer.encode_text(text) for text in TEXTS] == json.loads(ran.stdout.splitlines()[-1])


def test_text_survives_and_special_tokens_are_markup_only(tmp_path: Path) -> None:
    write_qwen2_files(tmp_path)
    tokenizer = Tokenizer(tmp_path)
    mask_id = tokenizer.special_texts["<|mask|>"]
    assert tokenizer.encode_markup("a<|mask|>b")[1] == mask_id
    assert mask_id not in tokenizer.encode_text("a<|mask|>b")
    assert tokenizer.decode(tokenizer.encode_text("naïve 🙂\n")) == "naïve 🙂\n"
    assert tokenizer.end_ids == {tokenizer.special_texts["<|endoftext|>"]}


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer: neither tokenizer\.json nor vocab\.json with merges"):
        open_tokenizer(tmp_path)
    write_qwen2_files(tmp_path, "PanguTokenizer")
    with pytest.raises(CheckpointError, match=r"understood for DreamTokenizer, .* but .* says 'PanguTokenizer'"):
        open_tokenizer(tmp_path)
    write_qwen2_files(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"9000": {"content": "<|mask|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"'<\|mask\|>' should have id 9000, but the tokenizer gives it"):
        open_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("x y z\n")
    with pytest.raises(CheckpointError, match=r"vocab\.json and merges\.txt cannot be read"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"x": {"content": "<|mask|>"}}, "the id of an added token must be a number, got 'x'"),
        ({"-1": {"content": "<|mask|>"}}, "the id of an added token must be a number, got '-1'"),
        ({"5": {}}, "an added token must be an object with a text as content, got {}"),
        ({"5": {"content": ""}}, "an added token must be an object with a text as content"),
        ({"5": "<|mask|>"}, "an added token must be an object with a text as content, got '<|mask|>'"),
    ],
)
def test_an_added_token_without_a_text_or_an_id_is_named(tmp_path: Path, table: dict[str, object], words: str) -> None:
    write_qwen2_files(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": table}))
    with pytest.raises(CheckpointError, match=re.escape(words)):
        open_tokenizer(tmp_path)


def write_split_tokenizer(folder: Path) -> None:
    """The random checkpoint, its tokenizer.json replaced by vocab.json and merges.txt; no template."""
    write_checkpoint(folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = whole["model"]["vocab"]
    # Dream's special tokens follow the vocabulary, these come first: they stay in it and are marked as special.
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer.json").unlink()
    config = {
        "tokenizer_class": "DreamTokenizer",
        "added_tokens_decoder": {str(index): {"content": text, "special": True} for index, text in enumerate(SPECIALS)},
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_a_folder_without_tokenizer_json_is_served_with_a_template_of_ones_own_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_split_tokenizer(folder)
    template = tmp_path / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    with Hub({}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with ServerProcess(folder, tmp_path, ["--chat-template", str(template)]) as server:
            body = {"temperature": 2.0, "seed": 1, "ignore_eos": True, "return_token_ids": True, "max_tokens": 256}
            answer = server.chat(**body)
            assert answer.status_code == 200, answer.text
            ids = answer.json()["choices"][0]["token_ids"]
            assert "loading weights" not in server.log  # the bar is for terminals
        assert hub.requests == []
    assert len(ids) == 256
    # The vocabulary has 272 ids, the tokenizer knows the first 264; the mask is 2.
    assert not {2, *range(264, 272)} & set(ids)
