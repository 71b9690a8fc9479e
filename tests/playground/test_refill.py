"""Infilling on the page: a part of the answer becomes masks again, and everything around it stays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from selenium.webdriver.common.keys import Keys

from tests.playground.browser import Browser
from tests.playground.links import MIXED, PROMPT, ask, link
from tests.server.process import ServerProcess

REFILL = "[data-pane=A] .actions button:first-child"
OWN = "#panes .cell[data-pos]"
KEPT = "#panes .cell.kept"
SELECT_CELLS = """
const [first, last] = arguments.length === 2 ? arguments : [arguments[0], arguments[0]];
const cells = [...document.querySelectorAll('#panes .cell')];
getSelection().setBaseAndExtent(cells[first], 0, cells[last], cells[last].childNodes.length);"""
SELECT_TEXT = """
const host = document.querySelector('.answer');
const walker = document.createTreeWalker(host, NodeFilter.SHOW_TEXT);
let [start, stop] = arguments;
const range = document.createRange();
for (let node = walker.nextNode(), at = 0; node; at += node.length, node = walker.nextNode()) {
  if (start >= at && start <= at + node.length) range.setStart(node, start - at);
  if (stop >= at && stop <= at + node.length) range.setEnd(node, stop - at);
}
getSelection().removeAllRanges();
getSelection().addRange(range);"""
PARTS = """const texts = [...document.querySelector('.answer').childNodes].map((node) => node.textContent);
  const mark = [...document.querySelector('.answer').childNodes].findIndex((node) => node.nodeName === 'MARK');
  return [texts.slice(0, mark).join(''), texts[mark], texts.slice(mark + 1).join('')]"""


def spans(server: ServerProcess, ids: list[int], text: str) -> list[tuple[int, int]]:
    """Where every token stands in the text, by the server's own account; (-1, -1) for parts of a character."""
    ends = [0]
    for count in range(1, len(ids) + 1):
        body = {"model": "tiny", "tokens": ids[:count]}
        head = server.client.post("/detokenize", json=body).json()["prompt"]
        ends.append(len(head) if text.startswith(head) else -1)
    return [(a, b) if 0 <= a < b else (-1, -1) for a, b in pairwise(ends)]


def answer_of(server: ServerProcess) -> tuple[list[int], str]:
    """Token ids and text of the answer that the page shows for the same link."""
    canvases, _ = ask(server, MIXED)
    ids: dict[int, int] = {}
    for canvas in canvases:
        ids |= {canvas["start"] + i: id_ for i, id_ in enumerate(canvas["token_ids"]) if id_ is not None}
    text = server.complete(prompt=PROMPT, max_tokens=32, ignore_eos=True, psd=MIXED).json()["choices"][0]["text"]
    return [ids[position] for position in sorted(ids)][:32], text


def check_refill(browser: Browser, server: ServerProcess, text: str, start: int, stop: int, count: int) -> str:
    """Press the button: the characters from `start` to `stop`, `count` tokens, must be filled again. The new answer."""
    before, after = text[:start], text[stop:]
    browser.click(REFILL)
    browser.finish()
    own = browser.find(OWN)
    assert len([cell for cell in own if "behind" not in str(cell.get_attribute("class"))]) == count
    lead = len(text) - len(text.lstrip("\n")) if start else 0
    shown: list[str] = browser.script(PARTS)
    fields: dict[str, Any] = {"max_tokens": count, "min_tokens": count, "psd": MIXED}
    new: str = server.complete(prompt=PROMPT + before, suffix=after, **fields).json()["choices"][0]["text"]
    assert [shown[0], shown[2]] == [before[lead:], after]
    assert shown[1].lstrip("\n") == new.lstrip("\n")
    return before + new + after


