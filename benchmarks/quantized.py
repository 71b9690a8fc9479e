"""Time of one product with an 8-bit matrix, beside the same matrix in the activations' type and other ways to do it.

    python -m benchmarks.quantized                     LLaDA-8B's gate and up projections, on the CPU
    python -m benchmarks.quantized --device cuda       the same on a GPU

float    not quantised: what `--quantization none` multiplies
pieces   some rows at a time back to the activations' type, as psd_core.models.quantized does it
whole    all rows at once
torch    torch's own kernel for such products, torch._weight_int8pack_mm; on CPUs it is made for bfloat16 only
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.measuring import CLOCK_HELP, CLOCKS, Clock, alternate, machine_line, median_ratio, seconds_of
from psd_core.models.dtypes import DTYPES
from psd_core.models.quantized import plain_product, product, quantize


@torch.inference_mode()
def measure(num_tokens: int, weight: torch.Tensor, clock: Clock, rounds: int) -> dict[str, list[float]]:
    """Seconds of every way, `rounds` of each after one that does not count. weight: [num_out, num_in]."""
    hidden = torch.randn(num_tokens, weight.shape[1], device=weight.device).to(weight.dtype)
    values, scale = quantize(weight)
    ways: dict[str, Callable[[], object]] = {
        "float": lambda: F.linear(hidden, weight),
        "pieces": lambda: product(hidden, values, scale),
        "whole": lambda: plain_product(hidden, values, scale),
        "torch": lambda: torch._weight_int8pack_mm(hidden, values, scale.to(hidden.dtype)),
    }
    if weight.device.type == "cpu" and weight.dtype != torch.bfloat16:
        ways.pop("torch")  # a loop over single numbers: minutes
    calls = {name: lambda way=way: _timed(way, weight.device, clock) for name, way in ways.items()}
    found = alternate(calls, 1 + rounds)
    return {name: seconds[1:] for name, seconds in found.items()}


def _timed(way: Callable[[], object], device: torch.device, clock: Clock) -> float:
    def whole() -> None:
        way()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return seconds_of(whole, clock)


def main() -> None:
    """Print a table of medians, and ratios to `float`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16", help="of the activations")
    parser.add_argument("--shape", type=int, nargs=2, default=(24_576, 4_096), metavar=("OUT", "IN"))
    parser.add_argument("--tokens", type=int, nargs="+", default=(4, 16, 32, 128, 512))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="torch's threads")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help=CLOCK_HELP)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device, dtype = torch.device(given.device), DTYPES[given.dtype]
    weight = (torch.randn(*given.shape, device=device) / given.shape[1] ** 0.5).to(dtype)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    print(
        f"[{given.shape[0]}, {given.shape[1]}], median of {given.rounds}, {machine_line(dtype, given.clock, where)}\n"
    )
    print("| tokens | way | ms | ÷ float |\n|---|---|---|---|")
    for num_tokens in given.tokens:
        found = measure(num_tokens, weight, CLOCKS[given.clock], given.rounds)
        for name, seconds in found.items():
            ratio = median_ratio(seconds, found["float"])
            print(f"| {num_tokens} | {name} | {1e3 * statistics.median(seconds):.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
