"""Hanabi behind the interface of `envs.base`."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.alarms import ALARMS
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.metrics import step_metrics
from hanabi_grpo.envs.hanabi.policies import PLANNERS, POLICIES
from hanabi_grpo.envs.hanabi.prompts import parse_reply, system_prompt, turn_prompt, view_with
from hanabi_grpo.envs.hanabi.prompts.person import person_rules, person_scene
from hanabi_grpo.envs.hanabi.replays.timeline import frames, recorded_table
from hanabi_grpo.envs.hanabi.rules.actions import format_action, parse_action
from hanabi_grpo.envs.hanabi.rules.deals import deals_halves, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game, with_other_cards
from hanabi_grpo.envs.hanabi.rules.presets import PRESETS, attainable, is_board
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, PlayerView
from hanabi_grpo.envs.people import Scene
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import IllegalActionError
from hanabi_grpo.types import Episode

_START_ID_DIGITS = 16


class HanabiGame(base.Game):
    """One deal. `table` knows every card; it is for records and tests, never for players."""

    def __init__(self, config: EnvConfig, table: Game) -> None:
        self.config = config
        self.table = table
        self._legal: tuple[str, ...] | None = None

    def to_act(self) -> tuple[int, ...]:
        if self.table.is_over:
            return ()
        return (self.table.current_player,)

    def state_message(self, player: int) -> str:
        """Return the whole position in words, hints included, so no earlier message is needed."""
        return turn_prompt(
            self.view(player),
            style=self.config.observation,
            legal_moves=self.config.legal_moves,
            deductions=self.config.deductions,
        )

    def view(self, player: int) -> PlayerView:
        return self.table.view(player)

    def scene(self, player: int) -> Scene:
        view = view_with(self.view(player), self.config.deductions)
        style = self.config.observation
        texts = [self._text(action, style) for action in view.legal_actions]
        return person_scene(view, bomb_rule=self.config.bomb_rule, texts=texts)

    def legal(self, player: int) -> tuple[str, ...]:
        if player != self.table.current_player:
            return ()
        if self._legal is None:
            style = self.config.observation
            texts = [self._text(action, style) for action in self.table.legal_actions()]
            self._legal = tuple(texts)
        return self._legal

    def parse(self, player: int, reply: str) -> str | None:
        """Return the last line of a reply that is a move.

        A legal move is worded in the config's style, an illegal one in full words.
        """
        if reply in self.legal(player):
            return reply
        action = parse_reply(reply, num_players=self.config.players, player=player)
        if action is None:
            return None
        is_legal = player == self.table.current_player and action in self.table.legal_actions()
        return self._text(action, self.config.observation if is_legal else "full")

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Make a move; every player gets its reward parts `score` and `bomb`.

        Raises:
            IllegalActionError: The move is not legal; the game is unchanged.
        """
        [(player, text)] = actions.items()
        action = parse_action(text, num_players=self.config.players, player=player)
        if action is None or player != self.table.current_player:
            raise IllegalActionError(
                f"player {player}: {text!r}: choose one of {self.legal(player)}."
            )
        event = self.table.apply(action)
        self._legal = None
        parts: dict[str, float] = {}
        if event.scored:
            parts["score"] = self.config.reward_score
        loses_points = self.table.is_bombed and self.config.bomb_rule == "zero"
        if loses_points and self.table.score_kept:
            parts["bomb"] = -self.config.reward_score * self.table.score_kept
        return [parts] * self.config.players

    def result(self) -> Mapping[str, float]:
        return {
            "score": self.table.score,
            "score_kept": self.table.score_kept,
            "bombed": int(self.table.is_bombed),
        }

    def copy(self) -> "HanabiGame":
        return HanabiGame(self.config, self.table.copy())

    def hidden(self, player: int) -> Mapping[str, Any]:
        hidden_values = {"own cards": self.table.hands[player]}
        num_undealt = self.view(player).deck_size
        if num_undealt:
            hidden_values["deck"] = self.table.deck[-num_undealt:]
        return hidden_values

    def resampled(self, player: int, rng: random.Random) -> "HanabiGame":
        """Return a game with other cards in the player's hand and in the deck.

        As far as hints and moves allow, see `with_other_cards`.
        """
        return HanabiGame(self.config, with_other_cards(self.table, player, rng))

    def _text(self, action: Action, style: str) -> str:
        return format_action(action, style=style, num_players=self.config.players)


class Hanabi(base.Environment[EnvConfig]):
    """Hanabi: the boards of `rules.presets` with every number of players, and free boards."""

    name = "hanabi"
    Config = EnvConfig
    presets: Mapping[str, EnvConfig] = {
        name: EnvConfig(preset=name, players=board.players[0]) for name, board in PRESETS.items()
    }
    policies = POLICIES
    slow_policies = tuple(PLANNERS)
    alarms = ALARMS

    def knows_preset(self, name: str) -> bool:
        """Tell whether a board has this name; free boards are named by their parameters."""
        return is_board(name)

    def spec(self, config: EnvConfig) -> base.EnvSpec:
        """Return the board's spec; its hash names rules, deals and what prompts work out."""
        board = config.spec()
        # Records of version 0.1 show what "possible" shows, and their hashes have no suffix.
        suffix = "" if config.deductions == "possible" else f"-{config.deductions}"
        best_return = config.reward_score * board.reachable_max
        return base.EnvSpec(
            env=self.name,
            preset=board.preset,
            hash=f"{board.hash}{suffix}",
            num_players=board.num_players,
            roles=("player",) * board.num_players,
            payoff="team",
            max_turns=config.max_turns or board.max_turns,
            return_range=(min(best_return, 0.0), max(best_return, 0.0)),
            score="score",
            max_score=board.reachable_max,
            attainable=attainable(board),
            disjoint_splits=deals_halves(board, "train"),
        )

    def system(self, config: EnvConfig, player: int) -> str:
        return system_prompt(config.spec(), config.observation, player, bomb_rule=config.bomb_rule)

    def person_rules(self, config: EnvConfig, player: int) -> str:
        return person_rules(config.spec(), player, config.bomb_rule)

    def reset(self, config: EnvConfig, *, split: str, seed: int) -> HanabiGame:
        board = config.spec()
        return HanabiGame(config, Game(board, shuffled_deck(board, split, seed)))

    def start_id(self, config: EnvConfig, *, split: str, seed: int) -> str:
        return _deck_id(shuffled_deck(config.spec(), split, seed))

    def recorded(self, config: EnvConfig, recording: Recording) -> tuple[HanabiGame, str]:
        """Deal the recorded deck.

        The recorded board may have another hash: with the same rules it may deal other decks.
        """
        if recording.episode.env != self.name:
            raise base.other_game(base.Setup(self, config).spec, recording)
        table = recorded_table(recording)
        if table.spec.rules_hash != config.spec().rules_hash:
            raise base.other_game(base.Setup(self, config).spec, recording)
        return HanabiGame(config, table), _deck_id(table.deck)

    def metrics(self, config: EnvConfig, episodes: Sequence[Episode]) -> dict[str, float]:
        return step_metrics(episodes)

    def render(self, config: EnvConfig, episode: Episode) -> Iterator[base.Frame]:
        return frames(Recording(episode=episode))


def _deck_id(deck: Sequence[Card]) -> str:
    """Return hex digits that name an order of cards."""
    text = " ".join(map(str, deck))
    return hashlib.sha256(text.encode()).hexdigest()[:_START_ID_DIGITS]


HANABI = Hanabi()
