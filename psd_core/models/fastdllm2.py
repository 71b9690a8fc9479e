"""Fast-dLLM v2 1.5B and 7B (Efficient-Large-Model): Qwen2.5 made block-causal; logits are shifted right by one."""

from __future__ import annotations

from psd_core.models.family import ConfigJson, Family, SpecialIds, mask_id_of, read_int, stop_ids_of
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ModelSpec


def _read_spec(config: ConfigJson, special_ids: SpecialIds) -> ModelSpec:
    return read_qwen_spec(
        config,
        FAST_DLLM_2.architecture,
        mask_id_of(config, special_ids, "|<MASK>|", 151665, read_int(config, "vocab_size")),
        stop_ids_of(config, special_ids, "<|im_end|>", "<|endoftext|>"),
        has_qkv_bias=True,
        is_shifted=True,
        block_length=read_int(config, "bd_size", 32),
    )


FAST_DLLM_2 = Family("Fast_dLLM_QwenForCausalLM", _read_spec, qwen_targets)
