"""One deal of Hanabi behind the interface of `envs.base`: prompts, moves and rewards on the table of `rules.game`."""

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import parse_reply, turn_prompt
from hanabi_grpo.envs.hanabi.rules.actions import format_action, parse_action
from hanabi_grpo.envs.hanabi.rules.game import Game, load_rules
from hanabi_grpo.envs.hanabi.rules.possible_decks import with_other_cards
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView
from hanabi_grpo.errors import IllegalActionError


class HanabiGame(base.Game):
    """One deal, played by `rules.Game`.

    Attributes:
        config: The board, the prompts and the rewards.
        table: Knows every card; for records and tests, never for players.
    """

    def __init__(self, config: EnvConfig, table: Game) -> None:
        """Play on a table where the cards are dealt."""
        self.config = config
        self.table = table
        self._views: dict[int, PlayerView] = {}
        self._legal: tuple[str, ...] | None = None

    def to_act(self) -> tuple[int, ...]:
        """Return the one player whose turn it is."""
        return () if self.table.is_over else (self.table.current_player,)

    def message(self, player: int) -> str:
        """Return the whole position in words: hints are looked up there, so no earlier message is needed."""
        return turn_prompt(self.view(player), style=self.config.observation, legal_moves=self.config.legal_moves)

    def state_message(self, player: int) -> str:
        """Return the same as `message`."""
        return self.message(player)

    def view(self, player: int) -> PlayerView:
        """Return everything that the player may know."""
        if player not in self._views:
            self._views[player] = self.table.view(player)
        return self._views[player]

    def legal(self, player: int) -> tuple[str, ...]:
        """Return the moves in the words of the config's style."""
        if player != self.table.current_player:
            return ()
        if self._legal is None:
            texts = _move_texts(self.table.spec, self.config.observation)[player]
            self._legal = tuple(map(texts.__getitem__, self.table.legal_ids()))
        return self._legal

    def parse(self, player: int, reply: str) -> str | None:
        """Return the last line that is a move, in the config's style where it is legal, else in full words."""
        if reply in self.legal(player):
            return reply
        action = parse_reply(reply, num_players=self.config.players, player=player)
        if action is None:
            return None
        is_legal = player == self.table.current_player and action in self.table.legal_actions()
        return self._text(action, self.config.observation if is_legal else "full")

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Make a move; everybody gets its parts `score` and `bomb`.

        Raises:
            IllegalActionError: The move is none, or not legal; the game is unchanged.
        """
        [(player, text)] = actions.items()
        legal = self.legal(player)
        if text in legal:
            action: Action | None = self.table.legal_actions()[legal.index(text)]
        else:  # the words of the other style
            action = parse_action(text, num_players=self.config.players, player=player)
        if action is None or player != self.table.current_player:
            raise IllegalActionError(f"player {player}: {text!r}: choose one of {legal}.")
        event = self.table.apply(action)
        self._views.clear()
        self._legal = None
        config, parts = self.config, {}
        if event.scored:
            parts["score"] = config.reward_score
        if self.table.is_bombed and config.bomb_rule == "zero" and self.table.score_kept:
            parts["bomb"] = -config.reward_score * self.table.score_kept
        return [parts] * config.players

    def result(self) -> Mapping[str, float]:
        """Return the score by OpenSpiel, the points on the table, and whether the last life was lost."""
        table = self.table
        return {"score": table.score, "score_kept": table.score_kept, "bombed": int(table.is_bombed)}

    def copy(self) -> "HanabiGame":
        """Return an independent copy."""
        return HanabiGame(self.config, self.table.copy())

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return the player's own cards and the rest of the deck in its order."""
        secrets = {"own cards": self.table.hands[player]}
        undealt = self.view(player).deck_size
        return {**secrets, "deck": self.table.deck[-undealt:]} if undealt else secrets

    def resampled(self, player: int, rng: random.Random) -> "HanabiGame":
        """Return a game with other cards in the player's hand and in the deck, as far as hints and moves allow."""
        return HanabiGame(self.config, with_other_cards(self.table, player, rng))

    def _text(self, action: Action, style: str) -> str:
        return format_action(action, style=style, num_players=self.config.players)


@functools.lru_cache(maxsize=64)  # pure, and asked for at every move
def _move_texts(board: GameSpec, style: str) -> tuple[tuple[str, ...], ...]:
    """Return per seat the text of each of OpenSpiel's numbers for moves."""
    return tuple(
        tuple(format_action(action, style=style, num_players=board.num_players) for action in actions)
        for actions in load_rules(board).actions
    )
