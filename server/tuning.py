"""Defaults and fixed limits of the server, in one place so that flags, checks and documents agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of flags.

    chat_max_tokens    a chat answer may take the rest of the context, but no more than this: masked positions are
                       computed in every forward, so an unbounded canvas would cost time that no answer needs
    max_waiting        sequences that may queue; beyond it a request is refused at once
    max_stop_strings   OpenAI allows 4, but evaluation tools send more
    max_body_bytes     far above any prompt that fits a context
    max_connections    streams of all sequences that may run and queue, and as many connections that are kept alive
    read_seconds       a request's header and body come at once from any real client, over any real network
    stall_seconds      a client that reads nothing for so long is taken to be gone
    forward_seconds    no forward on a GPU takes so long; a large model on a CPU may
    drain_seconds      below the 30 seconds after which container managers kill
    """

    chat_max_tokens: int = 256
    max_waiting: int = 256
    max_stop_strings: int = 16
    max_body_bytes: int = 4 * 1024 * 1024
    max_connections: int = 4096
    read_seconds: float = 30.0
    stall_seconds: float = 30.0
    forward_seconds: float = 120.0
    drain_seconds: float = 25.0


DEFAULTS: Final = Defaults()

COMPLETION_MAX_TOKENS: Final = 16  # OpenAI's default of /v1/completions
MAX_N: Final = 128  # OpenAI's limit of `n`
MAX_STOP_CHARS: Final = 1024  # per stop string; bounds what a stream may hold back
MAX_JSON_DEPTH: Final = 64  # nesting of a request body
DISCARD_FACTOR: Final = 4  # a body up to so many times the limit is read to its end and thrown away
DISCARD_SECONDS: Final = 5.0  # and for so long at most
RETRY_AFTER_SECONDS: Final = 1  # advice to a client that was refused while busy, loading or draining
MAX_PENDING_EVENTS: Final = 64  # that a slow reader has not taken; beyond it views of the canvas are left out
INLINE_TEXT_CHARS: Final = 8192  # longer texts are tokenized in a thread, so that the event loop stays free
