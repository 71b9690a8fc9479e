"""From the host's memory to a device, without waiting for it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def upload(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """`values` on the device; on a CPU the very same memory.

    A GPU fetches from pinned memory in its own time, while a copy from ordinary memory would hold up the host.
    """
    tensor = torch.from_numpy(values)
    if device.type != "cuda" or not values.size:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
