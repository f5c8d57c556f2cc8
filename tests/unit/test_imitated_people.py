"""A partner made of recorded games: an adapter that imitates them, in pools and lineups.

Hint bots stand in for people: their games are written in the form of hanab.live and imported.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from boards import scripted_episodes
from fake_engine import LAPTOP, TOKENIZER
from hanabi_grpo.cli import app
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.recordings import read_recordings
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.partners import parse_pool
from hanabi_grpo.sft.run import WarmStart, Watcher
from hanabi_grpo.sft.sources import Sources
from live_games import live_game
from small_models import untaught_model

pytestmark = pytest.mark.rest

SETUP = Setup(HANABI, LAPTOP)
NUM_GAMES = 300
STEPS = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitation:
    """A finished imitation of imported games."""

    folder: Path
    games: list[Recording]
    best: Mapping[str, Mapping[str, Any]]
    """Held-out figures of each adapter at its best."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows nothing."""
    return untaught_model(tmp_path_factory.mktemp("base") / "model", TOKENIZER)


@pytest.fixture(scope="module")
def games_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Games of two hint bots, imported."""
    folder = tmp_path_factory.mktemp("games")
    exports = folder / "exports.jsonl"
    played = scripted_episodes(LAPTOP, ["hint-bot"] * 2, range(NUM_GAMES))
    lines = [json.dumps(live_game(game, id=number)) for number, game in enumerate(played)]
    exports.write_text("\n".join(lines))
    out = folder / "imported"
    result = CliRunner().invoke(app, ["import-hanab-live", str(exports), "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out / "laptop-2.jsonl"


def imitate(base: Path, games: Path, out: Path, **changes: Any) -> Mapping[str, Mapping[str, Any]]:
    """Imitate games; returns the held-out figures of each adapter at its best."""
    options: dict[str, Any] = {"who": "human", "seats": None, "shared": False, "steps": STEPS}
    options.update(changes)
    sources = Sources(
        paths=(games,), num_tasks=1, noise=0.0, who=options.pop("who"), seats=options.pop("seats")
    )
    start = WarmStart(
        settings=Settings(model=str(base), lora_rank=16, lora_alpha=32, seed=7),
        setup=SETUP,
        sources=sources,
        out=out,
        batch=32,
        learning_rate=1e-2,
        full=False,
        every_start=False,
        resume=False,
        **options,
    )
    watcher = Watcher(say=lambda text: None, show=lambda *progress: None, should_stop=lambda: False)
    return {row["name"]: row for label, row in start.run(watcher) if label == "best"}


@pytest.fixture(scope="module")
def imitation(base: Path, games_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Imitation:
    folder = tmp_path_factory.mktemp("imitation") / "people"
    games, _ = read_recordings([games_file])
    return Imitation(folder=folder, games=games, best=imitate(base, games_file, folder))


def test_it_agrees_with_the_games_far_above_chance(imitation: Imitation) -> None:
    """Two levels of chance: a legal move at random, and the move that its seat makes most often."""
    for seat, name in enumerate(("player_0", "player_1")):
        chances = []
        moves: Counter[str] = Counter()
        for recording in imitation.games:
            game, _ = HANABI.recorded(LAPTOP, recording)
            for turn in recording.episode.turns:
                if turn.player == seat:
                    chances.append(1 / len(game.legal(seat)))
                    moves[turn.action] += 1
                action = game.parse(turn.player, turn.action)
                assert action is not None
                game.step({turn.player: action})
        at_random = fmean(chances)
        most_often = moves.most_common(1)[0][1] / moves.total()
        assert at_random < 0.15
        assert most_often < 0.6
        figures = imitation.best[name]
        assert figures["num_replies"] > 50
        assert figures["accuracy"] > 0.65
        assert figures["accuracy"] > most_often + 0.15


def test_it_takes_a_seat_in_pools_of_partners(imitation: Imitation) -> None:
    folder = imitation.folder
    pool = parse_pool([f"{folder}*2", "iggi", f"player_1={folder}"], 2)
    assert [(partner.name, partner.seat) for partner in pool] == [
        ("people", None),
        ("iggi", None),
        ("people", 1),
    ]
    saved = read_adapters(folder / "checkpoint-0")
    assert [saved.choose(player) for player in ("player_0", "player_1")] == ["player_0", "player_1"]


def test_one_seat_is_imitated_alone(base: Path, games_file: Path, tmp_path: Path) -> None:
    best = imitate(base, games_file, tmp_path / "second", seats=(1,), steps=4)
    assert list(best) == ["player_1"]
    saved = read_adapters(tmp_path / "second" / "checkpoint-0")
    assert list(saved.adapters) == ["player_1"]
    with pytest.raises(SettingsError, match="no adapter player_0 in it; it has player_1"):
        saved.choose("player_0")
    # One adapter for all seats, which has learned from one person alone.
    best = imitate(base, games_file, tmp_path / "shared", who="Bot0", shared=True, steps=4)
    assert list(best) == ["shared"]
    num_replies = best["shared"]["num_replies"]
    both = imitate(base, games_file, tmp_path / "both", shared=True, steps=4)
    assert 0 < num_replies < both["shared"]["num_replies"]


def test_nobody_of_that_name_is_said(base: Path, games_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"0 start\(s\) with something to learn.*--who"):
        imitate(base, games_file, tmp_path / "nobody", who="Zoe")
