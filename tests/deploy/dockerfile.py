"""A Dockerfile taken apart: stages of instructions, with continuation lines joined and comments gone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `arguments` is everything behind the word, on one line."""

    word: str
    arguments: str

    @property
    def exec_form(self) -> list[str]:
        """The words of a JSON list, which may stand behind options such as those of HEALTHCHECK."""
        words: list[str] = json.loads(self.arguments[self.arguments.index("[") :])
        return words


def read_stages(path: Path) -> list[list[Instruction]]:
    """The instructions of every stage, its FROM first; what stands before the first FROM is left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: list[list[Instruction]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, arguments = line.strip().partition(" ")
        if word == "FROM":
            stages.append([])
        if word and stages:
            stages[-1].append(Instruction(word, " ".join(arguments.split())))
    return stages


def arguments_of(stage: list[Instruction], word: str) -> list[str]:
    """The arguments of every such instruction, in order."""
    return [instruction.arguments for instruction in stage if instruction.word == word]


def variables_of(stage: list[Instruction]) -> dict[str, str]:
    """What ENV sets."""
    pairs = [pair for arguments in arguments_of(stage, "ENV") for pair in arguments.split()]
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
