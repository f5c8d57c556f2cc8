"""Any other sequential game of OpenSpiel, in OpenSpiel's own texts:
HANABI_ENV=openspiel:breakthrough.
"""

import functools
from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.base import random_policy
from hanabi_grpo.envs.openspiel.game import OpenSpiel, OpenSpielConfig, Words
from hanabi_grpo.envs.openspiel.policies import SEARCHES
from hanabi_grpo.envs.openspiel.rules import check_name, facts, load
from hanabi_grpo.envs.replies import undecorated


class OwnWords(Words):
    """What OpenSpiel itself says of a position. A word that is no legal action cannot be read
    here.
    """

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        """Return the game's name and how to answer; OpenSpiel has no rules in words."""
        kind = load(config.game()).get_type()
        return (
            f"You are player {player} of {load(config.game()).num_players()} in {kind.long_name}. "
            "Each message says "
            "what you know and lists your actions. End your reply with one of them, as it is "
            "written there, on a line "
            "of its own."
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        """Return the information state; where everything is open, the board."""
        return (
            str(state)
            if facts(config.game()).is_open
            else str(state.information_state_string(player))
        )

    def actions(self, config: OpenSpielConfig, state: Any) -> Sequence[str]:
        return self.legal(config, state, state.legal_actions())

    def legal(self, config: OpenSpielConfig, state: Any, actions: Sequence[int]) -> tuple[str, ...]:
        """Return OpenSpiel's words of the legal actions; with their numbers where words do not tell
        them apart.
        """
        player = state.current_player()
        words = [" ".join(state.action_to_string(player, action).split()) for action in actions]
        if len({undecorated(word).lower() for word in words} - {""}) < len(words):
            words = [f"{word} #{action}" for word, action in zip(words, actions, strict=True)]
        return tuple(words)

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        return str(state)


@functools.cache
def any_game(name: str) -> OpenSpiel:
    """Return the environment of e.g. "openspiel:breakthrough"; a SettingsError where there is no
    such game.
    """
    game = check_name(name.removeprefix("openspiel:"))
    return OpenSpiel(
        name,
        OwnWords(),
        roles=[f"player {number}" for number in range(facts(game).num_players)],
        presets={game: OpenSpielConfig(preset=game)},
        policies={"random": random_policy, **(SEARCHES if facts(game).is_open else {})},
    )
