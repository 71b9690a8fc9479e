"""A real Chromium with a page of the playground in it."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium")
CHROMEDRIVER = shutil.which("chromedriver")
MISSING = "needs Chromium and its driver: apt-get install chromium chromium-driver"
SHOTS = Path(__file__).parents[2] / "build" / "playground"
WIDE, NARROW = (1440, 1000), (390, 844)
ANSWER_SECONDS = 180.0  # a busy machine is slow, not broken


def is_installed() -> bool:
    """Whether browser tests can run here."""
    return CHROMIUM is not None and CHROMEDRIVER is not None


class Browser:
    """One browser window. Use as a context manager."""

    def __init__(self, downloads: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM or ""
        # --no-sandbox: containers run tests as root, where Chromium's sandbox cannot start.
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--mute-audio"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
        self.driver.set_script_timeout(ANSWER_SECONDS)
        self.downloads = downloads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.driver.quit()

    def open(self, url: str, size: tuple[int, int] = WIDE) -> None:
        """A fresh page: nothing of an earlier one is left."""
        self.resize(size)
        self.driver.get("about:blank")
        self.complaints()
        self.driver.get(url)
        self.wait(lambda: bool(self.find("#model option")))

    def resize(self, size: tuple[int, int]) -> None:
        """Width and height of the page, in CSS pixels."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """What the system prefers: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> list[WebElement]:
        """All elements, possibly none."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The one element."""
        (element,) = self.find(selector)
        return element

    def text(self, selector: str) -> str:
        """Text content of the one element, hidden or not."""
        return str(self.one(selector).get_property("textContent"))

    def click(self, selector: str) -> None:
        """A real click, as a mouse makes it."""
        element = self.one(selector)
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def write(self, selector: str, text: str) -> None:
        """Replace what stands in a field."""
        element = self.one(selector)
        element.clear()
        element.send_keys(text)

    def choose(self, selector: str, value: str) -> None:
        """An option of a select."""
        self.click(f"{selector} option[value='{value}']")

    def script(self, code: str, *arguments: object) -> Any:
        """The value of a function body run in the page."""
        return self.driver.execute_script(code, *arguments)

    def wait(self, claim: Callable[[], bool], seconds: float = 60.0) -> None:
        """Poll until the claim holds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if claim():
                    return
            except StaleElementReferenceException:
                pass
            assert time.monotonic() < deadline, f"the page did not come to it in time; it says {self.complaints()}"
            time.sleep(0.03)

    def run(self) -> None:
        """Press Run and wait until the answer, or the error, is complete."""
        self.click("#run")
        self.finish()

    def finish(self) -> None:
        """Wait until nothing runs any more."""
        self.wait(lambda: self.one("#run").is_enabled(), ANSWER_SECONDS)

    def complaints(self) -> list[str]:
        """What the console got since the last call: errors of scripts, violations of the content policy."""
        read_log: Callable[[str], list[dict[str, str]]] = self.driver.get_log  # without types in Selenium
        log = read_log("browser")
        return [entry["message"] for entry in log if entry["level"] == "SEVERE" and entry["source"] != "network"]

    def shoot(self, name: str) -> None:
        """Keep a picture of the whole page."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.picture(SHOTS / f"{name}.png", self.script("return document.documentElement.scrollHeight"))

    def picture(self, path: Path, height: int) -> None:
        """Write the upper part of the page, scrolled to its top, as PNG."""
        self.script("scrollTo(0, 0)")
        area = {"x": 0, "y": 0, "width": self.script("return innerWidth"), "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": area, "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(shot["data"]))
