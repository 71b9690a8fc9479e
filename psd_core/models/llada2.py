"""LLaDA2.0 and 2.1, mini and flash (inclusionAI): block-causal, grouped sigmoid router, partial rotary, q/k norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from psd_core.models.family import (
    ConfigJson,
    Family,
    SpecialIds,
    SpecialToken,
    Target,
    head_target,
    read_float,
    read_int,
    read_multiple,
    require,
)
from psd_core.models.qwen import mlp_targets, read_qwen_spec
from psd_core.models.spec import ExpertsSpec, ModelSpec


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    require(
        config,
        {
            "score_function": "sigmoid",
            "use_bias": False,
            "use_qkv_bias": False,
            "use_qk_norm": True,
            "use_rmsnorm": True,
            "norm_head": False,
            "using_split_qkv_in_self_attention": False,
        },
    )
    expert_size = read_int(config, "moe_intermediate_size")
    num_experts, num_groups = read_multiple(config, "num_experts", "n_group")
    experts = ExpertsSpec(
        num_experts=num_experts,
        num_chosen=read_int(config, "num_experts_per_tok"),
        expert_size=expert_size,
        shared_size=expert_size * read_int(config, "num_shared_experts", 0, least=0),
        scoring="sigmoid",
        renormalizes=config.get("norm_topk_prob", True) is True,
        scale=read_float(config, "routed_scaling_factor"),
        has_bias=config.get("moe_router_enable_expert_bias", True) is True,
        num_groups=num_groups,
        top_groups=read_int(config, "topk_group"),
        num_dense_layers=read_int(config, "first_k_dense_replace", 0, least=0),
    )
    spec = read_qwen_spec(config, LLADA_2, special, has_qk_norm=True, experts=experts)
    return replace(spec, rotary_dim=int(spec.head_dim * read_float(config, "partial_rotary_factor")))


def _targets(spec: ModelSpec) -> dict[str, Target]:
    targets = {"model.word_embeddings.weight": Target("embedding"), "model.norm.weight": Target("final_norm.weight")}
    targets["lm_head.weight"] = head_target(spec)
    for index in range(spec.num_layers):
        source, layer = f"model.layers.{index}", f"layers.{index}"
        targets |= {
            f"{source}.attention.query_key_value.weight": Target(f"{layer}.qkv.weight"),
            f"{source}.attention.dense.weight": Target(f"{layer}.out.weight"),
            f"{source}.attention.query_layernorm.weight": Target(f"{layer}.query_norm.weight"),
            f"{source}.attention.key_layernorm.weight": Target(f"{layer}.key_norm.weight"),
            f"{source}.input_layernorm.weight": Target(f"{layer}.attention_norm.weight"),
            f"{source}.post_attention_layernorm.weight": Target(f"{layer}.mlp_norm.weight"),
        }
        targets |= mlp_targets(spec, index, f"{source}.mlp", f"{layer}.mlp")
    return targets


LLADA_2: Final = Family(
    "LLaDA2MoeModelLM",
    "LLaDA2.0 and LLaDA2.1, mini and flash",
    _read_spec,
    _targets,
    mask=SpecialToken("<|mask|>", 156895),
    stops=(SpecialToken("<|endoftext|>", 156892), SpecialToken("<|role_end|>", None)),
    licence="Apache-2.0",
    parity="logits, router choices, decodings",
    block_length=32,
)
