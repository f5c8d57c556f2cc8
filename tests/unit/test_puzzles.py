"""Puzzles in parts: what can be reached in them, by enumeration, and what each seat reads."""

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.conformance import check
from hanabi_grpo.envs.parts.hat_line import HAT_LINE, HatLineConfig, HatLineGame
from hanabi_grpo.envs.parts.split_sum import SPLIT_SUM, SplitSumConfig, SplitSumGame
from hanabi_grpo.envs.referee import play_scripts
from hanabi_grpo.evaluation.puzzles import PUZZLES, evaluate_puzzle

NUM_GAMES = 400
CODES = {"split_sum": "code", "hat_line": "parity"}
"""The script of each puzzle whose seats have agreed on a code."""


def split_sum(highest: int, words: int) -> SplitSumConfig:
    return SplitSumConfig(preset="split_sum", highest=highest, words=words)


def setup_of(env: str, **fields: object) -> Setup:
    return registry.setup(env, registry.get(env).presets[env].model_dump() | fields)


def share_right(setup: Setup, script: str) -> float:
    """Return the mean share of right answers of a team of one script."""
    policy = setup.environment.policies[script]()
    seats = dict.fromkeys(range(setup.spec.num_players), policy)
    rights = []
    for seed in range(NUM_GAMES):
        rights.append(play_scripts(setup.task("eval", seed), seats).result["right"])
    return sum(rights) / len(rights)


@pytest.mark.parametrize("channel", ["word", "constant", "random"])
@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("preset", ["split_sum", "split_sum-2", "hat_line", "hat_line-4"])
def test_a_puzzle_does_what_the_interface_says(preset: str, style: str, channel: str) -> None:
    environment = registry.get(preset.partition("-")[0])
    config = environment.presets[preset].model_copy(update={"style": style, "channel": channel})
    report = check(environment, config, num_episodes=8)
    assert set(report.secrets) == {"the other parts"}


def functions(num_inputs: int, num_outputs: int) -> Iterator[tuple[int, ...]]:
    """Yield every table from inputs to outputs."""
    return itertools.product(range(num_outputs), repeat=num_inputs)


@pytest.mark.parametrize(("highest", "words"), [(1, 1), (1, 2), (2, 2), (3, 2), (3, 3), (3, 4)])
def test_no_pair_is_better_at_a_split_sum_than_its_ceiling(highest: int, words: int) -> None:
    config = split_sum(highest, words)
    halves = range(highest + 1)
    best = 0
    for code in functions(highest + 1, words):
        # The best answer to each word and second half, by counting all sums that are left.
        num_right = 0
        for word, second in itertools.product(range(words), halves):
            sums = [first + second for first in halves if code[first] == word]
            num_right += max((sums.count(answer) for answer in sums), default=0)
        best = max(best, num_right)
    assert best / (highest + 1) ** 2 == pytest.approx(SPLIT_SUM.ceiling(config))
    if words == 1:
        assert SPLIT_SUM.ceiling(config) == SPLIT_SUM.ceiling_without_words(config)


@pytest.mark.parametrize("highest", [1, 2, 3])
def test_no_seat_that_hears_nothing_is_better_than_the_ceiling_without_words(highest: int) -> None:
    halves = range(highest + 1)
    best = 0
    for answers in functions(highest + 1, 2 * highest + 1):
        best = max(best, sum(answers[own] == own + other for own in halves for other in halves))
    without = SPLIT_SUM.ceiling_without_words(split_sum(highest, 4))
    assert best / (highest + 1) ** 2 == pytest.approx(without)


def hat_line(players: int, hats: int) -> HatLineConfig:
    return HatLineConfig(preset="hat_line", players=players, hats=hats)


@pytest.mark.parametrize(("players", "hats"), [(2, 2), (2, 3), (3, 2)])
def test_no_line_is_better_than_its_ceiling(players: int, hats: int) -> None:
    """Every strategy of all but the last player, and the best answer of the last to each."""
    lines = list(itertools.product(range(hats), repeat=players))
    # Whoever answers: hats seen and answers heard are together as many as the others.
    inputs = hats ** (players - 1)
    best = 0
    for tables in itertools.product(functions(inputs, hats), repeat=players - 1):
        num_right = 0
        left: dict[int, list[int]] = {}
        for line in lines:
            heard: list[int] = []
            for player, table in enumerate(tables):
                heard.append(table[_place([*heard, *line[player + 1 :]], hats)])
            num_right += sum(answer == hat for answer, hat in zip(heard, line, strict=False))
            left.setdefault(_place(heard, hats), []).append(line[-1])
        num_right += sum(max(map(own.count, own)) for own in left.values())
        best = max(best, num_right)
    ceiling = HAT_LINE.ceiling(hat_line(players, hats))
    assert best / (len(lines) * players) == pytest.approx(ceiling)


