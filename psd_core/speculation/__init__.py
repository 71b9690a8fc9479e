"""Speculation: guessing the next states of a block and judging the guesses in one forward."""

from psd_core.speculation.drafter import draft, draft_chain, draft_subsets, weakest_confidences
from psd_core.speculation.lopa import best_branch, branch_out
from psd_core.speculation.verify import accept

__all__ = ["accept", "best_branch", "branch_out", "draft", "draft_chain", "draft_subsets", "weakest_confidences"]
