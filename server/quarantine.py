"""Requests that workers did not survive: after two deaths an equal request is refused, so that no client's retries
keep the server down.

Whoever shared the fatal forward is suspected as well; an answer clears the suspicion, and so does time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable
from typing import Final

from psd_core.request import Request
from server.errors import ApiError

MAX_DEATHS: Final = 2
MEMORY_SECONDS: Final = 600.0
MAX_ENTRIES: Final = 1024  # of a storm of deaths only the latest suspects are remembered


@dataclasses.dataclass(frozen=True, slots=True)
class _Suspicion:
    num_deaths: int
    until_seconds: float


class Quarantine:
    """Counts the workers that died computing a request. Ids, seeds, salts and what a stream shows do not matter."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, monotonic."""
        self._clock = clock
        self._suspicions: dict[bytes, _Suspicion] = {}

    def charge(self, request: Request) -> None:
        """A worker died while it computed this request."""
        key, now = _fingerprint(request), self._clock()
        entry = self._suspicions.pop(key, None)
        num_deaths = 1 if entry is None or entry.until_seconds <= now else entry.num_deaths + 1
        self._suspicions[key] = _Suspicion(num_deaths, now + MEMORY_SECONDS)
        if len(self._suspicions) > MAX_ENTRIES:
            del self._suspicions[next(iter(self._suspicions))]

    def clear(self, request: Request) -> None:
        """The request was answered: it is harmless."""
        if self._suspicions:
            self._suspicions.pop(_fingerprint(request), None)

    def check(self, request: Request) -> None:
        """ApiError 422 if the request is not to be tried again."""
        if not self._suspicions:
            return
        entry = self._suspicions.get(_fingerprint(request))
        if entry is not None and entry.num_deaths >= MAX_DEATHS and self._clock() < entry.until_seconds:
            raise refused(entry.num_deaths)


def refused(num_deaths: int) -> ApiError:
    """422: a status that clients do not retry by themselves."""
    message = f"{num_deaths} workers died while this request was with them; it is not tried again for now"
    return ApiError(422, "request_refused", message)


def _fingerprint(request: Request) -> bytes:
    sampling = dataclasses.replace(request.sampling, seed=0, choice_index=0)
    content = dataclasses.replace(request, request_id="", sampling=sampling, granularity="block", watch=False)
    content = dataclasses.replace(content, stop_ids=frozenset(), cache_salt="")
    text = repr(content) + repr(sorted(request.stop_ids))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
