"""Games of a warm start that worker processes play: the same samples, errors and interrupts."""

from collections import Counter
from contextlib import closing
from copy import copy
from dataclasses import replace
from multiprocessing import active_children

import pytest

from fake_engine import CHAT, LAPTOP
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.sft import game_workers
from hanabi_grpo.sft.encoding import Encoder
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.sources import Sources

NUM_GAMES = 12
SOURCES = Sources(lineups=("iggi", "hint-bot"), num_tasks=NUM_GAMES, noise=0.3, min_score=2)
"""The lowest score leaves some games out."""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers play from the second game on."""
    monkeypatch.setattr(game_workers, "_SECONDS_ALONE", 0.0)


def make_encoder(*, max_completion_length: int = 4) -> Encoder:
    return Encoder(
        setup=Setup(HANABI, LAPTOP),
        chat=CHAT,
        max_model_len=1024,
        max_completion_length=max_completion_length,
    )


def games_of(
    encoder: Encoder, num_workers: int, *, first_game: int = 0
) -> tuple[list[list[Sample]], list[str]]:
    """Return the samples of each game, and the notes about them."""
    notes: list[str] = []
    games = SOURCES.samples(
        encoder, seed=5, say=notes.append, first_game=first_game, num_workers=num_workers
    )
    return list(games), notes


@pytest.mark.parametrize("first_game", [0, NUM_GAMES + 3])
def test_workers_play_the_same_games_in_the_same_order(
    first_game: int, caplog: pytest.LogCaptureFixture
) -> None:
    alone = make_encoder()
    together = make_encoder()
    expected = games_of(alone, 1, first_game=first_game)
    with caplog.at_level("INFO"):
        assert games_of(together, 2, first_game=first_game) == expected
    assert "2 processes play the remaining" in caplog.text
    assert together.counts == alone.counts
    assert alone.counts["left out"] > 0


def test_a_script_that_is_fast_needs_no_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(game_workers, "_SECONDS_ALONE", 1e9)
    with caplog.at_level("INFO"):
        games_of(make_encoder(), 2)
    assert "processes" not in caplog.text


def test_an_error_in_a_worker_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    too_short = make_encoder(max_completion_length=1)
    with pytest.raises(SettingsError, match="raise it") as alone:
        games_of(too_short, 1)
    # The first game would fail in this process.
    order = game_workers._Order.of(SOURCES, "iggi", too_short, 5)
    games = game_workers._played_by_workers(order, range(NUM_GAMES), 2)
    with closing(games), pytest.raises(SettingsError, match="raise it") as in_worker:
        next(games)
    assert str(in_worker.value) == str(alone.value)


def test_closing_ends_the_workers() -> None:
    of_other_tests = active_children()
    games = SOURCES.samples(make_encoder(), seed=5, say=print, num_workers=2)
    with closing(games):
        for _ in range(3):
            next(games)
        workers = [child for child in active_children() if child not in of_other_tests]
        assert len(workers) == 2
    for worker in workers:
        assert worker.exitcode is not None


def test_an_environment_that_is_not_registered_is_played_by_this_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker could not look it up."""
    encoder = make_encoder()
    known, _ = games_of(encoder, 1)
    copied = replace(encoder, setup=Setup(copy(HANABI), LAPTOP), counts=Counter())
    with caplog.at_level("INFO"):
        games, _ = games_of(copied, 2)
    assert "processes" not in caplog.text
    assert games == known
