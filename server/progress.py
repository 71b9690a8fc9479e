"""A bar for what takes long, on a terminal only: logs in files stay free of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


@contextmanager
def loading_bar(stream: TextIO, *, is_shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on `stream`, moved by calls with the bytes read so far and the bytes in all; gone at the end."""
    with tqdm(
        desc="loading weights",
        unit="B",
        unit_scale=True,
        leave=False,
        file=stream,
        disable=not (is_shown and stream.isatty()),
    ) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield advance
