"""Judges every span of a forward: which drafted rows held. Pure; the scheduler applies the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psd_core.block import Candidates
from psd_core.plan import Span
from psd_core.policies import make_policy
from psd_core.speculation import accept, best_branch


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The outcome of one span. `path` holds the accepted rows, from row 0 to the deepest consistent one."""

    span: Span
    candidates: tuple[Candidates | None, ...]  # per row
    path: tuple[int, ...]

    @property
    def accepted_depth(self) -> int:
        """Depth of the deepest accepted draft; 0 is the sequence's own state, 1 any branch.

        Of drafts that are not nested, the number of them passed through.
        """
        return self.path[-1] if self.span.request.decoder.has_chain else len(self.path) - 1

    @property
    def num_accepted(self) -> int:
        """Drafted positions that held."""
        return self.span.rows[0].num_masked - self.span.rows[self.path[-1]].num_masked


def decide(spans: Sequence[Span], candidates: Sequence[Sequence[Candidates | None]]) -> list[Decision]:
    """One decision per span, in their order. `candidates` as `Runner.run` returns them."""
    decisions = []
    for span, scored in zip(spans, candidates, strict=True):
        if span.phase == "score" or span.is_partial:  # nothing is decided: the rows are independent questions, or none
            decisions.append(Decision(span, tuple(scored), (0,)))
            continue
        decoder = span.request.decoder
        if decoder.policy == "lopa":
            winner = best_branch(span.rows, scored)
            decisions.append(Decision(span, tuple(scored), (0, winner) if winner else (0,)))
            continue
        policy = make_policy(decoder, opens_alone=span.open_start is not None)
        path = accept(span.rows, scored, policy, decoder.acceptance, span.editor)
        decisions.append(Decision(span, tuple(scored), path))
    return decisions
