"""What rank 0 tells the other ranks of a model: a forward's batch, or slots to copy. Plain numbers, nothing pickled.

Every rank makes the attention biases itself: they follow from the segments. Sending synchronises with the device: the
batch's numbers are read back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Final, cast

import torch

from psd_core.batch import Batch, Segment, make_biases
from psd_core.kvcache.prefixes import SlotCopy
from psd_core.models.group import Group

Order = Batch | list[SlotCopy]

FORWARD: Final = 0
COPY: Final = 1
NONE: Final = -(2**63)  # a field that is None
FIELDS: Final = tuple(field.name for field in fields(Segment))


def send_copies(group: Group, copies: Sequence[SlotCopy]) -> None:
    """Tell the other ranks to copy keys and values within their arenas."""
    group.tell([COPY, len(copies), 0, 0])
    group.tell([number for copy in copies for number in (copy.source, copy.target, copy.length)])


def send_forward(group: Group, batch: Batch) -> None:
    """Tell the other ranks to compute `batch`."""
    numbers = [*batch.token_ids.tolist(), *batch.positions.tolist(), *batch.score_index.tolist()]
    for segment in batch.segments:
        numbers += [NONE if (value := getattr(segment, name)) is None else int(value) for name in FIELDS]
    group.tell([FORWARD, batch.token_ids.shape[0], batch.score_index.shape[0], len(batch.segments)])
    group.tell(numbers)


def receive(group: Group, dtype: torch.dtype, device: torch.device) -> Order:
    """The next order; waits for it. dtype: of the model's activations."""
    kind, num_first, num_scored, num_segments = group.tell([0] * 4)
    if kind == COPY:
        told = group.tell([0] * 3 * num_first)
        return [SlotCopy(*told[start : start + 3]) for start in range(0, len(told), 3)]
    told = group.tell([0] * (2 * num_first + num_scored + len(FIELDS) * num_segments))
    flat = torch.tensor(told[: 2 * num_first + num_scored], dtype=torch.int64, device=device)
    token_ids, positions, score_index = torch.split(flat, [num_first, num_first, num_scored])
    rest = told[flat.shape[0] :]
    segments = tuple(_segment(rest[start : start + len(FIELDS)]) for start in range(0, len(rest), len(FIELDS)))
    return Batch(token_ids, positions, segments, make_biases(segments, dtype, device), score_index)


def _segment(numbers: Sequence[int]) -> Segment:
    values = {name: None if number == NONE else number for name, number in zip(FIELDS, numbers, strict=True)}
    return cast("Callable[..., Segment]", Segment)(**values)
