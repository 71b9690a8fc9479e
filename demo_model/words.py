"""The words that tasks are made of. Held-out lists never occur in training prompts."""

from __future__ import annotations

import random
from typing import Final

NAMES: Final = tuple(
    "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor Wendy "
    "Adam Bella Carl Diana Eric Fiona George Hanna Ivan Julia Karl Lena Max Nina Oscar Petra Robert Sara Tom Una "
    "Alice Bruno Cora Dennis Ella Frank Greta Hugo Iris Jonas Karen Lukas Maria Nils Otto Paula Ralf Simon Theo".split()
)
HELD_OUT_NAMES: Final = tuple("Agnes Boris Celia Dora Edgar Flora Gina Hector Irma Jerome".split())
THINGS: Final = tuple(
    "apple book pen coin card ball stamp shell marble sticker cookie flower button pencil egg lemon candle cup key "
    "ticket photo ribbon plum nut".split()
)
CITIES: Final = tuple(
    "Rome Paris Berlin Oslo Madrid Vienna Lisbon Prague Dublin Athens Warsaw Bern Cairo Lima Quito Tokyo Delhi Milan "
    "Porto Riga".split()
)
COLORS: Final = tuple("red blue green yellow white black brown pink gray purple".split())
JOBS: Final = tuple("teacher baker doctor farmer pilot singer nurse writer painter driver lawyer cook".split())
ANIMALS: Final = tuple("cat dog horse rabbit bird fish goat sheep duck mouse".split())
TOPICS: Final = tuple("garden party school concert trip dinner meeting library market game museum lake".split())
DAYS: Final = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
SHORT_WORDS: Final = tuple(
    "sun tree lamp road milk king bread stone river cloud chair paper glass horn gate wolf moon ship".split()
)
_ONSETS: Final = "b br c ch d dr f g gr h j k kl l m n p pl r s sh st t tr v w z".split()
_VOWELS: Final = "a e i o u ai ea io".split()
_ENDINGS: Final = ("", "", "n", "s", "l", "r", "m", "t", "ne", "ck")


def invented_name(rng: random.Random) -> str:
    """A made-up name of two or three syllables: spelled with several tokens, it can only be copied, not known."""
    while True:
        syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3))))
        name = ("".join(syllables) + rng.choice(_ENDINGS)).capitalize()
        if name not in HELD_OUT_NAMES and name not in NAMES:
            return name
