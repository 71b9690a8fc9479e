"""The table of model families and the memory of published checkpoints, as `psd models` and docs/models.md show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from psd_core.config import QuantizationName
from psd_core.kvcache.modes import attention_caches
from psd_core.models.families import FAMILIES, UNSUPPORTED
from psd_core.models.family import Family, SpecialToken
from psd_core.models.memory import context_bytes, describe_bytes, weight_bytes
from psd_core.models.published import PUBLISHED, published_spec

Row = tuple[str, ...]

FAMILY_HEAD: Final[Row] = (
    "architecture",
    "models",
    "attention",
    "logits",
    "mask",
    "stops",
    "block",
    "caches",
    "licence",
    "compared with",
)
MEMORY_HEAD: Final[Row] = (
    "checkpoint",
    "parameters",
    "bfloat16",
    "bfloat16 and int8",
    "float32",
    "keys and values per token, bfloat16",
)
MEMORY_KINDS: Final[tuple[tuple[torch.dtype, QuantizationName], ...]] = (
    (torch.bfloat16, "none"),
    (torch.bfloat16, "int8"),
    (torch.float32, "none"),
)


def family_rows() -> list[Row]:
    """One row per family, under `FAMILY_HEAD`."""
    return [_family_row(family) for family in FAMILIES.values()]


def memory_rows() -> list[Row]:
    """One row per published checkpoint, under `MEMORY_HEAD`."""
    rows = []
    for name in PUBLISHED:
        spec = published_spec(name)
        sizes = [describe_bytes(weight_bytes(spec, *kind)) for kind in MEMORY_KINDS]
        context = describe_bytes(context_bytes(spec, torch.bfloat16))
        rows.append((name, f"{spec.num_parameters / 1e9:.1f} B", *sizes, context))
    return rows


def unsupported_rows() -> list[Row]:
    """Architectures that are known and refused, with what is missing."""
    return list(UNSUPPORTED.items())


def plain(head: Row, rows: Sequence[Row]) -> str:
    """Aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def markdown(head: Row, rows: Sequence[Row]) -> str:
    """A table of GitHub's Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def show_models(*, as_markdown: bool) -> str:
    """What `psd models` prints."""
    show = markdown if as_markdown else plain
    tables = [
        show(FAMILY_HEAD, family_rows()),
        show(MEMORY_HEAD, memory_rows()),
        show(("not served", "what is missing"), unsupported_rows()),
    ]
    return "\n\n".join(tables)


def family_caches(family: Family) -> tuple[str, ...]:
    """Cache modes that a family's attention allows."""
    return attention_caches(family.attention)


def _family_row(family: Family) -> Row:
    return (
        family.architecture,
        family.models,
        family.attention,
        "shifted" if family.is_shifted else "in place",
        _token(family.mask),
        ", ".join(map(_token, family.stops)),
        "any" if family.block_length is None else f"{family.block_length}, or {family.block_key}",
        ", ".join(family_caches(family)),
        family.licence,
        family.parity,
    )


def _token(token: SpecialToken) -> str:
    return token.text if token.token_id is None else f"{token.text} {token.token_id}"
