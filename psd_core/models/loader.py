"""A checkpoint folder to a model: config.json, then safetensors straight into the parameters.

Never executes code from a checkpoint. Every tensor must be expected, present, of the right shape and finite:
a silently re-initialised weight is the worst fault a loader can have.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from psd_core.errors import CheckpointError
from psd_core.models.dream import DREAM
from psd_core.models.family import ConfigJson, Family, SpecialIds, Target
from psd_core.models.fastdllm2 import FAST_DLLM_2
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.llada import LLADA
from psd_core.models.llada2 import LLADA_2
from psd_core.models.lladamoe import LLADA_MOE
from psd_core.models.sdar import SDAR, SDAR_MOE
from psd_core.models.spec import ModelSpec

FAMILIES: Final[Mapping[str, Family]] = {
    family.architecture: family for family in (LLADA, DREAM, LLADA_MOE, LLADA_2, SDAR, SDAR_MOE, FAST_DLLM_2)
}

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_model(path: Path, dtype: str = "auto", device: str = "auto") -> DiffusionDecoder:
    """Load the checkpoint folder `path`.

    dtype    "auto" (float32 on a CPU, bfloat16 on a GPU), "float32", "bfloat16", "float16"
    device   "auto" (a GPU if there is one), "cpu", "cuda", "cuda:N"
    Raises CheckpointError with the names of the files, keys or tensors at fault.
    """
    family, spec = read_checkpoint(path)
    resolved_device = resolve_device(device)
    model = DiffusionDecoder(spec, resolve_dtype(dtype, resolved_device), resolved_device)
    _load_weights(model, family.targets(spec), _weight_files(path))
    return model.eval()


def read_checkpoint(path: Path) -> tuple[Family, ModelSpec]:
    """The family and the shape of the checkpoint at `path`, from config.json alone."""
    config = _read_json(path / "config.json")
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise CheckpointError(
            f"{path / 'config.json'}: architecture {name!r} is not supported; known: {', '.join(FAMILIES)}"
        )
    return family, family.read_spec(config, _special_ids(path))


def resolve_device(device: str) -> torch.device:
    """The torch device that a setting names; CheckpointError if it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise CheckpointError(f"device {device!r} was asked for, but torch finds no CUDA device")
    try:
        return torch.device(device)
    except RuntimeError:
        raise CheckpointError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The torch dtype that a setting names."""
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype must be one of auto, {', '.join(DTYPES)}; got {dtype!r}")
    return DTYPES[dtype]


def _read_json(path: Path) -> ConfigJson:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return content


def _special_ids(path: Path) -> SpecialIds:
    """Ids of the added tokens of tokenizer.json by their text; empty if there is no such file."""
    file = path / "tokenizer.json"
    added = _read_json(file).get("added_tokens") if file.exists() else None
    if not isinstance(added, list):
        return {}
    return {str(token["content"]): int(token["id"]) for token in added if "content" in token and "id" in token}


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those the index names, else model.safetensors."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        single = path / "model.safetensors"
        if not single.exists():
            raise CheckpointError(f"{path} holds neither model.safetensors nor {index.name}")
        return [single]
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder")
    missing = [name for name in names if not (path / name).exists()]
    if missing:
        raise CheckpointError(f"{path} is incomplete, missing: {', '.join(missing)}")
    return [path / name for name in names]


def _load_weights(model: nn.Module, targets: Mapping[str, Target], files: Iterable[Path]) -> None:
    parameters = dict(model.named_parameters())
    pending = dict(targets)
    unexpected: list[str] = []
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a dict
                    target = pending.pop(name, None)
                    if target is None:
                        unexpected.append(name)
                        continue
                    _copy(tensors.get_tensor(name), name, parameters[target.name], target)
        except SafetensorError as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
    if pending or unexpected:
        raise CheckpointError(
            "the checkpoint's tensors are not those of its architecture"
            + (f"; missing: {_names(pending)}" if pending else "")
            + (f"; unexpected or repeated: {_names(unexpected)}" if unexpected else "")
        )


def _copy(tensor: torch.Tensor, name: str, parameter: nn.Parameter, target: Target) -> None:
    whole = parameter if target.expert is None else parameter[target.expert]
    destination = whole[target.start : target.stop]
    if tensor.shape != destination.shape:
        raise CheckpointError(
            f"tensor {name} has shape {list(tensor.shape)}, the config asks for {list(destination.shape)}"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise CheckpointError(f"tensor {name} holds values that are not finite")
    destination.copy_(tensor)


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
