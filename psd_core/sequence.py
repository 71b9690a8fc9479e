"""The mutable life of one request in the engine: canvas, active block, candidates, counters.

Owned by the scheduler; nothing else changes one. Canvas = prompt, then `max_tokens` rounded up to whole blocks of
undecided positions. Indices named `pos` are absolute (the prompt's first token is 0); indices into the generated
part are named `index`.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from itertools import pairwise

import numpy as np

from psd_core.admission import num_canvas_tokens
from psd_core.block import BlockState, Candidates, IntArray
from psd_core.events import Figures
from psd_core.policies import Policy, make_policy
from psd_core.request import Request

UNDECIDED_DEPTH = -1


class Sequence:
    """One request between admission and its terminal event.

    state        the active block; every position decided in it is final
    candidates   what `state` was made from, stale by one denoising step; None before the block's first forward
    frontier     number of leading decided positions of the generated part
    """

    def __init__(self, request: Request, arrival_seconds: float) -> None:
        self.request = request
        self.policy: Policy = make_policy(request.decoder)
        self.arrival_seconds = arrival_seconds
        self.first_forward_seconds: float | None = None
        self.last_scheduled_step = -1
        self.slot_start: int | None = None

        self.num_prompt = len(request.prompt_ids)
        self.num_canvas = num_canvas_tokens(request)
        self.block_length = request.decoder.block_length
        self.canvas_ids: IntArray = np.concatenate(
            [np.asarray(request.prompt_ids, np.int64), np.zeros(self.num_canvas, np.int64)]
        )
        self.decided = np.zeros(self.num_canvas, np.bool_)
        self.logprobs = np.zeros(self.num_canvas, np.float32)
        self.depths = np.full(self.num_canvas, UNDECIDED_DEPTH, np.int16)

        self.block_index = 0
        self.state = BlockState.masked(self.block_length)
        self.candidates: Candidates | None = None
        self.frontier = 0
        self.num_reported = 0

        self.forwards = 0
        self.refresh_forwards = 0
        self.rows = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.accepted_depths = [0] * (request.decoder.draft_depth + 1)

    @property
    def block_start(self) -> int:
        """Index of the active block's first position in the generated part."""
        return self.block_index * self.block_length

    @property
    def canvas_stop(self) -> int:
        """Absolute end of the canvas that the model sees: all of it, or `canvas_blocks` beyond the active block."""
        look_ahead = self.request.decoder.canvas_blocks
        if look_ahead is None:
            return self.num_prompt + self.num_canvas
        return self.num_prompt + min(self.num_canvas, self.block_start + (1 + look_ahead) * self.block_length)

    def row_ids(self, rows: Rows[BlockState], start: int, stop: int, mask_id: int) -> IntArray:
        """Token ids of positions `start` … `stop` - 1 for each block state in `rows`, [R, stop - start].

        Undecided positions carry the mask id; here, and only here, does a position become a token id.
        """
        block_pos = self.num_prompt + self.block_start
        ids = np.full((len(rows), stop - start), mask_id, np.int64)
        settled = slice(start, min(stop, block_pos))
        ids[:, : max(0, settled.stop - start)] = self.canvas_ids[settled]
        columns = slice(block_pos - start, block_pos - start + self.block_length)
        for row, state in enumerate(rows):
            ids[row, columns] = np.where(state.decided, state.token_ids, mask_id)
        return ids

    def advance(self, rows: Rows[BlockState], candidates: Rows[Candidates | None], path: tuple[int, ...]) -> None:
        """Move to the last row of `path`, then take the policy's own step from it, which needs no check.

        rows, candidates, path as in `speculation.verify.accept`. A block that completes makes way for the next.
        """
        for parent, child in pairwise(path):
            scored = candidates[parent]
            assert scored is not None
            self._record(rows[child], rows[child].filled_since(rows[parent]), scored, depth=child)
        state, scored = rows[path[-1]], candidates[path[-1]]
        if scored is not None:
            chosen = self.policy.select(state, scored)
            state = state.fill(chosen, scored)
            self._record(state, chosen, scored, depth=0)
        self.state, self.candidates = state, scored
        while self.frontier < self.num_canvas and self.decided[self.frontier]:
            self.frontier += 1
        if state.is_complete:
            self.block_index += 1
            self.state, self.candidates = BlockState.masked(self.block_length), None

    def _record(self, state: BlockState, positions: IntArray, scored: Candidates, depth: int) -> None:
        """Write newly decided block positions to the canvas, with the candidates that decided them."""
        index = positions + self.block_start
        self.canvas_ids[index + self.num_prompt] = state.token_ids[positions]
        self.decided[index] = True
        self.logprobs[index] = scored.log_confidence[positions]
        self.depths[index] = depth

    def generated_ids(self, start: int, stop: int) -> tuple[int, ...]:
        """Decided token ids at indices `start` … `stop` - 1 of the generated part."""
        assert stop <= self.frontier
        return tuple(self.canvas_ids[self.num_prompt + start : self.num_prompt + stop].tolist())

    def find_end(self) -> tuple[int, int | None] | None:
        """(number of tokens to return, the stop id that ended the text or None) once that is certain, else None.

        Certain means: everything before the first stop id, or before `max_tokens`, is decided.
        """
        limit = min(self.frontier, self.request.max_tokens)
        for index in range(self.num_reported, limit):
            token_id = int(self.canvas_ids[self.num_prompt + index])
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
            discarded_tokens=int(np.count_nonzero(self.decided[num_generated:])),
            forwards=self.forwards,
            refresh_forwards=self.refresh_forwards,
            rows=self.rows,
            drafted_tokens=self.drafted_tokens,
            accepted_tokens=self.accepted_tokens,
            accepted_depths=tuple(self.accepted_depths),
            queue_seconds=(now_seconds if started is None else started) - self.arrival_seconds,
            decode_seconds=0.0 if started is None else now_seconds - started,
        )
