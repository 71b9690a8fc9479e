"""Chat messages to prompt ids, through the tokenizer's own template in a sandbox.

What a user writes must not act as markup: a message that says "<|eot|>" must not end its own turn. So before
rendering, every special token's text inside what the client wrote is broken with a guard character that occurs
nowhere else; after rendering, special tokens are looked for while the guard is still there, and the text between them
is encoded as plain text without it. A conversation without such text takes the direct way and is encoded exactly as
the checkpoint's authors do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from jinja2 import TemplateError, meta
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from psd_core.errors import CheckpointError, RequestError
from server.tokenizer import Tokenizer

Json = Mapping[str, object]

# Private-use characters
_GUARDS: Final = (*range(0xE000, 0xF8FF), *range(0xF0000, 0xFFFFE), *range(0x100000, 0x10FFFE))
_RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TemplateRefusal(TemplateError):
    """A template called raise_exception."""


@dataclass(frozen=True, slots=True)
class _Input:
    """All that the client wrote and the template reads."""

    messages: Sequence[Json]
    tools: Sequence[Json] = ()
    variables: Json = field(default_factory=dict)


class ChatTemplate:
    """A compiled template beside the tokenizer it belongs to. Immutable after construction."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """CheckpointError if the template does not compile."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise CheckpointError(f"the chat template cannot be compiled: {error}") from error
        self.source = source
        self.knows_tools = "tools" in names
        self._tokenizer = tokenizer
        tokens = ("bos_token", "eos_token", "pad_token", "unk_token")
        self._variables = {name: text for name in tokens if (text := tokenizer.special_text(name)) is not None}
        self.variables = frozenset(names) - _RESERVED - self._variables.keys() - environment.globals.keys()
        specials = sorted(tokenizer.special_texts, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, specials)) or r"(?!)")
        beginnings = {special[:n] for special in specials for n in range(1, len(special))}
        self._beginnings = tuple(sorted(beginnings, key=len, reverse=True))

    def encode(
        self,
        messages: Sequence[Json],
        *,
        tools: Sequence[Json] = (),
        variables: Json | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> list[int]:
        """Prompt ids of a conversation. RequestError if the template refuses it.

        variables: further names that the template reads, like enable_thinking.
        continue_final: the prompt ends where the content of the last message ends; no generation prompt is added.
        """
        given = _Input(messages, tools, variables or {})
        texts = [text for part in (messages, tools, given.variables) for text in _texts(part)]
        mark = ""
        if continue_final:
            mark = self._pick_guard(texts)
            last = messages[-1]
            given = _Input([*messages[:-1], {**last, "content": str(last["content"]) + mark}], tools, given.variables)
        is_dangerous = any(self._is_dangerous(text) for text in texts)
        guard = self._pick_guard([*texts, mark]) if is_dangerous else ""
        if is_dangerous:
            given = self._guard_all(given, guard, mark)
        rendered = self._render(given, add_generation_prompt and not continue_final)
        if continue_final:
            rendered = _cut(rendered, mark)
        ids = self._encode_guarded(rendered, guard) if is_dangerous else self._tokenizer.encode_markup(rendered)
        prefix = self._tokenizer.chat_prefix_ids
        return ids if ids[: len(prefix)] == [*prefix] else [*prefix, *ids]

    def _render(self, given: _Input, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                **self._variables,
                **given.variables,
                messages=list(given.messages),
                tools=list(given.tools) or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except SecurityError as error:
            raise RequestError("messages", "the chat template tried what its sandbox forbids") from error
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise RequestError("messages", f"the chat template refuses the messages: {error}") from error

    def _is_dangerous(self, text: str) -> bool:
        """Whether the text holds a special token's text, or ends with the beginning of one."""
        return self._special.search(text) is not None or self._partial_length(text) > 0

    def _partial_length(self, text: str) -> int:
        if not text.endswith(self._beginnings):
            return 0
        return next(len(beginning) for beginning in self._beginnings if text.endswith(beginning))

    def _guard_all(self, given: _Input, guard: str, mark: str) -> _Input:
        """Every text of the client with its special texts broken; roles, which are a few known words, stay."""

        def walk(value: object) -> object:
            if isinstance(value, str):
                text = value.removesuffix(mark) if mark else value
                return self._break_specials(text, guard) + value[len(text) :]
            if isinstance(value, Mapping):
                return {break_key(key): walk(entry) for key, entry in value.items()}
            if isinstance(value, list | tuple):
                return [walk(entry) for entry in value]
            return value

        def break_key(key: str) -> str:  # templates ask for keys by name: only those that hold a special text change
            return self._break_specials(key, guard) if self._special.search(key) else key

        def guarded(entry: Json) -> Json:
            return {break_key(key): value if key == "role" else walk(value) for key, value in entry.items()}

        return _Input(
            messages=[guarded(message) for message in given.messages],
            tools=[{break_key(key): walk(value) for key, value in tool.items()} for tool in given.tools],
            variables={name: walk(value) for name, value in given.variables.items()},
        )

    def _break_specials(self, text: str, guard: str) -> str:
        """The guard stands behind the first character of every special text, whole or begun at the end."""
        broken = self._special.sub(lambda match: match[0][0] + guard + match[0][1:], text)
        partial = self._partial_length(broken)
        if not partial:
            return broken
        cut = len(broken) - partial + 1
        return broken[:cut] + guard + broken[cut:]

    def _pick_guard(self, texts: Sequence[str]) -> str:
        used = set(self.source).union(*texts)
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


def _texts(value: object) -> Iterator[str]:
    """Every text in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield str(key)
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def _cut(rendered: str, mark: str) -> str:
    """What stands before the mark behind the last message's content."""
    if rendered.count(mark) != 1:
        raise RequestError(
            "continue_final_message", "the chat template does not show the final message once and as it is"
        )
    return rendered.partition(mark)[0]


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter sorts keys and escapes for HTML; models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    raise TemplateRefusal(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
