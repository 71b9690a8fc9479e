"""Fixtures of the playground's tests: a browser, and servers with what the page must bear."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel

from tests.playground.browser import MISSING, Browser, is_installed
from tests.server.checkpoint import VOCAB_SIZE, write_checkpoint
from tests.server.process import ServerProcess

KEY = "open-sesame"
MARKUP = "<img src=x onerror=\"document.title='broken'\"><b>"
NASTY = (
    f"{MARKUP}\x1b[31m\u202e\u200b{'long' * 60}"  # a terminal's command, a turn of the writing, nothing seen, no end
)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser that all tests share."""
    if not is_installed():
        pytest.skip(MISSING)
    with Browser(tmp_path_factory.mktemp("downloads")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, whose console must stay clean: no script error, no violation of the content policy."""
    chromium.complaints()
    yield chromium
    assert chromium.complaints() == []


@pytest.fixture
def keyed(model_path: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own that asks for a key; its model has two names."""
    with ServerProcess(model_path, tmp_path, ["--api-key", KEY, "--served-model-name", "other"]) as process:
        yield process


@pytest.fixture(scope="session")
def markup_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose model writes nothing but what a page, a terminal or a layout might obey."""
    folder = tmp_path_factory.mktemp("markup")
    write_checkpoint(folder)
    vocabulary = {f"{NASTY}{index}": index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=f"{NASTY}0"))
    tokenizer.add_special_tokens([AddedToken("<|mask|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({}))
    with ServerProcess(folder, tmp_path_factory.mktemp("markup-server")) as process:
        yield process
