"""Search over a bot, and best responses to each other: worlds and values by brute force, privacy,
scores, bad input.
"""

import random
from collections import Counter
from itertools import cycle, permutations, product
from statistics import fmean, stdev

import numpy as np
import pytest

from boards import random_game, random_move, scripted_game, swap_own_cards
from hanabi_grpo.envs.base import Observation, Setup
from hanabi_grpo.envs.conformance import check_policies
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame
from hanabi_grpo.envs.hanabi.policies import PLANNERS, all_deals, best_response, search
from hanabi_grpo.envs.hanabi.rules import Game, GameSpec, make_spec
from hanabi_grpo.envs.hanabi.rules.beliefs import known_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import load_rules
from hanabi_grpo.errors import SettingsError

BOARDS = [("laptop", 2), ("mini", 3), ("mini", 4), ("hle-small", 2), ("full", 3)]
TINY = GameSpec(
    preset="tiny", num_players=2, num_colors=1, num_ranks=3, hand_size=2, max_hints=1, max_lives=1
)
"""60 decks of six cards, of which two are drawn."""


@pytest.fixture(autouse=True)
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CANDIDATES": 60, "WORLDS": 20, "ROUND": 10}.items():
        monkeypatch.setattr(search, name, value)
    monkeypatch.setattr(best_response, "RESPONSES", 2)


# --- Both


