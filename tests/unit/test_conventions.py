"""What conventions are counted, by hand and on every board, and how they are said."""

import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from boards import ALL_BOARDS, random_game, scripted_episodes, scripted_game
from hanabi_grpo.cli import app
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.conventions.counts import Row, count_game, count_games
from hanabi_grpo.envs.hanabi.conventions.report import (
    ConventionReport,
    convention_report,
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
from hanabi_grpo.report.hanabi.conventions import convention_sentence, convention_sheets, count_conventions
from hanabi_grpo.runs.recordings import write_episodes

LAPTOP = make_spec("laptop")


def scripted_report(policy: str, spec: GameSpec, num_games: int) -> ConventionReport:
    config = EnvConfig(preset=spec.preset, players=spec.num_players)
    team = [policy] * spec.num_players
    return convention_report("some games", [scripted_game(config, team, seed=seed) for seed in range(num_games)])


def played(spec: GameSpec, deck: str, moves: str) -> Game:
    """Return a game of these moves, e.g. "Hint R, Play 0", with a deck such as "R1 Y2"."""
    game = Game(spec, [Card(COLOR_LETTERS.index(word[0]), int(word[1]) - 1) for word in deck.split()])
    for move in moves.split(", "):
        action = parse_action(move, num_players=spec.num_players, player=game.current_player)
        assert action is not None
        game.apply(action)
    return game


def of_seat(game: Game, seat: int) -> dict[Any, float]:
    """Return the counters of a seat's own moves by name, without those that are 0."""
    row = Row(float)
    count_game(game, row)
    return {key[1]: n for key, n in row.items() if isinstance(key, tuple) and len(key) == 2 and key[0] == seat and n}


def test_the_figures_of_a_game_of_six_moves() -> None:
    """Two hints that are played, a discard and a bomb with both attributes known."""
    game = played(LAPTOP, "R1 Y1 Y1  R2 R1 Y2  R1 Y1", "Hint R, Play 1, Hint 2, Play 0, Discard 0, Play 0")
    report = convention_report("golden", [game])
    first, second = report.seats
    assert report.num_games == 1
    values = {name: one.value for name, one in second.figures.items()}
    assert values["bits_per_play"] == pytest.approx((np.log2(5 / 3) + 2 + np.log2(3)) / 3)
    assert values["chance_per_play"] == pytest.approx((2 / 3 + 1) / 3)
    assert values["certain_plays"] == values["misplay_share"] == pytest.approx(1 / 3)
    assert values["plays"] == 3
    # Both hints are played; the seat's one turn without a new hint is a play as well.
    assert second.hints["any"]["play_signal"].value == 0
    assert report.team.hints["any"]["play_signal"].value == 1 - 1 / 4
    assert second.hints["any"]["newest_of_choices"].value == 0.5
    assert second.hints["R"]["playable_when_hinted"].value == 0.5
    assert first.hints["any"]["play_signal"].value is None
    assert all(one.error is None for one in first.figures.values())
    hints, moves = convention_sheets(report)
    rows = {row[:2]: row[2:] for group in hints.groups for row in group}
    assert rows["player_1", "R"] == ("1", "100", "100", "0", "0", "0", "100", "100", "50", "0")
    assert {row[0] for row in rows} == {"team", "player_1"} and ("player_1", "Y") not in rows
    assert moves.groups[0][7] == ("bits from hints about the card played", "1.44", "\u2013", "1.44")


def test_wasted_hints_and_critical_discards() -> None:
    spec = replace(LAPTOP, hand_size=1)
    game = played(
        spec,
        "R1 Y2  R1 R1 R2 Y1 Y1 Y1",
        "Hint Y, Hint R, Hint Y, Discard 0, Discard 0, Discard 0, Hint R, Hint 1, Discard 0, Discard 0",
    )
    # Seat 0 says Y twice and throws the last R1; seat 1 throws the only Y2, and R2 when it is out of reach.
    mine, its = of_seat(game, 0), of_seat(game, 1)
    assert (mine["wasted_hints"], mine["critical_discards"], mine["discards"]) == (1, 1, 2)
    assert (its.get("wasted_hints", 0), its["critical_discards"], its["discards"]) == (0, 1, 3)


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_shares_are_shares(preset: str, num_players: int) -> None:
    spec, rng = make_spec(preset, num_players), random.Random(f"{preset}{num_players}")
    for game in (random_game(spec, rng) for _ in range(6)):
        seats = [of_seat(game, seat) for seat in range(num_players)]
        assert len(game.events) == sum(row.get("turns", 0) for row in seats)
    report = scripted_report("random", spec, 12)
    for row in (row for side in (report.team, *report.seats) for row in side.hints.values()):
        parts = [row[name].value for name in ("plays", "discards", "hints_back")]
        assert None in parts or sum(part or 0 for part in parts) == pytest.approx(1)


def test_all_games_of_a_deal_are_one_group() -> None:
    teams = ["random"] * 2, ["iggi"] * 2, ["hint-bot"] * 2
    games = [scripted_game(EnvConfig(preset="laptop"), team, seed=3) for team in teams]
    assert [group["games"] for group in count_games(games)] == [3]


def test_standard_errors_of_single_games_are_the_textbook_ones() -> None:
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    sums = leave_one_out(np.stack([np.ones(8), values], axis=1))
    error = standard_error(sums[:, 1] / sums[:, 0], np.ones(8))
    assert error == pytest.approx(statistics.stdev(values) / 8**0.5)
    assert np.isnan(standard_error(np.array([0.5, 0.5]), np.array([3])))


def test_a_team_has_one_plain_sentence() -> None:
    assert convention_sentence(scripted_report("hint-bot", LAPTOP, 200)).startswith(
        "After a hint its receiver plays a touched card in"
    )
    assert (
        convention_sentence(scripted_report("random", LAPTOP, 200)) == "Hints hardly change what the next player does."
    )
    assert convention_sentence(scripted_report("hint-bot", LAPTOP, 2)) == ""


def test_recorded_games_are_counted_and_those_of_two_boards_refused(tmp_path: Path) -> None:
    write_episodes(
        tmp_path, 7, [scripted_episodes(EnvConfig(preset="laptop"), ["hint-bot"] * 2, range(60), suite="eval")]
    )
    found, _ = count_conventions(tmp_path)
    assert replace(found, label="some games") == scripted_report("hint-bot", LAPTOP, 60)
    shown = CliRunner().invoke(app, ["report", str(tmp_path), "--conventions"])
    assert shown.exit_code == 0 and "After a hint its receiver" in shown.output and "what a hint means" in shown.output
    write_episodes(tmp_path, 8, [scripted_episodes(EnvConfig(preset="marshal-mini"), ["random"] * 2, [0])])
    both = "".join(path.read_text() for path in sorted((tmp_path / "episodes").iterdir()))
    (tmp_path / "both.jsonl").write_text(both)
    with pytest.raises(SettingsError, match="holds games of several boards"):
        count_conventions(tmp_path / "both.jsonl")
