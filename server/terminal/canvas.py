"""The canvas in a terminal: a record of what the stream's canvases said, and how rich draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from server.body import JsonObject
from server.terminal.shades import BEHIND, EMPTY, KINDS, LOW_CONFIDENCE, decided_style, guess_style

SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
BARS: Final = "▁▂▃▄▅▆▇█"
MAX_BARS: Final = 60  # the latest forwards; more would take lines from the canvas


@dataclass(frozen=True, slots=True)
class Cell:
    """A decided position. kind: policy, draft or refresh; depth: of the draft, else 0; forward: from 1."""

    text: str
    kind: str
    confidence: float
    depth: int
    forward: int


@dataclass(frozen=True, slots=True)
class Guess:
    """What the model would put at an undecided position now; is_rejected: a draft was just dropped there."""

    text: str
    confidence: float
    is_rejected: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """One forward: how many positions it decided, and whether any of them by a draft or on a refresh."""

    num_decided: int
    kind: str


@dataclass(slots=True)
class CanvasState:
    """Everything decided so far, and the latest guesses for the active block. Grows with every chunk."""

    length: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)
    guesses: dict[int, Guess] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    forwards: int = 0
    steps: int = 0
    accepted: int = 0
    drafted: int = 0
    end: int | None = None  # where the answer ended, once it has

    def take(self, chunk: JsonObject) -> bool:
        """Read a chunk; whether it changed the canvas."""
        psd: Any = chunk.get("psd")
        canvas = psd.get("canvas") if isinstance(psd, dict) else None
        if not isinstance(canvas, dict):
            return False
        start = canvas["start"]
        self.length, self.forwards, self.steps = canvas["length"], canvas["forwards"], canvas["steps"]
        self.accepted += canvas["accepted"]
        self.drafted += canvas["drafted"]
        if start not in self.starts:
            self.starts.append(start)
        self.guesses = {}
        fresh = []
        for offset, text in enumerate(canvas["tokens"]):
            position, confidence = start + offset, canvas["confidences"][offset]
            if text is None:
                is_rejected = offset in canvas["rejected"]
                self.guesses[position] = Guess(canvas["candidates"][offset] or "", confidence or 0.0, is_rejected)
            elif position not in self.cells or self.cells[position].text != text:  # decided, or edited
                by_policy = "refresh" if canvas["phase"] == "refresh" else "policy"
                depth = canvas["depths"][offset]
                fresh.append(Cell(text, "draft" if depth else by_policy, confidence, depth, self.forwards))
                self.cells[position] = fresh[-1]
        kinds = {cell.kind for cell in fresh}
        self.bars.append(Bar(len(fresh), next((kind for kind in ("draft", "refresh") if kind in kinds), "policy")))
        return True

    def finish(self, num_tokens: int) -> None:
        """The answer has ended after so many tokens; what is decided behind them is not part of it."""
        self.end, self.guesses = num_tokens, {}

    @property
    def tokens_per_forward(self) -> float:
        """Decided positions per forward; 0 before the first one."""
        return len(self.cells) / self.forwards if self.forwards else 0.0


def draw(state: CanvasState) -> Group:
    """The canvas, block by block, over a bar per forward, a line of figures and one that explains the signs."""
    canvas = Text(overflow="fold")
    for position in range(state.length):
        if position in state.starts and position:
            canvas.append("\n")
        canvas.append_text(_cell(state, position))
    figures = (
        f"{len(state.cells)} of {state.length} decided · {state.steps} steps in {state.forwards} forwards · "
        f"{state.tokens_per_forward:.2f} decided per forward · drafts {state.accepted} of {state.drafted} held"
    )
    return Group(canvas, Text(), _bars(state), Text(figures, "dim"), _legend())


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey; line breaks and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


def _cell(state: CanvasState, position: int) -> Text:
    cell, guess = state.cells.get(position), state.guesses.get(position)
    if cell is None:
        if guess is None or not guess.text:
            return Text("·", EMPTY)
        return Text(_shown(guess.text), guess_style(guess.confidence, is_rejected=guess.is_rejected))
    if state.end is not None and position >= state.end:
        return Text(_shown(cell.text), BEHIND)
    is_fresh = state.end is None and cell.forward == state.forwards
    style = decided_style(cell.kind, cell.depth, cell.confidence, is_fresh=is_fresh)
    shown = Text(_shown(cell.text), style)
    if cell.depth:
        shown.append(
            str(cell.depth).translate(SUPERSCRIPTS), decided_style("draft", cell.depth, 1.0, is_fresh=is_fresh)
        )
    return shown


def _bars(state: CanvasState) -> Text:
    """A column per forward, as high as it decided positions."""
    shown = state.bars[-MAX_BARS:]
    highest = max([len(BARS), *(bar.num_decided for bar in shown)])
    line = Text()
    for bar in shown:
        height = -(-bar.num_decided * len(BARS) // highest)
        line.append(BARS[height - 1] if height else " ", KINDS[bar.kind])
    return line


def _legend() -> Text:
    drafts = Text("draft").append_text(
        Text().join(
            Text(str(depth).translate(SUPERSCRIPTS), decided_style("draft", depth, 1.0)) for depth in range(1, 5)
        )
    )
    drafts.stylize(KINDS["draft"], 0, len("draft"))
    return Text("  ").join(
        [
            Text("policy", KINDS["policy"]),
            drafts,
            Text("refresh", KINDS["refresh"]),
            Text("unsure", decided_style("policy", 0, 0.0)),
            Text("undecided", guess_style(LOW_CONFIDENCE)),
            Text("draft dropped", guess_style(LOW_CONFIDENCE, is_rejected=True)),
            Text("behind the end", BEHIND),
        ]
    )


def _shown(text: str) -> str:
    """A token on one line."""
    return harmless(text).replace("\n", "↵").replace("\t", "⇥")
