"""tokenizer.model without tokenizer.json: read as its authors' class reads it, run by run, and served."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import sentencepiece

from psd_core.errors import CheckpointError
from server.codec import open_codec
from server.detokenizer import Detokenizer
from server.inspection import inspect
from server.tokenizer import Tokenizer
from tests.engine.openpangu import write_openpangu
from tests.server.process import ServerProcess

SPECIALS = ("[unused0]", "[unused9]", "[unused10]")
TEMPLATE = (
    "{% for m in messages %}[unused9]user:{{ m['content'] }}[unused10]{% endfor %}"
    "{% if add_generation_prompt %}[unused9]bot:{% endif %}"
)
TEXTS = (
    "the quick fox",
    "  leading,   inner and trailing  ",
    "",
    " ",
    "你好 世界, naïve ①②",
    "emoji 😀👍🏽 and \t tabs\nlines",
    "a [unused0] b",
    "[unused0]",
    "[unused10][unused9]x",
    "<s> </s> <unk>",
)


def write_pieces(folder: Path, model_type: str = "bpe", knows_specials: bool = True, **config: object) -> int:
    """tokenizer.model and a tokenizer_config.json like openPangu's; how many pieces there are."""
    corpus = folder / "corpus.txt"
    lines = [f"the quick brown fox {n} jumps over [lazy] dogs, 你好世界 naïve café {7 * n}" for n in range(300)]
    corpus.write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        model_type=model_type,
        vocab_size=400,
        byte_fallback=True,
        character_coverage=0.99,
        user_defined_symbols=list(SPECIALS) if knows_specials else [],
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    size: int = model.get_piece_size()
    texts = ["<unk>", "<s>", "</s>", *SPECIALS]
    ids = {text: model.piece_to_id(text) for text in texts}
    if not knows_specials:
        ids |= {text: size + index for index, text in enumerate(SPECIALS)}
    table = {str(ids[text]): {"content": text, "special": True, "normalized": False} for text in texts}
    settings = {
        "tokenizer_class": "PanguTokenizer",
        "added_tokens_decoder": table,
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        **config,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return size if knows_specials else size + len(SPECIALS)


@pytest.fixture(scope="module", params=["bpe", "unigram", "bpe behind"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Special tokens are pieces of the model, or come behind them."""
    path = tmp_path_factory.mktemp("pieces")
    write_pieces(path, request.param.split()[0], "behind" not in request.param)
    return path


def test_runs_between_special_tokens_are_the_librarys(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    end = tokenizer.special_texts["[unused10]"]
    for text in TEXTS[:6]:
        ids = model.encode(text)
        assert tokenizer.encode_text(text) == [1, *ids]
        assert tokenizer.encode_markup(f"{text}[unused10]{text}") == [*ids, end, *ids]
        assert tokenizer.decode(ids) == model.decode(ids)
        assert tokenizer.decode([1, *ids, end, *ids]) == model.decode(ids) * 2
        assert tokenizer.decode([1, *ids, end], skip_special=False) == f"<s>{model.decode(ids)}[unused10]"


def test_special_tokens_in_a_users_text_are_text(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    for text in TEXTS:
        ids = tokenizer.encode_text(text, with_prefix=False)
        assert not tokenizer.special_ids & set(ids) - {0}
        if "[" in text or "<" in text:
            assert tokenizer.decode(ids) == text


def test_an_answer_keeps_the_space_that_the_start_of_a_text_has_not(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode_text("the fox 😀 over", with_prefix=False)
    detokenizer = Detokenizer(tokenizer)
    parts = [*map(detokenizer.push, ids), detokenizer.flush()]
    assert "".join(parts) == " the fox 😀 over"
    assert "\ufffd" not in "".join(parts)
    assert tokenizer.decode(ids) == "the fox 😀 over"
    assert tokenizer.decode([*ids, 10**6]) == "the fox 😀 over"
    prompt = Detokenizer(tokenizer)
    assert "".join(map(prompt.push, tokenizer.encode_text("the fox"))) == "the fox"  # behind the start of a text


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pieces(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())

    def refused(match: str, **changes: object) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | changes))
        with pytest.raises(CheckpointError, match=match):
            open_codec(tmp_path)

    refused(
        "understood for PanguTokenizer, but tokenizer_config.json says 'T5Tokenizer'", tokenizer_class="T5Tokenizer"
    )
    wrong = {"9": {"content": "[unused0]", "special": True}}
    refused(r"'\[unused0\]' should have id 9, but in tokenizer.model that is '<0x03>'", added_tokens_decoder=wrong)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "sentencepiece", None)
        refused(r"needs the package sentencepiece: pip install sentencepiece, or put a tokenizer.json")
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    refused(r"tokenizer\.model cannot be read")


def test_a_checkpoint_with_tokenizer_model_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "openPangu-7B-Diffusion-tiny"
    folder.mkdir()
    size = write_pieces(folder)
    write_openpangu(folder, size + 4, 3, _name_or_path=None)
    found = inspect(folder, folder, "auto", "cpu")
    assert not found.faults
    shown = dict(found.lines)
    assert shown["attention"] == "context-causal, blocks of 8, logits shifted by one; caches none, causal"
    assert (shown["mask id"], shown["stop ids"]) == ("3", "2, 5")
    with ServerProcess(folder, tmp_path, ["--threshold", "0.4"]) as server:
        assert "licence forbids any use within the European Union" in server.log
        plain = {"max_tokens": 21, "ignore_eos": True, "return_token_ids": True, "prompt": "the quick fox"}
        answer = server.complete(**plain)
        assert answer.status_code == 200, answer.text
        choice = answer.json()["choices"][0]
        assert len(choice["token_ids"]) == 21
        assert not {3, *range(size, size + 4)} & set(choice["token_ids"])
        for psd in ({"draft_depth": 0}, {"draft_depth": 7, "cache": "none"}, {"draft_increment": "policy"}):
            assert server.complete(**plain, psd=psd).json()["choices"][0]["token_ids"] == choice["token_ids"]
        one = server.complete(**plain | {"max_tokens": 1}).json()["choices"][0]
        assert one["token_ids"] == choice["token_ids"][:1]
        edited = server.complete(**plain, psd={"edit_threshold": 0.3})
        assert edited.status_code == 200, edited.text
        echoed = server.complete(**plain, echo=True, logprobs=2).json()["choices"][0]
        assert echoed["text"] == "the quick fox" + choice["text"]
        assert echoed["logprobs"]["token_logprobs"][0] is None
        assert all(value < 0 for value in echoed["logprobs"]["token_logprobs"][1:])
        assert echoed["text"].startswith(joined := "".join(echoed["logprobs"]["tokens"]))
        assert joined.startswith("the quick fox")
        refusals: list[tuple[dict[str, object], str]] = [
            ({"suffix": "dogs"}, "suffix needs a model that sees what follows"),
            ({"psd": {"cache": "dual"}}, "cache must be one of none, causal"),
            ({"psd": {"block_length": 32}}, "block_length must be 8 for this model, got 32"),
            ({"max_tokens": 300}, "the context limit is 256 tokens"),
        ]
        for fields, message in refusals:
            refused = server.complete(**plain | fields)
            assert refused.status_code == 400
            assert message in refused.json()["error"]["message"]
        messages = [{"role": "user", "content": "the [unused10] fox"}]
        body = {"model": "tiny", "messages": messages, "return_token_strs": True}
        tokenized = server.client.post("/tokenize", json=body).json()
        assert tokenized["token_strs"][:3] == ["<s>", "[unused9]", " "]
        assert tokenized["tokens"].count(5) == 1
        text = server.client.post("/detokenize", json={"model": "tiny", "tokens": tokenized["tokens"][2:-4]}).json()
        assert text["prompt"].startswith("user:the [unused10] fox")
        chat = server.chat(max_tokens=9, messages=messages)
        assert chat.status_code == 200, chat.text
