"""One HTTP request ready for the engine, as admission leaves it: plain data."""

from __future__ import annotations

from dataclasses import dataclass

from psd_core.config import DecoderConfig
from psd_core.request import Request


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a choice's tokens become text."""

    stops: tuple[str, ...]
    stop_ids: frozenset[int]
    min_tokens: int
    skip_special: bool
    include_stop: bool
    kept_ids: frozenset[int] = frozenset()  # special tokens that are text all the same


@dataclass(frozen=True, slots=True)
class Choice:
    """One sequence of a job. `echo` is the prompt's text if the answer must repeat it, else empty.

    If log-probabilities are wanted besides, the engine scores the prompt first.
    """

    index: int
    request: Request
    echo: str
    shows_special: bool = True  # whether the echo holds the text of special tokens: those a caller sent as ids


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request, ready for the engine: nothing in it can be missing or out of range."""

    job_id: str
    model: str
    choices: tuple[Choice, ...]
    num_prompt_tokens: int  # each prompt counts once, however many choices it has
    num_choices: int  # per prompt
    num_returned: int  # of them, the best; fewer only if the client asked for `best_of`
    decoder: DecoderConfig
    rules: TextRules
    wants_stream: bool
    wants_logprobs: bool
    num_top_logprobs: int
    wants_token_ids: bool
    wants_usage: bool
    wants_running_usage: bool
    parses_calls: bool = False  # tool calls are looked for in the text
