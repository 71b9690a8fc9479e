"""What was given for a flag, on the command line or in its variable: texts, and the values they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from psd_core.errors import ConfigError
from server.decoder_file import read_decoder_file
from server.flags import FLAGS, Flag


def value_of(flag: Flag, given: list[str] | None, variables: Mapping[str, str]) -> object:
    """The flag's value: a tuple if it repeats, its default if nothing was said. ConfigError names what is wrong."""
    texts, origin = texts_of(flag, given, variables)
    if not texts:
        return flag.default
    parsed = tuple(parse_text(flag, text, origin) for text in texts)
    return parsed if flag.repeats else parsed[-1]


def decoder_values(
    path: Path, given: Mapping[str, list[str] | None], variables: Mapping[str, str]
) -> Mapping[str, object]:
    """What a file says of the default decoder, where neither the command line nor a variable says otherwise."""
    texts = read_decoder_file(path)
    return {
        flag.name: parse_text(flag, texts[flag.name], f"{path}: {flag.name}")
        for flag in FLAGS
        if flag.name in texts and not texts_of(flag, given.get(flag.name), variables)[0]
    }


def texts_of(flag: Flag, given: list[str] | None, variables: Mapping[str, str]) -> tuple[list[str], str]:
    """(what was said of a flag, where): nothing if neither the command line nor a variable says anything."""
    texts, origin = given or [], flag.option
    text = variables.get(flag.variable)
    if not texts and text is not None and (text or flag.name == "api_key") and not _is_service_link(flag, text):
        # An empty variable means absent, but never for the key: a lost secret must not open the server.
        texts = text.split(",") if flag.repeats else [text]
        origin = f"{flag.option} (from {flag.variable})"
    return texts, origin


def _is_service_link(flag: Flag, text: str) -> bool:
    """Kubernetes sets PSD_PORT=tcp://… in every pod beside a service called psd: not meant for us."""
    return flag.name == "port" and "://" in text


def parse_text(flag: Flag, text: str, origin: str) -> object:
    """One text as the flag's value; ConfigError says where it was given."""
    try:
        return flag.parse(text)
    except ValueError as error:
        shown = "a value that is not shown" if flag.name == "api_key" else repr(text)
        raise ConfigError(flag.name, f"{origin} {error}, got {shown}") from None
