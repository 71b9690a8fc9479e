"""Memory that a model needs, from its shape alone; and what a device has left."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from psd_core.config import QuantizationName
from psd_core.models.group import WHOLE, Alone
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.shard import Shard
from psd_core.models.spec import ModelSpec


def weight_bytes(spec: ModelSpec, dtype: torch.dtype, quantization: QuantizationName = "none") -> int:
    """Bytes of the parameters where `dtype` is the activations' type."""
    return rank_bytes(spec, dtype, WHOLE, quantization)


def rank_bytes(spec: ModelSpec, dtype: torch.dtype, shard: Shard, quantization: QuantizationName = "none") -> int:
    """Bytes of the parameters that one rank holds."""
    model = DiffusionDecoder(spec, dtype, torch.device("meta"), Alone(shard), quantization)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def context_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of keys and values per token of context."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device, the limit of a container included; very much if that is unknown."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return min(_free_in_system(Path("/proc/meminfo")), _free_in_group(Path("/sys/fs/cgroup")))


def describe_numbers(dtype: torch.dtype, quantization: QuantizationName) -> str:
    """The types of the weights in words: that of the activations, and that of quantised matrices."""
    name = str(dtype).removeprefix("torch.")
    return name if quantization == "none" else f"{name} and {quantization}"


def describe_bytes(count: int) -> str:
    """In words: GiB, MiB or KiB."""
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.1f} {unit}"
    return f"{count / 1024:.0f} KiB"


def _free_in_system(meminfo: Path) -> int:
    """Memory that the kernel could free, swap included."""
    try:
        entries = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return 1024 * sum(int(entries[key].split()[0]) for key in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return sys.maxsize


def _free_in_group(folder: Path) -> int:
    """What the control group allows beyond what it uses; its file cache gives way."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return (
            sys.maxsize if limit == "max" else int(limit) - used + int(stat["active_file"]) + int(stat["inactive_file"])
        )
    except (OSError, KeyError, ValueError):
        return sys.maxsize
