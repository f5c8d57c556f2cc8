"""Every page in a real Chromium: on a desk and a phone, in light and dark, and by its keys."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from adhoc_parts import adhoc_summary
from browser import DRIVER, chromium, complaints, show
from crossplay_parts import summary_of
from doctor_machines import ROOT
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.report.adhoc_page import render_adhoc
from hanabi_grpo.report.cross_play_page import render_cross_play
from hanabi_grpo.report.games import games_page
from hanabi_grpo.report.run_page import run_page
from hanabi_grpo.report.run_report import read_report
from hanabi_grpo.rollout.recordings import write_episodes
from hanabi_grpo.runs.evaluation_result import result_to_json
from hanabi_grpo.types import Episode
from made_games import play_episodes_sync
from tracked_runs import scripted_games, tracked_run
from training_runs import evaluate_scripted

pytestmark = [
    pytest.mark.rest,
    # .ci/run installs them, so there they are never missing.
    pytest.mark.skipif(
        DRIVER is None and not os.environ.get("CI"),
        reason="no chromedriver: apt-get install chromium chromium-driver",
    ),
]
SAMPLES = ROOT / "docs" / "samples"
DESK = (1280, 800)
"""Width and height of the window in pixels."""
PHONE = (390, 844)
BACKGROUNDS = {False: "rgb(246, 245, 242)", True: "rgb(23, 24, 27)"}
"""Colour of the page in light and in dark mode."""


def games(*episodes: Episode) -> str:
    """Return the page of some games."""
    recordings = []
    for number, episode in enumerate(episodes):
        recordings.append(Recording(episode=episode, number=number))
    return games_page(recordings, recordings, title="games", settings={}, prompts=True)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a page of each kind; returns the files by name."""
    folder = tmp_path_factory.mktemp("pages")
    kuhn = registry.setup("kuhn", {"preset": "kuhn"})
    kuhn_games = play_episodes_sync(kuhn, [make_script(kuhn, "random")] * 2, "train", range(3))
    run = tracked_run(folder / "run", steps=12, games=False, MAX_STEPS="40")
    write_episodes(run, 12, [scripted_games("hint-bot", seed) for seed in range(6)])
    result = evaluate_scripted("random", registry.setup("hanabi", {"preset": "laptop"}), 4)
    (run / "evaluation.json").write_text(json.dumps(result_to_json(result)))
    page_of_run, _ = run_page(read_report(run))
    texts = {
        "run": page_of_run,
        "games": games(*scripted_games("", 0, 0, 1, noise=0.3)),
        "games as text": games(*kuhn_games),
        "cross-play": render_cross_play(summary_of(folder, "hint-bot", "random", tasks=4)),
        "adhoc": render_adhoc(adhoc_summary(folder, "iggi", pool=("outer", "blind"), tasks=4)),
    }
    files = {}
    for name, text in texts.items():
        files[name] = folder / f"{name}.html"
        files[name].write_text(text)
    return files


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with chromium() as found:
        yield found


def open_page(
    driver: Chrome, page: Path, size: tuple[int, int] = DESK, *, dark: bool = False
) -> None:
    show(driver, page, width=size[0], height=size[1], dark=dark)


def press(driver: Chrome, *keys: str) -> None:
    ActionChains(driver).send_keys(*keys).perform()


def address_of(driver: Chrome) -> str:
    """Return the part of the page's address that says game and turn."""
    return str(driver.execute_script("return location.hash"))


def text_of(driver: Chrome, selector: str) -> str:
    return driver.find_element(By.CSS_SELECTOR, selector).text


