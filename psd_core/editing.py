"""Token editing: an answer's decided tokens may be replaced while their block is open (LLaDA2.1, JointThreshold).

After every forward on a block, a decided token of the answer gives way to the candidate of its position if that is
another token and more probable than a threshold. A full block stays open until a forward changes nothing in it, or for
so many forwards; only then are its tokens final. Source: LLaDA2.1's published generation loop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psd_core.block import BlockState, Candidates, IntArray
from psd_core.policies import Policy, denoise
from psd_core.request import Request


@dataclass(frozen=True, slots=True)
class Editor:
    """How tokens are edited. `first` is the block position of the answer's first token: the prompt is never edited."""

    threshold: float  # a candidate must be more probable than this
    first: int


def make_editor(request: Request, block_start: int) -> Editor | None:
    """The editor of a request's block; None if it edits nothing."""
    threshold = request.decoder.edit_threshold
    return None if threshold is None else Editor(threshold, max(0, len(request.prompt_ids) - block_start))


def edits(state: BlockState, candidates: Candidates, editor: Editor) -> IntArray:
    """Decided positions ([n]) whose tokens give way to their candidates."""
    changes = state.decided & (candidates.token_ids != state.token_ids) & (candidates.confidence > editor.threshold)
    changes[: editor.first] = False
    return np.flatnonzero(changes)


def step(policy: Policy, state: BlockState, candidates: Candidates, editor: Editor | None) -> BlockState:
    """One denoising step with its edits; the plain step if there is no editor. A complete state is only edited."""
    if editor is None:
        return denoise(policy, state, candidates)
    filled = state if state.is_complete else denoise(policy, state, candidates)
    changed = edits(state, candidates, editor)
    return filled.replace(changed, candidates) if changed.size else filled
