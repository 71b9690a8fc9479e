"""Chat messages to prompt ids, through the tokenizer's own template in a sandbox.

What a user writes must not act as markup: a message that says "<|eot|>" must not end its own turn. So before
rendering, every special token's text inside a message is broken with a guard character that occurs nowhere else;
after rendering, special tokens are looked for while the guard is still there, and the text between them is
encoded as plain text without it. A conversation without such text takes the direct way and is encoded exactly
as the checkpoint's authors do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from psd_core.errors import CheckpointError, RequestError
from server.tokenizer import Tokenizer

Message = dict[str, str]  # role, content and perhaps name

_GUARDS = (*range(0xE000, 0xF8FF), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))  # private-use characters
_GUARDED_KEYS = ("content", "name")  # what the client wrote freely; the role is one of a few words


class TemplateRefusal(TemplateError):
    """A template called raise_exception."""


class ChatTemplate:
    """A compiled template beside the tokenizer it belongs to. Immutable after construction."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """CheckpointError if the template does not compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template cannot be compiled: {error}") from error
        self._source = source
        self._tokenizer = tokenizer
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        self._variables = {name: text for name in names if (text := tokenizer.special_text(name)) is not None}
        specials = sorted(tokenizer.special_texts, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, specials)) or r"(?!)")
        self._specials = specials

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """Prompt ids of a conversation. RequestError if the template refuses it."""
        texts = [message[key] for message in messages for key in _GUARDED_KEYS if key in message]
        if not any(self._is_dangerous(text) for text in texts):
            return self._tokenizer.encode_markup(self._render(messages, add_generation_prompt))
        guard = self._pick_guard(texts)
        guarded = [
            message | {key: self._break_specials(message[key], guard) for key in _GUARDED_KEYS if key in message}
            for message in messages
        ]
        return self._encode_guarded(self._render(guarded, add_generation_prompt), guard)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._variables
            )
        except SecurityError as error:
            raise RequestError("messages", "the chat template tried what its sandbox forbids") from error
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RequestError("messages", f"the chat template refuses the messages: {error}") from error

    def _is_dangerous(self, text: str) -> bool:
        """Whether the text holds a special token's text, or ends with the beginning of one."""
        return self._special.search(text) is not None or self._partial_length(text) > 0

    def _partial_length(self, text: str) -> int:
        lengths = (
            n for special in self._specials for n in range(len(special) - 1, 0, -1) if text.endswith(special[:n])
        )
        return max(lengths, default=0)

    def _break_specials(self, text: str, guard: str) -> str:
        """The guard stands behind the first character of every special text, whole or begun at the end."""
        broken = self._special.sub(lambda match: match[0][0] + guard + match[0][1:], text)
        partial = self._partial_length(broken)
        if not partial:
            return broken
        cut = len(broken) - partial + 1
        return broken[:cut] + guard + broken[cut:]

    def _pick_guard(self, texts: Sequence[str]) -> str:
        used = set(self._source).union(*texts)
        guard = next((char for code in _GUARDS if (char := chr(code)) not in used), None)
        if guard is None:
            raise RequestError(
                "messages", "text that looks like special tokens, beside every private-use character, is not supported"
            )
        return guard

    def _encode_guarded(self, text: str, guard: str) -> list[int]:
        ids: list[int] = []
        end = 0
        for match in self._special.finditer(text):
            ids += self._encode_plain(text[end : match.start()], guard)
            ids.append(self._tokenizer.special_texts[match[0]])
            end = match.end()
        return ids + self._encode_plain(text[end:], guard)

    def _encode_plain(self, text: str, guard: str) -> list[int]:
        plain = text.replace(guard, "")
        return self._tokenizer.encode_text(plain, with_prefix=False) if plain else []


def load_chat_template(tokenizer: Tokenizer, folder: Path, override: Path | None) -> ChatTemplate | None:
    """The template of a file, of chat_template.jinja, or of tokenizer_config.json; None if there is none."""
    path = override if override is not None else folder / "chat_template.jinja"
    if override is not None or path.exists():
        try:
            return ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"chat template {path} cannot be read: {error}") from error
    source = tokenizer.config.get("chat_template")
    if isinstance(source, list):  # several named templates; the one for plain chats is called default
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return ChatTemplate(source, tokenizer) if isinstance(source, str) else None


def _refuse(message: str) -> str:
    raise TemplateRefusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
