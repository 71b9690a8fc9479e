"""Reading the JSON files of a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from psd_core.errors import CheckpointError


def read_json(path: Path) -> Mapping[str, object]:
    """The object in `path`; CheckpointError if there is no such file or it holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return content


def read_optional_json(path: Path) -> Mapping[str, object]:
    """The object in `path`, empty if there is no such file; CheckpointError as above."""
    return read_json(path) if path.exists() else {}
