"""A team that reads one message a turn: its messages are those of models, its score is exact."""

import random
from statistics import fmean

import numpy as np
import pytest

from boards import random_move, scripted_game
from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI
from hanabi_grpo.envs.hanabi.policies import all_messages, best_messages
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
def _is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_messages, "SWEEPS", 3)


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


def test_on_laptop_three_rounds_pass_the_bots_and_their_score_is_exact() -> None:
    setup = Setup(HANABI, EnvConfig(preset="laptop"))
    mean, _ = best_messages.best_team(setup.config.spec(), False, 3)
    result = evaluate_lineup(parse_lineup("best-messages", 2), setup, 2240, suite="eval-all-starts")
    assert result.estimate.is_exact
    assert result.mean == pytest.approx(mean, abs=1e-9)
    assert mean > 3.4


def test_a_board_with_too_many_decks_is_refused_before_anything_is_computed() -> None:
    message = (
        r"best-messages on simple: the board has 2\.22e\+06 decks .* at most 2000 are possible"
    )
    with pytest.raises(SettingsError, match=message):
        scripted_game(EnvConfig(preset="simple"), ["best-messages"] * 2)
