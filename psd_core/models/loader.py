"""A checkpoint folder to a model: safetensors straight into the parameters, whatever their type and device.

Every tensor must be expected, present, of the right shape and finite: a silently re-initialised weight is the worst
fault a loader can have. Names and shapes are checked before any memory is taken, values while they are copied.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from psd_core.config import QUANTIZATION_NAMES, QuantizationName
from psd_core.errors import CheckpointError, ConfigError
from psd_core.models.checkpoint import check_tensors, open_checkpoint
from psd_core.models.dtypes import resolve_dtype
from psd_core.models.family import Family, Target
from psd_core.models.group import Alone, Group
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.memory import describe_bytes, describe_numbers, free_bytes, rank_bytes
from psd_core.models.parameters import SCALE_SUFFIX
from psd_core.models.quantized import LARGEST, quantize
from psd_core.models.shard import Kept, Shard, check_shards, kept
from psd_core.models.spec import ModelSpec
from psd_core.models.weights import StoredTensor, read_headers, read_tensors

logger = logging.getLogger(__name__)

DERIVED_TOLERANCE: Final = 0.01
OnProgress = Callable[[int, int], None]  # bytes read so far, bytes in all


def load_model(
    path: Path,
    dtype: str = "auto",
    device: str = "auto",
    *,
    tokenizer_path: Path | None = None,
    on_progress: OnProgress = lambda done, total: None,
    group: Group | None = None,
    quantization: QuantizationName = "none",
) -> DiffusionDecoder:
    """Load the checkpoint folder `path`, or the part of it that belongs to this rank of `group`.

    dtype            "auto" (psd_core.models.dtypes), "float32", "bfloat16", "float16"
    device           "auto" (a GPU if there is one), "cpu", "cuda", "cuda:N"
    tokenizer_path   folder of the tokenizer's files, if they lie elsewhere
    on_progress      called after every piece that was read
    quantization     "int8": the matrices of the layers become 8-bit integers while they are read
    Raises CheckpointError with the names of the files, keys or tensors at fault, ConfigError if the group's ranks
    cannot share the model evenly or the quantization is unknown.
    """
    if quantization not in QUANTIZATION_NAMES:
        known = ", ".join(QUANTIZATION_NAMES)
        raise ConfigError("quantization", f"quantization must be one of {known}; got {quantization!r}")
    group = Alone() if group is None else group
    checkpoint = open_checkpoint(path, tokenizer_path)
    check_shards(checkpoint.spec, group.shard.size)
    resolved_device = resolve_device(device)
    stored = read_headers(path)
    check_tensors(checkpoint, stored)
    if dtype == "auto" and group.shard.size > 1 and resolved_device.type == "cpu":
        dtype = "float32"  # ranks that each measured might not agree
    resolved_dtype = resolve_dtype(dtype, checkpoint.spec, resolved_device)
    for notice in checkpoint.notices:
        logger.warning("%s: %s", path, notice)
    model = _allocate(checkpoint.spec, resolved_dtype, resolved_device, group, quantization)
    _fill(model, checkpoint.family.targets(checkpoint.spec), stored, on_progress)
    return model.eval()


def read_checkpoint(path: Path) -> tuple[Family, ModelSpec]:
    """The family and the shape of the checkpoint at `path`, without its weights."""
    checkpoint = open_checkpoint(path)
    return checkpoint.family, checkpoint.spec


def resolve_device(device: str) -> torch.device:
    """The torch device that a setting names; CheckpointError if it is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d+)?", device) is None:
        raise CheckpointError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}")
    if device == "cpu":
        return torch.device(device)
    if not torch.cuda.is_available():
        raise CheckpointError(f"device {device!r} was asked for, but torch finds no CUDA device")
    resolved = torch.device(device)
    count = torch.cuda.device_count()
    if resolved.index is not None and resolved.index >= count:
        raise CheckpointError(f"device {device!r} was asked for, but the last one is cuda:{count - 1}")
    return resolved


def _allocate(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, group: Group, quantization: QuantizationName
) -> DiffusionDecoder:
    """The model, its parameters uninitialised; CheckpointError if the device has not enough memory."""
    needed, free = needed_bytes(spec, dtype, device, group.shard, quantization), free_bytes(device)
    reason = (
        f"the weights need {describe_bytes(needed)} in {describe_numbers(dtype, quantization)}, but {device} has only "
        f"{describe_bytes(free)} free"
    )
    if needed > free:
        raise CheckpointError(reason)
    try:
        return DiffusionDecoder(spec, dtype, device, group, quantization)
    except torch.OutOfMemoryError as error:
        raise CheckpointError(reason) from error


