"""Request bodies of the two generation endpoints. Shapes and types only: limits of a model are `admission`'s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema

from psd_core.config import INCREMENT_NAMES
from psd_core.request import MAX_TOP_LOGPROBS, MIN_REPETITION_PENALTY, SEED_HIGH, SEED_LOW
from server.body import JsonObject, in_json, json_kind
from server.conversation import ChatMessage, ConversationFields, check_conversation
from server.errors import ApiError, invalid
from server.fields import Bool, Fields, Int, Number, Text
from server.tuning import MAX_N
from server.unsupported import CHAT_NEUTRAL, COMPLETION_NEUTRAL, refuse_unsupported

Prompt = str | list[int]
MAX_NAME_CHARS: Final = 100
MAX_ID_DIGITS: Final = 10
MAX_SALT_CHARS: Final = 1024


def _prompts(value: object) -> list[Prompt]:
    """One prompt or several, each a text or token ids, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
    if not value:
        raise ValueError("must not be an empty list")
    if all(isinstance(entry, str) for entry in value):
        return value
    if all(type(entry) is int for entry in value):
        return [value]
    if all(isinstance(entry, list) and entry and all(type(t) is int for t in entry) for entry in value):
        return value
    raise ValueError("must hold only strings, only token ids (integers) or only non-empty lists of token ids")


def _stops(value: object) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError("must be a string or a list of strings")
    if "" in entries:
        raise ValueError("must not hold an empty string")
    return tuple(entries)


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    """{"token id": bias} as pairs, ascending by id."""
    if not isinstance(value, dict):
        raise ValueError("must be an object from token ids to numbers")
    pairs: list[tuple[int, float]] = []
    for key, bias in value.items():
        if not isinstance(key, str) or not key.isascii() or not key.isdigit() or len(key) > MAX_ID_DIGITS:
            raise ValueError(f"has a key that is not a token id: {str(key)[:40]!r}")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise ValueError(f"must map to numbers between -100 and 100, got {in_json(bias)} for token {key}")
        pairs.append((int(key), float(bias)))
    if len({token_id for token_id, _ in pairs}) < len(pairs):
        raise ValueError("names a token twice")
    return tuple(sorted(pairs))


def _schema(*kinds: JsonObject) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(kinds)})


_STRING: Final[JsonObject] = {"type": "string"}
_STRINGS: Final[JsonObject] = {"type": "array", "items": _STRING}
_IDS: Final[JsonObject] = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_ID_LISTS: Final[JsonObject] = {"type": "array", "items": _IDS, "minItems": 1}

Prompts = Annotated[list[Prompt], PlainValidator(_prompts), _schema(_STRING, _STRINGS, _IDS, _ID_LISTS)]
Stops = Annotated[tuple[str, ...], PlainValidator(_stops), _schema(_STRING, _STRINGS)]
Bias = Annotated[
    tuple[tuple[int, float], ...],
    PlainValidator(_bias),
    _schema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]


class PsdFields(Fields):
    """Decoder settings of one request; what is absent is the server's default. Ranges: psd_core.config."""

    model_config = ConfigDict(extra="forbid")

    policy: Text | None = None
    k: Int | None = None
    threshold: Number | None = None
    factor: Number | None = None
    gamma: Number | None = None
    relaxed_threshold: Number | None = None
    window: Int | None = None
    branches: Int | None = None
    block_length: Int | None = None
    draft_depth: Annotated[int | str | None, BeforeValidator(lambda value: _whole_or(value, ("auto",)))] = None
    draft_increment: Annotated[int | str | None, BeforeValidator(lambda value: _whole_or(value, INCREMENT_NAMES))] = (
        None
    )
    acceptance: Text | None = None
    cache: Text | None = None
    canvas_blocks: Int | None = None
    edit_threshold: Number | None = None
    max_edit_passes: Int | None = None


def _whole_or(value: object, words: tuple[str, ...]) -> object:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if value not in words and type(number) is not int:
        inside = f", got {json_kind(value)}" if isinstance(value, list | dict) else ""
        raise ValueError(f"must be an integer or {' or '.join(map(repr, words))}{inside}")
    return number


class StreamOptions(Fields):
    """What a stream carries beside text."""

    include_usage: Bool = False
    continuous_usage_stats: Bool = False
    granularity: Literal["block", "frontier"] = "block"
    include_obfuscation: Literal[False] = False


