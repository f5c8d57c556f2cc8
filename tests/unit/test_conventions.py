"""What conventions are counted, by hand and on every board, and how they are said."""

import random
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from boards import ALL_BOARDS, random_game, scripted_episodes, scripted_game
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.conventions import (
    ConventionReport,
    Row,
    convention_report,
    count_game,
    count_games,
    leave_one_out,
    standard_error,
)
from hanabi_grpo.envs.hanabi.rules import (
    COLOR_LETTERS,
    Card,
    Game,
    GameSpec,
    make_spec,
    parse_action,
)
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.hanabi.conventions import (
    convention_sentence,
    convention_sheet,
    count_conventions,
)
from hanabi_grpo.rollout.recordings import write_episodes

LAPTOP = make_spec("laptop")


def scripted_report(policy: str, spec: GameSpec, num_games: int) -> ConventionReport:
    config = EnvConfig(preset=spec.preset, players=spec.num_players)
    team = [policy] * spec.num_players
    return convention_report(
        "some games", [scripted_game(config, team, seed=seed) for seed in range(num_games)]
    )


def played(spec: GameSpec, deck: str, moves: str) -> Game:
    """Return a game of these moves, e.g. "Hint R, Play 0", with a deck such as "R1 Y2"."""
    game = Game(
        spec, [Card(COLOR_LETTERS.index(word[0]), int(word[1]) - 1) for word in deck.split()]
    )
    for move in moves.split(", "):
        action = parse_action(move, num_players=spec.num_players, player=game.current_player)
        assert action is not None
        game.apply(action)
    return game


def test_the_figures_of_a_game_of_six_moves() -> None:
    """Two hints that are played, a discard and a bomb with both attributes known."""
    game = played(
        LAPTOP, "R1 Y1 Y1  R2 R1 Y2  R1 Y1", "Hint R, Play 1, Hint 2, Play 0, Discard 0, Play 0"
    )
    report = convention_report("golden", [game])
    team, first, second = report.sides.values()
    assert report.num_games == 1
    # Both hints are played; the seat's one turn without a new hint is a play as well.
    assert second["any"].signal == 0
    assert team["any"].signal == 1 - 1 / 4
    assert second["any"].shares["newest_of_choices"] == 0.5
    assert second["R"].shares["playable_when_hinted"] == 0.5
    assert first["any"].signal is first["any"].error is team["any"].error is None
    rows = {row[:2]: row[2:] for group in convention_sheet(report).groups for row in group}
    assert rows["player_1", "R"] == ("1", "100", "100", "0", "0", "0", "100", "100", "50", "0")
    assert {row[0] for row in rows} == {"team", "player_1"} and ("player_1", "Y") not in rows


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_shares_are_shares(preset: str, num_players: int) -> None:
    spec, rng = make_spec(preset, num_players), random.Random(f"{preset}{num_players}")
    for game in (random_game(spec, rng) for _ in range(6)):
        count_game(game, row := Row())
        turns = {
            seat: sum(event.player == seat for event in game.events) for seat in range(num_players)
        }
        assert all(row[seat, "unhinted_turns"] <= turns[seat] for seat in turns)
        told = sum(event.action.slot < 0 for event in game.events)
        assert sum(n for key, n in row.items() if key[-1] == "answered") <= told
    report = scripted_report("random", spec, 12)
    for answers in (answers for hints in report.sides.values() for answers in hints.values()):
        parts = [answers.shares[name] for name in ("plays", "discards", "hints_back")]
        assert None in parts or sum(part or 0 for part in parts) == pytest.approx(1)


def test_all_games_of_a_deal_are_one_group_and_errors_of_single_games_are_the_textbook_ones() -> (
    None
):
    teams = ["random"] * 2, ["iggi"] * 2, ["hint-bot"] * 2
    games = [scripted_game(EnvConfig(preset="laptop"), team, seed=3) for team in teams]
    assert len(count_games(games)) == 1
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    error = standard_error(leave_one_out(values) / leave_one_out(np.ones(8)))
    assert error == pytest.approx(statistics.stdev(values) / 8**0.5)
    assert np.isnan(standard_error(np.array([0.5, 0.5])))


def test_a_team_has_one_plain_sentence() -> None:
    assert convention_sentence(scripted_report("hint-bot", LAPTOP, 200)).startswith(
        "After a hint its receiver plays a touched card in"
    )
    assert (
        convention_sentence(scripted_report("random", LAPTOP, 200))
        == "Hints hardly change what the next player does."
    )
    assert convention_sentence(scripted_report("hint-bot", LAPTOP, 2)) == ""


def test_recorded_games_are_counted_and_those_of_two_boards_refused(tmp_path: Path) -> None:
    write_episodes(
        tmp_path,
        7,
        [scripted_episodes(EnvConfig(preset="laptop"), ["hint-bot"] * 2, range(60), suite="eval")],
    )
    found, _ = count_conventions(tmp_path)
    assert replace(found, label="some games") == scripted_report("hint-bot", LAPTOP, 60)
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--conventions"])
    assert (
        shown.exit_code == 0
        and "After a hint its receiver" in shown.output
        and "what a hint means" in shown.output
    )
    write_episodes(
        tmp_path, 8, [scripted_episodes(EnvConfig(preset="marshal-mini"), ["random"] * 2, [0])]
    )
    both = "".join(path.read_text() for path in sorted((tmp_path / "episodes").iterdir()))
    (tmp_path / "both.jsonl").write_text(both)
    with pytest.raises(SettingsError, match="holds games of several boards"):
        count_conventions(tmp_path / "both.jsonl")
