"""The depth controller: how many drafts the sequences with draft depth "auto" carry in the next forward.

Owner of what was measured: the price of work, and how often drafts held. Both are told to it; it reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Final

import numpy as np

from psd_core.block import FloatArray
from psd_core.config import DecoderConfig
from psd_core.decide import Decision
from psd_core.plan import Span
from psd_core.sequence import Sequence
from psd_core.shares import Share
from psd_core.speculation import weakest_confidences
from psd_core.speculation.chances import Chances
from psd_core.speculation.depth import Offer, choose_depths
from psd_core.speculation.steptime import ONE_FORWARD, StepTimes, Work, forward_work, span_work

FIRST_DEPTHS: Final = (3, 1, 0, 2)  # in turn, until prices are known: they are learned from differences
EXPLORING_SHARE: Final = 0.02  # of the time may go into drafts that only keep the measurements alive
MAX_CREDIT_FORWARDS: Final = 16.0  # of the latest duration: what an idle explorer may save up
MAX_DECODERS: Final = 64  # that chances are kept for; clients choose decoders, so their number must be bounded


class DepthController:
    """Chooses before each forward, learns after it."""

    def __init__(self) -> None:
        self.times = StepTimes()
        self._chances: dict[DecoderConfig, Chances] = {}
        self._credit_seconds = 0.0

    def limit(self, shares: Rows[Share]) -> None:
        """Lower `most` of those shares of a forward whose depth is left to the controller. Learns nothing."""
        is_free = [_is_free(share) for share in shares]
        free = [share for share, counts in zip(shares, is_free, strict=True) if counts]
        if not free:
            return
        weakest = [_weakest(share.sequence, share.most) for share in free]
        if not self.times.is_ready:
            for share, found in zip(free, weakest, strict=True):
                share.most = min(FIRST_DEPTHS[self.times.num_observed % len(FIRST_DEPTHS)], found.size)
            return
        base = np.asarray(ONE_FORWARD)
        for share, counts in zip(shares, is_free, strict=True):
            base = base + _work(share)[0 if counts else -1]
        offers = [self._offer(share, found) for share, found in zip(free, weakest, strict=True)]
        depths = choose_depths(len(shares), float(self.times.seconds(base)), offers)
        for share, depth in zip(free, depths, strict=True):
            share.most = depth
        for share, offer, depth in zip(free, offers, depths, strict=True):
            all_drafts = offer.seconds.size - 1
            if depth < all_drafts and offer.seconds[all_drafts] - offer.seconds[depth] <= self._credit_seconds:
                share.most, share.explores = all_drafts, True
                return

    def observe(self, decisions: Rows[tuple[Sequence, Decision]], seconds: float | None) -> None:
        """Learn from a forward that took so long. To be called before the sequences move on.

        seconds   None if it took time for what no decision tells of
        """
        if seconds is not None:
            self.times = self.times.observe(forward_work(_shape(decision.span) for _, decision in decisions), seconds)
            self._credit_seconds = min(self._credit_seconds + EXPLORING_SHARE * seconds, MAX_CREDIT_FORWARDS * seconds)
        for sequence, decision in decisions:
            span, decoder = decision.span, decision.span.request.decoder
            if span.phase != "denoise" or not decoder.has_auto_depth or len(span.rows) == 1:
                continue
            found = _weakest(sequence, len(span.rows) - 1)
            chances = self._chances_of(decoder)
            num_held = sum(1 for row in decision.path if 0 < row <= found.size)
            sequence.luck = sequence.luck.observe(num_held, float(chances.estimate(found).sum()))
            self._keep(decoder, chances.observe(found, decision.path))
            if span.explores:
                num_rows, width, num_context, is_cached = _shape(span)
                works = span_work(np.asarray([1, num_rows]), width, num_context, is_cached)
                one, every = self.times.seconds(works)
                self._credit_seconds -= float(every - one)

    def _offer(self, share: Share, weakest: FloatArray) -> Offer:
        sequence = share.sequence
        chances = self._chances_of(sequence.request.decoder).estimate(weakest) * sequence.luck.factor
        steps = np.concatenate([[0.0], np.minimum(chances, 1.0).cumsum()])
        seconds = self.times.seconds(_work(share)[: steps.size])
        return Offer(steps, seconds - seconds[0])

    def _chances_of(self, decoder: DecoderConfig) -> Chances:
        return self._chances.get(decoder) or Chances()

    def _keep(self, decoder: DecoderConfig, chances: Chances) -> None:
        self._chances.pop(decoder, None)
        self._chances[decoder] = chances
        if len(self._chances) > MAX_DECODERS:
            del self._chances[next(iter(self._chances))]


def _is_free(share: Share) -> bool:
    """Whether the controller has anything to say: drafts, and not the prompt tokens of a span that scores."""
    return share.most > 0 and not share.sequence.is_scoring and share.sequence.request.decoder.has_auto_depth


def _weakest(sequence: Sequence, depth: int) -> FloatArray:
    """Confidence of the weakest token of each draft that could save a forward, at most `depth` of them, [n].

    A draft that completes the block saves none: nothing would be computed behind it. Unless tokens are edited.
    """
    decoder = sequence.request.decoder
    assert sequence.candidates is not None
    given = (sequence.state, sequence.candidates, sequence.policy)
    return weakest_confidences(*given, depth, decoder.draft_increment, decoder.edit_threshold is not None)


def _work(share: Share) -> Work:
    """Work of the share with 0 … `most` rows more than one, [most + 1, 4]."""
    rows = np.arange(1, share.most + 2)
    return span_work(rows, share.width, share.window.context_stop, share.is_cached)


def _shape(span: Span) -> tuple[int, int, int, bool]:
    """The arguments of `span_work`."""
    num_rows, width = span.token_ids.shape
    return num_rows, width, span.window.context_stop, span.slot_start is not None
