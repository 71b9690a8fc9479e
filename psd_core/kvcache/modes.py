"""Cache modes: which window of positions a denoising forward computes. Everything outside is read from the cache.

none    the whole canvas; nothing is cached; exact
prefix  the active block and everything to its right; prompt and finished blocks are frozen since the block's first
        forward, a refresh over the whole canvas (Fast-dLLM's prefix cache, arXiv 2505.22618)
dual    the active block; prompt, finished blocks and the masked blocks to the right are frozen since the block's first
        forward (Fast-dLLM's dual cache)
causal  the active block; finished blocks are cached for ever, which is exact where nothing sees what is decided later;
        the first forward of a block also computes and caches the block before it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from psd_core.config import AttentionName, CacheName

BIDIRECTIONAL_CACHES: Final[tuple[CacheName, ...]] = ("none", "prefix", "dual")
CAUSAL_CACHES: Final[tuple[CacheName, ...]] = ("none", "causal")


def attention_caches(attention: AttentionName) -> tuple[CacheName, ...]:
    """Cache modes that suit an attention."""
    return BIDIRECTIONAL_CACHES if attention == "full" else CAUSAL_CACHES


@dataclass(frozen=True, slots=True)
class Window:
    """Positions `start` … `stop` - 1 are computed per row; cached ones before `context_stop` are read besides."""

    start: int
    stop: int
    context_stop: int


def refresh_window(cache: CacheName, num_cached: int, block_stop: int, canvas_stop: int) -> Window | None:
    """The one-row window of a block's first forward if it writes the cache, or None if the mode has no cache.

    num_cached   leading positions whose keys and values are cached for ever (mode `causal`)
    """
    match cache:
        case "none":
            return None
        case "prefix" | "dual":
            return Window(0, canvas_stop, 0)
        case "causal":
            return Window(num_cached, block_stop, num_cached)
        case _ as unknown:
            assert_never(unknown)


def denoise_window(cache: CacheName, block_start: int, block_stop: int, canvas_stop: int, is_shifted: bool) -> Window:
    """The window of any other forward. All positions are absolute; `canvas_stop` ends the visible canvas.

    is_shifted   the logits at a position predict the next one: the window begins one position left of the block
    """
    first = max(0, block_start - 1) if is_shifted else block_start
    match cache:
        case "none":
            return Window(0, canvas_stop, 0)
        case "prefix":
            return Window(first, canvas_stop, first)
        case "dual":
            return Window(first, block_stop, canvas_stop)
        case "causal":
            return Window(first, block_stop, block_start)
        case _ as unknown:
            assert_never(unknown)