@pytest.mark.parametrize(("preset", "players"), BOARDS)
@pytest.mark.parametrize("name", PLANNERS)
def test_moves_are_legal_and_do_not_depend_on_the_movers_own_hidden_cards(
    preset: str, players: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, rng = EnvConfig(preset=preset, players=players), random.Random(5)
    if name == "best-response" and preset not in ("laptop", "mini"):
        return
    monkeypatch.setattr(search, "CANDIDATES", 10)
    monkeypatch.setattr(search, "WORLDS", 2)
    monkeypatch.setattr(search, "ROUND", 2)
    num_swapped = 0
    for number in range(12):
        game = random_game(config.spec(), rng)
        if game.is_over:
            continue
        answers = []
        for one in (game, swap_own_cards(game, game.current_player, rng)):
            if one is not None:
                task = Setup(HANABI, config).task("test", 3)
                seat = HANABI.policies[name]().seat(one.current_player, task=task, game=number)
                seen = Observation(HanabiGame(config, one), one.current_player)
                answers.append(seat.act(seen))
                assert answers[-1] in (seen.legal() or ())
        assert len(set(answers)) == 1
        num_swapped += len(answers) == 2
    assert num_swapped >= 2


@pytest.mark.parametrize(("preset", "players"), [("laptop", 2), ("mini", 5)])
def test_their_games_pass_the_checks_of_environments(preset: str, players: int) -> None:
    check_policies(HANABI, EnvConfig(preset=preset, players=players))


# --- Search


def test_worlds_look_to_the_player_like_its_own_game_and_each_hand_comes_as_often_as_it_is_likely() -> (
    None
):
    """By brute force: every order of the unseen cards that the hints allow, where the partner, the
    bot, hinted so.
    """
    config = EnvConfig(preset="laptop")
    for seed in range(40):
        game = random_game(config.spec(), random.Random(seed))
        if not game.is_over and any(
            event.action.target == game.current_player for event in game.events
        ):
            break
    player, view, wanted = game.current_player, game.view(game.current_player), Counter[str]()
    known, rng = known_deck(game.spec, view), random.Random(1)
    seen = Counter(card for card in known.cards if card is not None)
    unseen = list((Counter(sorted_deck(2, 2)) - seen).elements())
    for order in permutations(unseen):
        rest = iter(order)
        other = Game(game.spec, [card or next(rest) for card in known.cards])
        weight = 1.0
        for event in game.events:
            if event.action not in other.legal_actions():
                break
            if event.player != player:
                is_same = (
                    search.rule_move("hint-bot", other.view(event.player), rng) == event.action
                )
                weight *= 0.1 / len(other.legal_actions()) + 0.9 * is_same
            other.apply(event.action)
        if other.view(player) == view:
            wanted[str(other.hands[player])] += weight
    found = Counter[str]()
    for _ in range(40):
        worlds = search.Search("hint-bot")._worlds(config, view, rng)
        assert all(world.view(player) == view for world in worlds)
        found.update(str(world.hands[player]) for world in worlds)
    assert found.keys() <= wanted.keys() and len(wanted) > 2
    for hand, weight in wanted.items():
        assert found[hand] / found.total() == pytest.approx(weight / wanted.total(), abs=0.12)


def test_a_team_that_searches_scores_more_than_its_bot() -> None:
    config = EnvConfig(preset="laptop")
    gains = []
    for seed in range(40):
        searched, plain = (
            scripted_game(config, [name] * 2, seed=seed).score for name in ("search", "iggi")
        )
        gains.append(searched - plain)
    assert fmean(gains) > 3 * stdev(gains) / len(gains) ** 0.5


def test_search_keeps_the_bots_move_unless_another_is_surely_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    game = Game(make_spec("laptop"), sorted_deck(2, 2))
    view, config = game.view(0), EnvConfig(preset="laptop")
    planned, other = search.rule_move("iggi", view, random.Random(0)), view.legal_actions[0]
    assert planned != other
    for scores, chosen in (
        ((0, 0), planned),
        ((1, 1), other),
        ((4, -3), planned),
        ((-1, -1), planned),
    ):
        luck = cycle(scores)
        worth = lambda self, config, world, move, seed, luck=luck: (
            next(luck) if move == other else 0
        )  # noqa: E731
        monkeypatch.setattr(search.Search, "_score", worth)
        assert search.Search().move(config, view, random.Random(0)) == chosen


# --- Best responses


@pytest.mark.parametrize("players", [2, 3, 4, 5])
def test_all_deals_are_played_by_the_rules_and_players_see_the_same_where_their_views_are_equal(
    players: int,
) -> None:
    spec, rng = make_spec("mini", players), random.Random(2)
    games = all_deals.all_games(spec)
    assert len(games) == 1120 and len({tuple(deck) for deck in games.decks.tolist()}) == 1120
    views = dict[int, object]()
    for row in rng.sample(range(1120), 60):
        kinds = [(kind // 2, kind % 2) for kind in games.decks[row].tolist()]
        cards = {(card.color, card.rank): card for card in sorted_deck(2, 2)}
        game, one = Game(spec, [cards[kind] for kind in kinds]), games.take(np.array([row]))
        while not game.is_over:
            player = game.current_player
            actions = load_rules(spec).actions[player]
            legal = all_deals.legal(spec, one, player)[0]
            assert [actions[number] for number in legal.nonzero()[0]] == list(game.legal_actions())
            for seat in range(players):
                view = game.view(seat)._replace(legal_actions=())
                seen = all_deals.seen_by(spec, view)
                assert seen == one.seen[0, seat]
                assert views.setdefault((seat, int(seen)), view) == view
            move = random_move(game, rng, careful=rng.random() < 0.7)
            one, is_over = all_deals.step(spec, one, player, np.array([actions.index(move)]))
            game.apply(move)
            assert (is_over[0], one.heights[0].sum(), one.lives[0]) == (
                game.is_over,
                game.score_kept,
                game.lives,
            )


def total_by_hand(
    spec: GameSpec, games: list[Game], player: int, team: best_response.Team
) -> float:
    """Return the sum of the scores of games that look alike to a player who then plays them as well
    as can be.
    """
    total, waiting, alike = 0.0, list(games), dict[str, list[Game]]()
    while waiting:
        game = waiting.pop()
        mover = game.current_player
        if game.is_over:
            total += game.score
        elif mover == player:
            alike.setdefault(repr(game.view(player)), []).append(game)
        else:
            actions = load_rules(spec).actions[mover]
            options = np.array([[action in game.legal_actions() for action in actions]])
            [move] = team[mover].choose(
                np.array([all_deals.seen_by(spec, game.view(mover))]), options
            )
            game.apply(actions[move])
            waiting.append(game)
    for group in alike.values():
        totals = []
        for action in group[0].legal_actions():
            copies = [game.copy() for game in group]
            for one in copies:
                one.apply(action)
            totals.append(total_by_hand(spec, copies, player, team))
        total += max(totals)
    return total


def test_a_response_is_the_best_one_by_brute_force_and_its_value_that_of_play() -> None:
    decks = sorted(set(permutations(sorted_deck(TINY.num_colors, TINY.num_ranks))), key=str)
    team: best_response.Team = (best_response.EMPTY,) * TINY.num_players
    values = []
    for number in range(4):
        best = total_by_hand(TINY, [Game(TINY, deck) for deck in decks], number % 2, team) / len(
            decks
        )
        value, team = best_response.respond(TINY, team, number % 2, salt=number)
        assert value == pytest.approx(best, abs=1e-12)
        values.append(value)
    assert values == sorted(values) and values[-1] > values[0]


def test_a_team_scores_on_the_engine_what_was_computed() -> None:
    for rule in ("zero", "keep"):
        config = EnvConfig(preset="laptop", bomb_rule=rule)
        mean, team = best_response.best_team(config.spec(), rule == "keep", 2)
        games = [scripted_game(config, ["best-response"] * 2, seed=seed) for seed in range(400)]
        scores = [game.score if rule == "zero" else game.score_kept for game in games]
        assert abs(fmean(scores) - mean) < 4 * stdev(scores) / len(scores) ** 0.5
        for game, (event, player) in product(games[:20], enumerate((0, 1))):
            before = Game(game.spec, game.deck)
            for past in game.events[:event]:
                before.apply(past.action)
            assert (
                team[player].find(np.array([all_deals.seen_by(game.spec, before.view(player))]))
                >= 0
            )


def test_a_board_with_too_many_decks_is_refused_with_the_number_and_the_limit() -> None:
    with pytest.raises(
        SettingsError,
        match=r"best-response on simple: .* 2\.22e\+06 decks .* at most 2000 are possible",
    ):
        scripted_game(EnvConfig(preset="simple"), ["best-response"] * 2)
