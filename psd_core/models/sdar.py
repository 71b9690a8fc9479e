"""SDAR 1.7B-8B, SDAR-MoE 30B-A3B and TraDo: Qwen3 and Qwen3-MoE made block-causal. arXiv 2510.06303."""

from __future__ import annotations

from psd_core.models.family import ConfigJson, Family, SpecialIds, mask_id_of, read_int, stop_ids_of
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ExpertsSpec, ModelSpec


def _read_spec(config: ConfigJson, special_ids: SpecialIds) -> ModelSpec:
    return _read(config, special_ids, SDAR.architecture, None)


def _read_moe_spec(config: ConfigJson, special_ids: SpecialIds) -> ModelSpec:
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
    return _read(config, special_ids, SDAR_MOE.architecture, experts)


def _read(config: ConfigJson, special_ids: SpecialIds, architecture: str, experts: ExpertsSpec | None) -> ModelSpec:
    return read_qwen_spec(
        config,
        architecture,
        mask_id_of(config, special_ids, "<|MASK|>", 151669, read_int(config, "vocab_size")),
        stop_ids_of(config, special_ids, "<|im_end|>", "<|endoftext|>"),
        has_qk_norm=True,
        block_length=read_int(config, "block_size", 4),
        experts=experts,
    )


SDAR = Family("SDARForCausalLM", _read_spec, qwen_targets)
SDAR_MOE = Family("SDARMoeForCausalLM", _read_moe_spec, qwen_targets)
