"""The canvas in a terminal: a record of what the stream's canvases said, and how rich draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Group
from rich.text import Text

from server.body import JsonObject

# Told apart without colour, too: drafts are bold, refreshes underlined, low confidence italic.
STYLES: Final = {"policy": "bright_blue", "draft": "bold yellow", "refresh": "underline green"}
UNDECIDED: Final = "bright_black"
LOW_CONFIDENCE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """A decided position. kind: policy, draft or refresh."""

    text: str
    kind: str
    confidence: float


@dataclass(slots=True)
class CanvasState:
    """Everything decided so far, and the latest guesses for the active block. Grows with every chunk."""

    length: int = 0
    cells: dict[int, Cell] = field(default_factory=dict)
    guesses: dict[int, str] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    forwards: int = 0
    accepted: int = 0
    drafted: int = 0

    def take(self, chunk: JsonObject) -> bool:
        """Read a chunk; whether it changed the canvas."""
        psd: Any = chunk.get("psd")
        canvas = psd.get("canvas") if isinstance(psd, dict) else None
        if not isinstance(canvas, dict):
            return False
        start = canvas["start"]
        self.length, self.forwards = canvas["length"], canvas["forwards"]
        self.accepted += canvas["accepted"]
        self.drafted += canvas["drafted"]
        if start not in self.starts:
            self.starts.append(start)
        self.guesses = {}
        for offset, text in enumerate(canvas["tokens"]):
            position = start + offset
            if text is None:
                self.guesses[position] = canvas["candidates"][offset] or ""
            elif position not in self.cells or self.cells[position].text != text:  # decided, or edited
                by_policy = "refresh" if canvas["phase"] == "refresh" else "policy"
                kind = "draft" if canvas["depths"][offset] else by_policy
                self.cells[position] = Cell(text, kind, canvas["confidences"][offset])
        return True

    @property
    def tokens_per_forward(self) -> float:
        """Decided positions per forward; 0 before the first one."""
        return len(self.cells) / self.forwards if self.forwards else 0.0


def draw(state: CanvasState) -> Group:
    """The canvas, block by block, over a line of figures and one that explains the colours."""
    canvas = Text(overflow="fold")
    for position in range(state.length):
        if position in state.starts and position:
            canvas.append("\n")
        cell, guess = state.cells.get(position), state.guesses.get(position)
        if cell is not None:
            unsure = " italic" if cell.confidence < LOW_CONFIDENCE else ""
            canvas.append(_shown(cell.text), STYLES[cell.kind] + unsure)
        else:
            canvas.append(_shown(guess) if guess else "·", UNDECIDED)
    legend = Text("  ").join([Text(kind, style) for kind, style in STYLES.items()] + [Text("undecided", UNDECIDED)])
    figures = Text(
        f"{len(state.cells)} of {state.length} decided · {state.forwards} forwards · "
        f"{state.tokens_per_forward:.2f} decided per forward · drafts {state.accepted} of {state.drafted} held",
        "dim",
    )
    return Group(canvas, Text(), figures, legend)


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey; line breaks and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


def _shown(text: str) -> str:
    """A token on one line."""
    return harmless(text).replace("\n", "↵").replace("\t", "⇥")
