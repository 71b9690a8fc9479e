"""The playground in a real Chromium, against real servers: what it shows is what the API says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from selenium.webdriver.common.keys import Keys

from tests.playground.browser import NARROW, WIDE, Browser
from tests.playground.conftest import KEY
from tests.playground.links import MIXED, PROMPT, ask, link
from tests.server.process import SLOW, ServerProcess, wait_until

LONG = {"request.max_tokens": "448"}  # with SLOW a run of many seconds
COLOURS = "return getComputedStyle(document.body.parentElement).backgroundColor"
CELLS = """return [...document.querySelectorAll('[data-pane=A] .cell')].map((cell) =>
  [cell.className.match(/policy|draft|refresh|behind|guess|empty/)[0], Number(cell.dataset.depth ?? 0)])"""


def kinds(canvases: list[dict[str, Any]]) -> list[list[object]]:
    """How every position was decided, read from the API's canvases."""
    decided: dict[int, list[object]] = {}
    for canvas in canvases:
        for offset, depth in enumerate(canvas["depths"]):
            if depth is not None:
                by_policy = "refresh" if canvas["phase"] == "refresh" else "policy"
                decided.setdefault(canvas["start"] + offset, ["draft" if depth else by_policy, depth])
    return [decided[position] for position in sorted(decided)]


def test_the_canvas_shows_how_every_token_was_decided(browser: Browser, server: ServerProcess) -> None:
    canvases, figures = ask(server, MIXED)
    browser.open(link(server, MIXED))
    browser.run()
    assert browser.script(CELLS) == kinds(canvases)
    shown = {name: browser.text(f"[data-figure={name}]") for name in ("forwards", "tpf", "depth")}
    assert shown == {
        "forwards": str(figures["forwards"]),
        "tpf": f"{figures['tokens_per_forward']:.2f}",
        "depth": f"{figures['mean_accepted_depth']:.2f}",
    }
    assert "32 tokens" in browser.text(".pane .state")
    whole = server.complete(prompt=PROMPT, max_tokens=32, ignore_eos=True, psd=MIXED).json()["choices"][0]["text"]
    assert browser.text(".answer") == whole.lstrip("\n")
    assert browser.script("return document.querySelector('.bars').width") > 0
    browser.shoot("canvas")


def test_hover_and_arrow_keys_tell_of_a_token(browser: Browser, server: ServerProcess) -> None:
    canvases, _ = ask(server, MIXED)
    browser.open(link(server, MIXED))
    browser.run()
    browser.script("document.querySelector('[data-pos=\"0\"]').focus()")
    browser.wait(lambda: not browser.one("#tip").get_property("hidden"))
    first = next(canvas for canvas in canvases if canvas["token_ids"][0] is not None)
    tip = browser.text("#tip")
    assert json.dumps(first["tokens"][0], ensure_ascii=False) in tip
    assert f"{first['confidences'][0] * 100:.1f} %" in tip
    assert f"forward{first['forwards']}" in tip
    assert "step" in tip
    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert browser.script("return document.activeElement.dataset.pos") == "2"
    assert "position3" in browser.text("#tip")
    assert "forward" in str(browser.driver.switch_to.active_element.get_attribute("aria-label"))
    scrub = "const s = document.querySelector('#scrub'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))"
    browser.script(scrub, 0)
    assert browser.text("#tip").startswith("tokenundecided")
    browser.script(scrub, len(canvases))
    assert "decided by" in browser.text("#tip")
    browser.script("document.querySelector('#composer').requestSubmit()")
    assert browser.one("#tip").get_property("hidden")
    browser.finish()


def test_tokens_appear_while_the_request_runs_and_stop_cancels_it(browser: Browser, server: ServerProcess) -> None:
    sample = 'psd_requests_total{endpoint="completions",finish_reason="cancelled"}'
    before = server.metric(sample)
    browser.open(link(server, SLOW, **LONG))
    browser.click("#run")
    browser.wait(lambda: len(browser.find(".cell.policy")) > 3)
    assert not browser.one("#run").is_enabled()
    assert browser.find(".cell.guess")
    browser.one("body").send_keys(Keys.ESCAPE)
    browser.finish()
    assert "stopped by you" in browser.text(".pane .state")
    assert len(browser.find(".cell.guess")) > 0
    wait_until(lambda: server.metric(sample) == before + 1)
    wait_until(lambda: server.metric("psd_requests_running") == 0)


