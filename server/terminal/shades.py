"""Colours of the canvas in a terminal: the page's own, deeper with a draft's depth, fading with confidence.

Told apart without colour, too: drafts are bold and carry their depth, refreshes are underlined, low confidence is
italic, what the latest forward decided is reversed. rich takes the nearest colour that the terminal has, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Colour = tuple[int, int, int]

GREY: Final[Colour] = (128, 128, 128)
POLICY: Final[Colour] = (88, 176, 238)
REFRESH: Final[Colour] = (63, 201, 160)
DRAFTS: Final[tuple[Colour, ...]] = (
    (255, 212, 128),
    (246, 178, 60),
    (226, 138, 14),
    (196, 98, 0),
)  # the last: deeper ones
DIM: Final[Colour] = (84, 84, 84)

LEVELS: Final = 5  # of fading: more cannot be told apart
LOW_CONFIDENCE: Final = 0.5


def decided_style(kind: str, depth: int, confidence: float, *, is_fresh: bool = False) -> str:
    """Of a decided token. confidence 1 is the full colour, 0 is grey."""
    base = {"policy": POLICY, "refresh": REFRESH}.get(kind) or DRAFTS[min(depth, len(DRAFTS)) - 1]
    colour = _mixed(GREY, base, round(confidence * (LEVELS - 1)) / (LEVELS - 1))
    form = {"draft": " bold", "refresh": " underline"}.get(kind, "")
    unsure = " italic" if confidence < LOW_CONFIDENCE else ""
    return _hex(colour) + form + unsure + (" reverse" if is_fresh else "")


def guess_style(confidence: float, *, is_rejected: bool = False) -> str:
    """Of a candidate at an undecided position: the surer, the brighter."""
    colour = _mixed(DIM, GREY, round(confidence * (LEVELS - 1)) / (LEVELS - 1))
    return _hex(colour) + (" underline" if is_rejected else "")


def _mixed(low: Colour, high: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return red, green, blue


def _hex(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


EMPTY: Final = _hex(DIM)
BEHIND: Final = f"{_hex(DIM)} dim"
KINDS: Final[Mapping[str, str]] = {
    "policy": _hex(POLICY),
    "draft": f"{_hex(DRAFTS[1])} bold",
    "refresh": f"{_hex(REFRESH)} underline",
}
