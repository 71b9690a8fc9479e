"""A checkpoint folder to a model: safetensors straight into the parameters, whatever their type and device.

Every tensor must be expected, present, of the right shape and finite: a silently re-initialised weight is the worst
fault a loader can have. Names and shapes are checked before any memory is taken, values while they are copied.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from psd_core.errors import CheckpointError
from psd_core.models.checkpoint import check_tensors, open_checkpoint
from psd_core.models.dtypes import resolve_dtype
from psd_core.models.family import Family, Target
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.memory import describe_bytes, free_bytes, weight_bytes
from psd_core.models.spec import ModelSpec
from psd_core.models.weights import StoredTensor, read_headers, read_tensors

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]  # bytes read so far, bytes in all


def load_model(
    path: Path,
    dtype: str = "auto",
    device: str = "auto",
    *,
    tokenizer_path: Path | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> DiffusionDecoder:
    """Load the checkpoint folder `path`.

    dtype            "auto" (psd_core.models.dtypes), "float32", "bfloat16", "float16"
    device           "auto" (a GPU if there is one), "cpu", "cuda", "cuda:N"
    tokenizer_path   folder of the tokenizer's files, if they lie elsewhere
    on_progress      called after every piece that was read
    Raises CheckpointError with the names of the files, keys or tensors at fault.
    """
    checkpoint = open_checkpoint(path, tokenizer_path)
    resolved_device = resolve_device(device)
    stored = read_headers(path)
    check_tensors(checkpoint, stored)
    resolved_dtype = resolve_dtype(dtype, checkpoint.spec, resolved_device)
    for notice in checkpoint.notices:
        logger.warning("%s: %s", path, notice)
    model = _allocate(checkpoint.spec, resolved_dtype, resolved_device)
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


def _allocate(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> DiffusionDecoder:
    """The model, its parameters uninitialised; CheckpointError if the device has not enough memory."""
    needed, free = weight_bytes(spec, dtype), free_bytes(device)
    reason = (
        f"the weights need {describe_bytes(needed)} in {str(dtype).removeprefix('torch.')}, but {device} has only "
        f"{describe_bytes(free)} free"
    )
    if needed > free:
        raise CheckpointError(reason)
    try:
        return DiffusionDecoder(spec, dtype, device)
    except torch.OutOfMemoryError as error:
        raise CheckpointError(reason) from error


def _fill(model: nn.Module, targets: Mapping[str, Target], stored: list[StoredTensor], on_progress: OnProgress) -> None:
    parameters = dict(model.named_parameters())
    total = sum(tensor.num_bytes for tensor in stored)
    done = 0

    def take(tensor: StoredTensor, pieces: Iterator[tuple[int, Tensor]]) -> None:
        nonlocal done
        target = targets[tensor.name]
        parameter = parameters[target.name]
        whole = parameter if target.expert is None else parameter[target.expert]
        destination = whole[target.start : target.stop].view(-1)
        put = _compare if target.is_copy else _copy
        for first, piece in pieces:
            put(tensor.name, piece, destination[first : first + piece.numel()])
            done += piece.numel() * piece.element_size()
            on_progress(done, total)

    copies = [tensor for tensor in stored if targets[tensor.name].is_copy]
    read_tensors([tensor for tensor in stored if tensor not in copies], take)
    read_tensors(copies, take)  # when there is something to compare with


def _copy(name: str, piece: Tensor, destination: Tensor) -> None:
    """[n] to [n]. The result is what must be finite: a large value does not survive every conversion."""
    destination.copy_(piece)
    least, greatest = torch.aminmax(destination)
    if bool(torch.isfinite(least) & torch.isfinite(greatest)):
        return
    if not bool(torch.isfinite(piece).all()):
        raise CheckpointError(f"tensor {name} holds values that are not finite")
    dtype = str(destination.dtype).removeprefix("torch.")
    raise CheckpointError(f"tensor {name} holds values too large for {dtype}; try --dtype bfloat16 or float32")


def _compare(name: str, piece: Tensor, destination: Tensor) -> None:
    """[n] with [n]: two different matrices cannot both be meant."""
    if not torch.equal(destination, piece.to(destination)):
        raise CheckpointError(f"tensor {name} is not equal to the embedding, to which config.json ties it")
