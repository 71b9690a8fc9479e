"""How many rows a matrix product is given on a CPU, so that few different numbers of them occur.

oneDNN, which computes bfloat16 products on CPUs, compiles a kernel for every new shape and keeps the last thousand: a
few milliseconds and most of a megabyte each. Token counts follow the prompts' lengths, so unrounded hardly any returns.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

STEP: Final = 16  # the finest step, and steps per doubling: at most a sixteenth is computed in vain from 256 rows on


def rounded(count: int) -> int:
    """The next number of rows that is used: a multiple of 16, above 256 of a 16th of the next lower power of two."""
    step = max(STEP, 1 << max(0, (count - 1).bit_length() - 5))
    return -(-count // step) * step


def has_kernels_per_shape(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether rounding pays: float32 products do not depend on compiled kernels, nor do a GPU's."""
    return device.type == "cpu" and dtype != torch.float32


def pad_rows(rows: Tensor) -> Tensor:
    """[n, …] -> [rounded(n), …] with zeros behind."""
    missing = rounded(rows.shape[0]) - rows.shape[0]
    return rows if missing == 0 else F.pad(rows, (*(0, 0) * (rows.ndim - 1), 0, missing))
