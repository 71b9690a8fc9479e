"""A file of default decoder settings, TOML, or JSON by its ending: `psd calibrate` writes it, `psd serve` reads it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from psd_core.config import DecoderConfig
from psd_core.errors import ConfigError

SETTINGS: Final = tuple(field.name for field in fields(DecoderConfig))


def read_decoder_file(path: Path) -> Mapping[str, str]:
    """The settings as texts, as a flag would give them. ConfigError names the file and what is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise _invalid(f"must be a readable file, got {str(path)!r} ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # neither TOML nor JSON nor UTF-8, or too deep
        raise _invalid(f"{path} cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise _invalid(f"{path} must hold settings by name")
    for name, value in content.items():
        if name not in SETTINGS:
            raise _invalid(f"{path}: {name} is not a decoder setting; they are {', '.join(SETTINGS)}")
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise _invalid(f"{path}: {name} must be a number or a text, got {value!r}")
    return {name: str(value) for name, value in content.items() if value is not None}


def write_decoder_file(path: Path, settings: Mapping[str, object], comments: Sequence[str]) -> None:
    """Write settings as TOML under some lines of comment. Numbers and texts only."""
    # A JSON string is a TOML string, too.
    lines = [f"# {comment}" for comment in comments]
    lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _invalid(message: str) -> ConfigError:
    return ConfigError("decoder_config", f"--decoder-config: {message}")
