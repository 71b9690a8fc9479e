"""API keys: what is kept of them are names and SHA-256 digests, never the keys themselves.

Keys are drawn at random by machines, so a plain digest is enough; it would not be for passwords.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from psd_core.errors import ConfigError

_LINE: Final = re.compile(r"sha256:([0-9a-fA-F]{64})(?:\s+(\S{1,64}))?")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. `name` stands for it in logs and limits."""

    name: str
    digest: bytes = field(repr=False)  # SHA-256


def digest_of(key: bytes) -> bytes:
    """What is compared instead of the key."""
    return hashlib.sha256(key).digest()


def named_keys(texts: Sequence[str]) -> tuple[ApiKey, ...]:
    """Keys given in plain, named by their order."""
    return tuple(ApiKey(f"key-{index}", digest_of(text.encode())) for index, text in enumerate(texts, start=1))


def read_key_file(path: str) -> tuple[ApiKey, ...]:
    """Keys of a file with one `sha256:<hex digest> [name]` per line; empty lines and # comments are skipped.

    ConfigError names file and line, but never shows a line: it may hold a key in plain.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ConfigError("api_key_file", f"--api-key-file must be a readable text file, got {path!r}") from None
    keys = []
    for number, line in enumerate(lines, start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _LINE.fullmatch(entry)
        if match is None:
            wanted = "sha256:, the key's 64 hex digits and perhaps a name"
            raise ConfigError("api_key_file", f"--api-key-file {path}, line {number} must be {wanted}")
        keys.append(ApiKey(match[2] or f"line-{number}", bytes.fromhex(match[1])))
    if not keys:
        raise ConfigError("api_key_file", f"--api-key-file must hold at least one key, {path!r} holds none")
    return tuple(keys)


def find_key(keys: Sequence[ApiKey], authorization: str) -> ApiKey | None:
    """The key that an Authorization header carries, or None. Takes as long for any wrong key as for a right one."""
    scheme, _, text = authorization.partition(" ")
    given = digest_of(text.strip().encode("utf-8", "surrogateescape"))
    matches = [key for key in keys if hmac.compare_digest(given, key.digest)]  # all are compared
    return matches[0] if matches and scheme.lower() == "bearer" else None