class GenerationFields(Fields):
    """Fields that both endpoints share."""

    model: Text
    max_tokens: Int | None = Field(None, ge=1, le=2**31)
    n: Int = Field(1, ge=1, le=MAX_N)
    stop: Stops = ()
    seed: Int | None = Field(None, ge=SEED_LOW, le=SEED_HIGH)
    temperature: Number = Field(0.0, ge=0.0, le=2.0)
    top_p: Number = Field(1.0, gt=0.0, le=1.0)
    top_k: Int = Field(0, ge=-1, le=2**31)
    min_p: Number = Field(0.0, ge=0.0, le=1.0)
    presence_penalty: Number = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: Number = Field(0.0, ge=-2.0, le=2.0)
    repetition_penalty: Number = Field(1.0, ge=MIN_REPETITION_PENALTY, le=2.0)
    logit_bias: Bias = ()
    min_tokens: Int = Field(0, ge=0, le=2**31)
    stop_token_ids: Annotated[tuple[Int, ...], BeforeValidator(lambda value: _id_tuple(value))] = ()
    ignore_eos: Bool = False
    skip_special_tokens: Bool = True
    include_stop_str_in_output: Bool = False
    stream: Bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: Bool = False
    diffusing: Bool = False
    cache_salt: Text = Field("", max_length=MAX_SALT_CHARS)
    user: Text | None = None
    psd: PsdFields | None = None


def _id_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class CompletionRequest(GenerationFields):
    """POST /v1/completions."""

    prompt: Prompts
    suffix: Text = ""
    max_tokens: Int | None = Field(None, ge=0, le=2**31)
    best_of: Int | None = Field(None, ge=1, le=MAX_N)
    echo: Bool = False
    logprobs: Int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)


class ChatRequest(GenerationFields, ConversationFields):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Int | None = Field(None, ge=1, le=2**31)
    logprobs: Bool = False
    top_logprobs: Int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)


Body = TypeVar("Body", bound=Fields)


def parse_completion(body: JsonObject) -> CompletionRequest:
    """ApiError 400 for anything that is wrong or not supported, naming the field."""
    _refuse_misplaced(body)
    refuse_unsupported(body, COMPLETION_NEUTRAL)
    request = parse(CompletionRequest, body)
    _check_common(request)
    for index, prompt in enumerate(request.prompt):
        if not prompt:
            raise invalid("prompt", f"prompt {index} is empty")
    if request.best_of is not None:
        if request.best_of < request.n:
            raise invalid("best_of", f"best_of must be at least n ({request.n}), got {request.best_of}")
        if request.stream and request.best_of > request.n:
            raise invalid("best_of", f"best_of ({request.best_of}) above n ({request.n}) cannot be streamed")
    return request


def parse_chat(body: JsonObject) -> ChatRequest:
    """ApiError 400 for anything that is wrong or not supported, naming the field."""
    _refuse_misplaced(body)
    refuse_unsupported(body, CHAT_NEUTRAL)
    request = parse(ChatRequest, body)
    _check_common(request)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "top_logprobs needs logprobs: true")
    check_conversation(request, request.messages)
    return request


def parse(model: type[Body], body: JsonObject) -> Body:
    """Validate, turning the first fault into an ApiError that names the field and never echoes long input."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _first_fault(error) from None


# What pydantic calls by Python's names.
_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "should be an object"),
    **dict.fromkeys(("list_type", "tuple_type"), "should be an array"),
}


def _first_fault(error: ValidationError) -> ApiError:
    fault = error.errors(include_url=False, include_context=False)[0]
    if fault["type"] == "extra_forbidden":  # the client chose the name: shown as it is, but not at any length
        name = ".".join(map(str, fault["loc"]))[:MAX_NAME_CHARS]
        return invalid(name, f"{name} is not a known setting", "unknown_field")
    param = ".".join(str(part) for part in fault["loc"] if not _is_union_tag(part))
    if fault["type"] == "missing":
        return invalid(param, f"{param} is required", "missing_field")
    given = fault["input"]
    if isinstance(given, bool | int | float | str):
        shown = f", got {given!r}"[:80]
    else:  # our own validators, and lengths, say themselves what is wrong inside
        shown = "" if fault["type"] in ("value_error", "too_short", "too_long") else f", got {json_kind(given)}"
    said = _KINDS.get(fault["type"], fault["msg"])
    message = said.removeprefix("Value error, ").replace("Input should", "should")
    return invalid(param, f"{param}: {message}{shown}")


def _refuse_misplaced(body: JsonObject) -> None:
    """Unknown fields are tolerated, but a decoder setting beside `psd` instead of inside it is surely a mistake."""
    for name in PsdFields.model_fields:
        if body.get(name) is not None:
            raise invalid(name, f'{name} is a decoder setting: send it as "psd": {{"{name}": …}}', "unknown_field")


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and not part.isidentifier()


def _check_common(request: GenerationFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "stream_options needs stream: true")
    if request.diffusing and not request.stream:
        raise invalid("diffusing", "diffusing needs stream: true")