def _place(digits: list[int], base: int) -> int:
    """Return the number of these digits, which is the row of a table."""
    number = 0
    for digit in digits:
        number = base * number + digit
    return number


def test_in_a_line_each_sees_the_hats_before_it_and_hears_the_answers_behind_it() -> None:
    config = HatLineConfig(preset="hat_line", style="compact")
    game = HatLineGame(config, (0, 1, 0), ("blue", "blue"))
    assert game.state_message(0) == "sees-1-0"
    game.step({0: "red"})
    assert game.state_message(1) == "heard-red-sees-0"
    game.step({1: "blue"})
    assert game.state_message(2) == "heard-red-blue"
    assert game.state_message(0) == "sees-1-0", "answers behind it would tell its own hat"
    all_right = [{"team": 1.0}] * 3
    assert game.step({2: "red"}) == all_right
    assert game.result() == {"right": 1.0}


@pytest.mark.parametrize(("players", "hats"), [(2, 3), (4, 2), (5, 3)])
def test_all_but_the_first_in_a_line_are_right_by_the_sum(players: int, hats: int) -> None:
    setup = setup_of("hat_line", players=players, hats=hats)
    policy = setup.environment.policies["parity"]()
    seats = dict.fromkeys(range(players), policy)
    for seed in range(50):
        right = play_scripts(setup.task("eval", seed), seats).result["right"]
        assert right == 1.0 or right == pytest.approx((players - 1) / players)


@pytest.mark.parametrize("env", CODES)
def test_the_agreed_code_reaches_the_ceiling_and_falls_to_chance_where_words_are_lost(
    env: str,
) -> None:
    setup = setup_of(env)
    environment = setup.environment
    ceiling = environment.ceiling(setup.config)
    assert setup.spec.attainable == ceiling
    assert share_right(setup, CODES[env]) == pytest.approx(ceiling, abs=0.04)
    without = environment.ceiling_without_words(setup.config)
    for channel in ("constant", "random"):
        deaf = setup_of(env, channel=channel)
        assert deaf.spec.attainable == without
        assert deaf.spec.hash != setup.spec.hash
        assert share_right(deaf, CODES[env]) == pytest.approx(without, abs=0.06)


def test_with_too_few_words_the_code_is_right_as_often_as_can_be() -> None:
    setup = setup_of("split_sum", words=2)
    assert setup.environment.ceiling(setup.config) == 0.5
    assert share_right(setup, "code") == pytest.approx(0.5, abs=0.06)


def test_one_word_of_a_half_is_all_that_the_other_seat_reads() -> None:
    game = SplitSumGame(SplitSumConfig(preset="split_sum", style="compact"), (2, 1), ("delta",))
    assert game.state_message(0) == "sees-2"
    assert game.legal(0) == ("alfa", "bravo", "charlie", "delta")
    assert game.step({0: "charlie"}) == [{}, {}]
    assert game.state_message(1) == "heard-charlie-sees-1"
    assert game.step({1: "3"}) == [{"team": 1.0}, {"team": 1.0}]
    assert game.state_message(0) == "sees-2", "the answer would tell the other half"


@pytest.mark.parametrize(("channel", "heard"), [("constant", "alfa"), ("random", "delta")])
def test_a_control_puts_another_word_in_the_place_of_what_was_said(
    channel: str, heard: str
) -> None:
    config = SplitSumConfig(preset="split_sum", style="compact", channel=channel)
    game = SplitSumGame(config, (2, 1), ("delta",))
    game.step({0: "charlie"})
    assert game.state_message(1) == f"heard-{heard}-sees-1"


