"""The page on which a person plays, in a real Chromium: whole games by mouse and by keys."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from browser import DRIVER, chromium, complaints, open_address
from fake_engine import LAPTOP
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import BusyError
from hanabi_grpo.rollout.recordings import read_recordings
from hanabi_grpo.server.person_games import PersonGames, PersonSettings
from server_app import RunningApp, running_app

pytestmark = [
    pytest.mark.rest,
    # .ci/run installs them, so there they are never missing.
    pytest.mark.skipif(
        DRIVER is None and not os.environ.get("CI"),
        reason="no chromedriver: apt-get install chromium chromium-driver",
    ),
]
SIZES = ((1280, 800), (390, 844))
"""Width and height of the window in pixels."""
BACKGROUNDS = {False: "rgb(246, 245, 242)", True: "rgb(23, 24, 27)"}
"""Colour of the page in light and in dark mode."""
KEY = "correct-horse-battery"
SETTINGS = PersonSettings(setups=(Setup(HANABI, LAPTOP),), max_tokens=4)
MOST_MOVES = 40
"""More than the games that are played here take."""


@pytest.fixture(scope="module")
def app() -> Iterator[RunningApp]:
    with running_app(people=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def driver() -> Iterator[Chrome]:
    with chromium() as found:
        yield found


def text_of(driver: Chrome, name: str) -> str:
    return driver.find_element(By.ID, name).text


def is_shown(driver: Chrome, name: str) -> bool:
    return driver.find_element(By.ID, name).is_displayed()


def wait_for(driver: Chrome, *beginnings: str) -> str:
    """Wait until the line of status begins with one of these; returns it."""
    WebDriverWait(driver, 30).until(lambda found: text_of(found, "status").startswith(beginnings))
    return text_of(driver, "status")


def start(driver: Chrome, game: str, partner: str, seed: int = 3) -> None:
    """Fill in the form of a new game and send it."""
    WebDriverWait(driver, 30).until(lambda found: is_shown(found, "setup"))
    Select(driver.find_element(By.ID, "choice")).select_by_visible_text(game)
    if partner:
        Select(driver.find_element(By.ID, "partner")).select_by_visible_text(partner)
    driver.find_element(By.ID, "seed").clear()
    driver.find_element(By.ID, "seed").send_keys(str(seed))
    driver.find_element(By.CSS_SELECTOR, "#setup .go").click()
    wait_for(driver, "Your turn", "The game is over")


def move_and_wait(driver: Chrome, name: str) -> str:
    """Click on a choice by its spoken name; returns the next line of status of one's own."""
    table = text_of(driver, "table")
    driver.find_element(By.CSS_SELECTOR, f"#choices button[aria-label='{name}']").click()
    WebDriverWait(driver, 30).until(lambda found: text_of(found, "table") != table)
    return wait_for(driver, "Your turn", "The game is over")


def test_a_whole_game_of_hanabi_is_played_by_mouse_and_saved(
    driver: Chrome, app: RunningApp, tmp_path: Path
) -> None:
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    open_address(driver, f"{app.url}/play/", width=1280, height=800)
    start(driver, "hanabi, laptop (2 players)", "hint-bot")
    hidden = driver.find_elements(By.CSS_SELECTOR, "[aria-label='your hand'] .card")
    assert [card.text for card in hidden] == ["?", "?", "?"]
    status = text_of(driver, "status")
    for _ in range(MOST_MOVES):
        if status.startswith("The game is over"):
            break
        names = [
            button.get_attribute("aria-label") or ""
            for button in driver.find_elements(By.CSS_SELECTOR, "#choices button")
        ]
        discards = [name for name in names if name.startswith("Discard")]
        status = move_and_wait(driver, (discards or names[-1:])[0])
    assert status.startswith("The game is over. Your team scored ")
    assert status.endswith(" of 4.")
    assert not is_shown(driver, "move")
    driver.find_element(By.ID, "save").click()
    saved = tmp_path / "laptop-3.jsonl"
    WebDriverWait(driver, 30).until(lambda _: saved.exists())
    [recording], notes = read_recordings([saved])
    assert notes == []
    assert recording.episode.seats == ("human", "hint-bot")
    assert f"scored {recording.episode.result['score']:g} of 4" in status
    assert complaints(driver, served_by=app.url) == []


def test_a_game_is_played_by_keys_alone_and_goes_on_after_a_reload(
    driver: Chrome, app: RunningApp
) -> None:
    open_address(driver, f"{app.url}/play/", width=1280, height=800)
    driver.execute_script("sessionStorage.clear()")
    driver.refresh()
    start(driver, "tic_tac_toe (2 players)", "random")
    focused = driver.switch_to.active_element
    assert focused.get_attribute("id") == "words"
    focused.send_keys("dance", Keys.ENTER)
    WebDriverWait(driver, 30).until(lambda found: is_shown(found, "trouble"))
    assert "That is not an action." in text_of(driver, "trouble")
    # The words are selected, so that the next ones take their place.
    driver.switch_to.active_element.send_keys("5", Keys.ENTER)
    WebDriverWait(driver, 30).until(lambda found: "X" in text_of(found, "table"))
    wait_for(driver, "Your turn")
    assert not is_shown(driver, "trouble")
    before = text_of(driver, "table")
    driver.refresh()
    wait_for(driver, "Your turn")
    assert text_of(driver, "table") == before
    play_out(driver)
    assert wait_for(driver, "The game is over").split(". ")[1].startswith(("You ", "A draw"))
    assert driver.switch_to.active_element.get_attribute("id") == "status"
    driver.find_element(By.ID, "again").click()
    wait_for(driver, "Your turn")
    assert text_of(driver, "table").split() == list("123456789")


