"""Any other sequential game of OpenSpiel, with OpenSpiel's own texts.

For example HANABI_ENV=openspiel:breakthrough.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from hanabi_grpo.envs.base import Policy, random_policy
from hanabi_grpo.envs.openspiel.game import OpenSpiel, OpenSpielConfig, Wording
from hanabi_grpo.envs.openspiel.policies import SEARCHES
from hanabi_grpo.envs.openspiel.rules import check_name, facts, load
from hanabi_grpo.envs.replies import ChoiceReader

PREFIX = "openspiel:"


class OwnWording(Wording):
    """OpenSpiel's own description of a position.

    An illegal action cannot be distinguished from a text that is not an action at all.
    """

    def rules(self, config: OpenSpielConfig, player: int) -> str:
        """Return the game's name and how to answer; OpenSpiel does not describe the rules."""
        game = load(config.game())
        name = game.get_type().long_name
        return (
            f"You are player {player} of {game.num_players()} in {name}. Each message says what "
            "you know and lists your actions. End your reply with one of them, as it is written "
            "there, on a line of its own."
        )

    def state(self, config: OpenSpielConfig, state: Any, player: int) -> str:
        """Return the information state, or the board if everything is public."""
        if facts(config.game()).is_open:
            return str(state)
        return str(state.information_state_string(player))

    def legend(self, config: OpenSpielConfig, player: int) -> str:
        if facts(config.game()).is_open:
            return ""
        return "Above is what you know, as OpenSpiel writes it."

    def actions(self, config: OpenSpielConfig, state: Any) -> Sequence[str]:
        return self.legal(config, state, state.legal_actions())

    def legal(self, config: OpenSpielConfig, state: Any, actions: Sequence[int]) -> tuple[str, ...]:
        """Return OpenSpiel's texts of the legal actions.

        The action numbers are appended if the texts alone are ambiguous.
        """
        player = state.current_player()
        texts = []
        for action in actions:
            text = state.action_to_string(player, action)
            texts.append(" ".join(text.split()))
        as_read = set(ChoiceReader(texts).readings)
        as_read.discard("")
        if len(as_read) < len(texts):
            texts = [f"{text} #{action}" for text, action in zip(texts, actions, strict=True)]
        return tuple(texts)

    def picture(self, config: OpenSpielConfig, state: Any) -> str:
        return str(state)


@functools.cache
def any_game(name: str) -> OpenSpiel:
    """Return the environment of e.g. "openspiel:breakthrough".

    Raises:
        SettingsError: OpenSpiel has no such game, or it cannot be played here.
    """
    game = check_name(name.removeprefix(PREFIX))
    game_facts = facts(game)
    policies: dict[str, Callable[[], Policy]] = {"random": random_policy}
    # The search needs games that pay at their end.
    if game_facts.is_open and game_facts.nothing:
        policies.update(SEARCHES)
    return OpenSpiel(
        name,
        OwnWording(),
        roles=[f"player {number}" for number in range(game_facts.num_players)],
        presets={game: OpenSpielConfig(preset=game)},
        policies=policies,
    )