def test_every_page_fits_its_window_follows_the_night_asks_nobody_and_the_console_stays_empty(
    driver: Chrome, pages: dict[str, Path]
) -> None:
    samples = sorted(SAMPLES.glob("*.html"))
    assert [path.stem for path in samples] == ["cross-play", "replay-trained", "replay", "run"]
    for page in (*pages.values(), *samples):
        for size in (DESK, PHONE):
            for dark in (False, True):
                open_page(driver, page, size, dark=dark)
                width = driver.execute_script("return document.documentElement.scrollWidth")
                background = driver.execute_script(
                    "return getComputedStyle(document.body).backgroundColor"
                )
                assert background == BACKGROUNDS[dark], page.name
                assert complaints(driver) == [], page.name
                assert width <= size[0], page.name


def test_the_keys_and_the_slider_step_through_games(driver: Chrome, pages: dict[str, Path]) -> None:
    open_page(driver, pages["games"])
    press(driver, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert address_of(driver) == "#game=0&turn=3"
    assert text_of(driver, "#turns .shown li.now").startswith("player_0")
    press(driver, Keys.ARROW_LEFT)
    assert address_of(driver) == "#game=0&turn=2"
    press(driver, Keys.END)
    assert "turn end" in text_of(driver, ".status")
    press(driver, Keys.HOME)
    assert address_of(driver) == "#game=0&turn=1"
    press(driver, Keys.ARROW_DOWN)
    assert address_of(driver) == "#game=1&turn=1"
    assert text_of(driver, "#turns .shown h2").startswith("Game 1: ")
    assert text_of(driver, "[aria-current] b") == "1"
    press(driver, Keys.ARROW_UP)
    assert "?" not in text_of(driver, ".hand.mover")
    press(driver, "h")
    assert text_of(driver, ".hand.mover").count("?") == 3
    # A slider has arrow keys of its own; a turn must not be counted twice.
    driver.find_element(By.CSS_SELECTOR, "input[type=range]").send_keys(Keys.ARROW_RIGHT)
    assert address_of(driver) == "#game=0&turn=2"
    assert complaints(driver) == []


def test_space_plays_and_stops(driver: Chrome, pages: dict[str, Path]) -> None:
    open_page(driver, pages["games"])
    press(driver, " ")
    assert text_of(driver, ".controls button:nth-child(3)") == "pause"
    WebDriverWait(driver, 30).until(lambda found: address_of(found) == "#game=0&turn=2")
    press(driver, " ")
    assert text_of(driver, ".controls button:nth-child(3)") == "play"


def test_on_a_phone_the_list_is_folded_and_the_buttons_step(
    driver: Chrome, pages: dict[str, Path]
) -> None:
    open_page(driver, pages["games"], PHONE)
    assert driver.execute_script("return document.getElementById('picker').open") is False
    driver.find_element(By.CSS_SELECTOR, "button[title^='next turn']").click()
    assert address_of(driver) == "#game=0&turn=2"
    driver.find_element(By.CSS_SELECTOR, "#picker summary").click()
    driver.find_element(By.CSS_SELECTOR, "#list a[href='#g2']").click()
    assert address_of(driver) == "#game=2&turn=1"
    assert driver.execute_script("return document.getElementById('picker').open") is False


@pytest.mark.parametrize("size", [DESK, PHONE])
def test_the_page_of_a_run_leads_with_its_result_and_its_games_are_stepped_through(
    driver: Chrome, pages: dict[str, Path], size: tuple[int, int]
) -> None:
    open_page(driver, pages["run"], size)
    assert text_of(driver, ".lead").startswith("held-out ")
    driver.find_element(By.CSS_SELECTOR, "#settings summary").click()
    assert "HANABI_ENTROPY_BONUS" in text_of(driver, "#settings")
    driver.find_element(By.CSS_SELECTOR, "nav a[href='#replays']").click()
    driver.switch_to.frame(driver.find_element(By.TAG_NAME, "iframe"))
    try:
        assert "turn 1 of" in text_of(driver, ".status")
        driver.find_element(By.CSS_SELECTOR, "button[title^='next turn']").click()
        press(driver, Keys.ARROW_RIGHT)
        assert "turn 3 of" in text_of(driver, ".status")
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        driver.switch_to.default_content()
    assert complaints(driver) == []
