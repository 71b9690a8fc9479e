"""Speculation: drafting the next states of a block and verifying them in one forward."""

from psd_core.speculation.drafter import draft_chain
from psd_core.speculation.verify import accept

__all__ = ["accept", "draft_chain"]
