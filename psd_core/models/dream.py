"""Dream-v0-7B, Dream-Coder and DiffuCoder: Qwen2 without the causal mask; logits are shifted right by one.

Full bidirectional attention. The authors train with 2,048 tokens of context, whatever the config declares
(Dream README); that is the default limit here.
"""

from __future__ import annotations

from typing import Final

from psd_core.models.family import ConfigJson, Family, SpecialIds, mask_id_of, read_int, stop_ids_of
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ModelSpec

TRAINED_CONTEXT: Final = 2048


def _read_spec(config: ConfigJson, special_ids: SpecialIds) -> ModelSpec:
    mask_id = mask_id_of(config, special_ids, "<|mask|>", 151666, read_int(config, "vocab_size"))
    stop_ids = stop_ids_of(config, special_ids, "<|im_end|>", "<|endoftext|>")
    limit = min(TRAINED_CONTEXT, read_int(config, "max_position_embeddings"))
    return read_qwen_spec(
        config, DREAM.architecture, mask_id, stop_ids, has_qkv_bias=True, is_shifted=True, max_positions=limit
    )


DREAM = Family("DreamModel", _read_spec, qwen_targets)
