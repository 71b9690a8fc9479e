"""Matrices of 8-bit integers with a scale per row: half the memory of bfloat16, multiplied in the activations' type.

Symmetric and of the weights only: weight[n, k] = values[n, k] · scale[n]. Activations are not rounded, so there is
nothing to calibrate. A product turns some rows at a time back into the activations' type: the whole matrix never exists
in that, and what was converted is still in the processor's cache when it is multiplied.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST: Final = 127  # of the integers; -128 is left out, so that they reach as far down as up
CPU_PIECE: Final = 1 << 20  # elements converted at a time: 2 MiB in bfloat16, about a core's own cache
GPU_PIECE: Final = 1 << 24  # 32 MiB in bfloat16: few launches, and within the caches of recent devices


def quantize(rows: Tensor) -> tuple[Tensor, Tensor]:
    """[n, num_in] of any floating type -> (int8 [n, num_in], scale [n] float32).

    The scale of a row that is not finite is not finite, and its integers mean nothing.
    """
    wide = rows.float()
    scale = torch.linalg.vector_norm(wide, float("inf"), dim=1) / LARGEST  # the largest magnitude
    scale = scale.masked_fill(scale == 0, 1.0)  # a row of zeros
    values = (wide / scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return values.to(torch.int8), scale


def product(hidden: Tensor, weight: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """hidden W^T (+ b): [T, num_in] -> [T, num_out], W [num_out, num_in] of hidden's type, or int8 with a scale."""
    if scale is None:
        return F.linear(hidden, weight, bias)
    num_out, num_in = weight.shape
    step = max(1, (CPU_PIECE if hidden.device.type == "cpu" else GPU_PIECE) // num_in)
    result = hidden.new_empty(hidden.shape[0], num_out)
    for start in range(0, num_out, step):
        rows = slice(start, start + step)
        result[:, rows] = _part(hidden, weight[rows], scale[rows])
    return result if bias is None else result + bias


def plain_product(hidden: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """What `product` computes of a quantised matrix, by way of the matrix that it stands for."""
    return F.linear(hidden, (weight * scale[:, None]).to(hidden.dtype), bias)


def _part(hidden: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """[T, n] for n rows. Integers convert fast and exactly, so it is the product that is scaled."""
    steps = values.to(hidden.dtype)
    if hidden.dtype == torch.float16:  # it ends at 65,504, which sums of whole steps may exceed
        return F.linear(hidden, steps.mul_(scale.to(torch.float16)[:, None]))
    return F.linear(hidden, steps) * scale
