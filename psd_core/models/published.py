"""Shapes of published checkpoints: the keys of config.json that decide what memory they need.

For the memory table of the documentation and for benchmarks on made-up weights; loading a checkpoint reads its own
config.json and never looks here. Where the authors' file could not be read, a shape is that of the model it was
trained from (SDAR: Qwen3, Fast-dLLM v2 1.5B: Qwen2.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from psd_core.models.families import FAMILIES
from psd_core.models.family import ConfigJson, read_vocab_size
from psd_core.models.spec import ModelSpec
from psd_core.models.tokens import TokenTexts, resolve_special_ids


def published_spec(name: str) -> ModelSpec:
    """The shape of the published checkpoint `name`, a key of `PUBLISHED`."""
    config = PUBLISHED[name]
    architectures = config["architectures"]
    assert isinstance(architectures, list)
    family = FAMILIES[architectures[0]]
    no_tokenizer = TokenTexts(Path(), {}, None)
    return family.read_spec(config, resolve_special_ids(family, config, {}, no_tokenizer, read_vocab_size(config)))


def _qwen(
    architecture: str, sizes: tuple[int, int, int, int, int], vocab_size: int, **others: object
) -> dict[str, object]:
    """Qwen's keys; sizes: layers, features, heads, key-value heads, MLP."""
    num_layers, hidden_size, num_heads, num_kv_heads, mlp_size = sizes
    return {
        "architectures": [architecture],
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "intermediate_size": mlp_size,
        "vocab_size": vocab_size,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
    } | others


def _llada2(sizes: tuple[int, int, int, int, int], expert_size: int) -> dict[str, object]:
    return _qwen(
        "LLaDA2MoeModelLM",
        sizes,
        157184,
        head_dim=128,
        moe_intermediate_size=expert_size,
        num_experts=256,
        num_experts_per_tok=8,
        num_shared_experts=1,
        first_k_dense_replace=1,
        n_group=8,
        topk_group=4,
        routed_scaling_factor=2.5,
        partial_rotary_factor=0.5,
        rope_theta=600000,
    )


PUBLISHED: Final[Mapping[str, ConfigJson]] = {
    "LLaDA-8B": {
        "architectures": ["LLaDAModelLM"],
        "d_model": 4096,
        "n_heads": 32,
        "n_kv_heads": 32,
        "n_layers": 32,
        "mlp_hidden_size": 12288,
        "vocab_size": 126464,
        "embedding_size": 126464,
        "max_sequence_length": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "mask_token_id": 126336,
        "eos_token_id": 126081,
    },
    "Dream-v0-7B": _qwen("DreamModel", (28, 3584, 28, 4, 18944), 152064, mask_token_id=151666, eos_token_id=151643),
    "LLaDA-MoE-7B-A1B": _qwen(
        "LLaDAMoEModelLM",
        (16, 2048, 16, 16, 8192),
        157184,
        num_experts=64,
        num_experts_per_tok=8,
        expert_intermediate_size=1024,
        max_position_embeddings=8192,
    ),
    "LLaDA2.0-mini": _llada2((20, 2048, 16, 4, 5120), 512),
    "LLaDA2.0-flash": _llada2((32, 4096, 32, 4, 9216), 1024),
    "SDAR-1.7B": _qwen("SDARForCausalLM", (28, 2048, 16, 8, 6144), 151936, head_dim=128, tie_word_embeddings=True),
    "SDAR-4B": _qwen("SDARForCausalLM", (36, 2560, 32, 8, 9728), 151936, head_dim=128, tie_word_embeddings=True),
    "SDAR-8B": _qwen("SDARForCausalLM", (36, 4096, 32, 8, 12288), 151936, head_dim=128),
    "SDAR-30B-A3B": _qwen(
        "SDARMoeForCausalLM",
        (48, 2048, 32, 4, 6144),
        151936,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "Fast-dLLM v2 1.5B": _qwen(
        "Fast_dLLM_QwenForCausalLM", (28, 1536, 12, 2, 8960), 151936, tie_word_embeddings=True, eos_token_id=151645
    ),
    "Fast-dLLM v2 7B": _qwen("Fast_dLLM_QwenForCausalLM", (28, 3584, 28, 4, 18944), 152064, eos_token_id=151645),
    "openPangu-7B-Diffusion": _qwen(
        "PanguEmbeddedForCausalLM", (34, 4096, 32, 8, 12800), 153376, rope_theta=16e6, eos_token_id=2
    ),
}
