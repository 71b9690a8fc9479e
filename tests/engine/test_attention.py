"""The fast attention path equals the plain one, over a table of shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psd_core.batch import build_batch
from psd_core.block import BlockState
from psd_core.config import DecoderConfig
from psd_core.models.attention import attend, attend_plain
from psd_core.plan import Span, StepPlan
from psd_core.request import Request

REQUEST = Request("r", (1,), 8, DecoderConfig())
#       rows, width, window start, canvas, cached, phase
SHAPES = [
    [(1, 12, 0, 12, False, "denoise")],
    [(3, 12, 0, 12, False, "denoise")],
    [(1, 20, 0, 20, True, "refresh")],
    [(1, 4, 8, 20, True, "denoise")],
    [(4, 4, 8, 20, True, "denoise")],
    [(4, 8, 0, 8, True, "denoise")],  # the window is the whole canvas: no context at all
    [(2, 12, 0, 12, False, "denoise"), (1, 12, 0, 12, False, "denoise"), (2, 9, 0, 9, False, "denoise")],
    [(3, 4, 16, 20, True, "denoise"), (1, 30, 0, 30, True, "refresh"), (2, 7, 0, 7, False, "denoise")],
]


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_attend_equals_its_plain_twin(shape: list[tuple[int, int, int, int, bool, str]], num_kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    spans, slot = [], 5
    for rows, width, start, canvas, cached, phase in shape:
        states = tuple(BlockState.masked(4) for _ in range(rows))
        ids = np.zeros((rows, width), np.int64)
        slot_start = slot if cached else None
        spans.append(Span(REQUEST, phase, states, ids, start, start, canvas, slot_start))  # type: ignore[arg-type]
        slot += canvas + rows * width if cached else 0
    batch = build_batch(StepPlan(tuple(spans)), torch.float32, torch.device("cpu"))
    tokens = batch.token_ids.shape[0]
    query = torch.randn(tokens, 4, 16, generator=generator)
    key, value = (torch.randn(tokens, num_kv_heads, 16, generator=generator) for _ in range(2))
    arena = torch.randn(2, slot, num_kv_heads, 16, generator=generator)
    fast_arena, plain_arena = arena.clone(), arena.clone()
    fast = attend(query, key, value, batch, fast_arena[0], fast_arena[1])
    plain = attend_plain(query, key, value, batch, plain_arena[0], plain_arena[1])
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)
    for segment in batch.segments:
        if segment.slot_start is not None and not segment.reads_cache:
            written = slice(segment.slot_start, segment.slot_start + segment.width)
            assert torch.equal(fast_arena[:, written], plain_arena[:, written])
        elif segment.slot_start is not None:
            context = slice(segment.slot_start, segment.slot_start + segment.canvas_stop)
            assert torch.equal(fast_arena[:, context], arena[:, context]), "a denoising forward changed its context"
