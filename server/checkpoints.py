"""Where a checkpoint lies: a local folder as it is, or a hub name downloaded into the hub's own cache."""

from __future__ import annotations

import re
from pathlib import Path

from psd_core.errors import CheckpointError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


def is_hub_name(source: str) -> bool:
    """Whether `source` reads as owner/name and is no local folder."""
    return not Path(source).exists() and _HUB_NAME.fullmatch(source) is not None


def check_source(source: str) -> None:
    """CheckpointError if `source` can be neither a local checkpoint nor a hub name. Touches no network."""
    path = Path(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} is not a checkpoint folder: it has no config.json")
    elif not is_hub_name(source):
        raise CheckpointError(f"{source!r} is neither a folder nor a hub name (owner/name)")


def resolve_source(source: str) -> Path:
    """The folder of `source`, downloaded first if it is a hub name. Blocks; no code of a checkpoint is run."""
    if not is_hub_name(source):
        return Path(source)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(f"{source} cannot be downloaded: {error}") from error
