"""The table of families, and the architectures that are known but not served, with what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from psd_core.errors import CheckpointError
from psd_core.models.dream import DREAM
from psd_core.models.family import ConfigJson, Family
from psd_core.models.fastdllm2 import FAST_DLLM_2
from psd_core.models.llada import LLADA
from psd_core.models.llada2 import LLADA_2
from psd_core.models.lladamoe import LLADA_MOE
from psd_core.models.sdar import SDAR, SDAR_MOE

FAMILIES: Final[Mapping[str, Family]] = {
    family.architecture: family for family in (LLADA, DREAM, LLADA_MOE, LLADA_2, SDAR, SDAR_MOE, FAST_DLLM_2)
}

UNSUPPORTED: Final[Mapping[str, str]] = {
    "PanguEmbeddedForCausalLM": (
        "openPangu needs context-causal attention (a finished token sees only what stands before it, the open block "
        "sees itself whole), blocks counted from the end of the prompt, a bias behind the attention and a "
        "SentencePiece tokenizer; nor does its config.json tell the diffusion model from the autoregressive one"
    ),
    "ILLaDAForCausalLM": "of iLLaDA neither a config.json nor reference outputs were at hand to check against",
    "DreamForCausalLM": "of DreamReasoner neither a config.json nor reference outputs were at hand to check against",
    "NemotronLabsDiffusionModel": "Nemotron-Labs-Diffusion needs YaRN positions with Llama 4's scaling",
    "DiffusionGemmaForBlockDiffusion": "DiffusionGemma renoises a canvas of random tokens: it has no masks to fill",
}


def family_of(config: ConfigJson, folder: Path) -> Family:
    """The family of a config.json, by `architectures[0]`: architectures that differ share a model_type.

    CheckpointError if there is none, with what is missing if it is known; `folder` is for the message.
    """
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    reason = UNSUPPORTED.get(name) if isinstance(name, str) else None
    raise CheckpointError(
        f"{folder / 'config.json'}: architecture {name!r} is not supported"
        + (f": {reason}" if reason else f"; known: {', '.join(FAMILIES)}")
    )
