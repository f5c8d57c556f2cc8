"""Random games before a run, of environments whose games may never end."""

import threading
import time
from collections.abc import Callable

import pytest

from hanabi_grpo.envs.registry import setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout import random_games
from hanabi_grpo.rollout.random_games import play_random_games

LAPTOP = setup("hanabi", {"preset": "laptop"})


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_games, "SECONDS", 0.05)


def hang_at(*seeds: int) -> Callable[[int], int]:
    """Return a game that never ends for some seeds, and says which one it was for others."""

    def play(seed: int) -> int:
        while seed in seeds:
            try:
                time.sleep(1000)
            except Exception:  # as environments that retry do
                continue
        return seed

    return play


def test_a_game_that_never_ends_is_given_up_and_named_and_the_others_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert list(play_random_games(LAPTOP, hang_at(1, 3), 5)) == [0, 2, 4]
    assert "hanabi: random game 1 was abandoned: not finished after 0.05 s" in caplog.text


def test_an_environment_whose_games_do_not_end_is_refused_after_some() -> None:
    with pytest.raises(SettingsError, match="HANABI_ENV=hanabi: 3 of 4 random games"):
        list(play_random_games(LAPTOP, hang_at(1, 2, 3), 20))
    with pytest.raises(SettingsError, match="1 of 1 random games"):
        list(play_random_games(LAPTOP, hang_at(0), 1))


def test_the_alarm_of_others_is_left_as_it_was_and_another_thread_has_none() -> None:
    before = random_games.signal.getsignal(random_games.signal.SIGALRM)
    list(play_random_games(LAPTOP, hang_at(0), 2))
    assert random_games.signal.getsignal(random_games.signal.SIGALRM) is before
    played: list[int] = []
    thread = threading.Thread(target=lambda: played.extend(play_random_games(LAPTOP, hang_at(), 2)))
    thread.start()
    thread.join()
    assert played == [0, 1]
