"""Boards and games that many tests play."""

import random

from hanabi_grpo.envs.hanabi.rules import PRESETS, Action, Game, GameSpec, shuffled_deck

ALL_BOARDS = [(name, num_players) for name, preset in PRESETS.items() for num_players in preset.players]
"""Every preset with every number of players that it allows."""


def random_game(spec: GameSpec, rng: random.Random, *, suite: str = "train") -> Game:
    """Return a game that has been played for a random number of random moves, to the end in half of the cases.

    Half of the games avoid misplays, since games of blind moves bomb long before the deck is empty.
    """
    game = Game(spec, shuffled_deck(spec, suite, rng.randrange(2**32)))
    num_moves = rng.choice([spec.max_turns, rng.randrange(spec.max_turns)])
    careful = rng.random() < 0.5
    while not game.is_over and game.num_turns < num_moves:
        game.apply(random_move(game, rng, careful=careful))
    return game


def random_move(game: Game, rng: random.Random, *, careful: bool) -> Action:
    """Return a legal move; a careful one is no misplay unless there is nothing else."""
    actions = game.legal_actions()
    if careful:
        hand, fireworks = game.hands[game.current_player], game.view(0).fireworks
        safe = [a for a in actions if a.kind != "play" or fireworks[hand[a.slot].color] == hand[a.slot].rank]
        actions = tuple(safe) or actions
    return rng.choice(actions)
