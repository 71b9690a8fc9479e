"""SDAR 1.7B-8B, SDAR-MoE 30B-A3B and TraDo: Qwen3 and Qwen3-MoE made block-causal. arXiv 2510.06303."""

from __future__ import annotations

from typing import Final

from psd_core.models.family import ConfigJson, Family, SpecialIds, SpecialToken, read_int, require
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ExpertsSpec, ModelSpec

MASK: Final = SpecialToken("<|MASK|>", 151669)
STOPS: Final = (SpecialToken("<|im_end|>", 151645), SpecialToken("<|endoftext|>", 151643))
BLOCK_LENGTH: Final = 4  # variants with longer blocks say so in config.json or in their name


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    return read_qwen_spec(config, SDAR, special, has_qk_norm=True)


def _read_moe_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    require(config, {"decoder_sparse_step": 1, "mlp_only_layers": []})
    experts = ExpertsSpec(
        num_experts=read_int(config, "num_experts"),
        num_chosen=read_int(config, "num_experts_per_tok"),
        expert_size=read_int(config, "moe_intermediate_size"),
        shared_size=0,
        scoring="softmax",
        renormalizes=config.get("norm_topk_prob", True) is True,
        scale=1.0,
        has_bias=False,
        num_groups=1,
        top_groups=1,
        num_dense_layers=0,
    )
    return read_qwen_spec(config, SDAR_MOE, special, has_qk_norm=True, experts=experts)


SDAR: Final = Family(
    "SDARForCausalLM",
    "SDAR 1.7B, 4B and 8B, TraDo-4B and -8B",
    _read_spec,
    qwen_targets,
    mask=MASK,
    stops=STOPS,
    licence="Apache-2.0; TraDo: MIT",
    parity="logits, decodings",
    block_length=BLOCK_LENGTH,
    block_key="block_size",
)
SDAR_MOE: Final = Family(
    "SDARMoeForCausalLM",
    "SDAR-30B-A3B",
    _read_moe_spec,
    qwen_targets,
    mask=MASK,
    stops=STOPS,
    licence="Apache-2.0",
    parity="a plain twin only",
    block_length=BLOCK_LENGTH,
    block_key="block_size",
)