def needed_bytes(
    spec: ModelSpec, dtype: torch.dtype, device: torch.device, shard: Shard, quantization: QuantizationName
) -> int:
    """Bytes that the weights take on a rank's device; all ranks on CPUs have the same memory."""
    return rank_bytes(spec, dtype, shard, quantization) * (1 if device.type == "cuda" else shard.size)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where rows of a stored tensor go: some of their columns, into a part of a parameter."""

    target: Target
    columns: range
    destination: Tensor  # [rows, len(columns)], a view
    scale: Tensor | None  # [rows] float32, a view: the destination is quantised


def _fill(
    model: DiffusionDecoder, targets: Mapping[str, Target], stored: list[StoredTensor], on_progress: OnProgress
) -> None:
    """Read what belongs to the model's rank; `on_progress` hears of the rows that hold it."""
    parameters = model.loadable()
    placed = []
    for tensor in stored:
        target = targets[tensor.name]
        what = kept(target.name, model.spec, model.group.shard)
        scale = parameters.get(target.name + SCALE_SUFFIX)
        placed += list(_places(parameters[target.name], scale, what, target, tensor))
    total = sum(rows.num_bytes for rows, _ in placed)
    done = 0

    def take(rows: StoredTensor, place: _Place, pieces: Iterator[tuple[int, Tensor]]) -> None:
        nonlocal done
        target = place.target
        put = _compare if target.is_copy else _check if target.is_derived else _copy
        for first, piece in pieces:
            inside = slice(first, first + piece.shape[0])
            if place.scale is not None:
                _quantize(rows.name, piece, place, inside, model.dtype)
            else:
                wanted = piece[:, place.columns.start : place.columns.stop]
                put(rows.name, wanted, place.destination[inside])
            done += piece.numel() * piece.element_size()
            on_progress(done, total)

    read_tensors([entry for entry in placed if not entry[1].target.is_copy], take)
    # When there is something to compare with:
    read_tensors([entry for entry in placed if entry[1].target.is_copy], take)


def _places(
    parameter: Tensor, scale: Tensor | None, what: Kept, target: Target, tensor: StoredTensor
) -> Iterator[tuple[StoredTensor, _Place]]:
    """The rows of a stored tensor that go into `parameter`, with where they go; none if it keeps nothing of them."""
    if target.expert is not None:
        first_expert = 0
        if what.experts is not None:
            if target.expert not in what.experts:
                return
            first_expert = what.experts.start
        parameter = parameter[target.expert - first_expert]
        scale = None if scale is None else scale[target.expert - first_expert]
    matrix = parameter.view(parameter.shape[0], -1)  # a vector is one column
    columns = what.columns or range(tensor.num_columns)
    first_local = 0
    for run in what.rows or (range(matrix.shape[0]),):
        start, stop = max(run.start, target.start), min(run.stop, target.start + tensor.shape[0])
        if start < stop:
            local = first_local + start - run.start
            inside = slice(local, local + stop - start)
            place = _Place(target, columns, matrix[inside], None if scale is None else scale[inside])
            yield tensor.rows(start - target.start, stop - target.start), place
        first_local += len(run)


def _copy(name: str, piece: Tensor, destination: Tensor) -> None:
    """[n] to [n]. The result is what must be finite: a large value does not survive every conversion."""
    destination.copy_(piece)
    _check_finite(name, piece, destination)


def _quantize(name: str, piece: Tensor, place: _Place, inside: slice, dtype: torch.dtype) -> None:
    """Whole rows to integers and scales; they must be finite in `dtype`, the activations' type, too.

    Whatever columns a rank keeps, the scale is that of the whole row: all ranks round as one alone would.
    """
    assert place.scale is not None
    values, scale = quantize(piece.to(place.destination.device))
    _check_finite(name, piece, (scale * LARGEST).to(dtype))
    place.destination[inside] = values[:, place.columns.start : place.columns.stop]
    place.scale[inside] = scale


def _check_finite(name: str, piece: Tensor, result: Tensor) -> None:
    """CheckpointError unless what became of the piece is finite."""
    least, greatest = torch.aminmax(result)
    if bool(torch.isfinite(least) & torch.isfinite(greatest)):
        return
    if not bool(torch.isfinite(piece).all()):
        raise CheckpointError(f"tensor {name} holds values that are not finite")
    dtype = str(result.dtype).removeprefix("torch.")
    raise CheckpointError(f"tensor {name} holds values too large for {dtype}; try --dtype bfloat16 or float32")


def _compare(name: str, piece: Tensor, destination: Tensor) -> None:
    """[n] with [n]: two different matrices cannot both be meant."""
    if not torch.equal(destination, piece.to(destination)):
        raise CheckpointError(f"tensor {name} is not equal to the embedding, to which config.json ties it")


def _check(name: str, piece: Tensor, destination: Tensor) -> None:
    """[n] with [n]: who stored it may have rounded it to bfloat16, no more."""
    if not torch.allclose(piece.to(destination), destination, rtol=DERIVED_TOLERANCE, atol=0.0):
        raise CheckpointError(f"tensor {name} contradicts config.json, from which it follows")
