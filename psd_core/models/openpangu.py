"""openPangu-7B-Diffusion (Huawei): Llama with biases on all four attention projections, made context-causal.

A finished token sees what stands before it, the open block sees itself whole, and logits are shifted right by one: the
first token of a block is an autoregressive step of the text before it. Blocks begin behind the prompt.
"""

from __future__ import annotations

from typing import Final

from psd_core.models.family import ConfigJson, Family, Notice, SpecialIds, SpecialToken, Target, require
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ModelSpec


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    require(config, {"bias": True, "rotary_percent": 1.0})
    return read_qwen_spec(config, OPENPANGU, special, has_qkv_bias=True, has_out_bias=True)


def _targets(spec: ModelSpec) -> dict[str, Target]:
    """The published file stores the rotary frequencies once per layer; its authors' code ignores them."""
    tables = (f"model.layers.{index}.self_attn.rotary_emb.inv_freq" for index in range(spec.num_layers))
    return qwen_targets(spec) | {name: Target("inverse_frequencies", is_derived=True) for name in tables}


OPENPANGU: Final = Family(
    "PanguEmbeddedForCausalLM",
    "openPangu-7B-Diffusion-Base, openPangu-R-7B-Diffusion",
    _read_spec,
    _targets,
    mask=SpecialToken("[unused0]", 45830),
    stops=(SpecialToken("</s>", 2), SpecialToken("[unused10]", 45892)),
    licence="OPENPANGU MODEL LICENSE 1.0, not for use in the European Union",
    parity="transformers' Llama, the authors' loop written out",
    is_shifted=True,
    block_length=32,
    is_context_causal=True,
    notices=(
        Notice(
            name_part="",
            token_text="[unused0]",
            text="openPangu's licence forbids any use within the European Union, and asks services built on it to say "
            'so: "Powered by openPangu"',
        ),
    ),
    needed_name="Diffusion",
)
