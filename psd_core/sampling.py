"""Drawing tokens from logits with noise that belongs to a position, not to a batch.

Gumbel-max with a counter-based generator: the noise of a token is a pure function of (seed, choice, position,
token id). So a seed gives the same text whatever else is in the batch, and a draft and its verification see the
same noise. Confidence is not touched by any of this: it is always the probability at temperature 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64 (Steele, Lea, Flood 2014): increment and the two multipliers of its finalizer, as signed integers.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


def noise_keys(seeds: Tensor, choices: Tensor, positions: Tensor) -> Tensor:
    """One 64-bit key per row from seed, choice index and position, all [n] int64."""
    key = _mix(seeds + _GAMMA)
    key = _mix((key ^ choices) + _GAMMA)
    return _mix((key ^ positions) + _GAMMA)


def gumbel(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, [n, vocab_size] float64, for `keys` [n] int64."""
    token_ids = torch.arange(1, vocab_size + 1, device=keys.device, dtype=torch.int64)
    bits = _mix(keys[:, None] + token_ids[None, :] * _GAMMA)
    # 53 bits centred in their interval: never 0 nor 1, so both logarithms are finite.
    uniform = (_shift_right(bits, 11).to(torch.float64) + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform))


def sample(
    logits: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    top_ks: Tensor,
    min_ps: Tensor,
    keys: Tensor,
    *,
    has_top: bool = True,
    has_min_p: bool = True,
) -> Tensor:
    """One token id per row, [n] int64.

    logits         [n, V] float32; -inf where a token is not allowed
    temperatures   [n] float32, all above 0
    top_ps         [n] float32 in (0, 1]; 1 keeps all
    top_ks         [n] int64; 0 keeps all
    min_ps         [n] float32 in [0, 1]; 0 keeps all. Acts first, then top_k, then top_p
    keys           [n] int64 from `noise_keys`
    has_top, has_min_p   False: every row has 1 and 0, or 0, there; asking the device would mean waiting for it
    """
    scaled = logits.to(torch.float64) / temperatures[:, None].to(torch.float64)
    if has_min_p:
        lowest = scaled.amax(dim=-1) + min_ps.to(torch.float64).log()
        scaled = scaled.masked_fill(scaled < lowest[:, None], -torch.inf)
    if has_top:
        scaled = _keep_top(scaled, top_ps, top_ks)
    return torch.argmax(scaled + gumbel(keys, logits.shape[1]), dim=-1)


def _keep_top(scaled: Tensor, top_ps: Tensor, top_ks: Tensor) -> Tensor:
    """`scaled` [n, V] with everything outside top-k, then outside top-p, at -inf. The best token always stays."""
    vocab_size = scaled.shape[1]
    ordered, order = torch.sort(scaled, dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=scaled.device)[None, :]
    limit = torch.where(top_ks > 0, top_ks, vocab_size)[:, None]
    ordered = ordered.masked_fill(rank >= limit, -torch.inf)
    probability = torch.softmax(ordered, dim=-1)
    before = probability.cumsum(dim=-1) - probability
    keeps_all = (top_ps >= 1)[:, None]
    ordered = ordered.masked_fill(~keeps_all & (before >= top_ps[:, None]) & (rank > 0), -torch.inf)
    return torch.empty_like(scaled).scatter_(-1, order, ordered)


def _mix(value: Tensor) -> Tensor:
    """The splitmix64 finalizer on int64, whose products wrap as unsigned ones do."""
    value = (value ^ _shift_right(value, 30)) * _MIX_1
    value = (value ^ _shift_right(value, 27)) * _MIX_2
    return value ^ _shift_right(value, 31)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift: torch has no unsigned 64-bit shift on every device."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
