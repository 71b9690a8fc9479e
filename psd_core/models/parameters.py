"""Weights of a model: uninitialised until the loader fills them, never trained."""

from __future__ import annotations

import torch
from torch import nn


def new_weight(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An empty parameter that takes no gradient."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
