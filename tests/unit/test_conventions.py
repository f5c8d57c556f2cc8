"""What conventions are counted, by hand and on every board, and how they are reported."""

import random
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from boards import ALL_BOARDS, random_game, scripted_episodes, scripted_game
from hanabi_grpo.agents.script import make_script
from hanabi_grpo.cli import app
from hanabi_grpo.envs import registry
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
from made_games import play_episodes_sync

LAPTOP = make_spec("laptop")


def scripted_report(policy: str, spec: GameSpec, num_games: int) -> ConventionReport:
    config = EnvConfig(preset=spec.preset, players=spec.num_players)
    team = [policy] * spec.num_players
    games = [scripted_game(config, team, seed=seed) for seed in range(num_games)]
    return convention_report("some games", games)


def played(spec: GameSpec, deck: str, moves: list[str]) -> Game:
    """Return a game of these moves, e.g. ["Hint R", "Play 0"], with a deck such as "R1 Y2"."""
    cards = []
    for text in deck.split():
        cards.append(Card(COLOR_LETTERS.index(text[0]), int(text[1]) - 1))
    game = Game(spec, cards)
    for move in moves:
        action = parse_action(move, num_players=spec.num_players, player=game.current_player)
        assert action is not None
        game.apply(action)
    return game


def test_the_conventions_of_a_game_of_six_moves() -> None:
    """Two hints that are played, a discard and a bomb with both attributes known."""
    game = played(
        LAPTOP,
        "R1 Y1 Y1  R2 R1 Y2  R1 Y1",
        ["Hint R", "Play 1", "Hint 2", "Play 0", "Discard 0", "Play 0"],
    )
    report = convention_report("golden", [game])
    team = report.sides["team"]
    first = report.sides["player_0"]
    second = report.sides["player_1"]
    assert list(report.sides) == ["team", "player_0", "player_1"]
    assert report.num_games == 1
    # Both hints are played; the seat's one turn without a new hint is a play as well.
    assert second["any"].signal == 0
    assert team["any"].signal == 1 - 1 / 4
    assert second["any"].shares["newest_of_choices"] == 0.5
    assert second["R"].shares["playable_when_hinted"] == 0.5
    assert first["any"].signal is None
    assert first["any"].error is None
    assert team["any"].error is None
    rows = {}
    for group in convention_sheet(report).groups:
        for receiver, hint, *cells in group:
            rows[receiver, hint] = cells
    assert rows["player_1", "R"] == ["1", "100", "100", "0", "0", "0", "100", "100", "50", "0"]
    assert {receiver for receiver, _ in rows} == {"team", "player_1"}
    assert ("player_1", "Y") not in rows


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_no_more_answers_are_counted_than_hints_were_given(
    preset: str, num_players: int
) -> None:
    spec = make_spec(preset, num_players)
    rng = random.Random(f"{preset}{num_players}")
    for _ in range(6):
        game = random_game(spec, rng)
        row = Row()
        count_game(game, row)
        for seat in range(num_players):
            num_turns = sum(event.player == seat for event in game.events)
            assert row[seat, "unhinted_turns"] <= num_turns
        num_hints = sum(event.action.slot < 0 for event in game.events)
        num_answers = sum(count for key, count in row.items() if key[-1] == "answered")
        assert num_answers <= num_hints


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_shares_add_up(preset: str, num_players: int) -> None:
    report = scripted_report("random", make_spec(preset, num_players), 12)
    for answers_by_kind in report.sides.values():
        for answers in answers_by_kind.values():
            plays = answers.shares["plays"]
            discards = answers.shares["discards"]
            hints_back = answers.shares["hints_back"]
            if plays is not None and discards is not None and hints_back is not None:
                assert plays + discards + hints_back == pytest.approx(1)


def test_all_games_of_a_deal_are_one_group() -> None:
    config = EnvConfig(preset="laptop")
    games = [
        scripted_game(config, ["random", "random"], seed=3),
        scripted_game(config, ["iggi", "iggi"], seed=3),
        scripted_game(config, ["hint-bot", "hint-bot"], seed=3),
    ]
    assert len(count_games(games)) == 1


def test_errors_of_single_games_are_the_textbook_ones() -> None:
    values = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    means = leave_one_out(values) / leave_one_out(np.ones(8))
    assert standard_error(means) == pytest.approx(statistics.stdev(values) / 8**0.5)
    one_group = np.array([0.5, 0.5])
    assert np.isnan(standard_error(one_group))


def test_a_team_has_one_plain_sentence() -> None:
    listening = convention_sentence(scripted_report("hint-bot", LAPTOP, 200))
    assert listening.startswith("After a hint, the receiver plays a touched card in")
    not_listening = convention_sentence(scripted_report("random", LAPTOP, 200))
    assert not_listening == "Hints hardly change what the next player does."
    too_few_hints = convention_sentence(scripted_report("hint-bot", LAPTOP, 2))
    assert too_few_hints == ""


def test_recorded_games_are_counted(tmp_path: Path) -> None:
    config = EnvConfig(preset="laptop")
    episodes = scripted_episodes(config, ["hint-bot", "hint-bot"], range(60), suite="eval")
    write_episodes(tmp_path, 7, [episodes])
    report, _ = count_conventions(tmp_path)
    assert replace(report, label="some games") == scripted_report("hint-bot", LAPTOP, 60)
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--conventions"])
    assert result.exit_code == 0
    assert "After a hint, the receiver" in result.output
    assert "what a hint means" in " ".join(result.output.split())


def test_options_of_runs_are_refused_for_games_alone_and_the_table_is_written(
    tmp_path: Path,
) -> None:
    config = EnvConfig(preset="laptop")
    episodes = scripted_episodes(config, ["hint-bot", "hint-bot"], range(4), suite="eval")
    write_episodes(tmp_path, 7, [episodes])
    command = ["report", str(tmp_path), "--conventions"]
    for options in (["--html", "x.html"], ["--png", "x.png"], ["--alarms"], ["--min-rise", "3"]):
        result = CliRunner().invoke(app, [*command, *options])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {options[0]} with {tmp_path}: needs metrics.jsonl")
    file = tmp_path / "table.md"
    result = CliRunner().invoke(app, [*command, "--markdown", str(file)])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1] == f"tables: {file}"
    assert "what a hint means" in file.read_text()


def test_recorded_games_of_two_boards_are_refused(tmp_path: Path) -> None:
    for step, preset in enumerate(("laptop", "marshal-mini")):
        episodes = scripted_episodes(EnvConfig(preset=preset), ["random", "random"], [0])
        write_episodes(tmp_path, step, [episodes])
    records = [path.read_text() for path in sorted((tmp_path / "episodes").iterdir())]
    (tmp_path / "both.jsonl").write_text("".join(records))
    with pytest.raises(SettingsError, match="holds games of several boards"):
        count_conventions(tmp_path / "both.jsonl")


def test_games_of_another_environment_are_refused(tmp_path: Path) -> None:
    kuhn = registry.setup("kuhn_poker", {"preset": "kuhn_poker"})
    games = play_episodes_sync(kuhn, [make_script(kuhn, "random")] * 2, "eval", [0])
    write_episodes(tmp_path, 1, [games])
    with pytest.raises(SettingsError, match=r"holds games of kuhn_poker; conventions are counted"):
        count_conventions(tmp_path)