def play_out(driver: Chrome) -> None:
    """Type the first choice of each turn until the game is over."""
    for _ in range(MOST_MOVES):
        if not is_shown(driver, "move"):
            return
        free = driver.find_element(By.CSS_SELECTOR, "#choices button").text
        table = text_of(driver, "table")
        driver.find_element(By.ID, "words").send_keys(free, Keys.ENTER)
        WebDriverWait(driver, 30).until(lambda found, old=table: text_of(found, "table") != old)
        wait_for(driver, "Your turn", "The game is over")


def test_a_finished_game_stays_on_the_page_until_another_one_has_begun(
    driver: Chrome, app: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_address(driver, f"{app.url}/play/", width=1280, height=800)
    driver.execute_script("sessionStorage.clear()")
    driver.refresh()
    start(driver, "tic_tac_toe (2 players)", "random")
    play_out(driver)
    over = wait_for(driver, "The game is over")

    def refuse(games: PersonGames, token: str) -> str:
        raise BusyError("16 games with people are open.")

    with monkeypatch.context() as refusing:
        refusing.setattr(PersonGames, "again", refuse)
        for _ in range(2):
            driver.find_element(By.ID, "again").click()
            WebDriverWait(driver, 30).until(lambda found: is_shown(found, "trouble"))
            assert text_of(driver, "trouble") == "16 games with people are open."
            assert text_of(driver, "status") == over
            assert is_shown(driver, "save")
            driver.execute_script("document.getElementById('trouble').hidden = true")
    driver.find_element(By.ID, "again").click()
    wait_for(driver, "Your turn")
    assert not is_shown(driver, "again")
    # Refusals are lines of the console.
    complaints(driver)


def test_every_view_fits_its_window_and_follows_the_night(driver: Chrome, app: RunningApp) -> None:
    # Refusals of other tests are lines of the console.
    complaints(driver)
    for game, partner in (
        ("hanabi, full (2 players)", "iggi"),
        ("sokoban (1 player)", ""),
        ("debate (2 players)", "noisy"),
    ):
        for width, height in SIZES:
            for dark in (False, True):
                open_address(driver, f"{app.url}/play/", width=width, height=height, dark=dark)
                driver.execute_script("sessionStorage.clear()")
                driver.refresh()
                start(driver, game, partner)
                for _ in range(2):
                    shown = driver.execute_script("return document.documentElement.scrollWidth")
                    assert shown <= width, (game, width)
                    background = driver.execute_script(
                        "return getComputedStyle(document.body).backgroundColor"
                    )
                    assert background == BACKGROUNDS[dark]
                driver.find_element(By.ID, "leave").click()
                WebDriverWait(driver, 30).until(lambda found: is_shown(found, "setup"))
    assert complaints(driver, served_by=app.url) == []


def test_marks_of_others_are_text_on_the_page(driver: Chrome, app: RunningApp) -> None:
    open_address(driver, f"{app.url}/play/", width=1280, height=800)
    driver.execute_script("sessionStorage.clear()")
    driver.refresh()
    start(driver, "debate (2 players)", "solver")
    words = driver.find_element(By.ID, "words")
    words.send_keys("<img src=x onerror=document.title='evil'> Answer: 7", Keys.ENTER)
    wait_for(driver, "Your turn")
    # Workflows break up marks for models.
    assert "< img src=x onerror" in text_of(driver, "table")
    assert driver.find_elements(By.TAG_NAME, "img") == []
    assert driver.title == "Your turn – Play"


def test_a_server_with_a_key_asks_for_it_on_the_page(driver: Chrome) -> None:
    with running_app(api_key=KEY, people=SETTINGS) as locked:
        open_address(driver, f"{locked.url}/play/", width=1280, height=800)
        WebDriverWait(driver, 30).until(lambda found: is_shown(found, "door"))
        driver.find_element(By.ID, "key").send_keys("wrong", Keys.ENTER)
        WebDriverWait(driver, 30).until(lambda found: is_shown(found, "trouble"))
        assert text_of(driver, "trouble") == "That is not this server's key."
        driver.find_element(By.ID, "key").send_keys(KEY, Keys.ENTER)
        start(driver, "hanabi, laptop (2 players)", "random")
        stored = driver.execute_script("return JSON.stringify(sessionStorage)")
        assert KEY not in stored
        # Refusals are lines of the console.
        complaints(driver)
