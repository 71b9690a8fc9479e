"""The table of families, and the architectures that are known but not served, with what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from psd_core.errors import CheckpointError
from psd_core.models.dream import DREAM
from psd_core.models.family import ConfigJson, Family
from psd_core.models.fastdllm2 import FAST_DLLM_2
from psd_core.models.llada import LLADA
from psd_core.models.llada2 import LLADA_2
from psd_core.models.lladamoe import LLADA_MOE
from psd_core.models.openpangu import OPENPANGU
from psd_core.models.sdar import SDAR, SDAR_MOE

FAMILIES: Final[Mapping[str, Family]] = {
    family.architecture: family for family in (LLADA, DREAM, LLADA_MOE, LLADA_2, SDAR, SDAR_MOE, FAST_DLLM_2, OPENPANGU)
}

UNSUPPORTED: Final[Mapping[str, str]] = {
    "ILLaDAForCausalLM": "of iLLaDA neither a config.json nor reference outputs were at hand to check against",
    "DreamForCausalLM": "of DreamReasoner neither a config.json nor reference outputs were at hand to check against",
    "NemotronLabsDiffusionModel": "Nemotron-Labs-Diffusion needs YaRN positions with Llama 4's scaling",
    "DiffusionGemmaForBlockDiffusion": "DiffusionGemma renoises a canvas of random tokens: it has no masks to fill",
}


def family_of(config: ConfigJson, folder: Path, names: Iterable[str]) -> Family:
    """The family of a config.json, by `architectures[0]`: architectures that differ share a model_type.

    names   that the checkpoint goes by: where an autoregressive model has the same architecture, only they tell
    CheckpointError if there is none, with what is missing if it is known; `folder` is for the message.
    """
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(name, str) and name in FAMILIES:
        _check_names(FAMILIES[name], names, folder)
        return FAMILIES[name]
    reason = UNSUPPORTED.get(name) if isinstance(name, str) else None
    raise CheckpointError(
        f"{folder / 'config.json'}: architecture {name!r} is not supported"
        + (f": {reason}" if reason else f"; known: {', '.join(FAMILIES)}")
    )


def _check_names(family: Family, names: Iterable[str], folder: Path) -> None:
    needed = family.needed_name
    if needed is None or any(needed.lower() in name.lower() for name in names):
        return
    raise CheckpointError(
        f"{folder / 'config.json'}: architecture {family.architecture!r} is shared by autoregressive models, which are "
        f"not served, and only its name tells a diffusion model from them: if it is one ({family.models}), rename the "
        f"folder so that its name holds {needed!r}, or say so in config.json under _name_or_path"
    )
