"""Which number type the weights get: the one a setting names, or the one that suits the device.

On a CPU that is measured: bfloat16 halves the memory traffic, and some processors multiply it many times faster, but on
others it is emulated; and where the matrices are small, converting costs more than it saves.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch

from psd_core.errors import CheckpointError
from psd_core.models.memory import free_bytes, weight_bytes
from psd_core.models.probe import PROBE_SECONDS, layer_call, one_layer
from psd_core.models.spec import ModelSpec

logger = logging.getLogger(__name__)

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# Names of the instructions in /proc/cpuinfo; ARM calls its own simply bf16.
BF16_INSTRUCTIONS: Final = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
MIN_GAIN: Final = 1.2  # bfloat16 rounds, so that near ties may fall differently with the batch: it must be worth it
PROBE_ROUNDS: Final = 9
MIN_ROUNDS: Final = 3


def resolve_dtype(dtype: str, spec: ModelSpec, device: torch.device) -> torch.dtype:
    """The torch dtype that a setting names; "auto" is bfloat16 on a GPU, and what measures faster on a CPU."""
    if dtype == "auto":
        return faster_dtype(spec) if device.type == "cpu" else torch.bfloat16
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype must be one of auto, {', '.join(DTYPES)}; got {dtype!r}")
    return DTYPES[dtype]


def faster_dtype(
    spec: ModelSpec,
    instructions: Callable[[], frozenset[str]] | None = None,
    probe: Callable[[ModelSpec], tuple[float, float]] | None = None,
) -> torch.dtype:
    """bfloat16 if this machine's CPU has instructions for it and they make a layer of `spec` faster, else float32.

    instructions, probe   what the processor knows, and seconds in (float32, bfloat16); by default those of this machine
    """
    if not (instructions or cpu_instructions)() & BF16_INSTRUCTIONS:
        return torch.float32
    layer = one_layer(spec)
    if 2 * weight_bytes(layer, torch.float32) > free_bytes(torch.device("cpu")):
        return torch.float32
    wide, narrow = (probe or measure_layer)(layer)
    chosen = torch.bfloat16 if wide >= MIN_GAIN * narrow else torch.float32
    logger.info(
        "a layer takes %.2f ms in float32 and %.2f ms in bfloat16: the weights are %s (--dtype sets it)",
        *(1e3 * wide, 1e3 * narrow, str(chosen).removeprefix("torch.")),
    )
    return chosen


def cpu_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the first processor says it can do; nothing where that cannot be read."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2] for line in lines if line.lower().startswith(("flags", "features")))
    return frozenset(next(found, "").split())


@torch.inference_mode()
def measure_layer(spec: ModelSpec) -> tuple[float, float]:
    """Least seconds that one layer of `spec` takes for 128 tokens, in (float32, bfloat16). They take turns.

    Processor seconds of all threads: whatever else the machine does while a worker starts must not decide.
    """
    runs = [layer_call(spec, dtype) for dtype in (torch.float32, torch.bfloat16)]
    least = [float("inf")] * len(runs)
    began = time.process_time()
    for index in range(1 + PROBE_ROUNDS):  # the first round prepares kernels and does not count
        for run, call in enumerate(runs):
            started = time.process_time()
            call()
            if index:
                least[run] = min(least[run], time.process_time() - started)
        if index >= MIN_ROUNDS and time.process_time() - began > PROBE_SECONDS:
            break
    return least[0], least[1]
