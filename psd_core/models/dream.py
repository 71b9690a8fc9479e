"""Dream-v0-7B, Dream-Coder and DiffuCoder: Qwen2 without the causal mask; logits are shifted right by one.

Full bidirectional attention. The authors train with 2,048 tokens of context, whatever the config declares
(Dream README); that is the default limit here.
"""

from __future__ import annotations

from typing import Final

from psd_core.models.family import ConfigJson, Family, Notice, SpecialIds, SpecialToken, read_int
from psd_core.models.qwen import qwen_targets, read_qwen_spec
from psd_core.models.spec import ModelSpec

TRAINED_CONTEXT: Final = 2048


def _read_spec(config: ConfigJson, special: SpecialIds) -> ModelSpec:
    limit = min(TRAINED_CONTEXT, read_int(config, "max_position_embeddings"))
    return read_qwen_spec(config, DREAM, special, has_qkv_bias=True, max_positions=limit)


DREAM: Final = Family(
    "DreamModel",
    "Dream-v0-7B Base and Instruct, Dream-Coder-v0-7B, DiffuCoder-7B",
    _read_spec,
    qwen_targets,
    mask=SpecialToken("<|mask|>", 151666),
    stops=(SpecialToken("<|im_end|>", 151645), SpecialToken("<|endoftext|>", 151643)),
    licence="Apache-2.0; DiffuCoder: Apple AMLR, research only",
    parity="logits, decodings",
    is_shifted=True,
    notices=(
        Notice(
            name_part="diffucoder",
            token_text="<|dlm_pad|>",
            text="DiffuCoder's weights are under Apple's research licence (AMLR): no commercial use",
        ),
    ),
)
