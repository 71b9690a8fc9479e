"""Peak memory and time of loading a checkpoint, on made-up weights.

    python -m benchmarks.loading                       a scaled LLaDA of about 1.5 GB
    python -m benchmarks.loading --full                LLaDA-8B's own shapes: 16 GB on disk, as much in memory
    python -m benchmarks.loading --model FOLDER        a checkpoint that is there already

The checkpoint is written in shards, as bfloat16, and loaded in a process of its own; its peak of resident memory is
what the kernel says (VmHWM), Python and torch included. The bound is 1.1 times the weights plus 300 MiB.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from psd_core.config import QUANTIZATION_NAMES, QuantizationName
from psd_core.models.checkpoint import open_checkpoint
from psd_core.models.family import ConfigJson
from psd_core.models.layers import DiffusionDecoder
from psd_core.models.loader import load_model
from psd_core.models.memory import describe_bytes
from psd_core.models.published import PUBLISHED
from psd_core.models.weights import INDEX_NAME

SCALED_LAYERS, SCALED_WIDTH = 8, 2048
SHARD_BYTES = 1 << 28
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """What loading took. Bytes."""

    weights: int
    before: int  # resident when Python and torch were imported
    peak: int
    seconds: float

    @property
    def bound(self) -> float:
        """What the peak may be."""
        return 1.1 * self.weights + 300 * MIB


def write_checkpoint(folder: Path, config: ConfigJson, shard_bytes: int = SHARD_BYTES) -> None:
    """Random bfloat16 weights for `config`, in shards of about `shard_bytes`; no more than one is held in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    weight_map: dict[str, str] = {}
    for index, tensors in enumerate(_shards(folder, shard_bytes)):
        file = f"model-{index:05d}.safetensors"
        save_file(tensors, folder / file)
        weight_map |= dict.fromkeys(tensors, file)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def scaled_config(num_layers: int, width: int, vocab_size: int | None = None) -> ConfigJson:
    """LLaDA-8B with fewer layers of a smaller width, in its own proportions."""
    full = PUBLISHED["LLaDA-8B"]
    size = vocab_size if vocab_size is not None else full["vocab_size"]
    ids = {} if vocab_size is None else {"mask_token_id": 2, "eos_token_id": 1}
    return dict(full) | {
        "n_layers": num_layers,
        "d_model": width,
        "n_heads": width // 128,
        "n_kv_heads": width // 128,
        "mlp_hidden_size": 3 * width,
        "vocab_size": size,
        "embedding_size": size,
        **ids,
    }


def measure(folder: Path, dtype: str, quantization: QuantizationName = "none") -> Loaded:
    """Load `folder` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loading", "--measure", str(folder)]
    command += ["--dtype", dtype, "--quantization", quantization]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"loading failed:\n{ended.stderr}")
    return Loaded(**json.loads(ended.stdout))


def measure_here(folder: Path, dtype: str, quantization: QuantizationName) -> Loaded:
    """Load `folder` in this process, which must not have used more memory than now."""
    before = _resident("VmRSS")
    started = time.perf_counter()
    model = load_model(folder, dtype=dtype, device="cpu", quantization=quantization)
    seconds = time.perf_counter() - started
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Loaded(weights, before, _resident("VmHWM"), seconds)


def main() -> None:
    """Write a checkpoint unless one is given, load it, print the figures; exit status 1 if the bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="LLaDA-8B's own shapes")
    parser.add_argument("--model", type=Path, help="a checkpoint folder that is there already")
    parser.add_argument("--dtype", default="bfloat16", help="as psd serve takes it")
    parser.add_argument("--quantization", choices=QUANTIZATION_NAMES, default="none", help="as psd serve takes it")
    parser.add_argument("--folder", type=Path, help="where to write; a temporary folder by default")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        loaded = measure_here(arguments.measure, arguments.dtype, arguments.quantization)
        print(json.dumps({name: getattr(loaded, name) for name in Loaded.__slots__}))
        return
    if arguments.model is not None:
        sys.exit(_report(arguments.model, arguments.dtype, arguments.quantization))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        config = PUBLISHED["LLaDA-8B"] if arguments.full else scaled_config(SCALED_LAYERS, SCALED_WIDTH)
        write_checkpoint(Path(folder), config)
        sys.exit(_report(Path(folder), arguments.dtype, arguments.quantization))


def _report(folder: Path, dtype: str, quantization: QuantizationName) -> int:
    loaded = measure(folder, dtype, quantization)
    holds = loaded.peak <= loaded.bound
    before, peak, bound = (describe_bytes(int(count)) for count in (loaded.before, loaded.peak, loaded.bound))
    print(
        f"weights {describe_bytes(loaded.weights)} ({dtype}, quantization {quantization}) in {loaded.seconds:.1f} s; "
        f"resident before {before}, peak {peak}, bound {bound}: {'holds' if holds else 'BROKEN'}"
    )
    return 0 if holds else 1


def _shards(folder: Path, shard_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Random tensors under the checkpoint's own names."""
    checkpoint = open_checkpoint(folder)
    parameters = dict(DiffusionDecoder(checkpoint.spec, torch.bfloat16, torch.device("meta")).named_parameters())
    generator = torch.Generator().manual_seed(0)
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, target in checkpoint.family.targets(checkpoint.spec).items():
        if target.is_copy:
            continue
        whole = parameters[target.name] if target.expert is None else parameters[target.name][target.expert]
        shape = whole[target.start : target.stop].shape
        scale = 1 / math.sqrt(shape[-1])
        shard[name] = torch.empty(shape, dtype=torch.bfloat16).uniform_(-scale, scale, generator=generator)
        size += shard[name].nbytes
        if size >= shard_bytes:
            yield shard
            shard, size = {}, 0
    if shard:
        yield shard


def _resident(key: str) -> int:
    """VmRSS (now) or VmHWM (at most so far) of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    main()
