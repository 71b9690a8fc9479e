"""Which files answers come from, told apart without reading all of the weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

SAMPLE_BYTES: Final = 1 << 20  # from each end of a file
CONFIGURATION: Final = ("*.json", "*.jinja", "merges.txt", "tokenizer.model")


def identify(folder: Path, tokenizer_folder: Path, chat_template: str | None) -> str:
    """A digest of size, beginning and end of every file that the answers of a model depend on.

    chat_template   a file that is used instead of the folder's own template
    """
    paths = [path for pattern in (*CONFIGURATION, "*.safetensors") for path in sorted(folder.glob(pattern))]
    if tokenizer_folder != folder:
        paths += [path for pattern in CONFIGURATION for path in sorted(tokenizer_folder.glob(pattern))]
    paths += [] if chat_template is None else [Path(chat_template)]
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode(errors="replace"))
        with path.open("rb") as file:
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(max(0, size - SAMPLE_BYTES))
            digest.update(file.read())
    return digest.hexdigest()[:16]
