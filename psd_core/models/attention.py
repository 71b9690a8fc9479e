"""Attention over a batch's segments: the fast path, and the plain one that says what it must equal."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from psd_core.batch import Batch, Bias, LargeBias, Segment

# query [T, H, D], key and value [T, H_kv, D], a layer's keys and values in the arena -> [T, H, D]
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def attention_over(batch: Batch) -> Attention:
    """`attend` for one batch: what a forward's layers have in common."""
    return lambda query, key, value, keys, values: attend(query, key, value, batch, keys, values)


def attend(query: Tensor, key: Tensor, value: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
    """Scaled dot-product attention of every segment, [T, H, D]; 0 for tokens behind the last segment.

    query          [T, H, D], rotated
    key, value     [T, H_kv, D], key rotated
    keys, values   [num_slots, H_kv, D], this layer's part of the arena; the segments' own keys are written to it
    """
    output = torch.empty_like(query)
    output[batch.segments[-1].start + batch.segments[-1].num_tokens :] = 0.0
    for segment, bias in zip(batch.segments, batch.biases, strict=True):
        own = slice(segment.start, segment.start + segment.num_tokens)
        if segment.slot_start is None:
            output[own] = _attend_rows(query[own], key[own], value[own], segment, bias)
        else:
            first = segment.slot_start
            written = slice(first + segment.context_stop, first + segment.context_stop + segment.num_tokens)
            keys[written] = key[own]
            values[written] = value[own]
            view = slice(first, written.stop)
            output[own] = _attend_view(query[own], keys[view], values[view], bias)
    return output


def attend_plain(query: Tensor, key: Tensor, value: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
    """The slow twin of `attend`: one query at a time, explicit softmax, keys chosen by their position."""
    output = torch.empty_like(query)
    repeats = query.shape[1] // key.shape[1]
    for segment in batch.segments:
        first = segment.slot_start
        for index in range(segment.start, segment.start + segment.num_tokens):
            row_start = index - (index - segment.start) % segment.width
            row = range(row_start, row_start + segment.width)
            window = set(batch.positions[row_start : row_start + segment.width].tolist())

            def sees(position: int, index: int = index, segment: Segment = segment) -> bool:
                here, block, open_start = int(batch.positions[index]), segment.causal_block, segment.open_start
                if open_start is not None and here < open_start:
                    return position <= here
                return block is None or position // block <= here // block

            visible = [(key[other], value[other]) for other in row if sees(int(batch.positions[other]))]
            if first is not None:
                visible += [
                    (keys[first + position], values[first + position])
                    for position in range(segment.context_stop)
                    if position not in window and sees(position)
                ]
            all_keys = torch.stack([pair[0] for pair in visible]).repeat_interleave(repeats, dim=1)
            all_values = torch.stack([pair[1] for pair in visible]).repeat_interleave(repeats, dim=1)
            scores = torch.einsum("hd,khd->hk", query[index], all_keys) / math.sqrt(query.shape[-1])
            output[index] = torch.einsum("hk,khd->hd", torch.softmax(scores, dim=-1), all_values)
    return output


def _attend_rows(query: Tensor, key: Tensor, value: Tensor, segment: Segment, bias: Bias) -> Tensor:
    """Each row attends to itself: [R * W, H, D] in, [R * W, H, D] out."""
    rows, width = segment.num_rows, segment.width

    def by_row(heads: Tensor) -> Tensor:
        return heads.reshape(rows, width, -1, heads.shape[-1]).transpose(1, 2)

    result = sdpa(by_row(query), by_row(key), by_row(value), bias)
    return result.transpose(1, 2).flatten(0, 1)


def _attend_view(query: Tensor, keys: Tensor, values: Tensor, bias: Bias) -> Tensor:
    """All rows at once over one view of the arena, [K, H_kv, D]."""
    result = sdpa(query.transpose(0, 1)[None], keys.transpose(0, 1)[None], values.transpose(0, 1)[None], bias)
    return result[0].transpose(0, 1)


def sdpa(query: Tensor, key: Tensor, value: Tensor, bias: Bias) -> Tensor:
    """[B, H, Q, D] x [B, H_kv, K, D] -> [B, H, Q, D]; bias [Q, K], or pieces of it."""
    grouped = query.shape[1] != key.shape[1]
    if not isinstance(bias, LargeBias):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, enable_gqa=grouped)
    output = torch.empty_like(query)
    for first, piece in bias.pieces():
        own = slice(first, first + piece.shape[0])
        output[:, :, own] = F.scaled_dot_product_attention(
            query[:, :, own], key, value, attn_mask=piece, enable_gqa=grouped
        )
    return output
