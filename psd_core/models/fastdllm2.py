"""Fast-dLLM v2 1.5B and 7B (Efficient-Large-Model): Qwen2.5 made block-causal; logits are shifted right by one."""

from __future__ import annotations

from typing import Final

from psd_core.models.family import ConfigJson, Family, SpecialIds, SpecialToken
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ModelSpec


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    return read_qwen_spec(config, FAST_DLLM_2, special, has_qkv_bias=True)


FAST_DLLM_2: Final = Family(
    "Fast_dLLM_QwenForCausalLM",
    "Fast-dLLM v2 1.5B and 7B",
    _read_spec,
    qwen_targets,
    mask=SpecialToken("|<MASK>|", 151665),  # the bars stand outside
    stops=(SpecialToken("<|im_end|>", 151645), SpecialToken("<|endoftext|>", 151643)),
    licence="Apache-2.0",
    parity="logits, decodings",
    is_shifted=True,
    block_length=32,
    block_key="bd_size",
)
