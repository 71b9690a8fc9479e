"""One problem: what is asked, and what a right answer is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt with its worked answer.

    task     one of demo_model.tasks.TASKS
    prompt   plain text, as a user types it
    answer   the text the model is trained to give, without the line break that separates it from a raw prompt
    tests    for `code`: Python asserts that the completed function must pass; empty otherwise
    found    for `recall`: the parts of the answer that must be looked up, as (start, stop) in characters
    """

    task: str
    prompt: str
    answer: str
    tests: tuple[str, ...] = ()
    found: tuple[tuple[int, int], ...] = ()
