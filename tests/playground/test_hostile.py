"""What strangers may hand to the page: links, saved runs, what a model writes, impatient fingers."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.playground.browser import NARROW, WIDE, Browser
from tests.playground.conftest import MARKUP
from tests.playground.links import ask, link
from tests.server.process import ServerProcess

HOSTILE_LINKS = (
    "__proto__.polluted=yes&constructor.prototype=x&prompt=Hello",
    "prompt.x=1&system.y=2&mode.z=3&prompt=Hello",
    "request=3&a=x&b=y&prompt=Hello&a.policy=%3Cimg%3E&request.max_tokens=1e9&compare=true",
    "mode=%22%5D,body&model=no-such-model&prompt=Hello&a.constructor=x&a.k=%00%ff",
)
QUICK = {"policy": "topk", "k": 8, "draft_depth": 0}
SHOWN = "return import('/playground/token.js').then(({show}) => arguments[0].map((text) => {\
  const cell = document.createElement('span'); show(cell, text); return cell.textContent; }))"


@pytest.mark.parametrize("hash_", HOSTILE_LINKS)
def test_no_link_breaks_the_page(browser: Browser, server: ServerProcess, hash_: str) -> None:
    browser.open(f"{server.url}/#{hash_}")
    assert browser.script("return ({}).polluted") is None
    assert browser.one("#prompt").get_property("value") == "Hello"
    assert browser.one("#model").get_property("value") == "tiny"
    assert ("no-such-model" in browser.text("#fault")) == ("no-such-model" in hash_)
    assert "no-such-model" not in browser.script("return location.hash")


def test_a_damaged_run_is_refused_in_words(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    canvases, figures = ask(server, QUICK)
    whole = {
        "format": "psd-run", "version": 1, "path": "/v1/completions", "body": {"prompt": "p"}, "label": "one",
        "around": {"prompt": "p", "suffix": "", "before": [{"text": "a", "size": 1}], "after": []}, "text": "text",
        "firstTextAt": 1, "endedAt": 2, "finishReason": "length", "usage": {"completion_tokens": 32},
        "figures": figures, "fault": None, "frames": [{"at": 1, "canvas": canvas} for canvas in canvases],
    }  # fmt: skip
    browser.open(server.url)
    load(browser, tmp_path, whole)
    browser.wait(lambda: bool(browser.find(".cell.policy")))
    assert browser.text(".answer") == "atext"
    assert browser.text("#fault") == ""
    for damaged in damages(whole):
        browser.script("document.querySelector('#fault').textContent = ''")
        load(browser, tmp_path, damaged)
        browser.wait(lambda: "damaged" in browser.text("#fault"))
    load(browser, tmp_path, [])
    browser.wait(lambda: "holds one run or two" in browser.text("#fault"))
    assert len(browser.find(".cell.policy")) == 32  # what was there stays


def load(browser: Browser, folder: Path, data: Any) -> None:
    """Hand a file to the page."""
    file = folder / "run.json"
    file.write_text(json.dumps(data))
    browser.one("#load").send_keys(str(file))


def damages(whole: dict[str, Any]) -> Iterator[Any]:
    """A saved run with one thing wrong in it, again and again."""
    for path, value in (
        (("frames", 0, "canvas"), {}),
        (("frames", 0, "canvas", "confidences", 0), "0.5"),
        (("frames", 0, "canvas", "confidences", 0), 1e9),
        (("frames", 0, "canvas", "tokens", 0), 7),
        (("frames", 0, "canvas", "rejected"), ["x"]),
        (("frames", 0, "canvas", "start"), 16),
        (("frames", 0, "canvas", "length"), 2**30),
        (("frames", -1, "canvas", "length"), 64),
        (("frames", 0, "at"), None),
        (("usage", "completion_tokens"), 10**15),
        (("finishReason",), {"toString": 1}),
        (("label",), {"toString": 1}),
        (("text",), None),
        (("endedAt",), "1"),
        (("figures",), {}),
        (("around", "before", 0), "a"),
        (("around", "after"), None),
        (("path",), "https://elsewhere.example/v1/completions"),
        (("body",), None),
    ):
        damaged = copy.deepcopy(whole)
        inner: Any = damaged
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        yield damaged
    nothing = copy.deepcopy(whole)
    lists = ("token_ids", "tokens", "candidates", "confidences", "depths", "rejected")
    nothing["frames"][0]["canvas"].update({name: [] for name in lists})
    yield nothing


def test_whatever_the_model_writes_is_shown_as_text(browser: Browser, markup_server: ServerProcess) -> None:
    browser.open(link(markup_server, QUICK, prompt="go"))
    browser.run()
    assert MARKUP in browser.text(".answer")
    cell = browser.text('[data-pos="0"]')
    assert MARKUP in cell
    assert ("‹001B›" in cell, "‹202E›" in cell, "‹200B›" in cell) == (True, True, True)
    assert not browser.find(".pane img")
    assert browser.driver.title == "PSD playground"
    browser.resize(NARROW)
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    browser.resize(WIDE)
    strange = ["\u200b", "\x1b[2J", "\n\t", "", "a\u200db", "<|endoftext|>"]
    assert browser.script(SHOWN, strange) == ["‹200B›", "‹001B›[2J", "↵⇥", "\u00a0", "a\u200db", "end"]


def test_impatient_fingers_send_one_request(browser: Browser, server: ServerProcess) -> None:
    browser.open(link(server, QUICK))
    sent = "return performance.getEntriesByType('resource').filter(({name}) => name.endsWith('/v1/completions')).length"
    browser.script("""const [run, form] = ['#run', '#composer'].map((selector) => document.querySelector(selector));
        for (let count = 0; count < 3; count++) { run.click(); form.requestSubmit(); }""")
    browser.finish()
    browser.wait(lambda: "32 tokens" in browser.text(".pane .state"))
    assert browser.script(sent) == 1
    browser.script("""getSelection().selectAllChildren(document.querySelector('.canvas'));
        const refill = document.querySelector('[data-pane=A] .actions button');
        refill.click(); refill.click();""")
    browser.finish()
    browser.wait(lambda: browser.script(sent) == 2)
