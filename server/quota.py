"""What one API key may ask for: sequences that are open at once, and requests per minute."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.errors import ApiError


@dataclass(slots=True)
class _Use:
    """Of one key. `tokens` are requests it may still make; they grow back with time."""

    num_open: int
    tokens: float
    counted_at: float


class Quotas:
    """Owner of every key's use. Keys are known by name; there are as many as the operator configured."""

    def __init__(self, max_open: int, requests_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Limits per key; 0 is none. clock: seconds, monotonic."""
        self._max_open = max_open
        self._per_minute = requests_per_minute
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    def count(self, name: str) -> None:
        """A request came in. ApiError 429 if the key has made too many."""
        if not self._per_minute:
            return
        use, now = self._use(name), self._clock()
        use.tokens = min(self._per_minute, use.tokens + (now - use.counted_at) * self._per_minute / 60)
        use.counted_at = now
        if use.tokens < 1:
            wait = math.ceil((1 - use.tokens) * 60 / self._per_minute)
            raise _limited("rate_limited", f"this key may make {self._per_minute} requests per minute", wait)
        use.tokens -= 1

    def enter(self, name: str, num_sequences: int) -> Callable[[], None]:
        """Open sequences; returns what closes them again, to be called once. ApiError 429 if they are too many."""
        use = self._use(name)
        if self._max_open and use.num_open + num_sequences > self._max_open:
            text = f"{use.num_open} sequences of this key are open, {num_sequences} more would exceed {self._max_open}"
            raise _limited("key_limit", text, 1)
        use.num_open += num_sequences

        def leave() -> None:
            use.num_open -= num_sequences

        return leave

    def _use(self, name: str) -> _Use:
        return self._uses.setdefault(name, _Use(0, float(self._per_minute), self._clock()))


def _limited(code: str, message: str, wait_seconds: int) -> ApiError:
    return ApiError(429, code, f"{message}; try again later", headers={"Retry-After": str(wait_seconds)})
