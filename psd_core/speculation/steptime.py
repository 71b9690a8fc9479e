"""What a forward costs: seconds as a line in its work, fitted to the forwards that ran. Pure: no clock in here.

Work is a vector [4]: forwards, rows, query tokens, attended pairs of query and key. Works of spans add up; that of a
whole forward carries one forward besides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from psd_core.block import IntArray

Work = npt.NDArray[np.float64]  # [..., 4]

ONE_FORWARD: Final = (1.0, 0.0, 0.0, 0.0)
NUM_TERMS: Final = len(ONE_FORWARD)
MEMORY: Final = 0.99  # weight of an observation per later one: the last few hundred forwards count
RIDGE: Final = 1e-4  # of a term's own moment: shares the cost evenly among terms that only ever grow together
MIN_OBSERVED: Final = 16
EAGER_OBSERVED: Final = 64  # until then every observation is fitted at once, afterwards every eighth
FIT_EVERY: Final = 8


def span_work(num_rows: IntArray, width: int | IntArray, num_context: int, is_cached: bool) -> Work:
    """Work of a span with so many rows of `width` query tokens each, [..., 4]; [...] is the shape of rows × width.

    num_context   cached positions that every row reads
    is_cached     the rows' keys lie behind one another in the cache: each row runs over all of them
    """
    rows = np.asarray(num_rows, np.float64)
    tokens = rows * width
    pairs = tokens * ((num_context + tokens) if is_cached else width)
    return np.stack([np.zeros_like(tokens), np.broadcast_to(rows, tokens.shape), tokens, pairs], axis=-1)


def forward_work(spans: Iterable[tuple[int, int, int, bool]]) -> Work:
    """Work of one forward over spans given as the arguments of `span_work`, [4]."""
    num_rows = num_tokens = num_pairs = 0
    for rows, width, num_context, is_cached in spans:
        tokens = rows * width
        num_rows += rows
        num_tokens += tokens
        num_pairs += tokens * ((num_context + tokens) if is_cached else width)
    return np.asarray([1.0, num_rows, num_tokens, num_pairs])


def _zeros(*shape: int) -> Work:
    return np.zeros(shape, np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """A weighted least-squares fit of seconds = work · prices, updated one forward at a time.

    The relative error is what is made small. So a forward that something else on the machine held up, or that compiled
    its kernels, hardly counts; and a forward of one row counts as much as one of a thousand.
    """

    prices: Work = field(default_factory=lambda: _zeros(NUM_TERMS))  # [4] seconds per unit of work, none negative
    moments: Work = field(default_factory=lambda: _zeros(NUM_TERMS, NUM_TERMS))  # [4, 4]
    products: Work = field(default_factory=lambda: _zeros(NUM_TERMS))  # [4]
    num_observed: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether enough forwards were seen to believe the prices."""
        return self.num_observed >= MIN_OBSERVED

    def seconds(self, work: Work) -> Work:
        """Expected seconds of `work` ([..., 4]), [...]."""
        result: Work = work @ self.prices
        return result

    def observe(self, work: Work, seconds: float) -> StepTimes:
        """This fit after one more forward of `work` [4] that took so long. Without a duration there is no news."""
        if seconds <= 0:
            return self
        relative = work / seconds
        moments = MEMORY * self.moments + np.outer(relative, relative)
        products = MEMORY * self.products + relative
        seen = replace(self, moments=moments, products=products, num_observed=self.num_observed + 1)
        if seen.num_observed > EAGER_OBSERVED and seen.num_observed % FIT_EVERY:
            return seen
        return replace(seen, prices=_fit(moments, products))


def _fit(moments: Work, products: Work) -> Work:
    """Prices [4] >= 0: the ridge solution; whatever comes out negative is left out and the rest is solved again."""
    scale = np.sqrt(moments.diagonal())
    kept = scale > 0
    prices = _zeros(NUM_TERMS)
    while kept.any():
        unit = scale[kept]
        matrix = moments[np.ix_(kept, kept)] / np.outer(unit, unit) + RIDGE * np.eye(unit.size)
        solved = np.linalg.solve(matrix, products[kept] / unit) / unit
        if (solved >= 0).all():
            prices[kept] = solved
            return prices
        worst = np.flatnonzero(kept)[int(np.argmin(solved * unit))]
        kept[worst] = False
    return prices
