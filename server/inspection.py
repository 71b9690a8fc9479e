"""What a checkpoint folder is, whether it will load, and the memory that it needs, without loading it.

Reads configuration, tokenizer and the headers of the weights. Values are not looked at: only loading does that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from psd_core.config import QuantizationName
from psd_core.errors import CheckpointError, ConfigError
from psd_core.models.checkpoint import Checkpoint, check_tensors, open_checkpoint
from psd_core.models.dtypes import resolve_dtype
from psd_core.models.loader import needed_bytes, resolve_device
from psd_core.models.memory import (
    context_bytes,
    describe_bytes,
    describe_numbers,
    free_bytes,
    rank_bytes,
    weight_bytes,
)
from psd_core.models.shard import Shard, check_shards, local_spec
from psd_core.models.spec import ModelSpec
from psd_core.models.weights import StoredTensor, read_headers
from server.chat_template import load_chat_template
from server.model_table import family_caches
from server.tokenizer import Tokenizer

Line = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Findings as (what, value), and why the checkpoint will not load; no faults: it will."""

    lines: tuple[Line, ...]
    faults: tuple[str, ...]

    def show(self) -> str:
        """As `psd inspect` prints it."""
        verdict = [("loads", "no")] if self.faults else [("loads", "yes, if its values are finite")]
        lines = [*self.lines, *verdict, *(("", fault) for fault in self.faults)]
        return "\n".join(f"{what:<15}{value}" for what, value in lines)


def inspect(
    folder: Path,
    tokenizer_folder: Path,
    dtype: str,
    device: str,
    num_ranks: int = 1,
    quantization: QuantizationName = "none",
) -> Inspection:
    """Look at `folder` as if it were to be served with these settings. Never raises for what it finds there.

    num_ranks: processes that share the model (--tensor-parallel-size), at least 1.
    """
    lines: list[Line] = [("folder", str(folder))]
    faults: list[str] = []
    checkpoint = None
    try:
        checkpoint = open_checkpoint(folder, tokenizer_folder)
        lines += _describe(checkpoint)
    except CheckpointError as error:
        faults.append(str(error))
    try:
        stored = read_headers(folder)
        lines.append(_stored(stored))
        if checkpoint is not None:
            check_tensors(checkpoint, stored)
    except CheckpointError as error:
        faults.append(str(error))
    try:
        if checkpoint is not None:
            lines += _memory(checkpoint.spec, dtype, device, num_ranks, quantization)
    except (CheckpointError, ConfigError) as error:
        faults.append(str(error))
    try:
        lines += _text(tokenizer_folder)
    except CheckpointError as error:
        faults.append(str(error))
    return Inspection(tuple(lines), tuple(faults))


def _describe(checkpoint: Checkpoint) -> list[Line]:
    family, spec = checkpoint.family, checkpoint.spec
    attention = spec.attention + ("" if spec.block_length is None else f", blocks of {spec.block_length}")
    shift = ", logits shifted by one" if spec.is_shifted else ""
    head = "tied to the embedding" if spec.has_tied_head else "of its own"
    return [
        ("architecture", f"{spec.architecture}: {family.models}"),
        ("attention", f"{attention}{shift}; caches {', '.join(family_caches(family))}"),
        ("shape", f"{spec.num_layers} layers, {spec.hidden_size} features, vocabulary {spec.vocab_size}, head {head}"),
        ("context", f"{spec.max_positions} tokens, prompt and answer"),
        ("mask id", str(spec.mask_id)),
        ("stop ids", ", ".join(map(str, spec.eos_ids)) or "none: texts end at max_tokens"),
        ("compared with", f"{family.parity} (tiny random checkpoints of this family)"),
        ("licence", f"{family.licence} (the published weights of this family; those in this folder may have another)"),
        *(("notice", notice) for notice in checkpoint.notices),
    ]


def _stored(stored: list[StoredTensor]) -> Line:
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(tensor.dtype for tensor in stored).most_common())
    size = describe_bytes(sum(tensor.num_bytes for tensor in stored))
    num_files = len({tensor.file for tensor in stored})
    return "stored", f"{size} in {num_files} file{'s' * (num_files > 1)}, {len(stored)} tensors: {kinds}"


def _memory(spec: ModelSpec, dtype: str, device: str, num_ranks: int, quantization: QuantizationName) -> list[Line]:
    check_shards(spec, num_ranks)
    resolved_device = resolve_device(device)
    resolved_dtype = resolve_dtype(dtype, spec, resolved_device)
    weights, free = weight_bytes(spec, resolved_dtype, quantization), free_bytes(resolved_device)
    per_token = context_bytes(spec, resolved_dtype)
    name = describe_numbers(resolved_dtype, quantization)
    shard = Shard(0, num_ranks)
    needed = needed_bytes(spec, resolved_dtype, resolved_device, shard, quantization)
    if needed > free:
        raise CheckpointError(
            f"the weights need {describe_bytes(needed)} in {name}, but {resolved_device} has only "
            f"{describe_bytes(free)} free"
        )
    share = (
        f"{describe_bytes(rank_bytes(spec, resolved_dtype, shard, quantization))} of weights and "
        f"{describe_bytes(context_bytes(local_spec(spec, shard), resolved_dtype))} of cache per token of context, on "
        f"each of {num_ranks}"
    )
    return [
        ("parameters", f"{spec.num_parameters / 1e6:,.1f} million"),
        (
            "memory",
            f"{describe_bytes(weights)} for the weights in {name}; {resolved_device} has {describe_bytes(free)}",
        ),
        (
            "cache",
            f"{describe_bytes(per_token)} per token of context, {describe_bytes(per_token * spec.max_positions)} for a "
            "full one",
        ),
        *([("per rank", share)] if num_ranks > 1 else []),
    ]


def _text(tokenizer_folder: Path) -> list[Line]:
    tokenizer = Tokenizer(tokenizer_folder)
    template = load_chat_template(tokenizer, tokenizer_folder, None)
    return [
        ("tokenizer", f"{tokenizer.vocab_size} tokens, {len(tokenizer.special_ids)} of them special"),
        ("chat template", "yes" if template is not None else "none: chats need --chat-template"),
    ]
