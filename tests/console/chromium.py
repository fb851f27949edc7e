"""A headless Chromium of the system, driven by Selenium, and a console in a process of its own.

Debian has both programs: `apt install chromium chromium-driver`. axe-core comes from npm: `make browser`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
READY = re.compile(r"ottla: console at (\S+)")
WAIT_S = 30
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
#: Rules of WCAG 2 at the levels A and AA.
LEVELS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")


def missing() -> str:
    """Why there is no browser here; empty if there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt install chromium chromium-driver"
    return ""


class Page:
    """A browser with one page."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Sets the size of the page in pixels, and the colours that the system prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, path: str) -> None:
        self.driver.get(self.url + path)

    def find(self, css: str) -> WebElement:
        """The first element, once there is one."""
        found: WebElement = self.until(lambda: next(iter(self.driver.find_elements(By.CSS_SELECTOR, css)), None), css)
        return found

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def write(self, name: str, text: str) -> None:
        """Fills in a field of a form."""
        field = self.find(f"main [name='{name}']:not([type=hidden])")
        field.clear()
        field.send_keys(text)

    def press(self, label: str) -> None:
        """Clicks the button or link with this text."""
        by_text = f"//main//*[self::button or self::a][contains(normalize-space(.), {label!r})]"
        self.until(lambda: next(iter(self.driver.find_elements(By.XPATH, by_text)), None), label).click()

    @property
    def text(self) -> str:
        return self.find("main").text

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """The result of a condition, once it is true. An element that is replaced meanwhile is looked for again."""
        wait = WebDriverWait(self.driver, WAIT_S, poll_frequency=0.05, ignored_exceptions=(StaleElementReferenceException,))
        return wait.until(lambda _: condition(), f"{what} did not come")

    def errors(self) -> list[str]:
        """What the browser's console has said since the last call: errors of scripts, of the policy, of the network."""
        entries: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def violations(self) -> list[str]:
        """Violations of WCAG AA that axe-core finds."""
        self.driver.execute_script(AXE.read_text())
        script = "const done = arguments[1]; axe.run(document, {runOnly: arguments[0]}).then(done);"
        found = self.driver.execute_async_script(script, list(LEVELS))
        return [
            f"{one['id']}: {one['help']}: {node['html'][:120]} {node.get('failureSummary', '')[:300]}"
            for one in found["violations"]
            for node in one["nodes"][:3]
        ]

    @property
    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth"))


@contextmanager
def chromium(url: str) -> Iterator[Page]:
    """A browser, with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory(prefix="ottla-chromium-", ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        try:
            yield Page(driver, url)
        finally:
            driver.quit()


@contextmanager
def console(bootstrap: str, *arguments: str) -> Iterator[str]:
    """`ottla console` at a free port, in a process of its own; its address."""
    command = [sys.executable, "-m", "ottla", "console", "-b", bootstrap, "--listen", "127.0.0.1:0", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None, "it is a pipe"
    seen = ""
    try:
        for line in process.stderr:
            seen += line
            if found := READY.search(line):
                yield found[1]
                break
        else:
            raise AssertionError(f"the console did not start: {seen}")
    finally:
        process.terminate()
        process.communicate(timeout=15)
