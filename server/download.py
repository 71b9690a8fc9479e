"""Downloads one repository of the hub, as a process of its own: a download cannot be interrupted from inside.

Started by `server.checkpoints`. The last line on stdout is the outcome; progress bars go to stderr. Standard input is
a pipe that is never written to: when it closes, the process ends, and a later one goes on where it stopped.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Final, NoReturn

import msgspec
from huggingface_hub import constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from psd_core.errors import CheckpointError
from psd_core.models.families import family_of
from psd_core.models.files import read_json
from server.checkpoints import Outcome

TEXT_FILES: Final = ("*.json", "*.jinja", "*.txt", "tokenizer.model")  # no code
WEIGHT_FILES: Final = ("*.safetensors",)  # nothing pickled
IGNORED: Final = ("*/*",)  # copies in other formats lie in folders


def main() -> None:
    """Download the repository named by the first argument, as what the second one says, and print the outcome."""
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    try:
        name, kind = sys.argv[1:]
        outcome = Outcome(folder=download_tokenizer(name) if kind == "tokenizer" else download(name))
    except CheckpointError as error:
        outcome = Outcome(error=str(error))
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")


def download(name: str) -> str:
    """The folder of the repository `name` in the hub's cache, complete. CheckpointError says what is in the way.

    Its architecture is looked at first: nobody should wait for weights that cannot be served.
    """
    try:
        config = read_json(Path(hf_hub_download(name, "config.json")))
        family_of(config, Path(name), (name, str(config.get("_name_or_path"))))
        return _snapshot(name, (*TEXT_FILES, *WEIGHT_FILES))
    except CheckpointError:
        raise
    except Exception as error:  # the hub's library lets through what its HTTP library raises, which changes
        raise CheckpointError(explain(name, error)) from error


def download_tokenizer(name: str) -> str:
    """As `download`, without weights, whatever the architecture."""
    try:
        return _snapshot(name, TEXT_FILES)
    except Exception as error:  # as above
        raise CheckpointError(explain(name, error)) from error


def explain(name: str, error: Exception) -> str:
    """What a failed download means for whoever started the server."""
    detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    match error:
        case GatedRepoError():
            return (
                f"{name} is gated: accept its terms on its page at {constants.ENDPOINT}/{name}, then set HF_TOKEN to a "
                f"token of that account ({_status(error)})"
            )
        case RepositoryNotFoundError():
            return (
                f"{name} is neither a folder here nor a public model on {constants.ENDPOINT}; check the spelling, or "
                f"set HF_TOKEN if it is private ({_status(error)})"
            )
        case LocalEntryNotFoundError() if constants.HF_HUB_OFFLINE:
            return f"{name} is not complete in the local cache, and HF_HUB_OFFLINE forbids downloading it"
        case LocalEntryNotFoundError():
            return f"{name} is not complete in the local cache, and {constants.ENDPOINT} cannot be reached: {detail}"
        case EntryNotFoundError():
            return f"{name} is not a checkpoint: it has no config.json"
        case HfHubHTTPError():
            return f"{name} cannot be downloaded: {constants.ENDPOINT} answered {_status(error)}: {detail}"
        case _:
            return f"{name} cannot be downloaded: {detail}; files that have arrived are kept for the next start"


def _snapshot(name: str, patterns: tuple[str, ...]) -> str:
    return str(snapshot_download(name, allow_patterns=list(patterns), ignore_patterns=list(IGNORED)))


def _status(error: HfHubHTTPError) -> str:
    return f"HTTP {error.response.status_code}"


def _end_with_parent() -> NoReturn:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)
