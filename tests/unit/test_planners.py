"""Search over a bot, and best responses to each other.

Worlds and values by brute force, privacy, scores, bad input.
"""

import random
from collections import Counter
from itertools import cycle, permutations
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import numpy as np
import pytest

from boards import random_game, random_move, scripted_game, swap_own_cards
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.conformance import check_policies
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import (
    PLANNERS,
    all_deals,
    best_messages,
    best_response,
    search,
)
from hanabi_grpo.envs.hanabi.rules import Action, Game, GameSpec, make_spec
from hanabi_grpo.envs.hanabi.rules.beliefs import known_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.errors import SettingsError

BOARDS = [("laptop", 2), ("mini", 3), ("mini", 4), ("hle-small", 2), ("full", 3)]
PLANNED = [
    (name, preset, players)
    for name in PLANNERS
    for preset, players in BOARDS
    if name not in ("best-response", "best-messages") or preset in ("laptop", "mini")
]
"""Planners and boards of which they can compute all decks, where they do."""
TINY = GameSpec(
    preset="tiny", num_players=2, num_colors=1, num_ranks=3, hand_size=2, max_hints=1, max_lives=1
)
"""60 decks of six cards, of which two are drawn."""


@pytest.fixture(autouse=True)
def is_quick(monkeypatch: pytest.MonkeyPatch, cache_home: Path) -> None:
    monkeypatch.setattr(search, "CANDIDATES", 60)
    monkeypatch.setattr(search, "WORLDS", 20)
    monkeypatch.setattr(search, "ROUND", 10)
    monkeypatch.setattr(best_response, "RESPONSES", 2)
    monkeypatch.setattr(best_messages, "SWEEPS", 1)


# --- Both


def next_move(name: str, config: EnvConfig, game: Game, number: int) -> str:
    """Return the move of a planner whose turn it is, which must be legal."""
    player = game.current_player
    task = Setup(HANABI, config).task("test", 3)
    seat = HANABI.policies[name]().seat(player, task=task, game=number)
    seen = Observation(HanabiGame(config, game), player)
    move = seat.act(seen)
    assert move in (seen.legal() or ())
    return move


@pytest.mark.parametrize(("name", "preset", "players"), PLANNED)
def test_moves_are_legal_and_do_not_depend_on_the_movers_own_hidden_cards(
    name: str, preset: str, players: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "CANDIDATES", 10)
    monkeypatch.setattr(search, "WORLDS", 2)
    monkeypatch.setattr(search, "ROUND", 2)
    config = EnvConfig(preset=preset, players=players)
    rng = random.Random(5)
    num_compared = 0
    for number in range(12):
        game = random_game(config.spec(), rng)
        if game.is_over:
            continue
        other = swap_own_cards(game, game.current_player, rng)
        move = next_move(name, config, game, number)
        if other is not None:
            assert next_move(name, config, other, number) == move
            num_compared += 1
    assert num_compared >= 2


@pytest.mark.rest
@pytest.mark.parametrize(("preset", "players"), [("laptop", 2), ("mini", 5)])
def test_their_games_pass_the_checks_of_environments(preset: str, players: int) -> None:
    check_policies(HANABI, EnvConfig(preset=preset, players=players))


# --- Search


def game_after_a_hint_to_the_mover(config: EnvConfig) -> Game:
    """Return a game in progress in which a hint was given to the player whose turn it is."""
    for seed in range(40):
        game = random_game(config.spec(), random.Random(seed))
        targets = [event.action.target for event in game.events]
        if not game.is_over and game.current_player in targets:
            return game
    raise AssertionError("none of these games has one")


def hand_weights(game: Game, bot: str) -> Counter[str]:
    """Return how likely each hand of the mover is, up to a factor, by brute force.

    Every order of the unseen cards that the hints allow is replayed; the others are the bot with a
    tenth of random moves.
    """
    player = game.current_player
    view = game.view(player)
    rng = random.Random(1)
    known_cards = known_deck(game.spec, view).cards
    seen = Counter(card for card in known_cards if card is not None)
    unseen = Counter(sorted_deck(2, 2)) - seen
    weights = Counter[str]()
    for order in permutations(unseen.elements()):
        rest = iter(order)
        world = Game(game.spec, [card or next(rest) for card in known_cards])
        weight = 1.0
        for event in game.events:
            if event.action not in world.legal_actions():
                break
            if event.player != player:
                chance = 0.1 / len(world.legal_actions())
                if search.rule_move(bot, world.view(event.player), rng) == event.action:
                    chance += 0.9
                weight *= chance
            world.apply(event.action)
        if world.view(player) == view:
            weights[str(world.hands[player])] += weight
    return weights


