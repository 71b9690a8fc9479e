"""What the engine reports: plain data, one `StepOutput` per engine step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EngineFinishReason = Literal["stop", "length", "cancelled", "out_of_memory"]
SpanPhase = Literal["refresh", "denoise", "score"]
Phase = Literal[SpanPhase, "mixed"]
TopEntries = tuple[tuple[int, float], ...]  # (token id, log-probability), most probable first


@dataclass(frozen=True, slots=True)
class TokensEvent:
    """Final tokens of one request, in order; never revised. The last ones come before `FinishedEvent`.

    logprobs are natural-log probabilities at temperature 1 of each token at the moment it was decided; so are those of
    the alternatives in `top`, which is empty unless the request asked for them.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top: tuple[TopEntries, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptEvent:
    """Log-probabilities of the prompt's tokens but the first, if the request asked for them. Comes once, before tokens.

    That of token i is given tokens 0 … i - 1, everything behind them masked up to the prompt's end: by the chain rule
    their sum from i on is the log-probability of that part, decoded from left to right, given what stands before it.
    """

    request_id: str
    logprobs: tuple[float, ...]
    top: tuple[TopEntries, ...] = ()


@dataclass(frozen=True, slots=True)
class CanvasEvent:
    """The active block of a watched request after one forward.

    start          index of the block's first position among the generated ones
    token_ids      per position of the block: the decided token, or None
    candidate_ids  per position: None where decided, else the token that the model would put there now
    confidences    per position: probability of the token when it was decided, else of the latest candidate
    depths         per position: None undecided, 0 decided by the policy, d >= 1 by the draft of that depth
    rejected       indices into the block: what drafts had filled and did not hold; the policy may have decided it since
    phase          what the forward was: a refresh decides by the policy alone
    forwards       forwards of this request so far
    steps          denoising steps of this request so far: accepted drafted states and the policy's own steps
    rows           block states that the forward scored
    drafted        positions that the forward's drafts had filled beyond the policy's own state
    accepted       those of them that held
    canvas_length  generated positions in all: max_tokens rounded up to whole blocks, or the hole in front of a suffix
    """

    request_id: str
    start: int
    token_ids: tuple[int | None, ...]
    candidate_ids: tuple[int | None, ...]
    confidences: tuple[float | None, ...]
    depths: tuple[int | None, ...]
    rejected: tuple[int, ...]
    phase: SpanPhase
    forwards: int
    steps: int
    rows: int
    drafted: int
    accepted: int
    canvas_length: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What one request cost.

    discarded_tokens   decided tokens behind that end
    forwards           forwards the request took part in, refreshes included, scoring of its prompt not
    refresh_forwards   those that recomputed its cached context
    rows               block states scored over all forwards
    drafted_tokens     positions that drafts filled beyond the policy's own state
    accepted_tokens    those of them that held
    accepted_depths    [d] = denoising forwards by the accepted draft, 0: none held; of sets, by how many held in a row
    queue_seconds      from arrival at the engine to the first forward
    decode_seconds     from the first forward to the end
    refresh_seconds    steps, whoever else took part in them, whose forward refreshed this request
    spatial_deciles    [decile] positions decided by the policy in each tenth of a block's progress (psd_core.progress)
    temporal_deciles   [decile] positions decided by accepted drafts or branches, likewise
    """

    prompt_tokens: int
    generated_tokens: int
    discarded_tokens: int
    forwards: int
    refresh_forwards: int
    rows: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_depths: tuple[int, ...]
    queue_seconds: float
    decode_seconds: float
    refresh_seconds: float = 0.0
    scoring_forwards: int = 0  # forwards that scored its prompt
    reused_tokens: int = 0  # prompt tokens whose keys and values an earlier request had computed
    spatial_deciles: tuple[int, ...] = ()
    temporal_deciles: tuple[int, ...] = ()

    @property
    def tokens_per_forward(self) -> float:
        """TPF with refreshes counted; 0 if nothing ran."""
        return self.generated_tokens / self.forwards if self.forwards else 0.0

    @property
    def mean_accepted_depth(self) -> float:
        """Mean draft depth of the accepted rows; 0 without drafts."""
        total = sum(self.accepted_depths)
        return sum(d * n for d, n in enumerate(self.accepted_depths)) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The one terminal event of a request. `stop_id` is the id that ended it, if one did.

    out_of_memory: not even a forward with this request alone and without drafts fits the memory.
    """

    request_id: str
    reason: EngineFinishReason
    stop_id: int | None
    figures: Figures


@dataclass(frozen=True, slots=True)
class StepReport:
    """One forward as the metrics see it. Seconds are of the whole step; tokens are query tokens."""

    phase: Phase
    seconds: float
    rows: int
    tokens: int
    drafted_tokens: int
    accepted_tokens: int
    accepted_depths: tuple[int, ...]
    mean_draft_depth: float


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the engine is after a step. cache_ratio is used ÷ all slots of the key-value arena."""

    running: int
    waiting: int
    cache_ratio: float
    kept_slots: int = 0  # slots of finished contexts that later requests may reuse; given up when room is needed


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything one engine step produced. `report` is None if no forward ran."""

    occupancy: Occupancy
    prompts: list[PromptEvent] = field(default_factory=list)
    tokens: list[TokensEvent] = field(default_factory=list)
    canvases: list[CanvasEvent] = field(default_factory=list)
    finished: list[FinishedEvent] = field(default_factory=list)
    report: StepReport | None = None
    out_of_memory: int = 0  # forwards that did not fit the memory and were tried again smaller
