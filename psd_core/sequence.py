"""The mutable life of one request in the engine: context, active block, candidates, counters.

Owned by the scheduler; nothing else changes one. Context = prompt, then a canvas of undecided positions that ends with
a block, then the suffix if there is one. All positions are absolute: the prompt's first token is 0.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import pairwise

import numpy as np

from psd_core.admission import num_canvas_tokens
from psd_core.block import BlockState, Candidates, IntArray, TopTokens
from psd_core.config import AttentionName
from psd_core.editing import edits, make_editor
from psd_core.events import Figures
from psd_core.policies import Policy, make_policy
from psd_core.progress import Progress
from psd_core.request import Request
from psd_core.speculation.chances import Luck

UNDECIDED_DEPTH = -1


class Sequence:
    """One request between admission and its terminal event.

    state        the active block; every position decided in it is final
    candidates   what `state` was made from, stale by one denoising step; None before the block's first forward
    num_cached   leading positions whose keys and values are in the cache for ever (cache mode `causal`)
    frontier     end of the leading decided positions
    num_reported generated tokens reported so far
    num_scored   leading prompt tokens whose log-probability is known or not wanted
    num_layers_done   that a refresh spread over forwards has passed; 0 if there is none
    """

    def __init__(self, request: Request, attention: AttentionName, arrival_seconds: float) -> None:
        self.request = request
        self.attention = attention
        self.has_grid = attention == "block-causal"  # blocks begin at multiples of their length
        self.policy: Policy = make_policy(request.decoder, opens_alone=attention == "context-causal")
        self.num_edit_passes = 0  # forwards on the active block since it was full
        self.arrival_seconds = arrival_seconds
        self.first_forward_seconds: float | None = None
        self.last_scheduled_step = -1
        self.slot_start: int | None = None
        self.num_layers_done = 0
        self.may_spread = True  # its refreshes over several forwards

        self.num_prompt = len(request.prompt_ids)
        num_canvas = num_canvas_tokens(request, self.has_grid)
        self.canvas_end = self.num_prompt + num_canvas
        self.context_length = self.canvas_end + len(request.suffix_ids)
        self.block_length = request.decoder.block_length
        self.token_ids: IntArray = np.concatenate(
            [
                np.asarray(request.prompt_ids, np.int64),
                np.zeros(num_canvas, np.int64),
                np.asarray(request.suffix_ids, np.int64),
            ]
        )
        positions = np.arange(self.context_length)
        self.decided = (positions < self.num_prompt) | (positions >= self.canvas_end)
        self.logprobs = np.zeros(self.context_length, np.float32)
        self.depths = np.full(self.context_length, UNDECIDED_DEPTH, np.int16)
        shape = (self.context_length, request.num_top_logprobs)
        self.top = TopTokens(np.zeros(shape, np.int64), np.zeros(shape, np.float32))

        # Blocks begin behind the prompt, or on the fixed grid of a block-causal model, where the first active block
        # may hold the end of the prompt.
        self.block_start = self.num_prompt - (self.num_prompt % self.block_length if self.has_grid else 0)
        self.state = self._block_state()
        self.candidates: Candidates | None = None
        self.num_cached = 0
        self.num_reused = 0  # of them, those an earlier request had computed
        self.frontier = self.num_prompt
        self.num_reported = 0
        # The first token has nothing before it, so nothing says how probable it is.
        self.num_scored = 1 if request.score_prompt else self.num_prompt

        self.forwards = 0
        self.scoring_forwards = 0
        self.denoising_steps = 0
        self.refresh_forwards = 0
        self.refresh_seconds = 0.0
        self.rows = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.accepted_depths = [0] * (request.decoder.num_guesses + 1)
        self.progress = Progress()
        self.luck = Luck()  # how its drafts fare beside those of others

    @property
    def has_run(self) -> bool:
        """Whether any forward of it is complete."""
        return self.forwards + self.scoring_forwards > 0

    @property
    def block_stop(self) -> int:
        """End of the active block; in front of a suffix the last block may be shorter than the others."""
        return min(self.block_start + self.block_length, self.canvas_end)

    @property
    def canvas_stop(self) -> int:
        """End of what the model sees: everything, or `canvas_blocks` beyond the active block.

        A causal model sees nothing beyond its active block anyway; a suffix is there to be seen, so that everything
        before it is, too.
        """
        if self.attention != "full":
            return self.block_stop
        look_ahead = self.request.decoder.canvas_blocks
        if look_ahead is None or self.request.suffix_ids:
            return self.context_length
        return min(self.context_length, self.block_stop + look_ahead * self.block_length)

    def row_ids(self, rows: Rows[BlockState], start: int, stop: int, mask_id: int) -> IntArray:
        """Token ids of positions `start` … `stop` - 1 for each block state in `rows`, [R, stop - start].

        Undecided positions carry the mask id; here, and only here, does a position become a token id.
        """
        ids = np.where(self.decided[start:stop], self.token_ids[start:stop], mask_id)
        result = np.repeat(ids[None, :], len(rows), axis=0)
        columns = slice(self.block_start - start, self.block_stop - start)
        for row, state in enumerate(rows):
            result[row, columns] = np.where(state.decided, state.token_ids, mask_id)
        return result

    def advance(self, rows: Rows[BlockState], candidates: Rows[Candidates | None], path: tuple[int, ...]) -> None:
        """Move to the last row of `path`, then take the policy's own step from it, which needs no check.

        rows, candidates, path as in `speculation.verify.accept`. A block that completes makes way for the next.
        """
        is_branch, has_chain = self.request.decoder.policy == "lopa", self.request.decoder.has_chain
        for number, (parent, child) in enumerate(pairwise(path), 1):
            # A draft's tokens were judged by its parent; nobody judged those of a branch.
            scored = self.candidates if is_branch else candidates[parent]
            assert scored is not None
            filled = rows[child].filled_since(rows[parent])
            self._record(rows[child], filled, scored, depth=child if has_chain else number)
        state, scored = rows[path[-1]], candidates[path[-1]]
        self.denoising_steps += len(path) - (scored is None)  # accepted states, and the policy's own step below
        is_open = False
        if scored is not None:
            state, is_open = self._step(state, scored)
        self.state, self.candidates = state, scored
        # While tokens may still be edited, nothing of the block is final.
        final_stop = self.block_start if is_open else self.context_length
        while self.frontier < final_stop and self.decided[self.frontier]:
            self.frontier += 1
        if self.request.decoder.cache == "causal":
            # Whatever forward this was, it or an earlier one computed everything before the active block.
            self.num_cached = self.block_start
        if state.is_complete and not is_open and self.block_stop < self.canvas_end:
            self.block_start = self.block_stop
            self.num_edit_passes = 0
            self.state, self.candidates = self._block_state(), None

    def _step(self, state: BlockState, scored: Candidates) -> tuple[BlockState, bool]:
        """(the state after the policy's own step and its edits, whether the block's tokens may still change)."""
        editor = make_editor(self.request, self.block_start)
        changed = edits(state, scored, editor) if editor else np.zeros(0, np.int64)
        was_complete = state.is_complete
        if not was_complete:
            chosen = self.policy.select(state, scored)
            state = state.fill(chosen, scored)
            self._record(state, chosen, scored, depth=0)
        if changed.size:
            state = state.replace(changed, scored)
            self._record(state, changed, scored, depth=0)
        if editor is None:
            return state, False
        self.num_edit_passes += was_complete
        is_settled = was_complete and not changed.size
        return state, not is_settled and self.num_edit_passes < self.request.decoder.max_edit_passes

    def _block_state(self) -> BlockState:
        """The active block as the context has it: undecided but for the prompt's end."""
        block = slice(self.block_start, self.block_stop)
        return BlockState(self.token_ids[block].copy(), self.decided[block].copy())

    def _record(self, state: BlockState, positions: IntArray, scored: Candidates, depth: int) -> None:
        """Write newly decided positions of the block to the context, with the candidates that decided them."""
        index = positions + self.block_start
        self._count_progress(int(np.count_nonzero(~self.decided[index])), is_drafted=depth > 0)
        self.token_ids[index] = state.token_ids[positions]
        self.decided[index] = True
        self.logprobs[index] = scored.log_confidence[positions]
        self.depths[index] = depth
        if scored.top is not None:
            self._record_top(index, positions, scored.top)

    def _count_progress(self, num_new: int, *, is_drafted: bool) -> None:
        """Count newly decided positions of the block, before they are marked as such."""
        generated = slice(max(self.block_start, self.num_prompt), self.block_stop)
        num_before = int(np.count_nonzero(self.decided[generated]))
        self.progress.add(generated.stop - generated.start, num_before, num_new, is_drafted=is_drafted)

    def _record_top(self, index: IntArray, positions: IntArray, top: TopTokens) -> None:
        num_top = self.request.num_top_logprobs
        self.top.token_ids[index] = top.token_ids[positions, :num_top]
        self.top.logprobs[index] = top.logprobs[positions, :num_top]

    @property
    def is_scoring(self) -> bool:
        """Whether prompt tokens are still to be scored, which comes before anything is generated."""
        return self.num_scored < self.num_prompt

    @property
    def is_scored_at_start(self) -> bool:
        """Whether a prompt to score is one token, which has nothing before it that could give it a probability."""
        return self.request.score_prompt and self.num_prompt == 1

    @property
    def scores_at_once(self) -> bool:
        """Whether one row scores all prompt tokens: each is seen by none before it."""
        return self.attention == "context-causal"

    def record_scores(self, rows: Rows[BlockState], scored: Rows[Candidates | None]) -> None:
        """Take the log-probabilities of the next prompt tokens: the undecided positions of a scoring span's rows."""
        for row, candidates in zip(rows, scored, strict=True):
            assert candidates is not None
            assert candidates.given is not None
            here = np.flatnonzero(~row.decided)
            self.logprobs[here] = candidates.given[here]
            if candidates.top is not None:
                self._record_top(here, here, candidates.top)
            self.num_scored += here.size

    def reuse(self, length: int) -> None:
        """Before the first forward: the first `length` positions are in the cache already."""
        self.num_cached = self.num_reused = length

    @property
    def counted_before_block(self) -> IntArray:
        """Tokens of the answer in front of the active block, if penalties count them; all of them are decided."""
        if not self.request.sampling.has_penalty:
            return np.zeros(0, np.int64)
        return self.token_ids[self.num_prompt : max(self.num_prompt, self.block_start)]

    @property
    def num_final(self) -> int:
        """Leading decided positions of the generated part."""
        return self.frontier - self.num_prompt

    def find_end(self) -> tuple[int, int | None] | None:
        """(number of tokens to return, the stop id that ended the text or None) once that is certain, else None.

        Certain means: everything before the first stop id, or before `max_tokens`, is decided.
        """
        limit = min(self.num_final, self.request.max_tokens)
        for index in range(self.num_reported, limit):
            token_id = int(self.token_ids[self.num_prompt + index])
            if token_id in self.request.stop_ids:
                return index + 1, token_id
        if limit == self.request.max_tokens:
            return limit, None
        return None

    def figures(self, num_generated: int, now_seconds: float) -> Figures:
        """What the request cost so far; `num_generated` tokens of it are returned."""
        started = self.first_forward_seconds
        return Figures(
            prompt_tokens=self.num_prompt,
            generated_tokens=num_generated,
            discarded_tokens=int(np.count_nonzero(self.decided[self.num_prompt + num_generated : self.canvas_end])),
            forwards=self.forwards,
            scoring_forwards=self.scoring_forwards,
            refresh_forwards=self.refresh_forwards,
            rows=self.rows,
            reused_tokens=self.num_reused,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            accepted_depths=tuple(self.accepted_depths),
            queue_seconds=(now_seconds if started is None else started) - self.arrival_seconds,
            decode_seconds=0.0 if started is None else now_seconds - started,
            refresh_seconds=self.refresh_seconds,
            spatial_deciles=tuple(self.progress.spatial),
            temporal_deciles=tuple(self.progress.temporal),
        )
