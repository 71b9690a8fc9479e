"""Trains the built-in model from nothing and exports it.

    python -m demo_model.train --minutes 88 --processes 2          (CPU: one thread per process, shared gradients)
    python -m demo_model.train --minutes 10 --device cuda --batch-tokens 65536

Resumes from its last checkpoint in demo_model/runs. The learning rate falls linearly to 0 over the minutes given,
counted over all resumed parts. Masked diffusion loss (LLaDA, arXiv 2502.09992) on canvases masked as decoding sees
them; Muon for matrices, AdamW for embedding and norms.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from demo_model.network import Network, Shape, export
from demo_model.probe import accuracy
from demo_model.samples import TrainingBatch, choose_canvas, make_batch
from demo_model.tasks import Stage, problems
from demo_model.vocabulary import save_tokenizer, train_tokenizer

_MUON_RATE, _ADAM_RATE, _WARMUP_STEPS = 0.01, 5e-4, 100
_Forward = Callable[[Tensor], Tensor]
_Optimizers = tuple[torch.optim.Optimizer, torch.optim.Optimizer]


def make_optimizers(network: Network) -> _Optimizers:
    """Muon for the blocks' matrices, AdamW for everything else."""
    matrices = [p for p in network.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in network.parameters() if id(p) not in chosen]
    muon = torch.optim.Muon(matrices, lr=_MUON_RATE, momentum=0.95, weight_decay=0.01)
    return muon, torch.optim.AdamW(others, lr=_ADAM_RATE, betas=(0.9, 0.99), weight_decay=0.0)


def loss_of(network: Network, forward: _Forward, batch: TrainingBatch, device: torch.device) -> Tensor:
    """Weighted mean cross-entropy over the asked positions; `forward` is the network, compiled or not."""
    inputs, targets, weights = (t.to(device) for t in (batch.inputs, batch.targets, batch.weights))
    with torch.autocast(device.type, torch.bfloat16):
        hidden = forward(inputs)
        asked = weights > 0
        logits = F.linear(hidden[asked], network.embedding)
    losses = F.cross_entropy(logits.float(), targets[asked], reduction="none")
    return (losses * weights[asked]).sum() / weights.sum()


def stage_of(spent: float, drill: Sequence[float]) -> Stage:
    """Which shares of the tasks a step trains when a share `spent` of the time is over."""
    first, end = drill
    return "early" if spent < first else "drill" if spent < end else "late"


def share_gradients(network: Network, extra: Tensor) -> None:
    """Average all gradients, and the vector `extra`, over the processes, in one message."""
    if not dist.is_initialized():
        return
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    flat = torch.cat([*(g.flatten() for g in gradients), extra])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    offset = 0
    for gradient in gradients:
        gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
        offset += gradient.numel()
    extra.copy_(flat[offset:])


def save_checkpoint(folder: Path, network: Network, optimizers: _Optimizers, step: int, seconds: float) -> None:
    """Weights, optimizer state and progress, as plain tensors and JSON."""
    tensors = {f"weight.{name}": p.detach().contiguous() for name, p in network.named_parameters()}
    for kind, optimizer in zip(("muon", "adam"), optimizers, strict=True):
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{kind}.{index}.{key}": value.contiguous() for key, value in state.items()}
    save_file(tensors, folder / "checkpoint.tmp")
    (folder / "checkpoint.tmp").replace(folder / "checkpoint.safetensors")
    (folder / "progress.json").write_text(json.dumps({"step": step, "seconds": seconds}), encoding="utf-8")