def test_a_part_is_filled_again_and_the_rest_stays(browser: Browser, server: ServerProcess) -> None:
    ids, text = answer_of(server)
    places = spans(server, ids, text)
    whole = [index for index, (start, _) in enumerate(places) if start >= 0 and text[slice(*places[index])].strip()]
    assert len(whole) >= 5, "the model's text has hardly any whole tokens"
    browser.open(link(server, MIXED))
    browser.run()

    token = next((index for index in whole[1:-1] if text[places[index][0]] == " "), whole[len(whole) // 2])
    start, stop = places[token]
    lead = len(text) - len(text.lstrip("\n"))
    blank = text[start] == " "  # a word without the space before it means its whole token
    browser.script(SELECT_TEXT, start + int(blank) - lead, stop - lead)
    browser.wait(lambda: len(browser.find(".picked")) == 1)
    assert browser.one(".picked").get_attribute("data-order") == str(token)
    text = check_refill(browser, server, text, start, stop, 1)
    assert len(browser.find(KEPT)) >= 1

    browser.script(SELECT_CELLS, 0)
    browser.wait(lambda: bool(browser.find(".picked")))
    first = browser.script("return document.querySelector('.picked').dataset.text ?? null")
    if first is not None and text.startswith(first):  # the first token was kept: refill it alone
        check_refill(browser, server, text, 0, len(first), 1)
        assert browser.script(PARTS)[0] == ""
        assert "1 token" in browser.text(".pane h2")


def test_cells_are_selected_with_the_keyboard(browser: Browser, server: ServerProcess) -> None:
    browser.open(link(server, MIXED))
    browser.run()
    plain = (
        "return [...document.querySelectorAll('#panes .cell')].map((cell) => !/special|behind/.test(cell.className))"
    )
    is_plain = browser.script(plain)
    start = next(at for at in range(len(is_plain)) if all(is_plain[at : at + 3]))
    browser.script("document.querySelectorAll('#panes .cell')[arguments[0]].focus()", start)
    browser.driver.switch_to.active_element.send_keys(Keys.SPACE)
    browser.wait(lambda: bool(browser.find(".picked")))
    browser.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    browser.wait(
        lambda: (
            {str(start), str(start + 2)} <= {str(cell.get_attribute("data-pos")) for cell in browser.find(".picked")}
        )
    )
    browser.script("getSelection().removeAllRanges()")
    browser.wait(lambda: not browser.find(".picked"))
    browser.click(REFILL)
    assert "Select a part of the answer first" in browser.text("#fault")


def test_the_button_says_why_it_cannot_be_pressed(browser: Browser, server: ServerProcess) -> None:
    text = server.complete(prompt=PROMPT, max_tokens=32, ignore_eos=True, psd=MIXED).json()["choices"][0]["text"]
    browser.open(link(server, MIXED, **{"request.stop": text.strip()[:1]}))

    def reason() -> str:
        button = browser.one(REFILL)
        return str(button.get_attribute("title")) if button.get_attribute("disabled") else ""

    assert reason() == "There is no answer yet."
    pressed = "document.querySelector('#run').click(); return document.querySelector(arguments[0]).title"
    assert browser.script(pressed, REFILL) == "A request is running."
    browser.finish()
    assert browser.find(".answer.hollow")  # it was stopped at its very beginning
    browser.open(link(server, {"policy": "topk", "k": 16}, mode="chat"))
    browser.run()
    assert "Chats take no suffix" in reason()
    browser.script("document.querySelector('input[value=completion]').click()")
    assert "Chats take no suffix" in reason()  # what is shown still is a chat's answer


def test_an_answer_is_cut_at_its_tokens(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    align = "return import('/playground/infill.js').then(({align}) => align(arguments[0], arguments[1]))"

    def cut(tokens: list[str], text: str) -> list[tuple[str, int, int]]:
        return [(c["text"], c["first"], c["last"]) for c in browser.script(align, tokens, text)]

    assert cut(["Dear", " you", "<|endoftext|>"], "Dear you") == [("Dear", 0, 0), (" you", 1, 1)]
    assert cut(["a", "\ufffd", "\ufffd", "\ufffd", " b"], "a€ b") == [("a", 0, 0), ("€", 1, 3), (" b", 4, 4)]
    assert cut(["Dear", "you"], "Dear you") == [("Dear", 0, 0), (" you", 1, 1)]  # decoded alone, a token lost its space
    assert cut(["a", "\ufffd"], "a\ufffd") == [("a", 0, 0), ("\ufffd", 1, 1)]
    assert cut(["<|endoftext|>"], "") == []
    for tokens, text in ((["x", "y"], "entirely other"), (["", ""], "text"), (["a"], "aaa")):
        assert "".join(piece for piece, _, _ in cut(tokens, text)) == text
