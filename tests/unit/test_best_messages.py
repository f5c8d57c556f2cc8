"""A team that reads one message a turn: its messages are those of models, its score is exact."""

import io
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from boards import random_move, scripted_game
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies import all_messages, best_messages, team_file
from hanabi_grpo.envs.hanabi.policies.all_deals import legal
from hanabi_grpo.envs.hanabi.policies.best_response import EMPTY
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rules import Game, GameSpec, make_spec
from hanabi_grpo.envs.hanabi.rules.deals import numbered_deck
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.evaluate import evaluate_lineup

TINY = "1x3-hand2-info1-life1"
"""60 decks of six cards, of which two are drawn."""
NUM_TINY_DECKS = 60


@pytest.fixture(autouse=True)
def _is_quick(monkeypatch: pytest.MonkeyPatch, cache_home: Path) -> None:
    monkeypatch.setattr(best_messages, "SWEEPS", 3)


@pytest.fixture
def num_searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often a team is computed, as if each call came in a process of its own."""
    counted: Counter[str] = Counter()
    search = best_messages.searched_team

    def counting(spec: GameSpec, keeps: bool, sweeps: int) -> tuple[float, best_messages.Team]:
        counted["searches"] += 1
        return search(spec, keeps, sweeps)

    monkeypatch.setattr(best_messages, "searched_team", counting)
    monkeypatch.setattr(best_messages, "best_team", best_messages.best_team.__wrapped__)
    return counted


def files_in(folder: Path) -> list[Path]:
    return sorted((folder / "hanabi_grpo" / "teams").glob("*.npz"))


def same_teams(one: tuple[float, Any], other: tuple[float, Any]) -> bool:
    tables = zip(one[1], other[1], strict=True)
    return one[0] == other[0] and all(
        np.array_equal(mine, yours) and mine.dtype == yours.dtype
        for first, second in tables
        for mine, yours in zip(first, second, strict=True)
    )


def decks_of(spec: GameSpec, tables: all_messages.Tables) -> list[Game]:
    """Return a game of the engine for each table."""
    by_cards = {}
    number = 0
    while True:
        deck = numbered_deck(spec, number)
        cards = tuple(card.color * spec.num_ranks + card.rank for card in deck)
        if cards in by_cards:
            break
        by_cards[cards] = deck
        number += 1
    return [Game(spec, by_cards[tuple(cards)]) for cards in tables.games.decks.tolist()]


@pytest.mark.parametrize(
    ("preset", "players"), [("laptop", 2), ("marshal-mini", 2), ("mini", 3), (TINY, 2)]
)
def test_two_tables_have_one_message_exactly_where_two_prompts_are_one(
    preset: str, players: int
) -> None:
    spec = make_spec(preset, players)
    rng = random.Random(7)
    everything = all_messages.all_tables(spec)
    rows = np.array([rng.randrange(len(everything)) for _ in range(150)])
    tables = everything.take(rows)
    games = decks_of(spec, tables)
    prompt_of: dict[tuple[int, int], str] = {}
    message_of: dict[tuple[int, str], int] = {}
    for turn in range(spec.max_turns):
        player = turn % players
        words = all_messages.words_of(spec, tables, player)
        read = all_messages.messages(spec, tables, player, words).tolist()
        actions = load_rules(spec).actions[player]
        options = legal(spec, tables.games, player)
        moves = []
        for game, message, allowed in zip(games, read, options, strict=True):
            view = game.view(player)
            assert message == all_messages.message_of(spec, view)
            prompt = turn_prompt(view, style="compact", legal_moves=False, deductions="counted")
            assert prompt_of.setdefault((player, message), prompt) == prompt
            assert message_of.setdefault((player, prompt), message) == message
            assert {actions[i] for i in allowed.nonzero()[0]} == set(game.legal_actions())
            action = random_move(game, rng, careful=rng.random() < 0.7)
            game.apply(action)
            moves.append(actions.index(action))
        tables, is_over = all_messages.move_on(spec, tables, player, np.array(moves))
        assert is_over.tolist() == [game.is_over for game in games]
        tables = tables.take((~is_over).nonzero()[0])
        games = [game for game in games if not game.is_over]
        if not games:
            break
    assert not games
    assert len(prompt_of) > 100


def test_a_round_never_loses_and_no_single_first_message_can_do_better() -> None:
    spec = make_spec(TINY, 2)
    start = all_messages.all_tables(spec)
    assert len(start) == NUM_TINY_DECKS
    team: best_messages.Team = (EMPTY, EMPTY)

    def mean(players: best_messages.Team) -> float:
        scores, _ = best_messages._play(spec, start, 0, players, keeps=False)
        return float(scores.mean())

    means = [mean(team)]
    for number in range(4):
        team = best_messages.improved(spec, start, team, number % 2, salt=number)
        means.append(mean(team))
    assert means == sorted(means)
    assert means[-1] > means[0]
    # The first turn was improved last.
    team = best_messages.improved(spec, start, team, 0, salt=9)
    _, turns = best_messages._play(spec, start, 0, team, keeps=False)
    read = turns[0].read
    options = legal(spec, start.games, 0)
    for message in np.unique(read):
        row = int((read == message).argmax())
        for move in options[row].nonzero()[0]:
            other = best_messages.Table(np.array([message]), np.array([move]))
            assert mean(best_messages._with_table(team, 0, other)) <= mean(team) + 1e-12


@pytest.mark.parametrize("bomb_rule", ["zero", "keep"])
def test_the_computed_mean_is_that_of_every_deck_on_the_engine(bomb_rule: str) -> None:
    config = EnvConfig.model_validate({"preset": TINY, "bomb_rule": bomb_rule})
    mean, team = best_messages.best_team(config.spec(), bomb_rule == "keep", 3)
    games = [
        scripted_game(config, ["best-messages"] * 2, suite="eval-all-starts", seed=number)
        for number in range(NUM_TINY_DECKS)
    ]
    points = [game.score if bomb_rule == "zero" else game.score_kept for game in games]
    assert fmean(points) == pytest.approx(mean, abs=1e-12)
    # A table of messages, without the rule of thumb.
    num_moves = [len(table.seen) for table in team]
    assert min(num_moves) > 10


@pytest.mark.rest
def test_on_laptop_three_rounds_pass_the_bots_and_their_score_is_exact() -> None:
    setup = Setup(HANABI, EnvConfig(preset="laptop"))
    mean, _ = best_messages.best_team(setup.config.spec(), False, 3)
    result = evaluate_lineup(parse_lineup("best-messages", 2), setup, 2240, suite="eval-all-starts")
    assert result.estimate.is_exact
    assert result.mean == pytest.approx(mean, abs=1e-9)
    assert mean > 3.4


def test_a_board_with_too_many_decks_is_refused_before_anything_is_computed() -> None:
    message = (
        r"best-messages on simple: the board has 2\.22e\+06 decks, .* at most 2000 are supported"
    )
    with pytest.raises(SettingsError, match=message):
        scripted_game(EnvConfig(preset="simple"), ["best-messages"] * 2)


# Kept in a file


def test_a_team_is_computed_once_and_read_afterwards(
    cache_home: Path, num_searches: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    spec = make_spec(TINY, 2)
    computed = best_messages.best_team(spec, False, 2)
    [path] = files_in(cache_home)
    [begins, ends] = caplog.messages
    assert f"best-messages: computing the team for {TINY} with 2 players, once per" in begins
    assert ends.endswith(f" s and stored in {path}")
    assert same_teams(best_messages.best_team(spec, False, 2), computed)
    # A board of another name is the same board.
    assert same_teams(best_messages.best_team(replace(spec, preset="own"), False, 2), computed)
    assert num_searches["searches"] == 1
    assert len(caplog.messages) == 2
    assert files_in(cache_home) == [path]


def test_another_board_search_or_code_is_another_file(
    cache_home: Path, num_searches: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(TINY, 2)
    best_messages.best_team(spec, False, 1)
    best_messages.best_team(spec, True, 1)
    best_messages.best_team(spec, False, 2)
    best_messages.best_team(replace(spec, max_lives=2), False, 1)
    monkeypatch.setattr(best_messages, "code_digest", lambda paths: "other code")
    best_messages.best_team(spec, False, 1)
    assert num_searches["searches"] == len(files_in(cache_home)) == 5


def test_the_digest_of_the_code_follows_every_file_that_makes_a_team(tmp_path: Path) -> None:
    files = best_messages._code()
    names = {path.name for path in files}
    assert {"best_messages.py", "all_messages.py", "deductions.py", "game.py"} <= names
    copies = []
    for number, path in enumerate(files):
        copies.append(tmp_path / str(number) / path.name)
        copies[-1].parent.mkdir()
        copies[-1].write_bytes(path.read_bytes())
    digests = {team_file.code_digest(files), team_file.code_digest(tuple(copies))}
    assert len(digests) == 1
    for path in copies:
        path.write_bytes(path.read_bytes() + b"\n")
        team_file.code_digest.cache_clear()
        digests.add(team_file.code_digest(tuple(copies)))
    assert len(digests) == 1 + len(copies)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other", "facts"])
def test_a_damaged_file_is_refused_loudly_and_made_again(
    cache_home: Path, num_searches: Counter[str], caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    spec = make_spec(TINY, 2)
    computed = best_messages.best_team(spec, False, 2)
    [path] = files_in(cache_home)
    whole = path.read_bytes()
    middle = len(whole) // 2
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    if damage == "other":
        arrays["moves_0"] = arrays["moves_0"][::-1].copy()
    if damage == "facts":
        arrays["facts"] = np.array(str(arrays["facts"]).replace('"sweeps": 2', '"sweeps": 3'))
    rewritten = io.BytesIO()
    np.savez_compressed(rewritten, **arrays)
    path.write_bytes(
        {
            "cut": whole[:middle],
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
            "text": b"not a team",
        }.get(damage, rewritten.getvalue())
    )
    caplog.clear()
    assert same_teams(best_messages.best_team(spec, False, 2), computed)
    assert f"{path} is damaged (" in caplog.messages[0]
    assert caplog.messages[0].endswith("): ignoring it and computing the team again")
    assert num_searches["searches"] == 2
    # And it is whole again.
    caplog.clear()
    best_messages.best_team(spec, False, 2)
    assert not caplog.messages
    assert [name.name for name in path.parent.iterdir() if name.suffix == ".tmp"] == []


def test_without_a_folder_to_write_to_a_team_is_computed_and_said_to_be(
    tmp_path: Path,
    num_searches: Counter[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for _ in range(2):
        best_messages.best_team(make_spec(TINY, 2), False, 1)
    assert num_searches["searches"] == 2
    assert "the team cannot be stored in a file" in caplog.messages[0]
    assert "set XDG_CACHE_HOME to a writable folder" in caplog.messages[0]


def test_the_folder_is_that_of_the_xdg_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert team_file.cache_folder() == Path("/cache/hanabi_grpo/teams")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert team_file.cache_folder() == Path("/somebody/.cache/hanabi_grpo/teams")


def test_two_processes_compute_a_team_once(cache_home: Path, tmp_path: Path) -> None:
    program = (
        "from hanabi_grpo.envs.hanabi.policies import best_messages\n"
        "from hanabi_grpo.envs.hanabi.rules import make_spec\n"
        f"mean, _ = best_messages.best_team(make_spec({TINY!r}, 2), False, 40)\n"
        "print(mean)\n"
    )
    command = [sys.executable, "-c", program]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=200) for process in running]
    assert len({out for out, _ in said}) == 1
    assert said[0][0]
    assert sum("with 2 players, once per machine" in errors for _, errors in said) == 1
    assert len(files_in(cache_home)) == 1