def test_worlds_look_like_the_players_own_game_and_hands_are_drawn_by_how_likely_they_are() -> None:
    config = EnvConfig(preset="laptop")
    game = game_after_a_hint_to_the_mover(config)
    player = game.current_player
    view = game.view(player)
    weights = hand_weights(game, "hint-bot")
    rng = random.Random(1)
    drawn = Counter[str]()
    for _ in range(40):
        worlds = search.Search("hint-bot")._worlds(config, view, rng)
        assert all(world.view(player) == view for world in worlds)
        drawn.update(str(world.hands[player]) for world in worlds)
    assert drawn.keys() <= weights.keys()
    assert len(weights) > 2
    for hand, weight in weights.items():
        likelihood = weight / weights.total()
        assert drawn[hand] / drawn.total() == pytest.approx(likelihood, abs=0.12)


@pytest.mark.rest
def test_a_team_that_searches_scores_more_than_its_bot() -> None:
    config = EnvConfig(preset="laptop")
    gains = []
    for seed in range(40):
        searched = scripted_game(config, ["search", "search"], seed=seed).score
        plain = scripted_game(config, ["iggi", "iggi"], seed=seed).score
        gains.append(searched - plain)
    assert fmean(gains) > 3 * stdev(gains) / len(gains) ** 0.5


