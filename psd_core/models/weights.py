"""Tensors as they lie in safetensors files: found by their headers, read through memory maps in bounded pieces.

A page that was read once is given back to the system at once, so that loading needs little more than the weights.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from psd_core.errors import CheckpointError
from psd_core.models.files import read_json

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
PIECE_BYTES: Final = 1 << 24  # read at once
STORED_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint, or some of its rows: bytes `start` … `stop` - 1 of `file`."""

    name: str
    file: Path
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self.stop - self.start

    @property
    def num_columns(self) -> int:
        """Elements of a row; a vector has rows of one."""
        return math.prod(self.shape[1:])

    def rows(self, first: int, stop: int) -> StoredTensor:
        """The part of this tensor that are its rows `first` … `stop` - 1, which lie together."""
        row_bytes = self.num_columns * STORED_DTYPES[self.dtype].itemsize
        start = self.start + first * row_bytes
        shape = (stop - first, *self.shape[1:])
        return replace(self, shape=shape, start=start, stop=start + (stop - first) * row_bytes)


def read_headers(folder: Path) -> list[StoredTensor]:
    """Every tensor of the checkpoint in `folder`, by file and place. Reads headers only.

    CheckpointError if a file is missing, damaged or cut short, or two files hold a tensor of the same name.
    """
    stored = [tensor for file in weight_files(folder) for tensor in _read_header(file)]
    files: dict[str, Path] = {}
    for tensor in stored:
        if tensor.name in files:
            raise CheckpointError(
                f"tensor {tensor.name} stands in two files: {files[tensor.name].name} and {tensor.file.name}"
            )
        files[tensor.name] = tensor.file
    return stored


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those that the index names, else model.safetensors."""
    index = folder / INDEX_NAME
    if not index.exists():
        single = folder / SINGLE_NAME
        if not single.exists():
            raise CheckpointError(f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}")
        return [single]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    if any(Path(name).name != name for name in names):
        raise CheckpointError(f"{index} names files outside its folder")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise CheckpointError(f"{folder} is incomplete, missing: {list_names(missing)}")
    return [folder / name for name in names]


def read_tensors(
    stored: Iterable[tuple[StoredTensor, T]], take: Callable[[StoredTensor, T, Iterator[tuple[int, Tensor]]], None]
) -> None:
    """Call `take` for each tensor and what belongs to it, file by file, with pieces: (first row, rows [n, columns]).

    A piece is valid until the next one is asked for. It is read from the file when it is looked at, not before.
    """
    by_file: dict[Path, list[tuple[StoredTensor, T]]] = {}
    for tensor, companion in stored:
        by_file.setdefault(tensor.file, []).append((tensor, companion))
    for file, entries in by_file.items():
        # A private mapping: torch wants memory that it might write to, and nobody does.
        with file.open("rb") as opened, closing(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)) as view:
            for tensor, companion in sorted(entries, key=lambda entry: entry[0].start):
                take(tensor, companion, _pieces(view, tensor))


def list_names(names: Iterable[str]) -> str:
    """Some of the names, sorted, and how many more there are."""
    listed = sorted(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")


def _pieces(view: mmap.mmap, tensor: StoredTensor) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows [n, columns]), whole rows each time."""
    dtype, columns = STORED_DTYPES[tensor.dtype], tensor.num_columns
    row_bytes = columns * dtype.itemsize
    step = max(1, PIECE_BYTES // row_bytes) * row_bytes
    for start in range(tensor.start, tensor.stop, step):
        stop = min(start + step, tensor.stop)
        count = (stop - start) // dtype.itemsize
        # A header of odd length leaves its tensors unaligned, which torch cannot read in place.
        source, offset = (view, start) if start % dtype.itemsize == 0 else (bytearray(view[start:stop]), 0)
        piece = torch.frombuffer(source, dtype=dtype, count=count, offset=offset)
        yield (start - tensor.start) // row_bytes, piece.view(-1, columns)
        page = start // mmap.PAGESIZE * mmap.PAGESIZE
        view.madvise(mmap.MADV_DONTNEED, page, stop - page)


def _read_header(file: Path) -> list[StoredTensor]:
    """safetensors checks the header against the file first; after that its offsets can be trusted."""
    try:
        with safe_open(file, framework="pt"), file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read, perhaps it was not downloaded to its end: {error}") from error
    data = 8 + length
    stored = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, stop = entry["data_offsets"]
        stored.append(StoredTensor(name, file, entry["dtype"], tuple(entry["shape"]), data + start, data + stop))
    return stored
