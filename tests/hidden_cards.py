"""The hidden-card property: what a player is shown must not depend on the cards it cannot see."""

import random

from hanabi_grpo.envs.hanabi.rules import Game
from hanabi_grpo.envs.hanabi.rules.possible_decks import with_other_cards


def swap_own_cards(game: Game, player: int, rng: random.Random) -> Game | None:
    """Return another game that `player` cannot tell from this one, or None when no other hand of it is possible."""
    other = with_other_cards(game, player, rng)
    return None if other.hands[player] == game.hands[player] else other
