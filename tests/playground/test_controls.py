"""The page's controls: what a fresh page starts with, the server's own values, ranges, and where they stand."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from psd_core.config import ACCEPTANCE_NAMES, CACHE_NAMES, POLICY_NAMES, DecoderConfig
from psd_core.errors import ConfigError
from tests.playground.browser import NARROW, WIDE, Browser
from tests.playground.links import link
from tests.server.process import ServerProcess

LAPTOP = (1280, 800)
BOTTOM = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
PRESET = "[...document.querySelectorAll(arguments[0])].find((chip) => chip.textContent === arguments[1])"
WRITE = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))"


def preset(browser: Browser, side: str, name: str) -> None:
    """Press a button of named settings."""
    browser.script(f"{PRESET}.click()", f"#presets-{side} .chip", name)


def test_a_fresh_page_shows_drafts_at_work_and_says_so(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    assert [browser.one(f"#a-{name}").get_property("value") for name in ("policy", "draft_depth")] == ["greedy", "3"]
    browser.run()
    forwards = int(browser.text("[data-figure=forwards]"))
    assert forwards > 1
    assert browser.text(".words").startswith(f"{forwards} forwards did ")
    preset(browser, "a", "Server’s own")
    assert "a." not in browser.script("return location.hash")
    assert browser.script(f"return {PRESET}.ariaPressed", "#presets-a .chip", "Server’s own") == "true"


def test_empty_controls_show_what_the_server_uses(browser: Browser, server: ServerProcess) -> None:
    card = server.client.get("/v1/models/tiny").json()
    browser.open(link(server, {}))
    browser.wait(lambda: browser.one("#request-temperature").get_property("placeholder") == "0")
    words = {"canvas_blocks": "all", "edit_threshold": "off"}
    for name, value in card["psd"]["decoder"].items():
        control = browser.one(f"#a-{name}")
        if control.tag_name == "select":
            assert browser.script("return arguments[0].options[0].textContent", control) == f"{value} (own)"
        else:
            number = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
            assert control.get_property("placeholder") == words.get(name, number)
    assert browser.one("#request-max_tokens").get_property("max") == str(card["max_model_len"])
    assert f"1 to {card['max_model_len']}" in browser.text("[data-knob=max_tokens] .range")


def test_both_decoders_of_a_comparison_stand_side_by_side(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url, LAPTOP)
    browser.click("#compare")
    for control in ("#presets-b", "#a-policy", "#b-policy"):
        assert 0 < browser.script(BOTTOM, control) < LAPTOP[1]
    assert browser.one("#b-policy").get_property("value") == "greedy"
    preset(browser, "b", "Server’s own")
    browser.click("#compare")
    browser.click("#compare")
    assert browser.one("#b-policy").get_property("value") == ""  # nothing chosen is forgotten
    for size in (LAPTOP, NARROW):
        browser.resize(size)
        assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    browser.shoot("settings-narrow")
    assert browser.script("const top = (id) => document.querySelector(id).getBoundingClientRect().top;"
                          "return top('#composer') < top('#settings') && top('#settings') < top('#panes')")  # fmt: skip
    browser.resize(WIDE)


def test_every_decoder_setting_has_a_control_with_the_engines_range(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    for field in fields(DecoderConfig):
        assert browser.text(f"#decoder-knobs [data-knob={field.name}] .help")
        control, fault = browser.one(f"#a-{field.name}"), f"#a-{field.name}-fault"
        if control.tag_name == "select":
            values = browser.script("return [...arguments[0].options].map((option) => option.value)", control)
            names = {"policy": POLICY_NAMES, "acceptance": ACCEPTANCE_NAMES, "cache": CACHE_NAMES}[field.name]
            assert tuple(values) == ("", *names)
            continue
        worded = {"draft_increment": (1, 1024), "draft_depth": (0, 32)}  # these take a word, too: no number controls
        low, high = worded.get(field.name) or (json.loads(str(control.get_attribute(end))) for end in ("min", "max"))
        setting: dict[str, Any]
        for value in (low, high):
            setting = {field.name: value}
            DecoderConfig(**setting)
        for value in (low - 1, high + 1):
            setting = {field.name: value}
            with pytest.raises(ConfigError):
                DecoderConfig(**setting)
            browser.script(WRITE, control, str(value))
            assert field.name in browser.text(fault)
        browser.script(WRITE, control, "")
        assert browser.text(fault) == ""


@pytest.mark.parametrize("size", [WIDE, LAPTOP, NARROW])
def test_a_long_note_on_the_server_does_not_move_the_page(
    browser: Browser, server: ServerProcess, size: tuple[int, int]
) -> None:
    browser.open(server.url, size)
    before, after, width = browser.script(
        """const note = document.querySelector('#status-note');
        const top = () => document.querySelector('main').getBoundingClientRect().top;
        note.textContent = ''; const before = top();
        note.textContent = 'The server is not ready. '.repeat(30);
        return [before, top(), note.getBoundingClientRect().width];"""
    )
    assert before == after
    assert width > 60  # enough of it to be read
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    browser.resize(WIDE)
