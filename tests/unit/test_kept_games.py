"""Games of scripts that an interrupted warm start does not play again."""

import json
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_engine import CHAT, LAPTOP
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.rollout.recordings import write_recordings
from hanabi_grpo.settings import Settings
from hanabi_grpo.sft import kept_games
from hanabi_grpo.sft.kept_games import KeptGames
from hanabi_grpo.sft.run import StoppedError, WarmStart, Watcher
from hanabi_grpo.sft.samples import Sample
from hanabi_grpo.sft.sources import Sources

KEY = {"seed": 0, "lineups": ("iggi",)}
HIGH_START = 2**64 - 1
"""The largest hash of a start."""


def make_sample(player: int, *ids: int, question_start: int | None = None) -> Sample:
    marks = [0] * (len(ids) - 1) + [1]
    return Sample(
        player=player,
        start=HIGH_START,
        ids=array("i", ids),
        is_reply=array("b", marks),
        question_start=question_start,
    )


FIRST = [make_sample(0, 5, 6, 7), make_sample(1, 8, 9)]
SECOND = [make_sample(1, 40_000, 2, question_start=0), make_sample(0, 1, 1, question_start=1)]


def keep_two_games(out: Path) -> None:
    kept = KeptGames.open(out, KEY)
    kept.add(FIRST, {"games": 1})
    kept.save({"games": 1})
    kept.add(SECOND, {"games": 2})
    kept.save({"games": 2})


def test_what_was_kept_comes_back_in_its_order(tmp_path: Path) -> None:
    keep_two_games(tmp_path)
    kept = KeptGames.open(tmp_path, KEY)
    assert kept.samples == FIRST + SECOND
    assert kept.num_games == 2
    assert kept.counts == Counter(games=2)


def test_a_game_without_samples_counts_as_a_game(tmp_path: Path) -> None:
    kept = KeptGames.open(tmp_path, KEY)
    kept.add([], {"left out": 1})
    kept.save({"left out": 1})
    kept = KeptGames.open(tmp_path, KEY)
    assert kept.num_games == 1
    assert kept.samples == []


def test_games_are_written_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 0.0
    monkeypatch.setattr(kept_games.time, "monotonic", lambda: seconds)
    kept = KeptGames.open(tmp_path, KEY)
    for game in range(5):
        seconds = 31.0 * game
        kept.add(FIRST, {"games": game + 1})
    # At 62 s and at 124 s.
    index = json.loads((tmp_path / "games/index.json").read_text())
    assert index["files"] == [
        {"name": "000000.npz", "games": 3},
        {"name": "000001.npz", "games": 2},
    ]


def test_a_file_of_an_interrupted_write_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptGames.open(tmp_path, KEY)
    kept.add(FIRST, {})
    kept.save({})
    kept.add(SECOND, {})

    def fail(path: Path, data: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kept_games, "write_json_atomic", fail)
        problem = r"No space left on device\)\. Free some space, then"
        with pytest.raises(RunFolderError, match=problem):
            kept.save({})
    kept = KeptGames.open(tmp_path, KEY)
    assert kept.samples == FIRST
    kept.add(SECOND, {})
    kept.save({})
    assert KeptGames.open(tmp_path, KEY).samples == FIRST + SECOND


def test_games_of_another_warm_start_are_refused_with_the_difference(tmp_path: Path) -> None:
    keep_two_games(tmp_path)
    with pytest.raises(
        SettingsError, match=r"different warm start: seed was 0, is now 1\. Use the"
    ):
        KeptGames.open(tmp_path, {**KEY, "seed": 1})


@pytest.mark.parametrize("name", ["000001.npz", "index.json"])
@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", None])
def test_damaged_games_are_refused_with_the_way_out(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes] | None
) -> None:
    keep_two_games(tmp_path)
    path = tmp_path / "games" / name
    if damage is not None:
        path.write_bytes(damage(path.read_bytes()))
    elif name == "index.json":
        path.write_text("[]")
    else:
        path.unlink()
    with pytest.raises(RunFolderError, match="Remove this folder and run the same command"):
        KeptGames.open(tmp_path, KEY)


def make_start(out: Path, **changes: Any) -> WarmStart:
    """Return a warm start on 12 games of two scripts."""
    options: dict[str, Any] = {
        "settings": Settings(model="unused", seed=3),
        "sources": Sources(lineups=("hint-bot", "iggi"), num_tasks=6, noise=0.2),
        "steps": 2,
        "batch": 8,
        "learning_rate": 1e-3,
        "shared": True,
        "full": False,
        "every_start": False,
        "resume": True,
    }
    options.update(changes)
    return WarmStart(setup=Setup(HANABI, LAPTOP), out=out, **options)


def read_games(start: WarmStart, stop_after: int | None = None) -> tuple[list[Sample], int]:
    """Return the samples of a warm start, and how many games were played or read for them.

    Args:
        start: The warm start.
        stop_after: Number of games after which it is stopped.
    """
    start.out.mkdir(exist_ok=True)
    num_done = 0

    def show(name: str, done: int, total: int | None, text: str) -> None:
        nonlocal num_done
        num_done += 1

    watcher = Watcher(say=lambda text: None, show=show, should_stop=lambda: num_done == stop_after)
    return start._read_games(CHAT, watcher), num_done


@pytest.mark.parametrize("stop_after", [1, 6, 8])
def test_a_warm_start_that_was_stopped_plays_only_the_games_that_it_lacks(
    tmp_path: Path, stop_after: int
) -> None:
    whole, _ = read_games(make_start(tmp_path / "whole"))
    start = make_start(tmp_path / "parts")
    message = f"{stop_after} of 12 games played, saved in .*; training has not started"
    with pytest.raises(StoppedError, match=message):
        read_games(start, stop_after)
    parts, num_done = read_games(start)
    assert num_done == 12 - stop_after
    assert parts == whole
    again, num_done = read_games(start)
    assert num_done == 0
    assert again == whole


def test_recorded_games_come_last_and_are_read_again(tmp_path: Path) -> None:
    setup = make_start(tmp_path).setup
    task = setup.task("train", 0)
    seats = {player: make_script(setup, "iggi").policy for player in range(2)}
    write_recordings(tmp_path / "iggi.jsonl", [Recording(episode=play_scripts(task, seats))])
    scripted, _ = read_games(make_start(tmp_path / "scripted"))
    sources = Sources(
        lineups=("hint-bot", "iggi"), paths=(tmp_path / "iggi.jsonl",), num_tasks=6, noise=0.2
    )
    start = make_start(tmp_path / "both", sources=sources)
    both, num_done = read_games(start)
    assert num_done == 13
    assert both[: len(scripted)] == scripted
    assert len(both) == len(scripted) + 2
    again, num_done = read_games(start)
    assert num_done == 1
    assert again == both


def test_other_filters_are_another_warm_start(tmp_path: Path) -> None:
    start = make_start(tmp_path / "out")
    read_games(start)
    other = replace(start, sources=replace(start.sources, min_score=2.0))
    changed = r"a different warm start: min_score was None, is now 2\.0\."
    with pytest.raises(SettingsError, match=changed):
        read_games(other)


def test_games_that_are_refused_do_not_stand_in_the_way_of_a_corrected_command(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    start = make_start(out, settings=Settings(seed=3))
    too_good = replace(start, sources=replace(start.sources, min_score=5.0))
    watcher = Watcher(say=lambda line: None, show=lambda *args: None, should_stop=lambda: False)
    for _ in range(2):
        with pytest.raises(SettingsError, match="loosen --min-score"):
            too_good.run(watcher)
        assert not out.exists()
