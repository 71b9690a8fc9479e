"""The tokenizer of the built-in model: byte-level BPE, every digit a token of its own, special tokens in front."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_model.tasks import draw

VOCAB_SIZE: Final = 1280
SPECIALS: Final = (
    "<|pad|>",
    "<|endoftext|>",
    "<|mask|>",
    "<|startoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|eot|>",
    "<|system|>",
)
PAD_ID, EOS_ID, MASK_ID, BOS_ID, USER_ID, ASSISTANT_ID, EOT_ID, SYSTEM_ID = range(len(SPECIALS))
CHAT_TEMPLATE: Final = (
    "{{ '<|startoftext|>' }}"
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}{{ '<|assistant|>' + m['content'] + '<|endoftext|>' }}"
    "{% elif m['role'] == 'system' %}{{ '<|system|>' + m['content'] + '<|eot|>' }}"
    "{% else %}{{ '<|user|>' + m['content'] + '<|eot|>' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# One digit; a word with its space; a line break with the indentation after it; an operator with its spaces; the rest.
_PIECES: Final = r"\d| ?[A-Za-z]+|\n+ *| [^\sA-Za-z\d]+ ?|[^\sA-Za-z\d]+| +|\s"


def train_tokenizer(seed: int, num_texts: int = 40_000) -> Tokenizer:
    """A tokenizer trained on the tasks' own text; any other text falls back to bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, num_texts), trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE, tokenizer.get_vocab_size()
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, max_length: int) -> None:
    """tokenizer.json and its configuration, as transformers reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": SPECIALS[BOS_ID], "eos_token": SPECIALS[EOS_ID], "pad_token": SPECIALS[PAD_ID]}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "add_bos_token": False,
        **special,
        "mask_token": SPECIALS[MASK_ID],
        "additional_special_tokens": list(SPECIALS[USER_ID:]),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=1) + "\n", encoding="utf-8")


def _texts(seed: int, count: int) -> Iterator[str]:
    rng = random.Random(f"tokenizer-{seed}")
    for _ in range(count):
        problem = draw(rng)
        yield problem.prompt + "\n" + problem.answer
    for number in range(1000):
        yield f" {number} + {number} = {number} - {number} * {number}"
