"""Cache modes: which window of positions a denoising forward computes. Everything outside is read from the cache.

none   the whole canvas; nothing is cached; exact for full attention
prefix the active block and everything to its right; prompt and finished blocks are frozen since the block's first
       forward, a refresh over the whole canvas (Fast-dLLM's prefix cache, arXiv 2505.22618)
dual   the active block; prompt, finished blocks and the masked blocks to the right are frozen since the block's
       first forward, a refresh over the whole canvas (Fast-dLLM's dual cache, arXiv 2505.22618)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from psd_core.config import CacheName


@dataclass(frozen=True, slots=True)
class Window:
    """Positions `start` … `stop` - 1 are computed per row; the other visible ones come from the cache."""

    start: int
    stop: int


def denoise_window(cache: CacheName, block_start: int, block_stop: int, canvas_stop: int) -> Window:
    """The window of a denoising forward. All positions are absolute; `canvas_stop` ends the visible canvas."""
    match cache:
        case "none":
            return Window(0, canvas_stop)
        case "prefix":
            return Window(block_start, canvas_stop)
        case "dual":
            return Window(block_start, block_stop)
        case _ as unknown:
            assert_never(unknown)


def needs_refresh(cache: CacheName) -> bool:
    """Whether a block begins with a forward over the whole canvas that writes the cache."""
    return cache != "none"
