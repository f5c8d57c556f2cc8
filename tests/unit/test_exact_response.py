"""Exact best responses to scripts: against brute force, and what follows from the definition."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from boards import random_move
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies import RULE_BOTS, exact_response
from hanabi_grpo.envs.hanabi.policies.best_response import EMPTY, Team, complete, respond
from hanabi_grpo.envs.hanabi.policies.exact_response import (
    Partner,
    best_score,
    chances_of,
    engine_digest,
    make_partner,
)
from hanabi_grpo.envs.hanabi.policies.rule_bots import rule_move
from hanabi_grpo.envs.hanabi.rules import Action, Game, GameSpec, PlayerView, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import load_rules

TINY = GameSpec(
    preset="tiny", num_players=2, num_colors=1, num_ranks=2, hand_size=1, max_hints=1, max_lives=2
)
"""Four decks of four cards, 1 1 1 2, of which two are drawn."""


def brute_force(spec: GameSpec, name: str, seat: int) -> float:
    """Return the best mean score by enumerating whole games and information sets as Python text.

    Nothing is shared with the solver but the rules and the chances of the script's moves.
    """
    decks = sorted(set(permutations(sorted_deck(spec.num_colors, spec.num_ranks))), key=str)

    def chances(game: Game) -> dict[Action, float]:
        if name == "random":
            legal = game.legal_actions()
            return dict.fromkeys(legal, 1 / len(legal))
        view = game.view(game.current_player)
        return dict(chances_of(lambda rng: rule_move(name, view, rng)))

    def value(worlds: list[tuple[Game, float]]) -> float:
        """Return the sum of chance times best score; all worlds look alike to the seat."""
        total = 0.0
        following: defaultdict[str, list[tuple[Game, float]]] = defaultdict(list)
        waiting = list(worlds)
        while waiting:
            game, chance = waiting.pop()
            if game.is_over:
                total += chance * game.score
            elif game.current_player == seat:
                view = game.view(seat)
                following[repr((view.events, view.hands))].append((game, chance))
            else:
                for action, how_likely in chances(game).items():
                    after = game.copy()
                    after.apply(action)
                    waiting.append((after, chance * how_likely))
        for alike in following.values():
            options = []
            for action in alike[0][0].legal_actions():
                moved = []
                for game, chance in alike:
                    after = game.copy()
                    after.apply(action)
                    moved.append((after, chance))
                options.append(value(moved))
            total += max(options)
        return total

    return value([(Game(spec, deck), 1 / len(decks)) for deck in decks])


@pytest.mark.parametrize("seat", [0, 1])
@pytest.mark.parametrize("name", ["random", "flawed", "hint-bot", "outer"])
def test_the_best_score_is_that_of_brute_force(name: str, seat: int) -> None:
    partner = make_partner(TINY, name, keeps=False)
    assert partner is not None
    assert best_score(TINY, partner, seat) == pytest.approx(brute_force(TINY, name, seat))


def test_a_tree_that_is_taken_apart_has_the_same_value(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = make_partner(TINY, "flawed", keeps=False)
    assert partner is not None
    whole = [best_score(TINY, partner, seat) for seat in (0, 1)]
    monkeypatch.setattr(exact_response, "LARGEST_PART", 1)
    assert [best_score(TINY, partner, seat) for seat in (0, 1)] == pytest.approx(whole)


@pytest.mark.rest
def test_it_agrees_with_the_response_to_a_table_of_moves() -> None:
    spec = EnvConfig(preset="laptop").spec()
    team: Team = complete(spec, (EMPTY, EMPTY))
    # A policy that plays by the table, and at random, the same each time, off it.
    expected, _ = respond(spec, team, 1)

    def chances(view: object, player: int, seen: object) -> dict[Action, float]:
        import numpy as np

        actions = load_rules(spec).actions[player]
        options = np.array([[action in view.legal_actions for action in actions]])  # type: ignore[attr-defined]
        [move] = team[player].choose(np.array([seen]), options)
        return {actions[move]: 1.0}

    table = Partner(name="table", chances=chances)
    assert best_score(spec, table, 1) == pytest.approx(expected)


DRAW = ("hint-bot", "iggi", "piers", "outer", "flawed")
"""Bots that draw among moves where no rule chooses one; the others never do."""


def positions_in_progress(preset: str, num_games: int) -> Iterator[PlayerView]:
    """Yield what the mover sees after up to eleven random moves, first of all after none."""
    spec = EnvConfig(preset=preset).spec()
    rng = random.Random(3)
    for seed in range(num_games):
        game = Game(spec, shuffled_deck(spec, "train", seed))
        for _ in range(seed % 12):
            if not game.is_over:
                game.apply(random_move(game, rng, careful=True))
        if not game.is_over:
            yield game.view(game.current_player)


@pytest.mark.parametrize("name", RULE_BOTS)
def test_chances_of_moves_are_how_often_a_bot_makes_them(name: str) -> None:
    rng = random.Random(3)
    num_drawn = 0
    for preset in ("laptop", "full"):
        for view in positions_in_progress(preset, 120):
            chances = chances_of(lambda branch, view=view: rule_move(name, view, branch))
            assert sum(chances.values()) == pytest.approx(1.0)
            num_moves = 400 if len(chances) > 1 else 5
            drawn = Counter(rule_move(name, view, rng) for _ in range(num_moves))
            assert set(drawn) <= set(chances)
            for action, chance in chances.items():
                # Five standard errors.
                error = (chance * (1 - chance) / num_moves) ** 0.5
                assert abs(drawn[action] / num_moves - chance) <= 5 * error
            num_drawn += len(chances) > 1
    assert num_drawn >= 3 if name in DRAW else num_drawn == 0


def test_a_bound_is_of_the_score_which_a_bomb_costs_whatever_is_paid_for_it() -> None:
    """Its share is that of a mean score; with points that are kept it would be 1.797."""
    board = {"preset": "2x1-hand2-info2-life1"}
    for bomb_rule in ("zero", "keep"):
        setup = registry.setup("hanabi", {**board, "bomb_rule": bomb_rule})
        bound = setup.environment.best_response_score(setup.config, "random", 0)
        assert bound == pytest.approx(1.6183, abs=1e-4)


def test_bounds_are_computed_anew_where_code_of_rules_or_scripts_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def digest(paths: tuple[Path, ...]) -> str:
        for path in paths:
            read.append(f"{path.parent.name}/{path.name}")
        return "0" * 64

    monkeypatch.setattr(exact_response, "code_digest", digest)
    engine_digest.__wrapped__()
    # The focus bot reads deductions; draws.py says how likely each move of a bot is.
    needed = {"envs/draws.py", "prompts/deductions.py", "rules/game.py", "policies/focus.py"}
    assert needed <= set(read)


def test_boards_and_scripts_without_an_exact_bound_say_so() -> None:
    laptop = registry.setup("hanabi", {"preset": "laptop"})
    full = registry.setup("hanabi", {"preset": "full"})
    other = registry.setup("hanabi", {"preset": "laptop", "other_play": True})
    kept = registry.setup("hanabi", {"preset": "laptop", "bomb_rule": "keep"})
    key = laptop.environment.bounds_key(laptop.config)
    assert key is not None
    assert key != kept.environment.bounds_key(kept.config)
    # What messages say changes no bound.
    counted = registry.setup("hanabi", {"preset": "laptop", "deductions": "counted"})
    assert counted.environment.bounds_key(counted.config) == key
    for setup in (full, other):
        assert setup.environment.bounds_key(setup.config) is None
        assert setup.environment.best_response_score(setup.config, "iggi", 0) is None
    assert laptop.environment.best_response_score(laptop.config, "search", 0) is None
