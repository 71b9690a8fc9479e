"""A problem and a cell to the body of a request: the same for an engine in this process and for a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from server.body import JsonObject
from server.evaluation.cell import Cell
from server.evaluation.problem import Problem
from server.terminal.source import CHAT, COMPLETIONS

PromptForm = Literal["raw", "chat"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What all requests of a run have in common.

    form     raw continues the prompt; chat sends it as a user's message
    system   message in front of it, in chats
    stop     texts that end an answer
    decoder  settings given for every cell, which a cell may override
    """

    form: PromptForm
    max_tokens: int
    stop: tuple[str, ...] = ()
    system: str | None = None
    decoder: JsonObject | None = None

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return CHAT if self.form == "chat" else COMPLETIONS

    def body(self, model: str, problem: Problem, cell: Cell) -> JsonObject:
        """Of the request. Temperature 0: the decoding that is measured is deterministic."""
        body: JsonObject = {
            "model": model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "return_token_ids": True,
            "psd": dict(self.decoder or {}) | dict(cell.settings),
        }
        if self.stop:
            body["stop"] = list(self.stop)
        if self.form == "raw":
            return body | {"prompt": problem.prompt}
        turns = [{"role": "user", "content": problem.prompt}]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": self.system})
        return body | {"messages": turns}
