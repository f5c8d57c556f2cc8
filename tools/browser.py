#!/usr/bin/env python3
"""Our pages in a real Chromium: for the tests, and for the pictures of docs/pages.md.

tools/samples.sh calls it, for example:

    python tools/browser.py PAGE PICTURE --width 390 --height 844 --dark --at '#game=3&turn=9'
"""

import argparse
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from rich.console import Console
from selenium import webdriver

from hanabi_grpo.report.run_views.run_watch import RunWatch
from hanabi_grpo.report.run_views.screen import RunScreen

DRIVER = shutil.which("chromedriver")
MOST_COLORS = 255
"""Size of a picture's palette."""
PHONE_WIDTH = 600
"""Narrower windows are shown as on a phone."""
LOCAL_SCHEMES = ("file:", "data:", "about:")
"""Prefixes of addresses that need no network."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Yield an empty Chromium that can reach only 127.0.0.1; it is closed afterwards.

    Raises:
        RuntimeError: chromedriver is not installed.
    """
    if DRIVER is None:
        # Selenium would try to download one.
        raise RuntimeError(
            "chromedriver is not installed: apt-get install chromium chromium-driver"
        )
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in _FLAGS:
            options.add_argument(flag)
        options.add_argument(f"--user-data-dir={profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            # The first tab shows one of Chromium's own pages.
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
    """Open a page in a window, as on a phone where the window is narrow.

    Args:
        driver: The browser.
        page: The HTML or SVG file.
        width: Width of the window in pixels.
        height: Height of the window in pixels.
        dark: Whether the system's color scheme is dark.
        at: The fragment of the address, which begins with #, e.g. "#game=3&turn=9".
    """
    open_address(driver, page.resolve().as_uri() + at, width=width, height=height, dark=dark)


def open_address(
    driver: webdriver.Chrome, address: str, *, width: int, height: int, dark: bool = False
) -> None:
    """Open an address of this machine in a window; see `show`."""
    metrics = {
        "width": width,
        "height": height,
        "deviceScaleFactor": 1,
        "mobile": width < PHONE_WIDTH,
    }
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get("about:blank")
    driver.get(address)


def complaints(driver: webdriver.Chrome, *, served_by: str = "") -> list[str]:
    """Return the console's messages and the requested remote addresses since the last call.

    Args:
        driver: The browser.
        served_by: Prefix of the addresses that the page may request; "": none.
    """
    allowed = (*LOCAL_SCHEMES, served_by) if served_by else LOCAL_SCHEMES
    messages = [entry["message"] for entry in driver.get_log("browser")]
    for entry in driver.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] != "Network.requestWillBeSent":
            continue
        address = event["params"]["request"]["url"]
        if not address.startswith(allowed):
            messages.append(address)
    return messages


def picture(driver: webdriver.Chrome, path: Path, colors: int = MOST_COLORS) -> None:
    """Write what the window shows as a PNG with few colors."""
    save_small(io.BytesIO(driver.get_screenshot_as_png()), path, colors)


def save_small(source: Path | io.BytesIO, path: Path, colors: int = MOST_COLORS) -> None:
    """Write a PNG with few colors."""
    with Image.open(source) as image:
        small = image.convert("RGB").quantize(colors, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page and the size of the window that shows it."""

    path: Path
    """The file."""
    width: int
    """In pixels."""
    height: int
    """In pixels."""


def draw_watch(run: Path, folder: Path) -> Page:
    """Write what `hanabi-grpo watch` shows as an SVG in a folder.

    The terminal's size is that of the variables COLUMNS and LINES.
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
    drawing = console.export_svg(title="hanabi-grpo watch RUN")
    # The font would be fetched from a host; the system's monospace font is used instead.
    drawing = re.sub(r"@font-face \{.*?\}", "", drawing, flags=re.DOTALL)
    path = folder / "watch.svg"
    path.write_text(drawing)
    view_box = re.search(r'viewBox="([^"]+)"', drawing)
    assert view_box is not None, "rich draws an SVG without a viewBox"
    _, _, width, height = view_box[1].split()
    return Page(path=path, width=round(float(width)), height=round(float(height)))


def main() -> None:
    """Take one picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="the page, or a PNG, whose colors are reduced")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=800)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--at", default="")
    parser.add_argument(
        "--watch", action="store_true", help="PAGE is a run's folder; picture its watch screen"
    )
    options = parser.parse_args()
    if options.page.suffix == ".png":
        save_small(options.page, options.picture)
        return
    with chromium() as driver, tempfile.TemporaryDirectory() as folder:
        if options.watch:
            page = draw_watch(options.page, Path(folder))
        else:
            page = Page(path=options.page, width=options.width, height=options.height)
        show(
            driver,
            page.path,
            width=page.width,
            height=page.height,
            dark=options.dark,
            at=options.at,
        )
        picture(driver, options.picture)


if __name__ == "__main__":
    main()