@pytest.mark.parametrize("env", CODES)
def test_the_words_of_an_agreed_code_are_the_bits_that_are_needed(env: str) -> None:
    setup = setup_of(env)
    code = setup.environment.policies[CODES[env]]()
    seats = dict.fromkeys(range(setup.spec.num_players), code)
    games = [play_scripts(setup.task("eval", seed), seats) for seed in range(NUM_GAMES)]
    figures = setup.metrics(games)
    needed = setup.environment.bits_needed(setup.config)
    assert figures["words_used"] == 2**needed
    assert figures["word_bits"] == pytest.approx(needed, abs=0.03)


def test_every_puzzle_can_be_compared_by_teams() -> None:
    assert set(PUZZLES) == set(CODES)


def test_teams_prints_a_puzzle_between_its_ceilings_and_the_words_beside_the_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    entries = ("split_sum=code", "hat_line=parity", "debate=noisy")
    answer = CliRunner().invoke(
        app,
        ["teams", *entries, "--tasks", "200", "--out", "a.json"],
        env={"HANABI_ENV": "split_sum"},
    )
    assert answer.exit_code == 0, answer.output
    assert max(map(len, answer.stdout.splitlines())) <= 120
    for part in ("puzzles in parts: 200 problems", "chain_sum: 200 problems", "word_bits"):
        assert part in answer.stdout
    split, hats, debate = json.loads(Path("a.json").read_text())["results"]
    assert [row["name"] for row in split["rows"]] == [
        "best without words",
        "one seat alone",
        "vote of 3, at least as many tokens",
        "split_sum of 2",
        "best team",
    ]
    without, alone, vote, team, best = split["rows"]
    assert (without["right"]["mean"], best["right"]["mean"]) == (0.25, 1.0)
    assert team["right"]["mean"] == 1.0
    for row in (alone, vote):
        assert row["right"]["mean"] == pytest.approx(0.25, abs=0.09)
    assert [row["tokens"] for row in (alone, vote, team)] == [1.0, 3.0, 2.0]
    assert team["figures"]["words_used"] == 4.0
    assert team["figures"]["bits needed"] == 2.0
    assert split["gain"]["mean"] > 0.6
    assert hats["rows"][3]["right"]["mean"] == pytest.approx(5 / 6, abs=0.03)
    assert hats["rows"][4]["right"]["mean"] == pytest.approx(5 / 6)
    assert hats["rows"][3]["figures"]["bits needed"] == 1.0
    assert debate["rows"][-1]["name"] == "debate of 2"


def test_a_vote_has_an_answer_for_every_token_that_the_team_samples() -> None:
    setup = setup_of("split_sum", highest=1, words=2)
    done: list[int] = []
    lineup = parse_lineup("random", 2, env="split_sum")
    result = evaluate_puzzle(lineup, setup, 40, suite="eval", progress=done.append)
    assert result.rows[2].tokens >= result.rows[3].tokens
    assert done[-1] == 80


@pytest.mark.parametrize("env", CODES)
def test_a_start_that_babbles_has_one_word_for_what_a_seat_knows_and_no_code(env: str) -> None:
    setup = setup_of(env)
    assert setup.environment.teachers == ("babble",)
    babble = setup.environment.policies["babble"]()
    seats = dict.fromkeys(range(setup.spec.num_players), babble)
    said: dict[object, set[str]] = {}
    for seed in range(100):
        episode = play_scripts(setup.task("eval", seed), seats)
        game = setup.environment.reset(setup.config, split="eval", seed=seed)
        for turn in episode.turns:
            said.setdefault((turn.player, game.view(turn.player)), set()).add(turn.action)
            game.step({turn.player: turn.action})
    assert all(len(words) == 1 for words in said.values())
    # Which table was drawn is luck; it is no code that solves the puzzle.
    assert share_right(setup, "babble") < setup.environment.ceiling(setup.config) - 0.1


def test_a_script_babbles_at_once_in_a_puzzle_of_more_than_a_million_starts() -> None:
    fields = {"preset": "hat_line", "players": 8, "hats": 6}
    setup = registry.setup("hat_line", fields)
    babble = setup.environment.policies["babble"]()
    start = time.monotonic()
    episodes = []
    for _ in range(2):
        episodes.append(play_scripts(setup.task("train", 0), dict.fromkeys(range(8), babble)))
    assert episodes[0] == episodes[1]
    assert {turn.kind.value for turn in episodes[0].turns} == {"legal"}
    assert time.monotonic() - start < 5
