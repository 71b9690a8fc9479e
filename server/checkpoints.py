"""Where a checkpoint lies: a local folder as it is, or a hub name downloaded into the hub's own cache."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Final

import msgspec

from psd_core.errors import CheckpointError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_BOOT: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from server.download import main; main()"


class Outcome(msgspec.Struct, frozen=True):
    """What `server.download` ends with: where the files lie, or why they do not."""

    folder: str = ""
    error: str = ""


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


def cached_source(source: str) -> Path:
    """The folder of `source`: itself, or the copy of a hub name in the local cache. Touches no network.

    CheckpointError if there is neither.
    """
    if Path(source).is_dir():
        return Path(source)
    if not is_hub_name(source):
        raise CheckpointError(f"{source!r} is neither a folder nor a hub name (owner/name)")
    from huggingface_hub import snapshot_download  # only for who names a hub model
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source, local_files_only=True, allow_patterns=["config.json"]))
    except LocalEntryNotFoundError:
        raise CheckpointError(f"{source} is neither a folder nor a model in the local cache of the hub") from None


async def resolve_source(source: str, *, is_tokenizer: bool = False) -> Path:
    """The folder of `source`, downloaded first if it is a hub name; of a tokenizer, without weights.

    The download is a process of its own, which ends when this is cancelled; the next one goes on where it stopped.
    CheckpointError says why there is no folder. A folder never touches the network; no code of a checkpoint is run.
    """
    if not is_hub_name(source):
        return Path(source)
    root = str(Path(__file__).resolve().parents[1])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", _BOOT, root, source, "tokenizer" if is_tokenizer else "checkpoint"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the terminal is for the API process
    )
    assert process.stdout is not None
    try:
        lines = (await process.stdout.read()).splitlines()
        status = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        outcome = msgspec.json.decode(lines[-1] if lines else b"", type=Outcome)
    except msgspec.DecodeError:
        raise CheckpointError(f"the download of {source} ended with status {status} and without a word") from None
    if outcome.error:
        raise CheckpointError(outcome.error)
    return Path(outcome.folder)
