"""Files that ship with the package."""

from __future__ import annotations

from pathlib import Path


def demo_path() -> Path:
    """Folder of the built-in model `psd-demo`: weights, tokenizer, model card."""
    return Path(__file__).parent / "demo"
