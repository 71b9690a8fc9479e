"""Flags of `psd generate` and `psd chat`: the server's own for model and decoder, and those of a request."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final

from psd_core.config import DecoderConfig
from server.flags import FLAGS, Flag, Parser, number, whole
from server.settings import Settings, add_flags

DECODER_NAMES: Final = tuple(field.name for field in fields(DecoderConfig))
WEIGHT_FLAGS: Final = ("dtype", "quantization", "device")
SERVER_FLAGS: Final[tuple[Flag, ...]] = tuple(
    flag
    for flag in FLAGS
    if flag.name in {"model", "tokenizer", "chat_template", *WEIGHT_FLAGS, "max_model_len", "api_key", *DECODER_NAMES}
)


def add_terminal_flags(parser: argparse.ArgumentParser) -> None:
    """Everything but the prompt."""
    parser.add_argument("--url", help="server to ask, like http://localhost:8000; absent: load the model here")
    parser.add_argument("--watch", action="store_true", help="draw the canvas while it is decided")
    parser.add_argument("--system", help="system message of a chat")
    parser.add_argument("--max-tokens", type=checked(whole(1, 2**31)), help="longest answer, in tokens")
    parser.add_argument("--min-tokens", type=checked(whole(0, 2**31)), help="no end of text before so many tokens")
    parser.add_argument("--temperature", type=checked(number(0, 2)), help="0 takes the best token (default: 0)")
    parser.add_argument("--top-p", type=checked(number(0, 1)), help="sample from the likeliest share only")
    parser.add_argument("--seed", type=checked(whole(-(2**63), 2**63 - 1)), help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", help="text that ends the answer; may be repeated")
    parser.add_argument("--ignore-eos", action="store_true", help="go on behind the end of the text")
    add_flags(parser, SERVER_FLAGS)


def request_fields(given: argparse.Namespace, settings: Settings) -> dict[str, object]:
    """Fields of a body for whatever was given; decoder settings as `settings` has parsed them."""
    names = ("max_tokens", "min_tokens", "temperature", "top_p", "seed", "stop")
    result = {name: value for name in names if (value := getattr(given, name)) is not None}
    if given.ignore_eos:
        result["ignore_eos"] = True
    decoder = {
        name: getattr(settings.requests.decoder, name) for name in DECODER_NAMES if getattr(given, name) is not None
    }
    return result | ({"psd": decoder} if decoder else {})


def server_texts(given: argparse.Namespace) -> Mapping[str, list[str] | None]:
    """The texts of the server's own flags, for `settings.resolve`."""
    return {flag.name: getattr(given, flag.name) for flag in SERVER_FLAGS}


def checked(parse: Parser) -> Callable[[str], object]:
    """The parser with its limits in argparse's message."""

    def parsed(text: str) -> object:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}, got {text!r}") from None

    return parsed
