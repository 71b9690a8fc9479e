"""Everything that /metrics shows. One registry per application; nothing is global.

Base units, no unbounded labels, every series of a label exists from the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from psd_core.events import Figures, Occupancy, StepReport
from server.affinity import OUTCOMES, Outcome
from server.messages import ModelFacts
from server.version import VERSION

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
ENDPOINTS: Final = ("completions", "chat")
FINISH_REASONS: Final = ("stop", "length", "cancelled", "error")
ERROR_CODES: Final = (
    "body_too_large",
    "context_length_exceeded",
    "header_too_large",
    "internal_error",
    "invalid_api_key",
    "invalid_content_encoding",
    "invalid_content_type",
    "invalid_json",
    "invalid_request",
    "invalid_unicode",
    "invalid_value",
    "key_limit",
    "method_not_allowed",
    "missing_field",
    "model_not_found",
    "queue_full",
    "queue_timeout",
    "rate_limited",
    "out_of_memory",
    "read_timeout",
    "request_refused",
    "request_timeout",
    "shutting_down",
    "too_many_connections",
    "unknown_field",
    "unknown_path",
    "unsupported_parameter",
    "worker_died",
    "worker_unavailable",
)

WORKER_STATES: Final = ("loading", "ready", "restarting", "failed")

# A CPU with a toy model answers in milliseconds, a GPU with a large one in minutes: one grid covers both.
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_FAST_SECONDS: Final = (0.0001, 0.00025, 0.0005, *_SECONDS[:13])
_TOKENS_PER_FORWARD: Final = (0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
_ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512)
_TOKENS: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
_DEPTHS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 32)


class Metrics:
    """The counters of one server. Owned by the application; called on the event loop only."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotation here
        self._registry = registry = CollectorRegistry()

        def histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
            return Histogram(name, text, labels, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self._tokens_per_forward = histogram(
            "psd_request_tokens_per_forward",
            "Output tokens per forward of a finished sequence, refreshes included",
            _TOKENS_PER_FORWARD,
        )
        self._forwards = counter("psd_forwards", "Forwards of the model by phase", "phase")
        self._forward_seconds = histogram("psd_forward_seconds", "Duration of a step", _SECONDS, ("phase",))
        self._forward_rows = histogram("psd_forward_rows", "Block states scored by one forward", _ROWS)
        self._forward_tokens = histogram("psd_forward_tokens", "Query tokens of one forward", _TOKENS)
        self._drafted = counter("psd_drafted_tokens", "Positions that drafts filled beyond the policy's own state")
        self._accepted = counter("psd_accepted_tokens", "Drafted positions that held")
        self._accepted_depth = histogram("psd_accepted_depth", "Depth of the accepted row of a forward", _DEPTHS)
        self._draft_depth = gauge("psd_draft_depth", "Drafts per sequence in the latest forward, mean")
        self._prompt_tokens = counter("psd_prompt_tokens", "Prompt tokens of admitted requests")
        self._generation_tokens = counter("psd_generation_tokens", "Tokens returned")
        self._discarded_tokens = counter("psd_discarded_tokens", "Decided tokens behind the end of an answer")
        self._first_token = histogram(
            "psd_time_to_first_token_seconds", "From arrival to the first text of a sequence", _SECONDS
        )
        self._inter_chunk = histogram("psd_inter_chunk_latency_seconds", "Gap between successive chunks", _SECONDS)
        self._inter_token = histogram(
            "psd_inter_token_latency_seconds", "Gap between chunks, divided by the tokens of the chunk", _FAST_SECONDS
        )
        self._e2e = histogram("psd_e2e_request_latency_seconds", "From arrival to the end of a request", _SECONDS)
        self._queue = histogram("psd_request_queue_seconds", "From the engine's queue to the first forward", _SECONDS)
        self._running = gauge("psd_requests_running", "Sequences that take part in forwards")
        self._waiting = gauge("psd_requests_waiting", "Sequences that wait for their first forward")
        self._requests = counter("psd_requests", "Sequences that ended", "endpoint", "finish_reason")
        self._errors = counter("psd_request_errors", "Requests answered with an error", "code")
        self._cache_usage = gauge("psd_kv_cache_usage_ratio", "Used slots of the key-value arena")
        self._kept_slots = gauge("psd_prefix_cache_slots", "Slots of finished contexts that later requests may reuse")
        self._prefix_hits = counter("psd_prefix_cache_hit_tokens", "Prompt tokens that an earlier request had computed")
        self._affinity = counter(
            "psd_prefix_affinity", "Requests by what the known beginning of the prompt said of the replica", "outcome"
        )
        self._workers = gauge("psd_workers", "Workers by state", "state")
        self._restarts = counter("psd_worker_restarts", "Workers that died and were started again")
        self._out_of_memory = counter(
            "psd_forwards_out_of_memory", "Forwards that did not fit the memory and were tried again smaller"
        )
        self._load_seconds = gauge("psd_model_load_seconds", "Time that loading the model took")
        self._model_info = gauge(
            "psd_model_info",
            "The loaded model; one series per device",
            "architecture",
            "dtype",
            "quantization",
            "device",
        )
        gauge("psd_build_info", "Version of the server", "version").labels(VERSION).set(1)
        for phase in ("refresh", "denoise", "score", "mixed"):
            self._forwards.labels(phase)
            self._forward_seconds.labels(phase)
        for state in WORKER_STATES:
            self._workers.labels(state)
        for outcome in OUTCOMES:
            self._affinity.labels(outcome)
        for code in ERROR_CODES:
            self._errors.labels(code)
        for endpoint in ENDPOINTS:
            for reason in FINISH_REASONS:
                self._requests.labels(endpoint, reason)

    def render(self) -> bytes:
        """The text of /metrics, psd_request_tokens_per_forward first."""
        return generate_latest(self._registry)

    def loaded(self, facts: ModelFacts) -> None:
        """A worker has its model."""
        self._load_seconds.set(facts.load_seconds)
        self._model_info.labels(facts.architecture, facts.dtype, facts.quantization, facts.device).set(1)

    def counted(self, states: Sequence[str]) -> None:
        """The state of every worker, as of now."""
        for state in WORKER_STATES:
            self._workers.labels(state).set(states.count(state))

    def routed(self, outcome: Outcome) -> None:
        """A request was given to one of several replicas that might have the beginning of its prompt."""
        self._affinity.labels(outcome).inc()

    def restarted(self) -> None:
        """A worker died and will be started again."""
        self._restarts.inc()

    def ran_out_of_memory(self, num_forwards: int) -> None:
        """Forwards of a step did not fit the memory."""
        self._out_of_memory.inc(num_forwards)

    def stepped(self, report: StepReport) -> None:
        """A worker ran one forward."""
        self._forwards.labels(report.phase).inc()
        self._forward_seconds.labels(report.phase).observe(report.seconds)
        self._forward_rows.observe(report.rows)
        self._forward_tokens.observe(report.tokens)
        self._drafted.inc(report.drafted_tokens)
        self._accepted.inc(report.accepted_tokens)
        self._draft_depth.set(report.mean_draft_depth)
        for depth, count in enumerate(report.accepted_depths):
            for _ in range(count):
                self._accepted_depth.observe(depth)

    def occupied(self, occupancies: Iterable[Occupancy]) -> None:
        """The engines' state after a step, one entry per worker."""
        entries = list(occupancies)
        self._running.set(sum(entry.running for entry in entries))
        self._waiting.set(sum(entry.waiting for entry in entries))
        self._cache_usage.set(max((entry.cache_ratio for entry in entries), default=0.0))
        self._kept_slots.set(sum(entry.kept_slots for entry in entries))

    def admitted(self, num_prompt_tokens: int) -> None:
        """A request was handed to the workers."""
        self._prompt_tokens.inc(num_prompt_tokens)

    def first_text(self, seconds: float) -> None:
        """A sequence's first text is out."""
        self._first_token.observe(seconds)

    def next_text(self, seconds: float, num_tokens: int) -> None:
        """A further chunk of a sequence is out, `seconds` after the one before."""
        self._inter_chunk.observe(seconds)
        self._inter_token.observe(seconds / max(num_tokens, 1))

    def ended(self, endpoint: str, reason: str, num_tokens: int, figures: Figures | None) -> None:
        """A sequence ended. `figures` is None where the engine could not give any."""
        self._requests.labels(endpoint, reason).inc()
        self._generation_tokens.inc(num_tokens)
        if figures is None:
            return
        self._queue.observe(figures.queue_seconds)
        self._prefix_hits.inc(figures.reused_tokens)
        decided = figures.generated_tokens + figures.discarded_tokens
        self._discarded_tokens.inc(max(decided - num_tokens, 0))
        if figures.forwards and reason in ("stop", "length"):
            self._tokens_per_forward.observe(num_tokens / figures.forwards)

    def answered(self, seconds: float) -> None:
        """A request that was admitted is over."""
        self._e2e.observe(seconds)

    def failed(self, code: str) -> None:
        """A request was answered with an error; an unforeseen code counts as invalid_value, not as a new label."""
        self._errors.labels(code if code in ERROR_CODES else "invalid_value").inc()
