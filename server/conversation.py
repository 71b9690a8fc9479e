"""The part of a request body that becomes a prompt through the chat template: messages, tools, and how it ends.

Shapes and types here; whether the model's template knows what is asked for is decided when it renders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from server.body import JsonObject
from server.errors import invalid, unsupported
from server.fields import Bool, Fields, Text

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
TOOL_ROLES: Final = ("tool", "function")  # need a template that knows tools
_PART_KEYS: Final[Mapping[str, str]] = {"text": "text", "refusal": "refusal"}  # type of a part → where its text is


def _content(value: object) -> str:
    """Text of a message: a string, or text parts joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("must be a string or a list of text parts")
    texts: list[str] = []
    for part in value:
        key = _PART_KEYS.get(str(part.get("type"))) if isinstance(part, dict) else None
        if key is None:
            raise ValueError("holds a part that is not of type text; only text is supported")
        if not isinstance(part.get(key), str):
            raise ValueError(f"holds a {key} part without a string in its {key} field")
        texts.append(part[key])
    return "".join(texts)


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    return value


def _tool_choice(value: object) -> str | JsonObject:
    if not isinstance(value, str | dict):
        raise ValueError("must be 'auto' or 'none'")
    return value


_PARTS: Final[JsonObject] = {"type": "array", "items": {"type": "object"}}
Content = Annotated[str, PlainValidator(_content), WithJsonSchema({"anyOf": [{"type": "string"}, _PARTS]})]
Object = Annotated[JsonObject, PlainValidator(_object), WithJsonSchema({"type": "object"})]
ToolChoice = Annotated[
    str | JsonObject, PlainValidator(_tool_choice), WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})
]
FunctionName = Annotated[str, Field(strict=True, min_length=1, max_length=256)]


class CalledFunction(Fields):
    """What an earlier assistant message called. `arguments` is JSON text, as the API hands it out."""

    name: FunctionName
    arguments: Text = ""


class PastCall(Fields):
    """A call in an earlier assistant message."""

    id: Text | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Fields):
    """One message of a conversation."""

    role: Text
    content: Content | None = None
    name: Text | None = None
    tool_calls: tuple[PastCall, ...] | None = None
    function_call: CalledFunction | None = None  # the form before tool_calls
    tool_call_id: Text | None = None

    @property
    def calls(self) -> tuple[PastCall, ...]:
        """Its calls, in either form."""
        if self.function_call is not None:
            return (PastCall(function=self.function_call), *(self.tool_calls or ()))
        return self.tool_calls or ()


class FunctionFields(Fields):
    """A function that the model may call. `parameters` is a JSON schema, shown to the model as it is."""

    name: FunctionName
    description: Text | None = None
    parameters: Object | None = None
    strict: Bool = False


class ToolFields(Fields):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: FunctionFields

    @property
    def shown(self) -> JsonObject:
        """As the template sees it."""
        function = self.function.model_dump(exclude_none=True, exclude={"strict"})
        return {"type": "function", "function": function}


class ConversationFields(Fields):
    """What the chat template turns into a prompt."""

    tools: tuple[ToolFields, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: Bool = True
    add_generation_prompt: Bool | None = None  # absent: true, unless the final message is continued
    continue_final_message: Bool = False
    chat_template_kwargs: Object = Field(default_factory=dict)

    @property
    def offered_tools(self) -> tuple[ToolFields, ...]:
        """The tools that the model is shown: none of them if it may not call any."""
        return self.tools if self.tool_choice == "auto" else ()


def check_conversation(body: ConversationFields, messages: Sequence[ChatMessage]) -> None:
    """ApiError 400 for what no template could serve."""
    for index, message in enumerate(messages):
        _check_message(f"messages.{index}", message)
    if body.tool_choice not in ("auto", "none"):
        raise unsupported("tool_choice", "tool_choice may be 'auto' or 'none': this server cannot force a call")
    if body.tools and not body.parallel_tool_calls:
        raise unsupported("parallel_tool_calls", "parallel_tool_calls: false is not supported: calls are not limited")
    for index, tool in enumerate(body.tools):
        if tool.function.strict:
            raise unsupported(
                f"tools.{index}.function.strict", "strict: true is not supported: arguments are not constrained"
            )
    if body.continue_final_message:
        _check_continued(body, messages)


def template_messages(messages: Sequence[ChatMessage]) -> list[JsonObject]:
    """Messages as templates know them: no parts, no nulls, arguments as objects."""
    return [_entry(message) for message in messages]


def _entry(message: ChatMessage) -> JsonObject:
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    entry: JsonObject = {"role": role, "content": message.content or ""}
    if message.name is not None:
        entry["name"] = message.name
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    if message.calls:
        entry["tool_calls"] = [_past_call(call) for call in message.calls]
    return entry


def _past_call(call: PastCall) -> JsonObject:
    function: JsonObject = {"name": call.function.name, "arguments": json.loads(call.function.arguments or "{}")}
    entry: JsonObject = {"type": "function", "function": function}
    return entry if call.id is None else entry | {"id": call.id}


def _check_message(where: str, message: ChatMessage) -> None:
    if message.role not in ROLES:
        raise invalid(f"{where}.role", f"role must be one of {', '.join(ROLES)}, got {message.role[:40]!r}")
    if message.content is None and message.role != "assistant":
        raise invalid(f"{where}.content", f"a {message.role} message needs content")
    if message.calls and message.role != "assistant":
        raise invalid(f"{where}.tool_calls", f"only an assistant message may hold calls, got role {message.role}")
    for index, call in enumerate(message.calls):
        try:
            is_object = isinstance(json.loads(call.function.arguments or "{}"), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise invalid(
                f"{where}.tool_calls.{index}.function.arguments",
                f"arguments must be a JSON object as text, got {call.function.arguments[:40]!r}",
            )


def _check_continued(body: ConversationFields, messages: Sequence[ChatMessage]) -> None:
    if body.add_generation_prompt:
        raise invalid("continue_final_message", "continue_final_message and add_generation_prompt exclude each other")
    if not messages or messages[-1].role != "assistant" or messages[-1].calls:
        raise invalid(
            "continue_final_message", "continue_final_message needs a final assistant message without tool calls"
        )
