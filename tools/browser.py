#!/usr/bin/env python3
"""Our pages in a real Chromium: what the tests drive, and the pictures of docs/pages.md.

tools/samples.sh calls it: python tools/browser.py PAGE PICTURE --width 390 --height 844 --dark --at
'#game=3&turn=9'"""

import argparse
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from rich.console import Console
from selenium import webdriver

from hanabi_grpo.report.run_views.run_watch import RunWatch
from hanabi_grpo.report.run_views.screen import RunScreen

DRIVER = shutil.which("chromedriver")
_FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    "--disable-dev-shm-usage",
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ),
)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Yield an empty Chromium that finds no host; it is closed afterwards."""
    if DRIVER is None:
        # Selenium would look for one to download.
        raise RuntimeError("no chromedriver: apt-get install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            # Its first tab is a page of Chromium's own.
            driver.get("about:blank")
            complaints(driver)
            yield driver
        finally:
            driver.quit()


def show(
    driver: webdriver.Chrome,
    page: Path,
    *,
    width: int,
    height: int,
    dark: bool = False,
    at: str = "",
) -> None:
    """Open a page in a window of this width and height, or on a phone where it is narrow; `at`
    begins with #.
    """
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get("about:blank")
    driver.get(page.resolve().as_uri() + at)


def complaints(driver: webdriver.Chrome) -> list[str]:
    """Return what the console said, and which addresses but files and data: were asked for, since
    the last call.
    """
    said = [entry["message"] for entry in driver.get_log("browser")]
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        one["params"]["request"]["url"]
        for one in events
        if one["method"] == "Network.requestWillBeSent"
    ]
    return said + [
        address for address in asked if not address.startswith(("file:", "data:", "about:"))
    ]


def picture(driver: webdriver.Chrome, path: Path, colors: int = 255) -> None:
    """Write what the window shows as a PNG of few colours."""
    save_small(io.BytesIO(driver.get_screenshot_as_png()), path, colors)


def save_small(source: Path | io.BytesIO, path: Path, colors: int = 255) -> None:
    """Write a PNG with few colours."""
    with Image.open(source) as shot:
        small = shot.convert("RGB").quantize(colors, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def watched(run: Path, folder: Path) -> tuple[Path, int, int]:
    """Write what `hanabi-grpo watch` shows in a terminal of COLUMNS x LINES as an SVG; returns it,
    width and height.
    """
    lines = int(os.environ["LINES"])
    console = Console(
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        width=int(os.environ["COLUMNS"]),
        height=lines,
    )
    console.print(RunScreen(RunWatch(run).look()), height=lines)
    path = folder / "watch.svg"
    # Its font is fetched from a host; the system's own monospace is there.
    drawing = re.sub(
        r"@font-face \{.*?\}",
        "",
        console.export_svg(title="hanabi-grpo watch RUN"),
        flags=re.DOTALL,
    )
    path.write_text(drawing)
    _, _, width, height = map(float, re.search(r'viewBox="([^"]+)"', drawing)[1].split())
    return path, round(width), round(height)


def main() -> None:
    """Take one picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="or a PNG, which gets fewer colours")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--at", default="")
    parser.add_argument(
        "--watch", action="store_true", help="PAGE is the folder of a run, shown by watch"
    )
    given = parser.parse_args()
    if given.page.suffix == ".png":
        save_small(given.page, given.picture)
        return
    with chromium() as driver, tempfile.TemporaryDirectory() as folder:
        shown = (given.page, given.width, given.height)
        page, width, height = watched(given.page, Path(folder)) if given.watch else shown
        show(driver, page, width=width, height=height, dark=given.dark, at=given.at)
        picture(driver, given.picture)


if __name__ == "__main__":
    main()
