"""Weights of a model: uninitialised until the loader fills them, never trained."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from psd_core.config import QuantizationName

SCALE_SUFFIX: Final = "_scale"  # behind the name of a quantised matrix


def new_weight(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An empty parameter that takes no gradient."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


def new_matrix(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, quantization: QuantizationName
) -> tuple[nn.Parameter, nn.Parameter | None]:
    """One or several empty matrices, [..., rows, columns], and the scale of each row if they are quantised, [..., rows]
    float32.

    The scale's parameter is to be named as the matrix's, with SCALE_SUFFIX: the loader finds it so.
    """
    match quantization:
        case "none":
            return new_weight(shape, dtype, device), None
        case "int8":
            return new_weight(shape, torch.int8, device), new_weight(shape[:-1], torch.float32, device)
