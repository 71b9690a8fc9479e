"""What is asked: prompts from a file of JSON lines, or random words of a given number."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psd_core.errors import ConfigError

Message = dict[str, object]

WORDS: Final = tuple(
    "able across air bank bird blue book bread bridge build calm carry chair city clear cloud coast cold corn count "
    "dark deep door draw dream dry early earth east edge evening farm field fire flat flower forest gate glass gold "
    "grain green harbour heavy hill horse hour house iron island jump keen kind lake lamp late leaf letter light line "
    "long map market meadow mill moon morning narrow night north oak ocean open paper path plain quiet rain red river "
    "road roof salt sand sea seven ship silver sky small snow soft south spring star stone storm street sun table tall "
    "ten three tower town tree valley village wall warm water west wheat wide wind winter wood yellow young".split()
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's text or messages; `max_tokens` None takes the run's."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    max_tokens: int | None = None


def random_prompts(count: int, num_words: int, seed: int) -> list[Prompt]:
    """Prompts of `num_words` words that share no beginning but by chance, so that no cache helps."""
    chance = random.Random(seed)
    return [Prompt(" ".join(chance.choices(WORDS, k=num_words))) for _ in range(count)]


def chosen_prompts(prompts: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """`count` of these, in random order, again from the beginning when they are used up."""
    shuffled = random.Random(seed).sample(list(prompts), len(prompts))
    return [shuffled[index % len(shuffled)] for index in range(count)]


def read_prompts(path: Path, *, is_chat: bool) -> list[Prompt]:
    """One prompt per line: a JSON string, or an object with `prompt` or `messages`, and `max_tokens` if it likes.

    ConfigError, with the line's number, for anything else. A completion cannot be asked with messages.
    """
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # JSON may hold what else Unicode calls a line break
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "prompts", f"--prompts must be a readable file of UTF-8 text, got {str(path)!r}: {error}"
        ) from None
    prompts = [_parse(line, f"{path} line {number}", is_chat) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError("prompts", f"--prompts must hold at least one prompt, {str(path)!r} holds none")
    return prompts


def _parse(line: str, where: str, is_chat: bool) -> Prompt:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError("prompts", f"{where} is not JSON: {error}") from None
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict):
        raise ConfigError("prompts", f"{where} must be a string or an object, got {line[:80]!r}")
    text, messages, max_tokens = value.get("prompt"), value.get("messages"), value.get("max_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise ConfigError("prompts", f"{where}: max_tokens must be a positive integer, got {max_tokens!r}")
    if isinstance(text, str) and text and messages is None:
        return Prompt(text, max_tokens=max_tokens)
    if text is None and isinstance(messages, list) and messages and all(isinstance(entry, dict) for entry in messages):
        if not is_chat:
            raise ConfigError("prompts", f"{where} has messages: they need --endpoint chat")
        return Prompt(messages=tuple(messages), max_tokens=max_tokens)
    raise ConfigError("prompts", f"{where} must have either a text `prompt` or a list `messages`, got {line[:80]!r}")
