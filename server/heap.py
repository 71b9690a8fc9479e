"""Gives freed memory back to the system: the C library keeps what lies between pieces that are still in use.

A worker frees tensors of ever other sizes; without this its heap would grow for hours, to hold the largest mixture of
them that ever was.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final

TRIM_SECONDS: Final = 10.0  # trimming takes some milliseconds, and what is needed again must be mapped again


class HeapTrimmer:
    """Trims the heap of this process now and then."""

    def __init__(self, clock: Callable[[], float], trim: Callable[[], object]) -> None:
        self._clock, self._trim = clock, trim
        self._next = clock() + TRIM_SECONDS

    def pass_by(self) -> None:
        """Trim if it has not been done for a while."""
        now = self._clock()
        if now >= self._next:
            self._trim()
            self._next = now + TRIM_SECONDS


def system_trim() -> Callable[[], object]:
    """glibc's `malloc_trim`, which gives free pages back wherever they lie; nothing where there is none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else (lambda: trim(0))