@pytest.mark.parametrize(
    ("gains", "is_taken"),
    [
        ((0, 0), False),
        ((1, 1), True),
        # Better in the mean by less than two standard errors.
        ((4, -3), False),
        ((-1, -1), False),
    ],
)
def test_search_keeps_the_bots_move_unless_another_is_surely_better(
    gains: tuple[int, int], is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EnvConfig(preset="laptop")
    view = Game(config.spec(), sorted_deck(2, 2)).view(0)
    planned = search.rule_move("iggi", view, random.Random(0))
    other = view.legal_actions[0]
    assert planned != other
    gains_in_turn = cycle(gains)

    def score(
        self: search.Search, config: EnvConfig, world: Game, move: Action, luck: int
    ) -> float:
        return next(gains_in_turn) if move == other else 0

    monkeypatch.setattr(search.Search, "_score", score)
    expected = other if is_taken else planned
    assert search.Search().move(config, view, random.Random(0)) == expected


# --- Best responses


def one_game(games: all_deals.Games, row: int, spec: GameSpec) -> Game:
    """Return the game of a row, dealt by the rules."""
    cards = {(card.color, card.rank): card for card in sorted_deck(2, 2)}
    deck = [cards[divmod(number, 2)] for number in games.decks[row].tolist()]
    return Game(spec, deck)


@pytest.mark.parametrize("players", [2, 3, 4, 5])
def test_all_deals_are_played_by_the_rules_and_players_see_the_same_where_their_views_are_equal(
    players: int,
) -> None:
    spec = make_spec("mini", players)
    rng = random.Random(2)
    games = all_deals.all_games(spec)
    assert len(games) == 1120
    assert len({tuple(deck) for deck in games.decks.tolist()}) == 1120
    views = dict[tuple[int, int], object]()
    for row in rng.sample(range(1120), 60):
        game = one_game(games, row, spec)
        batch = games.take(np.array([row]))
        while not game.is_over:
            player = game.current_player
            actions = load_rules(spec).actions[player]
            legal_numbers = all_deals.legal(spec, batch, player)[0].nonzero()[0]
            assert [actions[number] for number in legal_numbers] == list(game.legal_actions())
            for seat in range(players):
                view = game.view(seat)._replace(legal_actions=())
                seen = all_deals.seen_by(spec, view)
                assert seen == batch.seen[0, seat]
                assert views.setdefault((seat, int(seen)), view) == view
            move = random_move(game, rng, careful=rng.random() < 0.7)
            batch, is_over = all_deals.step(spec, batch, player, np.array([actions.index(move)]))
            game.apply(move)
            assert is_over[0] == game.is_over
            assert batch.heights[0].sum() == game.score_kept
            assert batch.lives[0] == game.lives


def total_by_hand(
    spec: GameSpec, games: list[Game], player: int, team: best_response.Team
) -> float:
    """Return the sum of the scores of games that a player plays as well as can be.

    Args:
        spec: The board.
        games: Games that look alike to the player; they are changed.
        player: Who responds.
        team: The others.
    """
    total = 0.0
    waiting = list(games)
    alike = dict[str, list[Game]]()
    while waiting:
        game = waiting.pop()
        if game.is_over:
            total += game.score
        elif game.current_player == player:
            alike.setdefault(repr(game.view(player)), []).append(game)
        else:
            game.apply(table_move(spec, game, team[game.current_player]))
            waiting.append(game)
    for group in alike.values():
        totals = []
        for action in group[0].legal_actions():
            copies = [game.copy() for game in group]
            for game in copies:
                game.apply(action)
            totals.append(total_by_hand(spec, copies, player, team))
        total += max(totals)
    return total


def table_move(spec: GameSpec, game: Game, table: best_response.Table) -> Action:
    """Return the move of a table in one game."""
    mover = game.current_player
    actions = load_rules(spec).actions[mover]
    options = np.array([[action in game.legal_actions() for action in actions]])
    seen = np.array([all_deals.seen_by(spec, game.view(mover))])
    [number] = table.choose(seen, options)
    return actions[number]


def test_a_response_is_the_best_one_by_brute_force_and_its_value_that_of_play() -> None:
    all_cards = sorted_deck(TINY.num_colors, TINY.num_ranks)
    decks = sorted(set(permutations(all_cards)), key=str)
    team: best_response.Team = (best_response.EMPTY,) * TINY.num_players
    values = []
    for number in range(4):
        player = number % 2
        games = [Game(TINY, deck) for deck in decks]
        best_mean = total_by_hand(TINY, games, player, team) / len(decks)
        value, team = best_response.respond(TINY, team, player, salt=number)
        assert value == pytest.approx(best_mean, abs=1e-12)
        values.append(value)
    assert values == sorted(values)
    assert values[-1] > values[0]


@pytest.mark.parametrize("bomb_rule", ["zero", "keep"])
def test_a_team_scores_on_the_engine_what_was_computed(
    bomb_rule: Literal["zero", "keep"],
) -> None:
    config = EnvConfig(preset="laptop", bomb_rule=bomb_rule)
    mean, _ = best_response.best_team(config.spec(), bomb_rule == "keep", 2)
    scores = []
    for seed in range(400):
        game = scripted_game(config, ["best-response", "best-response"], seed=seed)
        scores.append(game.score if bomb_rule == "zero" else game.score_kept)
    assert abs(fmean(scores) - mean) < 4 * stdev(scores) / len(scores) ** 0.5


@pytest.mark.parametrize("bomb_rule", ["zero", "keep"])
@pytest.mark.parametrize("player", [0, 1])
def test_a_complete_team_knows_its_first_moves_in_games_among_itself(
    bomb_rule: Literal["zero", "keep"], player: int
) -> None:
    config = EnvConfig(preset="laptop", bomb_rule=bomb_rule)
    _, team = best_response.best_team(config.spec(), bomb_rule == "keep", 2)
    for seed in range(20):
        game = scripted_game(config, ["best-response", "best-response"], seed=seed)
        before = Game(game.spec, game.deck)
        for event in game.events[:player]:
            before.apply(event.action)
        seen = all_deals.seen_by(game.spec, before.view(player))
        assert team[player].find(np.array([seen])) != best_response.NO_MOVE


def test_a_board_with_too_many_decks_is_refused_with_the_number_and_the_limit() -> None:
    message = r"best-response on simple: .* 2\.22e\+06 decks, .* at most 2000 are supported"
    with pytest.raises(SettingsError, match=message):
        scripted_game(EnvConfig(preset="simple"), ["best-response"] * 2)
