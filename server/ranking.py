"""Which of several generated choices are returned: `best_of`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from server.generation import Token


def mean_logprob(tokens: Sequence[Token]) -> float:
    """Mean log-probability of a choice's tokens; minus infinity if it has none."""
    known = [token.logprob for token in tokens if token.logprob is not None]
    return sum(known) / len(known) if known else -math.inf


def keep_best(tokens: Sequence[Sequence[Token]], group_size: int, num_kept: int) -> list[int]:
    """Indices of the choices to return: of every `group_size` in a row the `num_kept` best, best first.

    tokens   generated tokens per choice; all choices of one prompt follow one another
    Ties go to the lower index. Where all are kept, the order stays.
    """
    kept: list[int] = []
    for start in range(0, len(tokens), group_size):
        group = list(range(start, start + group_size))
        if num_kept < group_size:
            group.sort(key=lambda index: -mean_logprob(tokens[index]))
        kept += group[:num_kept]
    return kept
