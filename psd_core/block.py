"""The active block of a sequence as values: which positions are decided, and what the model would put elsewhere.

Undecided is a boolean map, never a comparison with the mask id: a prompt may contain that id as ordinary text.
Pure numpy; knows nothing of models or requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class BlockState:
    """One state of a block. Token ids count only where `decided` holds; elsewhere they are 0."""

    token_ids: IntArray  # [L]
    decided: BoolArray  # [L]

    def __post_init__(self) -> None:
        assert self.token_ids.shape == self.decided.shape

    @staticmethod
    def masked(block_length: int) -> BlockState:
        """The state in which nothing is decided."""
        return BlockState(np.zeros(block_length, np.int64), np.zeros(block_length, np.bool_))

    @property
    def is_complete(self) -> bool:
        return bool(self.decided.all())

    @property
    def num_masked(self) -> int:
        return int(self.decided.size - np.count_nonzero(self.decided))

    def fill(self, positions: IntArray, candidates: Candidates) -> BlockState:
        """This state with undecided `positions` ([n]) decided as `candidates` say: the transfer."""
        assert not self.decided[positions].any(), "a decided position is never decided again"
        token_ids, decided = self.token_ids.copy(), self.decided.copy()
        token_ids[positions] = candidates.token_ids[positions]
        decided[positions] = True
        return BlockState(token_ids, decided)

    def replace(self, positions: IntArray, candidates: Candidates) -> BlockState:
        """This state with decided `positions` ([n]) holding the candidates' tokens instead: an edit."""
        assert self.decided[positions].all(), "only what is decided is edited"
        token_ids = self.token_ids.copy()
        token_ids[positions] = candidates.token_ids[positions]
        return BlockState(token_ids, self.decided)

    def filled_since(self, earlier: BlockState) -> IntArray:
        """Positions ([n], ascending) decided here and not in `earlier`."""
        return np.flatnonzero(self.decided & ~earlier.decided)

    def equals(self, other: BlockState) -> bool:
        """Same positions decided, with the same tokens."""
        return bool(np.array_equal(self.decided, other.decided) and np.array_equal(self.token_ids, other.token_ids))


@dataclass(frozen=True, slots=True, eq=False)
class TopTokens:
    """The K most probable tokens of some positions, best first. Ids that are never chosen are left out."""

    token_ids: IntArray  # [..., K]
    logprobs: FloatArray  # [..., K], natural logarithms


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """What the model would put at each undecided position of one block state, from one forward at that state.

    token_ids        [L] argmax, or the sampled token at temperature > 0
    log_confidence   [L] natural log of the float32 softmax probability, at temperature 1, of that token
    entropy          [L] of the model's distribution, in nats
    margin           [L] probability of the best allowed token minus that of the second best
    given            [L] log-probability of the token that stands there; only when a prompt is scored
    top              the most probable tokens, if the request asks for them
    Values at positions that were decided in that state mean nothing, unless the request edits tokens. Entropy and
    margin are None unless the request's policy asks for them.
    """

    token_ids: IntArray
    log_confidence: FloatArray
    entropy: FloatArray | None = None
    margin: FloatArray | None = None
    given: FloatArray | None = None
    top: TopTokens | None = None

    @property
    def confidence(self) -> FloatArray:
        """[L] probability of each candidate."""
        result: FloatArray = np.exp(self.log_confidence)
        return result

    def ranked(self, state: BlockState) -> IntArray:
        """Undecided positions of `state`, most confident first; ties go to the lower position."""
        return rank(state, self.log_confidence)


def rank(state: BlockState, score: FloatArray) -> IntArray:
    """Undecided positions of `state` by `score` ([L]), highest first; ties go to the lower position."""
    masked = np.flatnonzero(~state.decided)
    # A stable sort of the negated values keeps equal scores in ascending position.
    return masked[np.argsort(-score[masked], kind="stable")]
