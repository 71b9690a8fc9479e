"""The built-in page: static files that ship with the package, served as they are. They use the public API only."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

PREFIX: Final = "/playground/"
INDEX: Final = "index.html"

MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page. `etag` changes with its content."""

    name: str
    media_type: str
    content: bytes
    etag: str

    @property
    def path(self) -> str:
        """Where it is served: the page itself at the root, everything else under PREFIX."""
        return "/" if self.name == INDEX else PREFIX + self.name


def read_assets() -> tuple[Asset, ...]:
    """Every file of the page, by name."""
    assets = []
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        media_type = MEDIA_TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            assets.append(Asset(file.name, media_type, content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'))
    return tuple(assets)
