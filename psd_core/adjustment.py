"""Changes to the logits that a request asks for: `logit_bias` and the penalties, for one block state.

Order-free meaning for parallel decoding: a penalty counts the tokens that are decided when a position is scored,
wherever they stand in the answer. Positions decided in the same step do not see one another. So the change is a pure
function of the request and the block state, and a draft is judged under the same change as the policy itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psd_core.block import FloatArray, IntArray
from psd_core.request import SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """What happens to A tokens' logits: divided by `factors` (multiplied, where negative), then `offsets` added."""

    token_ids: IntArray  # [A], ascending, no id twice
    factors: FloatArray  # [A]
    offsets: FloatArray  # [A]


def adjustment(params: SamplingParams, given_ids: IntArray, generated_ids: IntArray) -> Adjustment | None:
    """None if the request asks for nothing.

    given_ids       prompt and suffix; only the repetition penalty counts them
    generated_ids   decided tokens of the answer, any order
    """
    if not params.has_adjustment:
        return None
    counted, counts = np.unique(generated_ids, return_counts=True)
    repeated = np.union1d(given_ids, counted) if params.repetition_penalty != 1.0 else np.zeros(0, np.int64)
    biased = np.asarray([token_id for token_id, _ in params.logit_bias], np.int64)
    token_ids = np.union1d(np.union1d(repeated, counted), biased).astype(np.int64)
    factors = np.ones(token_ids.size, np.float32)
    factors[np.searchsorted(token_ids, repeated)] = params.repetition_penalty
    offsets = np.zeros(token_ids.size, np.float32)
    offsets[np.searchsorted(token_ids, biased)] += np.asarray([bias for _, bias in params.logit_bias], np.float32)
    offsets[np.searchsorted(token_ids, counted)] -= params.presence_penalty + params.frequency_penalty * counts
    return Adjustment(token_ids, factors, offsets)
