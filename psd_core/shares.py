"""How a forward is shared: what each sequence gets of it, and which large pieces of work are taken on bit by bit.

Whoever denoises waits for everything that is in the forward, so prompts and refreshes beside it are bounded. Pure but
for the shares themselves, which are filled while the forward is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from psd_core.block import IntArray
from psd_core.kvcache.modes import Window
from psd_core.sequence import Sequence
from psd_core.speculation.steptime import StepTimes, Work, forward_work, span_work

# Scoring takes at most one in so many tokens of a full forward: alone, and beside others, who must not wait for it.
SCORING_SHARES: Final = (4, 32)


@dataclass(slots=True, eq=False)
class Share:
    """What one sequence gets of a forward while the forward is being filled."""

    sequence: Sequence
    window: Window  # positions computed per row, cached ones read besides
    is_cached: bool  # the rows' keys are written to the cache
    depth: int  # rows it has beside the first: drafts, branches, or prompt tokens to score
    most: int  # of them it may have
    explores: bool = False
    is_partial: bool = False  # ends before the active block

    @property
    def width(self) -> int:
        """Query tokens per row."""
        return self.window.stop - self.window.start


def draft_limit(sequence: Sequence) -> int:
    """Drafts or branches the next span may carry: none before the block has candidates."""
    return 0 if sequence.candidates is None else sequence.request.decoder.num_guesses


def take_scoring_turns(wanted: list[Share], budget: int) -> list[Share]:
    """Those of `wanted` that may take part in a forward of `budget` tokens: not everyone who scores a prompt.

    A prompt may need a row for every token, thousands of query tokens in all. So those that score take turns, in the
    order of `wanted`, and share what room there is: beside others no more than their tokens or a small part of the
    forward. The first one takes part whatever its size.
    """
    others = sum((1 + share.depth) * share.width for share in wanted if not share.sequence.is_scoring)
    room = max(budget // SCORING_SHARES[1], others) if others else budget // SCORING_SHARES[0]
    taken: list[Share] = []
    is_first = True
    for share in wanted:
        if share.sequence.is_scoring:
            most = min(share.most, room // share.width - 1)
            if most < share.depth and not is_first:
                continue
            share.most, is_first = max(share.depth, most), False
            room -= (1 + share.most) * share.width
        taken.append(share)
    return taken


def portion_prompts(wanted: list[Share], budget: int, least: int, is_shifted: bool, times: StepTimes) -> list[Share]:
    """Those of `wanted` that may take part in a forward of `budget` tokens, long prompts of causal models cut short.

    Prompts take their turns as they came, so the first is answered as early as can be, and the others wait. Where
    nobody else is there to wait for them, all that fit are computed.

    least   prompt tokens that a forward takes on in any case; more only as long as they are no more than the others'
            tokens
    times   what forwards cost: a token that attends to much takes longer than one that attends to little. As soon as
            that is known, prompts may take no longer than the others, or than `least` tokens of a prompt's beginning
    """
    others = [share for share in wanted if not _is_divisible(share)]
    room = min(budget, max(sum((1 + share.depth) * share.width for share in others), least)) if others else budget
    seconds = _prompt_seconds(others, least, times) if others and times.is_ready else np.inf
    waiting = set()
    prompts = sorted(filter(_is_divisible, wanted), key=lambda share: share.sequence.arrival_seconds)
    for share in prompts:
        # The first one goes on whatever prices say.
        if room and (seconds > 0 or share is prompts[0]):
            _shorten(share, _affordable(share, room, seconds, times), is_shifted)
            room = max(0, room - share.width)
            seconds -= float(times.seconds(_prompt_work(share, share.width)))
        else:
            waiting.add(share)
    return [share for share in wanted if share not in waiting]


def _prompt_seconds(others: list[Share], least: int, times: StepTimes) -> float:
    """How long all prompts of a forward may take beside `others`."""
    spans = [(1 + share.depth, share.width, share.window.context_stop, share.is_cached) for share in others]
    works = np.stack([forward_work(spans), span_work(np.asarray(1), least, 0, is_cached=True)])
    return float(times.seconds(works).max())


def _affordable(share: Share, room: int, seconds: float, times: StepTimes) -> int:
    """Tokens of a prompt, `room` at most, that take no longer than `seconds`; 1 if none do."""
    most = min(room, share.width)
    if seconds == np.inf or float(times.seconds(_prompt_work(share, most))) <= seconds:
        return room
    prices = times.seconds(_prompt_work(share, np.arange(1, most)))  # ascending
    return max(1, int(np.searchsorted(prices, seconds, side="right")))


def _prompt_work(share: Share, lengths: int | IntArray) -> Work:
    """Work of so many tokens of a prompt, [..., 4]."""
    return span_work(np.asarray(1), lengths, share.window.context_stop, is_cached=True)


@dataclass(frozen=True, slots=True)
class Spread:
    """A refresh that is computed layer by layer, and how many of its layers the next forward takes on."""

    share: Share
    num_layers: int


def spread_refreshes(wanted: list[Share], least: int, num_layers: int) -> tuple[list[Share], list[Spread]]:
    """(those of `wanted` that take part as they are, refreshes of which the next forward takes on some layers).

    Where attention looks both ways a refresh cannot be cut by positions, but it can by layers. That is done to the
    first one of a request, which no stream waits for yet: large ones share what room there is, in the order in which
    they came. Where nobody else is there to be held up, all are computed to the end.

    least   query tokens of refreshes that a forward takes on in any case, or as many layers of larger ones as cost
            that; more only as long as they are no more than the others' tokens
    """
    begun = [share for share in wanted if share.sequence.num_layers_done]
    large = [share for share in wanted if share in begun or (share.width > least and _is_spreadable(share))]
    others = [share for share in wanted if share not in large]
    if not others or num_layers == 1:
        whole = [share for share in wanted if share not in begun]
        return whole, [Spread(share, num_layers - share.sequence.num_layers_done) for share in begun]
    room = max(least, sum((1 + share.depth) * share.width for share in others))
    large = [share for share in large if share in begun or share.width > room]
    spreads: list[Spread] = []
    room *= num_layers  # from here on in tokens times layers
    for share in sorted(large, key=lambda share: share.sequence.arrival_seconds):
        rest = num_layers - share.sequence.num_layers_done
        layers = min(rest, room // share.width if spreads else max(1, room // share.width))
        if not layers:
            break
        spreads.append(Spread(share, layers))
        room = max(0, room - layers * share.width)
    return [share for share in wanted if share not in large], spreads


def _is_spreadable(share: Share) -> bool:
    """Whether a share is a request's first refresh of its whole canvas."""
    sequence = share.sequence
    if sequence.is_scoring or sequence.has_run or not sequence.may_spread:
        return False
    return sequence.request.decoder.cache in ("prefix", "dual")


def _is_divisible(share: Share) -> bool:
    """Whether a share is the refresh of a prompt that may be computed piece by piece.

    That is what causal models see of it before the active block, if it is more than the one block of a later refresh.
    Where attention looks both ways every position depends on all others; see `spread_refreshes`.
    """
    sequence = share.sequence
    if sequence.is_scoring or sequence.request.decoder.cache != "causal":
        return False
    return sequence.block_start - sequence.num_cached > sequence.block_length


def _shorten(share: Share, room: int, is_shifted: bool) -> None:
    """Cut a divisible refresh to its first `room` tokens, if it has more: whole blocks on a grid, at least one."""
    sequence, start = share.sequence, share.window.start
    if share.width <= room:
        return
    unit = sequence.block_length if sequence.has_grid else 1
    # A shifted model reads the first new token off the last prompt token: the last piece computes it.
    most = sequence.block_start - int(is_shifted) - start
    length = min(max(room, sequence.block_length), most) // unit * unit
    assert length > 0
    share.window, share.is_partial = Window(start, start + length, start), True
