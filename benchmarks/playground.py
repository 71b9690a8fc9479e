"""First paint of the playground and how smoothly a canvas of 1,024 tokens fills, by the browser's own timings.

    python -m benchmarks.playground [--tokens 1024] [--repeats 5] [--pictures FOLDER]

A real server serves the page and a random model with a long context; a real Chromium draws. The run is recorded live
and then played again at 60 forwards per second, so that the model does not compete with the browser for the cores.
Prints one JSON object with milliseconds. With --pictures it only draws the README's pictures, by the built-in model.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from psd_core.assets import demo_path
from tests.playground.browser import MISSING, Browser, is_installed
from tests.server.checkpoint import write_checkpoint
from tests.server.process import ServerProcess

PAINTS = """return Object.fromEntries(
  performance.getEntriesByType('paint').map((entry) => [entry.name, entry.startTime]))"""
WATCH = """
window.gaps = []; window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration)))
  .observe({type: 'longtask'});
let before = null;
const tick = (now) => { if (before !== null) gaps.push(now - before); before = now; requestAnimationFrame(tick); };
requestAnimationFrame(tick);
"""
SCRUB = """const slider = document.querySelector('#scrub');
slider.value = Math.round(slider.max * arguments[0]);
slider.dispatchEvent(new Event('input'))"""
PICTURE = (1010, 860)
PICTURE_PROMPT = "Write a story about Bruno and a blue horse."
REPORT = "const seen = {gaps, tasks}; window.gaps = []; window.tasks = []; return seen;"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1024, help="positions of the canvas")
    parser.add_argument("--repeats", type=int, default=5, help="page loads for the first paint")
    parser.add_argument("--pictures", type=Path, help="folder for the README's pictures")
    given = parser.parse_args()
    if not is_installed():
        raise SystemExit(MISSING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.pictures is not None:
            with ServerProcess(demo_path(), folder, name="psd-demo") as server, Browser(folder) as browser:
                _draw_pictures(browser, server.url, given.pictures)
            return
        write_checkpoint(folder, max_sequence_length=2 * given.tokens)
        with ServerProcess(folder, folder) as server, Browser(folder) as browser:
            report = {
                "cpu": platform.processor() or platform.machine(),
                "browser": browser.driver.capabilities["browserVersion"],
                "tokens": given.tokens,
                "first_paint_ms": _first_paints(browser, server.url, given.repeats),
            } | _smoothness(browser, server.url, given.tokens)
    print(json.dumps(report, indent=2))


def _draw_pictures(browser: Browser, url: str, folder: Path) -> None:
    """A canvas in the middle of its work, and a comparison under dark colours: the first example of the page."""
    prompt = {"prompt": PICTURE_PROMPT}
    one = {"a.policy": "greedy", "a.draft_depth": "3"}
    folder.mkdir(parents=True, exist_ok=True)
    browser.open(f"{url}/#{urlencode(prompt | one | {'request.max_tokens': '64'})}", PICTURE)
    browser.run()
    print(f"playground.png: {browser.text('.words')} The answer: {browser.text('.answer')}")
    browser.script(SCRUB, 0.5)
    browser.picture(folder / "playground.png", PICTURE[1])
    two = one | {"compare": "true", "b.policy": "greedy", "b.draft_depth": "0", "turns": "true"}
    browser.prefer("dark")
    browser.open(f"{url}/#{urlencode(prompt | two | {'request.max_tokens': '64'})}", PICTURE)
    browser.run()
    print(f"playground-compare.png: {browser.text('#table caption')}")
    browser.script(SCRUB, 0.4)
    browser.picture(folder / "playground-compare.png", PICTURE[1])


def _first_paints(browser: Browser, url: str, repeats: int) -> list[float]:
    paints = []
    for _ in range(repeats):
        browser.open(url)
        paints.append(round(browser.script(PAINTS)["first-contentful-paint"], 1))
    return paints


def _smoothness(browser: Browser, url: str, num_tokens: int) -> dict[str, object]:
    settings = {"prompt": "go", "request.max_tokens": num_tokens, "request.ignore_eos": "true"}
    settings |= {"a.policy": "topk", "a.k": "4", "a.draft_depth": "0", "a.block_length": "64", "a.cache": "dual"}
    browser.open(f"{url}/#{urlencode(settings)}")
    browser.script(WATCH)
    browser.run()
    live = browser.script(REPORT)
    browser.choose("#speed", "60")
    browser.click("#first")
    browser.script(REPORT)
    browser.click("#play")
    browser.wait(lambda: browser.text("#play") == "Play", 120.0)
    replay = browser.script(REPORT)
    return {"live": _summary(live), "replay": _summary(replay)}


def _summary(seen: dict[str, list[float]]) -> dict[str, float]:
    gaps = sorted(seen["gaps"])
    return {
        "frames": len(gaps),
        "median_gap_ms": round(statistics.median(gaps), 1),
        "p95_gap_ms": round(gaps[int(len(gaps) * 0.95)], 1),
        "worst_gap_ms": round(gaps[-1], 1),
        "long_tasks": len(seen["tasks"]),
    }


if __name__ == "__main__":
    main()
