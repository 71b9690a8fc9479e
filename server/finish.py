"""The one log line of a finished request: figures, never text."""

from __future__ import annotations

import logging
import time

from server.generation import Generation

logger = logging.getLogger(__name__)


def log_end(generation: Generation, key_name: str) -> None:
    """Called once, when nothing of the request is left in the engine. key_name: of the key it came with, or -.

    Forwards and queue time of a request whose client left before any of its choices ended are not known here: null.
    """
    job, ends, first = generation.job, generation.ends.values(), generation.first_text_seconds
    forwards = sum(end.figures.forwards for end in ends) if ends else None
    tpf = round(sum(end.num_tokens for end in ends) / forwards, 4) if forwards else None
    queue = round(max(end.figures.queue_seconds for end in ends), 6) if ends else None
    fields = {
        "job": job.job_id,
        "key": key_name,
        "endpoint": generation.endpoint,
        "model": job.model,
        "reason": generation.reason,
        "error": None if generation.failure is None else generation.failure.code,
        "stream": job.wants_stream,
        "choices": len(job.choices),
        "prompt_tokens": job.num_prompt_tokens,
        "tokens": generation.num_tokens,
        "forwards": forwards,
        "tokens_per_forward": tpf,
        "queue_seconds": queue,
        "first_text_seconds": None if first is None else round(first, 6),
        "total_seconds": round(time.monotonic() - generation.arrival, 6),
    }
    logger.info(
        "%s %s: %s%s, model %s, key %s, %d choices, %d prompt tokens, %d tokens, %s forwards, TPF %s, "
        "queue %s, TTFT %s, total %.3f s",
        *(generation.endpoint, job.job_id, generation.reason),
        "" if generation.failure is None else f" ({generation.failure.code})",
        *(job.model, key_name, len(job.choices), job.num_prompt_tokens, generation.num_tokens),
        "-" if forwards is None else forwards,
        "-" if tpf is None else f"{tpf:.2f}",
        "-" if queue is None else f"{queue:.3f} s",
        "-" if first is None else f"{first:.3f} s",
        fields["total_seconds"],
        extra={"event": "request finished", "fields": fields},
    )