def load_checkpoint(folder: Path, network: Network, optimizers: _Optimizers) -> tuple[int, float]:
    """(step, seconds) of the last checkpoint, restored in place; (0, 0.0) if there is none."""
    if not (folder / "progress.json").exists():
        return 0, 0.0
    tensors = load_file(folder / "checkpoint.safetensors")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(tensors[f"weight.{name}"])
    for kind, optimizer in zip(("muon", "adam"), optimizers, strict=True):
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith(kind + "."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    progress = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
    return int(progress["step"]), float(progress["seconds"])


def train(arguments: argparse.Namespace, rank: int, world: int) -> None:
    """The training loop of one process."""
    runs: Path = arguments.runs
    name = ("cuda" if torch.cuda.is_available() else "cpu") if arguments.device == "auto" else arguments.device
    device = torch.device(name)
    if device.type == "cpu":
        torch.set_num_threads(1 if world > 1 else 2)
    torch.manual_seed(arguments.seed)
    network = Network(Shape()).to(device)
    forward: _Forward = torch.compile(network, dynamic=False) if arguments.compile else network
    optimizers = make_optimizers(network)
    step, spent = load_checkpoint(runs, network, optimizers)
    seconds = spent  # as all processes agreed at the end of the last step, so all are in the same stage
    tokenizer = Tokenizer.from_file(str(runs / "tokenizer.json"))
    probes = problems("held-out", 42, 7)
    budget = arguments.minutes * 60
    started = last_save = time.monotonic()
    tokens = 0
    while True:
        elapsed = torch.tensor([spent + time.monotonic() - started, 0.0], device=device)
        stage = stage_of(seconds / budget, arguments.drill)
        canvas = choose_canvas(random.Random(f"canvas-{arguments.seed}-{step}"), stage)
        rng = random.Random(f"train-{arguments.seed}-{rank}-{step}")
        batch = make_batch(tokenizer, rng, arguments.batch_tokens, canvas, stage)
        loss = loss_of(network, forward, batch, device)
        torch.autograd.backward(loss)
        elapsed[1] = loss.detach()
        share_gradients(network, elapsed)
        seconds, mean_loss = elapsed.tolist()
        rate = max(0.0, 1.0 - seconds / budget) * min(1.0, (step + 1) / _WARMUP_STEPS)
        for optimizer, base in zip(optimizers, (_MUON_RATE, _ADAM_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * rate
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        tokens += batch.inputs.numel() * world
        if rank == 0 and step % 50 == 0:
            speed = tokens / (time.monotonic() - started)
            print(f"{stage} step {step} {seconds / 60:.1f} min loss {mean_loss:.3f} {speed:.0f} tokens/s", flush=True)
        if rank == 0 and step % 2000 == 0:
            print("  probe", accuracy(network, tokenizer, probes), flush=True)
        if rank == 0 and (time.monotonic() - last_save > 240 or seconds >= budget):
            last_save = time.monotonic()
            save_checkpoint(runs, network, optimizers, step, seconds)
            export(network, arguments.output)
            save_tokenizer(tokenizer, arguments.output, Shape().max_positions)
        if seconds >= budget:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).parent
    parser.add_argument("--minutes", type=float, default=88.0)
    parser.add_argument("--processes", type=int, default=2, help="CPU processes with one thread each")
    parser.add_argument("--batch-tokens", type=int, default=3072, help="per process and step")
    parser.add_argument(
        "--drill", type=float, nargs=2, default=(0.5, 0.56), metavar=("FIRST", "END"), help="of the time"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--runs", type=Path, default=here / "runs")
    parser.add_argument("--output", type=Path, default=here.parent / "psd_core" / "assets" / "demo")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ.get("RANK", "0"))
    if rank == 0 and not (arguments.runs / "tokenizer.json").exists():
        save_tokenizer(train_tokenizer(arguments.seed), arguments.runs, Shape().max_positions)
    if arguments.processes == 1:
        train(arguments, 0, 1)
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": str(arguments.processes)}
    others = []
    if rank == 0:
        command = [sys.executable, "-m", "demo_model.train", *sys.argv[1:]]
        others = [subprocess.Popen(command, env={**os.environ, "RANK": str(r)}) for r in range(1, arguments.processes)]
    os.environ["RANK"] = str(rank)
    dist.init_process_group("gloo")
    try:
        train(arguments, rank, arguments.processes)
    finally:
        dist.destroy_process_group()
        for other in others:
            other.wait()


if __name__ == "__main__":
    main()
