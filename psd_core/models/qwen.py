"""What the families built on Qwen's block share: config keys and tensor names."""

from __future__ import annotations

from psd_core.models.family import (
    ConfigJson,
    Family,
    SpecialIds,
    Target,
    head_target,
    read_block_length,
    read_float,
    read_int,
    read_multiple,
    read_rope_theta,
    read_vocab_size,
    require,
)
from psd_core.models.spec import ExpertsSpec, ModelSpec


def read_qwen_spec(
    config: ConfigJson,
    family: Family,
    special: SpecialIds,
    *,
    has_qkv_bias: bool = False,
    has_out_bias: bool = False,
    has_qk_norm: bool = False,
    experts: ExpertsSpec | None = None,
    max_positions: int | None = None,
) -> ModelSpec:
    """The shape of a checkpoint with Qwen's config keys; the keywords are what the family adds."""
    require(config, {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "use_mrope": False})
    require(config, {"layer_types": ["full_attention"] * read_int(config, "num_hidden_layers")})
    hidden_size = read_int(config, "hidden_size")
    num_heads, num_kv_heads = read_multiple(
        config, "num_attention_heads", "num_key_value_heads", read_int(config, "num_attention_heads")
    )
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=read_vocab_size(config),
        hidden_size=hidden_size,
        num_layers=read_int(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=read_int(config, "head_dim", hidden_size // num_heads),
        mlp_size=read_int(config, "intermediate_size", 0),
        rope_theta=read_rope_theta(config),
        norm_eps=read_float(config, "rms_norm_eps"),
        max_positions=max_positions or read_int(config, "max_position_embeddings"),
        has_tied_head=config.get("tie_word_embeddings") is True,
        has_qkv_bias=has_qkv_bias,
        mask_id=special.mask_id,
        eos_ids=special.stop_ids,
        has_qk_norm=has_qk_norm,
        is_shifted=family.is_shifted,
        block_length=read_block_length(config, family),
        is_context_causal=family.is_context_causal,
        has_out_bias=has_out_bias,
        experts=experts,
    )


def qwen_targets(spec: ModelSpec) -> dict[str, Target]:
    """Qwen's tensor names: `model.layers.{i}.self_attn.q_proj.weight` and so on."""
    num_query, num_kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    targets = {"model.embed_tokens.weight": Target("embedding"), "model.norm.weight": Target("final_norm.weight")}
    targets["lm_head.weight"] = head_target(spec)
    for index in range(spec.num_layers):
        source, layer = f"model.layers.{index}", f"layers.{index}"
        for kind in ("weight", "bias") if spec.has_qkv_bias else ("weight",):
            qkv = f"{layer}.qkv.{kind}"
            targets[f"{source}.self_attn.q_proj.{kind}"] = Target(qkv, 0, num_query)
            targets[f"{source}.self_attn.k_proj.{kind}"] = Target(qkv, num_query, num_query + num_kv)
            targets[f"{source}.self_attn.v_proj.{kind}"] = Target(qkv, num_query + num_kv)
        targets[f"{source}.self_attn.o_proj.weight"] = Target(f"{layer}.out.weight")
        if spec.has_out_bias:
            targets[f"{source}.self_attn.o_proj.bias"] = Target(f"{layer}.out.bias")
        if spec.has_qk_norm:
            targets[f"{source}.self_attn.q_norm.weight"] = Target(f"{layer}.query_norm.weight")
            targets[f"{source}.self_attn.k_norm.weight"] = Target(f"{layer}.key_norm.weight")
        targets[f"{source}.input_layernorm.weight"] = Target(f"{layer}.attention_norm.weight")
        targets[f"{source}.post_attention_layernorm.weight"] = Target(f"{layer}.mlp_norm.weight")
        targets |= mlp_targets(spec, index, f"{source}.mlp", f"{layer}.mlp")
    return targets


def mlp_targets(spec: ModelSpec, index: int, source: str, mlp: str) -> dict[str, Target]:
    """Tensor names of one layer's MLP, dense or with experts."""
    if spec.experts is None or index < spec.experts.num_dense_layers:
        return _gated_targets(source, f"{mlp}.gate_up", f"{mlp}.down", spec.mlp_size, None)
    experts = spec.experts
    targets = {f"{source}.gate.weight": Target(f"{mlp}.router.weight")}
    if experts.has_bias:
        targets[f"{source}.gate.expert_bias"] = Target(f"{mlp}.router.bias")
    for expert in range(experts.num_experts):
        name = f"{source}.experts.{expert}"
        targets |= _gated_targets(name, f"{mlp}.gate_up", f"{mlp}.down", experts.expert_size, expert)
    if experts.shared_size:
        name = f"{source}.shared_experts"
        targets |= _gated_targets(name, f"{mlp}.shared_gate_up", f"{mlp}.shared_down", experts.shared_size, None)
    return targets


def _gated_targets(source: str, gate_up: str, down: str, size: int, expert: int | None) -> dict[str, Target]:
    return {
        f"{source}.gate_proj.weight": Target(gate_up, 0, size, expert),
        f"{source}.up_proj.weight": Target(gate_up, size, None, expert),
        f"{source}.down_proj.weight": Target(down, expert=expert),
    }
