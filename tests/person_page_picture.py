"""The picture of the page on which a person plays: a game of Full Hanabi beside a script.

    PYTHONPATH=tests:tools python tests/person_page_picture.py docs/pages/play.png

The person's moves are fixed by a rule, so the picture is the same each time.
"""

import sys
from pathlib import Path

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.wait import WebDriverWait

from browser import chromium, open_address, picture
from server_app import running_app

_GAME = "hanabi, full (2 players)"
_PARTNER = "piers"
_TASK = "12"
_NUM_MOVES = 8
_SECONDS = 30.0


def names_of(driver: Chrome) -> list[str]:
    """Return the spoken names of the choices."""
    names = []
    for button in driver.find_elements(By.CSS_SELECTOR, "#choices button"):
        names.append(button.get_attribute("aria-label") or "")
    return names


def choose(driver: Chrome) -> str:
    """Return the name of a move: to play a card of the newest hint, else to hint a rank."""
    slots = driver.find_elements(By.CSS_SELECTOR, "[aria-label='your hand'] > li")
    touched = [
        number for number, slot in enumerate(slots) if "touched" in str(slot.get_attribute("class"))
    ]
    if touched:
        return f"Play slot {touched[0]}"
    return next(name for name in names_of(driver) if name.startswith("Hint") and "rank" in name)


def main() -> None:
    """Play some moves and take the picture."""
    [path] = sys.argv[1:]
    with running_app() as app, chromium() as driver:
        open_address(driver, f"{app.url}/play/", width=1280, height=760)
        wait = WebDriverWait(driver, _SECONDS)
        wait.until(lambda found: found.find_element(By.ID, "setup").is_displayed())
        Select(driver.find_element(By.ID, "choice")).select_by_visible_text(_GAME)
        Select(driver.find_element(By.ID, "partner")).select_by_visible_text(_PARTNER)
        driver.find_element(By.ID, "seed").send_keys(_TASK)
        driver.find_element(By.CSS_SELECTOR, "#setup .go").click()
        wait.until(lambda found: found.find_element(By.ID, "words").is_enabled())
        for _ in range(_NUM_MOVES):
            before = driver.find_element(By.ID, "table").text
            name = choose(driver)
            driver.find_element(By.CSS_SELECTOR, f"#choices button[aria-label='{name}']").click()
            wait.until(lambda found, old=before: found.find_element(By.ID, "table").text != old)
            wait.until(lambda found: found.find_element(By.ID, "words").is_enabled())
        picture(driver, Path(path))


if __name__ == "__main__":
    main()
