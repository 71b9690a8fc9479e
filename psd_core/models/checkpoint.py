"""A checkpoint folder read without its weights: family, shape, special ids, and whether its tensors are the right ones.

Never executes code from a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from psd_core.config import MAX_BLOCK_LENGTH
from psd_core.errors import CheckpointError
from psd_core.models.families import family_of
from psd_core.models.family import ConfigJson, Family, Target, read_vocab_size, require
from psd_core.models.files import read_json, read_optional_json
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.spec import ModelSpec
from psd_core.models.tokens import TokenTexts, read_token_texts, resolve_special_ids
from psd_core.models.weights import STORED_DTYPES, StoredTensor, list_names

_BLOCK_IN_NAME: Final = re.compile(r"-b(\d+)(?![\w.])", re.IGNORECASE)  # SDAR-8B-Chat-b32


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a folder holds, weights aside. `notices` are words that whoever loads it must read."""

    path: Path
    family: Family
    spec: ModelSpec
    notices: tuple[str, ...]


def open_checkpoint(path: Path, tokenizer_path: Path | None = None) -> Checkpoint:
    """Read the folder `path`; its tokenizer's files may lie in another one.

    CheckpointError names the file or the key at fault.
    """
    config = read_json(path / "config.json")
    names = _names_of(path, config)
    family = family_of(config, path, names)
    require(config, {"quantization_config": None})
    texts = read_token_texts(tokenizer_path or path)
    if family.block_length is not None and config.get(family.block_key) is None:
        config = dict(config) | _block_in_name(family, names)
    generation = read_optional_json(path / "generation_config.json")
    special = resolve_special_ids(family, config, generation, texts, read_vocab_size(config))
    spec = family.read_spec(config, special)
    _check_shape(spec)
    return Checkpoint(path, family, spec, _notices(family, names, texts))


def check_tensors(checkpoint: Checkpoint, stored: Iterable[StoredTensor]) -> None:
    """CheckpointError with their names if tensors are missing, unexpected, of a wrong shape or of a wrong type."""
    tensors = {tensor.name: tensor for tensor in stored}
    targets = checkpoint.family.targets(checkpoint.spec)
    faults = []
    if missing := {name for name, target in targets.items() if not target.may_be_missing} - tensors.keys():
        faults.append(f"missing: {list_names(missing)}")
    if unexpected := tensors.keys() - targets.keys():
        faults.append(f"unexpected: {list_names(unexpected)}")
    if faults:
        raise CheckpointError(f"the checkpoint's tensors are not those of its architecture; {'; '.join(faults)}")
    shapes = _expected_shapes(checkpoint.spec, targets)
    wrong = [
        f"tensor {name} has shape {list(tensor.shape)}, the config asks for {list(shapes[name])}"
        for name, tensor in tensors.items()
        if tensor.shape != shapes[name]
    ] + [
        f"tensor {name} is stored as {tensor.dtype}, which is none of {', '.join(STORED_DTYPES)}"
        for name, tensor in tensors.items()
        if tensor.dtype not in STORED_DTYPES
    ]
    if wrong:
        raise CheckpointError("; ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""))


def _expected_shapes(spec: ModelSpec, targets: dict[str, Target]) -> dict[str, tuple[int, ...]]:
    """Shape of each checkpoint tensor, from a model that has shapes but no memory."""
    parameters = DiffusionDecoder(spec, torch.float32, torch.device("meta")).loadable()
    shapes = {}
    for name, target in targets.items():
        parameter = parameters[target.name]
        whole = parameter if target.expert is None else parameter[target.expert]
        shapes[name] = tuple(whole[target.start : target.stop].shape)
    return shapes


def _names_of(path: Path, config: ConfigJson) -> tuple[str, ...]:
    """Names a checkpoint goes by: its folder, the hub's cache folder (models--owner--name), what config.json says."""
    resolved = path.resolve()
    cached = resolved.parent.parent.name if resolved.parent.name == "snapshots" else ""
    said = config.get("_name_or_path")
    names = dict.fromkeys((path.name, resolved.name, cached, said))
    return tuple(name for name in names if isinstance(name, str) and name)


def _block_in_name(family: Family, names: Iterable[str]) -> dict[str, int]:
    """The block length that a name ends in, where config.json has none."""
    lengths = {int(match[1]) for name in names if (match := _BLOCK_IN_NAME.search(name))}
    if len(lengths) > 1:
        raise CheckpointError(f"config.json has no {family.block_key}, and the names say {sorted(lengths)}")
    return {family.block_key: lengths.pop()} if lengths else {}


def _notices(family: Family, names: Iterable[str], texts: TokenTexts) -> tuple[str, ...]:
    lowered = [name.lower() for name in names]
    return tuple(
        notice.text
        for notice in family.notices
        if notice.token_text in texts.ids or any(notice.name_part in name for name in lowered)
    )


def _check_shape(spec: ModelSpec) -> None:
    """CheckpointError for numbers that are each possible, but not together."""
    experts = spec.experts
    if spec.block_length is not None and spec.block_length > MAX_BLOCK_LENGTH:
        raise CheckpointError(f"the block length must be at most {MAX_BLOCK_LENGTH}, got {spec.block_length}")
    rotary_dim = spec.rotary_dim or spec.head_dim
    if rotary_dim % 2 or rotary_dim > spec.head_dim:
        raise CheckpointError(f"rotated features per head must be even and at most {spec.head_dim}, got {rotary_dim}")
    if (experts is None or experts.num_dense_layers) and spec.mlp_size < 1:
        raise CheckpointError(f"config.json: intermediate_size must be at least 1, got {spec.mlp_size}")
    if experts is None:
        return
    candidates = experts.num_experts // experts.num_groups * experts.top_groups
    if experts.top_groups > experts.num_groups or experts.num_chosen > candidates:
        raise CheckpointError(
            f"config.json: num_experts_per_tok {experts.num_chosen} of {experts.num_experts} experts in "
            f"{experts.top_groups} of {experts.num_groups} groups is not possible"
        )
    if experts.num_dense_layers > spec.num_layers:
        raise CheckpointError(
            f"config.json: first_k_dense_replace {experts.num_dense_layers} exceeds the {spec.num_layers} layers"
        )
