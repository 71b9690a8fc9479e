"""The version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final


def _read_version() -> str:
    try:
        return version("psd-server")
    except PackageNotFoundError:  # run from a folder that is not installed
        return "0+unknown"


VERSION: Final = _read_version()
