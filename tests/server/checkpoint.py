"""A random LLaDA checkpoint with a byte-level tokenizer, written to a folder: the server's tests need no real model.

Random weights talk nonsense, broken UTF-8 included, for as long as they are asked to: what a server must bear.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import read_checkpoint

SPECIALS = (
    "<|pad|>",
    "<|endoftext|>",
    "<|mask|>",
    "<|startoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|eot|>",
    "<|system|>",
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ '<|user|>' + m['content'] + '<|eot|>' }}"
    "{% elif m['role'] == 'system' %}{{ '<|system|>' + m['content'] + '<|eot|>' }}"
    "{% else %}{{ '<|assistant|>' + m['content'] + '<|endoftext|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
VOCAB_SIZE = 8 + 256 + 8  # specials, bytes, and ids that the tokenizer does not know


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json: one token per byte, eight special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: index for index, text in enumerate((*SPECIALS, *alphabet))}
    tokenizer = Tokenizer(BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_checkpoint(folder: Path, max_sequence_length: int = 512) -> None:
    """A two-layer model with random weights beside `write_tokenizer`'s tokenizer."""
    write_tokenizer(folder)
    config = {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "d_model": 32,
        "n_heads": 2,
        "n_kv_heads": 2,
        "n_layers": 2,
        "mlp_hidden_size": 48,
        "vocab_size": VOCAB_SIZE,
        "embedding_size": VOCAB_SIZE,
        "max_sequence_length": max_sequence_length,
        "rope": True,
        "rope_theta": 10000.0,
        "layer_norm_type": "rms",
        "rms_norm_eps": 1e-5,
        "block_type": "llama",
        "activation_type": "silu",
        "include_bias": False,
        "include_qkv_bias": False,
        "weight_tying": False,
        "mask_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    family, spec = read_checkpoint(folder)
    parameters = dict(DiffusionDecoder(spec, torch.float32, torch.device("cpu")).named_parameters())
    generator = torch.Generator().manual_seed(7)
    tensors = {}
    for name, target in family.targets(spec).items():
        shape = parameters[target.name][target.start : target.stop].shape
        noise = torch.randn(shape, generator=generator)
        tensors[name] = 1.0 + 0.1 * noise if len(shape) == 1 else noise * (1.5 / math.sqrt(shape[-1]))
    save_file(tensors, folder / "model.safetensors")
