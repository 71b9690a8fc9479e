"""The key-value arena: tensors, nothing else. Who owns which slots is the business of `slots`."""

from __future__ import annotations

import math
import sys

import numpy as np
import torch
from torch import Tensor


class KVStore:
    """Rotated keys and values of every layer, [num_slots, H_kv, D] each.

    Zero-filled: a masked slot has weight 0 in attention, but 0 x NaN of uninitialised memory would be NaN.
    On CPU slots that were never used cost no memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_slots, num_kv_heads, head_dim)
        self.num_slots = num_slots
        self.keys: list[Tensor] = [_zeros(shape, dtype, device) for _ in range(num_layers)]
        self.values: list[Tensor] = [_zeros(shape, dtype, device) for _ in range(num_layers)]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the keys and values of `length` slots; the two ranges do not overlap."""
        assert source + length <= target or target + length <= source
        for arena in (*self.keys, *self.values):
            arena[target : target + length] = arena[source : source + length]


def affordable_slots(
    num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> int:
    """Slots that fit into half of the device's free memory, once the weights are loaded. Unbounded on a CPU."""
    if device.type != "cuda":
        return sys.maxsize
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return max(1, free_bytes // 2 // (2 * num_layers * num_kv_heads * head_dim * dtype.itemsize))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy asks the system for zero pages, which are backed by memory when first written; torch.zeros writes them all.
    memory = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(memory).view(dtype).view(shape)
