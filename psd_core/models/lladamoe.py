"""LLaDA-MoE-7B-A1B Base and Instruct (inclusionAI): Qwen3-MoE without the causal mask and without renormalisation."""

from __future__ import annotations

from typing import Final

from psd_core.models.family import ConfigJson, Family, SpecialIds, SpecialToken, read_int, require
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ExpertsSpec, ModelSpec


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    num_layers = read_int(config, "num_hidden_layers")
    require(
        config,
        {
            "moe_router_score_function": "softmax",
            "moe_layer_freq": [1] * num_layers,
            "moe_router_enable_expert_bias": False,
            "shared_expert_intermediate_size": None,
            "router_num_group": None,
            "partial_rotary_factor": 1,
            "routed_scaling_factor": 1,
            "qk_layernorm": True,
            "attention_bias": False,
            "clip_qkv": None,
        },
    )
    experts = ExpertsSpec(
        num_experts=read_int(config, "num_experts"),
        num_chosen=read_int(config, "num_experts_per_tok"),
        expert_size=read_int(config, "expert_intermediate_size"),
        shared_size=0,
        scoring="softmax",
        renormalizes=config.get("norm_topk_prob") is True,
        scale=1.0,
        has_bias=False,
        num_groups=1,
        top_groups=1,
        num_dense_layers=0,
    )
    return read_qwen_spec(config, LLADA_MOE, special, has_qk_norm=True, experts=experts)


LLADA_MOE: Final = Family(
    "LLaDAMoEModelLM",
    "LLaDA-MoE-7B-A1B Base and Instruct",
    _read_spec,
    qwen_targets,
    mask=SpecialToken("<|mask|>", 156895),
    stops=(SpecialToken("<|endoftext|>", 156892), SpecialToken("<|role_end|>", None)),
    licence="Apache-2.0",
    parity="logits, decodings",
)