def test_a_comparison_marks_what_differs_and_sums_up(browser: Browser, server: ServerProcess) -> None:
    fast, plain = {"policy": "topk", "k": 16, "draft_depth": 0}, {"policy": "greedy", "draft_depth": 3}
    last = []
    for psd in (fast, plain):
        canvases, figures = ask(server, psd, temperature=1.5, seed=5)
        last.append((canvases[-1], figures))
    (a, costs_a), (b, costs_b) = last
    differing = sum(x != y for x, y in zip(a["token_ids"], b["token_ids"], strict=True))
    browser.open(link(server, fast, plain, **{"request.temperature": "1.5", "request.seed": "5"}))
    browser.run()
    assert len(browser.find("[data-pane=A] .differs")) == differing
    assert len(browser.find("[data-pane=B] .differs")) == differing
    rows = [row.text for row in browser.find("#table tbody tr")]
    assert any(row.startswith(f"forwards {costs_a['forwards']} {costs_b['forwards']}") for row in rows)
    assert (browser.text("#table caption") == "Both texts are the same.") == (differing == 0)
    browser.shoot("compare")
    browser.prefer("dark")
    browser.shoot("compare-dark")
    browser.prefer("light")
    browser.resize(NARROW)
    browser.shoot("compare-narrow")
    assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
    browser.resize(WIDE)


def test_drafts_under_exact_do_not_change_the_text(browser: Browser, server: ServerProcess) -> None:
    browser.open(
        link(server, {"policy": "greedy", "draft_depth": 3}, {"policy": "greedy", "draft_depth": 0}, turns="true")
    )
    browser.run()
    assert browser.text("#table caption") == "Both texts are the same."
    assert not browser.find(".differs")


def test_a_run_can_be_scrubbed_stepped_played_saved_and_loaded(browser: Browser, server: ServerProcess) -> None:
    psd = {"policy": "topk", "k": 4, "draft_depth": 0, "block_length": 16}
    browser.open(link(server, psd))
    browser.run()

    def decided() -> int:
        return len(browser.find(".cell.policy"))

    browser.script("const s = document.querySelector('#scrub'); s.value = 3; s.dispatchEvent(new Event('input'))")
    assert decided() == 12
    browser.click("#forth")
    assert decided() == 16
    browser.click("#back")
    browser.click("#back")
    assert decided() == 8
    browser.click("#first")
    assert decided() == 0
    browser.choose("#speed", "60")
    browser.click("#play")
    browser.wait(lambda: decided() == 32)
    browser.choose("#speed", "real")
    browser.click("#first")
    browser.click("#play")
    browser.wait(lambda: decided() == 32)
    cells = browser.script(CELLS)
    answer, state = browser.text(".answer"), browser.text(".pane .state")

    browser.click("#download")
    saved = browser.downloads / "psd-run.json"
    browser.wait(saved.exists)
    browser.open(server.url)
    browser.one("#load").send_keys(str(saved))
    browser.wait(lambda: bool(browser.find(".cell.policy")))
    assert (browser.script(CELLS), browser.text(".answer"), browser.text(".pane .state")) == (cells, answer, state)
    browser.click("#first")
    assert decided() == 0
    saved.unlink()


def test_settings_live_in_the_address_and_the_key_does_not(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    browser.write("#prompt", "Sort these numbers: 7, 9, 4.")
    browser.choose("#a-policy", "topk")
    browser.write("#a-k", "5")
    browser.write("#request-max_tokens", "24")
    browser.click("#compare")
    browser.write("#key", "hidden-key" + Keys.TAB)
    address = browser.script("return location.href")
    stored = browser.script("return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    assert "hidden-key" not in address + stored
    browser.open(address)
    assert browser.one("#prompt").get_property("value") == "Sort these numbers: 7, 9, 4."
    assert browser.one("#key").get_property("value") == ""
    values = {name: browser.one(f"#{name}").get_property("value") for name in ("a-policy", "a-k", "b-policy")}
    assert values == {"a-policy": "topk", "a-k": "5", "b-policy": "greedy"}
    assert browser.one("#request-max_tokens").get_property("value") == "24"


def test_the_request_can_be_copied_as_curl_and_as_python(browser: Browser, server: ServerProcess) -> None:
    prompt = "It's 7 o'clock: \"go\"\n"
    psd = {"policy": "topk", "k": 4, "draft_depth": 2}
    expected = server.complete(prompt=prompt, max_tokens=12, ignore_eos=True, psd=psd).json()["choices"][0]["text"]
    browser.open(link(server, psd, prompt=prompt, **{"request.max_tokens": "12"}))
    browser.click("#copy-curl")
    command = browser.text("#copied-text")
    answer = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["text"] == expected
    browser.click("#copied .primary")
    browser.click("#copy-python")
    script = browser.text("#copied-text")
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert answer.stdout == expected + "\n"
    browser.click("#copied .primary")


def test_a_chat_keeps_its_turns(browser: Browser, server: ServerProcess) -> None:
    def ask_chat(messages: list[dict[str, str]]) -> str:
        answer = server.chat(messages=messages, max_tokens=32, ignore_eos=True).json()
        return str(answer["choices"][0]["message"]["content"])

    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "<b>What is 7 + 5?</b>"},
    ]
    first = ask_chat(messages)
    browser.open(link(server, {}, mode="chat", system="Be brief.", prompt="<b>What is 7 + 5?</b>"))
    browser.run()
    assert browser.text(".answer") == first.lstrip("\n")
    turns = [turn.get_property("textContent") for turn in browser.find("#thread .turn p")]
    assert turns == ["<b>What is 7 + 5?</b>", first]
    browser.write("#prompt", "And 7 + 6?")
    browser.run()
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And 7 + 6?"}]
    assert browser.text(".answer") == ask_chat(messages).lstrip("\n")
    browser.click("#fresh")
    assert not browser.find("#thread .turn")


