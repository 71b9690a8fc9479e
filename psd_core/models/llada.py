"""LLaDA-8B Base/Instruct and LLaDA-1.5 (GSAI-ML), and the built-in model: a Llama block without the causal mask.

Full bidirectional attention, no logit shift. Grouped-query and tied-head variants included. arXiv 2502.09992.
"""

from __future__ import annotations

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
    read_rope_theta,
    read_vocab_size,
    require,
)
from psd_core.models.spec import ModelSpec


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    require(
        config,
        {
            "block_type": "llama",
            "activation_type": "silu",
            "layer_norm_type": "rms",
            "rope": True,
            "alibi": False,
            "include_bias": False,
            "bias_for_layer_norm": False,
            "attention_layer_norm": False,
            "input_emb_norm": False,
            "scale_logits": False,
            "multi_query_attention": False,
        },
    )
    hidden_size, num_heads = read_multiple(config, "d_model", "n_heads")
    _, num_kv_heads = read_multiple(config, "n_heads", "n_kv_heads", num_heads)
    return ModelSpec(
        architecture=LLADA.architecture,
        vocab_size=read_vocab_size(config),
        hidden_size=hidden_size,
        num_layers=read_int(config, "n_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden_size // num_heads,
        mlp_size=read_int(config, "mlp_hidden_size"),
        rope_theta=read_rope_theta(config),
        norm_eps=read_float(config, "rms_norm_eps"),
        max_positions=read_int(config, "max_sequence_length"),
        has_tied_head=config.get("weight_tying") is True,
        has_qkv_bias=config.get("include_qkv_bias") is True,
        mask_id=special.mask_id,
        eos_ids=special.stop_ids,
    )


def _targets(spec: ModelSpec) -> dict[str, Target]:
    """`ff_out` names both the head (top level) and each MLP's down projection."""
    num_query, num_kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    root = "model.transformer"
    targets = {
        f"{root}.wte.weight": Target("embedding"),
        f"{root}.ln_f.weight": Target("final_norm.weight"),
        f"{root}.ff_out.weight": head_target(spec),
    }
    kinds = ("weight", "bias") if spec.has_qkv_bias else ("weight",)
    for index in range(spec.num_layers):
        block, layer = f"{root}.blocks.{index}", f"layers.{index}"
        for kind in kinds:
            targets[f"{block}.q_proj.{kind}"] = Target(f"{layer}.qkv.{kind}", 0, num_query)
            targets[f"{block}.k_proj.{kind}"] = Target(f"{layer}.qkv.{kind}", num_query, num_query + num_kv)
            targets[f"{block}.v_proj.{kind}"] = Target(f"{layer}.qkv.{kind}", num_query + num_kv)
        targets |= {
            f"{block}.attn_norm.weight": Target(f"{layer}.attention_norm.weight"),
            f"{block}.attn_out.weight": Target(f"{layer}.out.weight"),
            f"{block}.ff_norm.weight": Target(f"{layer}.mlp_norm.weight"),
            f"{block}.ff_proj.weight": Target(f"{layer}.mlp.gate_up", 0, spec.mlp_size),
            f"{block}.up_proj.weight": Target(f"{layer}.mlp.gate_up", spec.mlp_size),
            f"{block}.ff_out.weight": Target(f"{layer}.mlp.down"),
        }
    return targets


LLADA: Final = Family(
    "LLaDAModelLM",
    "LLaDA-8B Base and Instruct, LLaDA-1.5",
    _read_spec,
    _targets,
    mask=SpecialToken("<|mdm_mask|>", 126336),
    stops=(SpecialToken("<|endoftext|>", 126081), SpecialToken("<|eot_id|>", 126348)),
    licence="MIT",
    parity="logits, decodings",
)
