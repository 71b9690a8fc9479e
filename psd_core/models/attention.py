"""Attention over a batch's segments: the fast path, and the plain one that says what it must equal."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from psd_core.batch import Batch, Segment


def attend(query: Tensor, key: Tensor, value: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
    """Scaled dot-product attention of every segment, [T, H, D].

    query          [T, H, D], rotated
    key, value     [T, H_kv, D], key rotated
    keys, values   [num_slots, H_kv, D], this layer's part of the arena; refreshes and scratch are written to it
    """
    output = torch.empty_like(query)
    for segment in batch.segments:
        own = slice(segment.start, segment.start + segment.num_tokens)
        if segment.reads_cache:
            output[own] = _attend_shared(query[own], key[own], value[own], segment, keys, values)
        else:
            output[own] = _attend_rows(query[own], key[own], value[own], segment)
            if segment.slot_start is not None:
                slots = slice(segment.slot_start, segment.slot_start + segment.width)
                keys[slots] = key[own]
                values[slots] = value[own]
    return output


def attend_plain(query: Tensor, key: Tensor, value: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
    """The slow twin of `attend`: one row at a time, explicit softmax, keys gathered by position."""
    output = torch.empty_like(query)
    for segment in batch.segments:
        for row in range(segment.num_rows):
            first = segment.start + row * segment.width
            own = slice(first, first + segment.width)
            row_keys, row_values = key[own], value[own]
            if segment.reads_cache:
                assert segment.slot_start is not None
                window = batch.positions[own]
                outside = torch.ones(segment.canvas_stop, dtype=torch.bool, device=query.device)
                outside[window] = False
                slots = segment.slot_start + torch.nonzero(outside).squeeze(-1)
                row_keys = torch.cat([keys[slots], row_keys])
                row_values = torch.cat([values[slots], row_values])
            elif segment.slot_start is not None:
                keys[segment.slot_start : segment.slot_start + segment.width] = row_keys
                values[segment.slot_start : segment.slot_start + segment.width] = row_values
            repeats = query.shape[1] // key.shape[1]
            expanded_keys = row_keys.repeat_interleave(repeats, dim=1)
            expanded_values = row_values.repeat_interleave(repeats, dim=1)
            scores = torch.einsum("qhd,khd->hqk", query[own], expanded_keys) / math.sqrt(query.shape[-1])
            output[own] = torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), expanded_values)
    return output


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, segment: Segment) -> Tensor:
    """Each row attends to itself: [R * W, H, D] in, [R * W, H, D] out."""
    rows, width = segment.num_rows, segment.width

    def by_row(heads: Tensor) -> Tensor:
        return heads.reshape(rows, width, -1, heads.shape[-1]).transpose(1, 2)

    result = _sdpa(by_row(query), by_row(key), by_row(value), None)
    return result.transpose(1, 2).flatten(0, 1)


def _attend_shared(query: Tensor, key: Tensor, value: Tensor, segment: Segment, keys: Tensor, values: Tensor) -> Tensor:
    """All rows at once over one view of the arena: context, then the rows' own keys in the scratch behind it."""
    assert segment.slot_start is not None
    scratch = segment.slot_start + segment.canvas_stop
    stop = scratch + segment.num_tokens
    keys[scratch:stop] = key
    values[scratch:stop] = value
    result = _sdpa(
        query.transpose(0, 1)[None],
        keys[segment.slot_start : stop].transpose(0, 1)[None],
        values[segment.slot_start : stop].transpose(0, 1)[None],
        segment.bias,
    )
    return result[0].transpose(0, 1)


def _sdpa(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    """[B, H, Q, D] x [B, H_kv, K, D] -> [B, H, Q, D]; bias [Q, K] or None."""
    grouped = query.shape[1] != key.shape[1]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=grouped)
