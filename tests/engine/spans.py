"""A table of batches for attention and forwards, as spans."""

from __future__ import annotations

import numpy as np

from psd_core.block import BlockState
from psd_core.config import DecoderConfig
from psd_core.kvcache.modes import Window
from psd_core.plan import Span, StepPlan
from psd_core.request import Request
from tests.engine.tiny import VOCAB_SIZE

REQUEST = Request("r", (1,), 8, DecoderConfig())
#       rows, width, window start, context stop, cached, causal block, open start
Shape = tuple[int, int, int, int, bool, int | None, int | None]
SHAPES: list[list[Shape]] = [
    [(1, 12, 0, 0, False, None, None)],
    [(3, 12, 0, 0, False, None, None)],
    [(2, 12, 0, 0, False, 4, None)],
    [(1, 20, 0, 0, True, None, None)],  # a refresh
    [(1, 4, 8, 20, True, None, None)],
    [(4, 4, 8, 20, True, None, None)],
    [(3, 5, 7, 20, True, None, None)],
    [(4, 8, 0, 8, True, None, None)],  # the window is the whole canvas: no context at all
    [(3, 8, 12, 12, True, None, None)],  # context to the left only
    [(1, 8, 8, 8, True, 4, None)],  # a finished block and the next one
    [(3, 5, 11, 12, True, 4, None)],  # one position left of the block
    [(3, 4, 12, 12, True, 4, None)],
    [(2, 12, 0, 0, False, None, None), (1, 12, 0, 0, False, None, None), (2, 9, 0, 0, False, None, None)],
    [(2, 12, 0, 0, False, 4, None), (1, 12, 0, 0, False, None, None), (1, 12, 0, 0, False, None, None)],
    [(3, 4, 16, 20, True, None, None), (1, 30, 0, 0, True, None, None), (2, 7, 0, 0, False, None, None)],
    [(2, 12, 0, 0, False, None, 7)],  # finished tokens see what stands before them
    [(1, 8, 8, 8, True, None, 12)],
    [(3, 5, 11, 12, True, None, 12)],
    [(2, 12, 0, 0, False, None, 7), (1, 12, 0, 0, False, None, 9), (1, 12, 0, 0, False, 4, None)],
]
FIRST_SLOT = 5


def plan_of(shapes: list[Shape]) -> tuple[StepPlan, int]:
    """(a plan of denoising spans with random tokens, the cache slots that it reaches)."""
    spans, slot = [], FIRST_SLOT
    random = np.random.default_rng(0)
    for rows, width, start, context_stop, cached, block, open_start in shapes:
        states = tuple(BlockState.masked(4) for _ in range(rows))
        window = Window(start, start + width, context_stop)
        ids = random.integers(0, VOCAB_SIZE, (rows, width))
        spans.append(Span(REQUEST, "denoise", states, ids, window, start, slot if cached else None, block, open_start))
        slot += context_stop + rows * width if cached else 0
    return StepPlan(tuple(spans)), slot
