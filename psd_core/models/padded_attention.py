"""Attention of a padded forward (`psd_core.padded`): fixed shapes and fixed addresses, so that a graph can repeat it.

Everything that depends on the batch, bias and slots included, is computed on the device from one vector of numbers. In
exchange every layer copies the context that it reads; `attention.attend` copies nothing, but its addresses change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from psd_core.models.attention import sdpa
from psd_core.padded import Shape


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """The numbers of a padded forward, on the device; all int64. G groups, Q query tokens each."""

    token_ids: Tensor  # [G * Q]
    positions: Tensor  # [G * Q]
    rows: Tensor  # [G, Q]
    sights: Tensor  # [G, Q]
    slot_starts: Tensor  # [G, 1]
    context_stops: Tensor  # [G, 1]
    stale_starts: Tensor  # [G, 1]: cached positions from here
    stale_stops: Tensor  # [G, 1]: … to here are computed anew


def unpack(numbers: Tensor, shape: Shape) -> PaddedInput:
    """Views of the vector that `pack` wrote."""
    num_tokens, grid = shape.num_tokens, (shape.num_groups, shape.num_queries)
    token_ids, positions, rows, sights = numbers[: 4 * num_tokens].view(4, num_tokens).unbind()
    contexts = numbers[5 * num_tokens :].view(4, shape.num_groups, 1)
    return PaddedInput(token_ids, positions, rows.view(grid), sights.view(grid), *contexts.unbind())


class PaddedAttention:
    """What one padded forward's layers have in common."""

    def __init__(self, given: PaddedInput, shape: Shape, num_slots: int, dtype: torch.dtype) -> None:
        """num_slots: of the arena; dtype: the model's activation dtype."""
        self.shape = shape
        self.bias = padded_bias(given, shape, dtype)[:, None]  # [G, 1, Q, C + Q]
        columns = torch.arange(shape.num_context, device=given.rows.device)
        # Slots behind a group's context belong to others, or to nobody; what is read there is hidden.
        slots = (given.slot_starts + columns).clamp_(max=max(0, num_slots - 1))  # [G, C]
        self.slots = slots.t().reshape(-1)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `attend`, but for the arena: nothing is written to it. [G * Q, H, D]."""
        heads = query.view(self.shape.num_groups, self.shape.num_queries, *query.shape[1:]).transpose(1, 2)
        result = sdpa(heads, self._gathered(keys, key), self._gathered(values, value), self.bias)
        return result.transpose(1, 2).reshape(query.shape)

    def _gathered(self, arena: Tensor, own: Tensor) -> Tensor:
        """[G, H_kv, C + Q, D]: the cached keys (values) of every group, then its own.

        In memory the keys come first and the groups second, so that the cached ones are gathered where they stay.
        """
        num_groups, num_context = self.shape.num_groups, self.shape.num_context
        by_group = own.view(num_groups, self.shape.num_queries, *own.shape[1:])
        if not num_context:
            return by_group.transpose(1, 2)
        joined = own.new_empty(num_context + self.shape.num_queries, num_groups, *own.shape[1:])
        torch.index_select(arena, 0, self.slots, out=joined[:num_context].view(-1, *own.shape[1:]))
        joined[num_context:] = by_group.transpose(0, 1)
        return joined.permute(1, 2, 0, 3)


def padded_bias(given: PaddedInput, shape: Shape, dtype: torch.dtype) -> Tensor:
    """[G, Q, C + Q], 0 or -inf: what every query sees of its group's keys."""
    columns = torch.arange(shape.num_context, device=given.rows.device)
    is_stale = (columns >= given.stale_starts) & (columns < given.stale_stops)
    is_context = ((columns < given.context_stops) & ~is_stale)[:, None, :]  # [G, 1, C]
    own_positions = given.positions.view(given.rows.shape)[:, None, :]  # [G, 1, Q]
    is_own = given.rows[:, :, None] == given.rows[:, None, :]
    sights = given.sights[:, :, None]  # [G, Q, 1]
    seen = torch.cat([is_context & (columns < sights), is_own & (own_positions < sights)], dim=-1)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