def test_errors_are_said_in_words(browser: Browser, server: ServerProcess) -> None:
    browser.open(link(server, {}, **{"request.max_tokens": "512"}))
    browser.run()
    assert "The server refused the request. It says:" in browser.text(".pane .error")
    assert "512" in browser.text(".pane .error")
    browser.write("#request-max_tokens", "0")
    browser.click("#run")
    assert browser.text("#fault") == "max_tokens must be a whole number between 1 and 512; it is 0."
    browser.script("document.querySelector('#prompt').value = ''")
    browser.click("#run")
    assert "There is no prompt" in browser.text("#fault")
    browser.shoot("error")


def test_a_key_is_asked_for_and_lost_servers_are_told_of(browser: Browser, keyed: ServerProcess) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(link(keyed, SLOW, model="other", **LONG))
    browser.wait(lambda: "needs a key" in browser.text("#status-note"))
    assert browser.one("#status-note").get_property("title") == "the status needs a key"
    browser.run()
    assert "asks for an API key" in browser.text(".pane .error")
    assert browser.script("return document.activeElement.id") == "key"
    browser.write("#key", KEY + Keys.TAB)
    browser.wait(lambda: browser.text("#status-model") == "tiny, other")
    assert browser.one("#model").get_property("value") == "other"
    browser.choose("#model", "tiny")
    assert "model=tiny" in browser.script("return location.hash")
    browser.wait(lambda: browser.one("#a-threshold").get_property("placeholder") == "0.9")
    browser.click("#copy-curl")
    assert KEY not in browser.text("#copied-text")
    assert "$PSD_API_KEY" in browser.text("#copied-text")
    browser.click("#copied .primary")
    browser.click("#run")
    browser.wait(lambda: len(browser.find(".cell.policy")) > 2)
    keyed.kill_worker()
    browser.finish()
    assert "The server failed. It says: the worker" in browser.text(".pane .error")
    keyed.process.kill()
    keyed.process.wait()
    browser.one("#prompt").send_keys(Keys.CONTROL, Keys.ENTER)  # the strip's news may move the button under a mouse
    browser.finish()
    assert "cannot be reached" in browser.text(".pane .error")


def test_colours_follow_the_system_and_the_switch(browser: Browser, server: ServerProcess) -> None:
    browser.prefer("light")
    browser.open(server.url)
    light = browser.script(COLOURS)
    browser.prefer("dark")
    dark = browser.script(COLOURS)
    assert light != dark
    browser.click("#theme")
    assert browser.script(COLOURS) == light
    browser.click("#theme")
    browser.prefer("light")
    assert browser.script(COLOURS) == dark
    browser.click("#theme")
    assert browser.script(COLOURS) == light


def test_ctrl_enter_runs_examples_fill_and_the_strip_tells(browser: Browser, server: ServerProcess) -> None:
    browser.open(server.url)
    browser.script("[...document.querySelectorAll('#examples .chip')].find((c) => c.textContent === 'Story').click()")
    assert "a story" in str(browser.one("#prompt").get_property("value"))
    browser.script("document.querySelector('.skip').click()")
    assert browser.script("return document.activeElement.value").startswith("Write a story")
    browser.one("#prompt").send_keys(Keys.CONTROL, Keys.ENTER)
    browser.wait(lambda: "tokens" in browser.text(".pane .state"))
    browser.wait(lambda: browser.text("#status-device").startswith("cpu"))
    assert browser.text("#status-model") == "tiny"
    accepted, drafted = (server.metric(f"psd_{name}_tokens_total") for name in ("accepted", "drafted"))
    expected = f"{int(accepted / drafted * 100 + 0.5)} %" if drafted else "–"
    browser.wait(lambda: browser.text("#status-acceptance") == expected)
    browser.click("#guesses")
    assert browser.find(".panes.no-guesses")
    browser.click("#guesses")
