"""Hanabi behind the interface of `envs.base`."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.alarms import ALARMS
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.metrics import step_metrics
from hanabi_grpo.envs.hanabi.policies import CHECKS, PLANNERS, POLICIES, VARIANTS
from hanabi_grpo.envs.hanabi.policies.best_response import MOST_DECKS
from hanabi_grpo.envs.hanabi.policies.exact_response import (
    best_score,
    engine_digest,
    make_partner,
)
from hanabi_grpo.envs.hanabi.prompts import (
    joined_word_parts,
    parse_reply,
    system_prompt,
    turn_prompt,
    view_with,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import JOINED_LEVELS
from hanabi_grpo.envs.hanabi.prompts.person import person_rules, person_scene
from hanabi_grpo.envs.hanabi.prompts.questions import card_answer, own_card_questions
from hanabi_grpo.envs.hanabi.replays.timeline import (
    frames,
    recorded_relabelings,
    recorded_table,
)
from hanabi_grpo.envs.hanabi.rules.actions import format_action, parse_action
from hanabi_grpo.envs.hanabi.rules.deals import deals_halves, shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game, with_other_cards
from hanabi_grpo.envs.hanabi.rules.presets import (
    PRESETS,
    GameSpec,
    attainable,
    is_board,
    num_decks,
)
from hanabi_grpo.envs.hanabi.rules.symmetries import (
    OTHER_PLAY_SUFFIX,
    Relabeling,
    num_relabelings,
    relabeling,
    task_relabelings,
)
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, PlayerView
from hanabi_grpo.envs.people import Scene
from hanabi_grpo.envs.questions import Question
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import IllegalActionError
from hanabi_grpo.types import Episode

_START_ID_DIGITS = 16


class HanabiGame(base.Game):
    """One deal. `table` knows every card; it is for records and tests, never for players."""

    def __init__(
        self, config: EnvConfig, table: Game, relabelings: Sequence[Relabeling] = ()
    ) -> None:
        """Begin.

        Args:
            config: The settings.
            table: The table.
            relabelings: How each player sees the colours; () if unchanged.
        """
        self.config = config
        self.table = table
        self.relabelings = tuple(relabelings)
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
        view = self.table.view(player)
        return self.relabelings[player].view(view) if self.relabelings else view

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
            actions: Sequence[Action] = self.table.legal_actions()
            if self.relabelings:
                actions = self.relabelings[player].actions(actions)
            texts = [self._text(action, style) for action in actions]
            self._legal = tuple(texts)
        return self._legal

    def parse(self, player: int, reply: str) -> str | None:
        """Return the last line of a reply that is a move.

        A legal move is returned in the config's style, an illegal move in the full style.
        """
        if reply in self.legal(player):
            return reply
        action = parse_reply(reply, num_players=self.config.players, player=player)
        if action is None:
            return None
        is_legal = player == self.table.current_player and (
            self._on_table(action, player) in self.table.legal_actions()
        )
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
                f"player {player}: {text!r} is not legal now; choose one of {self.legal(player)}."
            )
        event = self.table.apply(self._on_table(action, player))
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
        return HanabiGame(self.config, self.table.copy(), self.relabelings)

    def questions(self, player: int) -> tuple[Question, ...]:
        """Ask the player about each of its own cards."""
        return own_card_questions(
            self.view(player),
            style=self.config.observation,
            deductions=self.config.deductions,
        )

    def truths(self, player: int) -> tuple[str, ...]:
        cards: Sequence[Card] = self.table.hands[player]
        if self.relabelings:
            cards = [self.relabelings[player].card(card) for card in cards]
        style = self.config.observation
        deductions = self.config.deductions
        answers = [card_answer(card, style=style, deductions=deductions) for card in cards]
        return tuple(answers)

    def hidden(self, player: int) -> Mapping[str, Any]:
        hidden_values: dict[str, Any] = {"own cards": self.table.hands[player]}
        num_undealt = self.view(player).deck_size
        if num_undealt:
            hidden_values["deck"] = self.table.deck[-num_undealt:]
        if self.relabelings:
            others = [*self.relabelings]
            # A player sees the result of its own order, but not the table's colours.
            hidden_values["own colours"] = others.pop(player)
            hidden_values["others' colours"] = others
        return hidden_values

    def resampled(self, player: int, rng: random.Random) -> "HanabiGame":
        """Return a game with other cards in the player's hand and in the deck.

        The new cards agree with all hints and moves, see `with_other_cards`. Under Other-Play, all
        players' colour orders are drawn again, and the table is recoloured such that it looks the
        same in the player's new order.
        """
        table = with_other_cards(self.table, player, rng)
        if not self.relabelings:
            return HanabiGame(self.config, table)
        relabelings = []
        for _ in self.relabelings:
            number = rng.randrange(num_relabelings(table.spec.num_colors))
            relabelings.append(relabeling(number, table.spec.num_colors))
        recoloring = self.relabelings[player].seen_as_by(relabelings[player])
        return HanabiGame(self.config, _recolored(table, recoloring), relabelings)

    def _on_table(self, action: Action, player: int) -> Action:
        """Return a player's move in the colours of the table."""
        return self.relabelings[player].inverse.action(action) if self.relabelings else action

    def _text(self, action: Action, style: str) -> str:
        return format_action(action, style=style, num_players=self.config.players)


class Hanabi(base.Environment[EnvConfig]):
    """Hanabi on the boards of `rules.presets`, with every number of players, and on free boards."""

    name = "hanabi"
    Config = EnvConfig
    presets: Mapping[str, EnvConfig] = {
        name: EnvConfig(preset=name, players=board.players[0]) for name, board in PRESETS.items()
    }
    policies = POLICIES
    slow_policies = tuple(PLANNERS)
    variants = VARIANTS
    alarms = ALARMS

    def knows_preset(self, name: str) -> bool:
        """Tell whether a board has this name; free boards are named by their parameters."""
        return is_board(name)

    def parse_config(self, row: Mapping[str, Any]) -> EnvConfig:
        """See `Environment.parse_config`; a board's values are in its preset's name."""
        return EnvConfig.parse(row)

    def check_policy(self, config: EnvConfig, name: str) -> None:
        if name in CHECKS:
            CHECKS[name](config.spec())

    def spec(self, config: EnvConfig) -> base.EnvSpec:
        """Return the board's spec; its hash identifies the rules, the deals and the deductions."""
        board = config.spec()
        best_return = config.reward_score * board.reachable_max
        return base.EnvSpec(
            env=self.name,
            preset=board.preset,
            hash=f"{board.hash}{_suffix(config, board)}",
            num_players=board.num_players,
            roles=("player",) * board.num_players,
            payoff="team",
            max_turns=config.max_turns or board.max_turns,
            return_range=(min(best_return, 0.0), max(best_return, 0.0)),
            score="score",
            max_score=board.reachable_max,
            attainable=_attainable(config, board),
            disjoint_splits=deals_halves(board, "train"),
        )

    def bounds_key(self, config: EnvConfig) -> str | None:
        """Return a key if all decks of the board can be played; see `Environment.bounds_key`."""
        board = config.spec()
        is_small = num_decks(board.num_colors, board.num_ranks) <= MOST_DECKS
        if not is_small or not board.deals_all_decks or config.other_play or config.max_turns:
            return None
        return f"{board.rules_hash}-{config.bomb_rule}-{engine_digest()}"

    def best_response_score(self, config: EnvConfig, policy: str, seat: int) -> float | None:
        board = config.spec()
        partner = make_partner(board, policy, keeps=config.bomb_rule == "keep")
        if self.bounds_key(config) is None or partner is None:
            return None
        return best_score(board, partner, seat)

    def system(self, config: EnvConfig, player: int) -> str:
        return system_prompt(config.spec(), config.observation, player, bomb_rule=config.bomb_rule)

    def person_rules(self, config: EnvConfig, player: int) -> str:
        return person_rules(config.spec(), player, config.bomb_rule)

    def reset(self, config: EnvConfig, *, split: str, seed: int) -> HanabiGame:
        board = config.spec()
        table = Game(board, shuffled_deck(board, split, seed))
        return HanabiGame(config, table, _relabelings(config, split, seed))

    def num_starts(self, config: EnvConfig) -> int:
        board = config.spec()
        return num_decks(board.num_colors, board.num_ranks)

    def num_symmetries(self, config: EnvConfig) -> int:
        return num_relabelings(config.spec().num_colors)

    def seen_under(
        self, config: EnvConfig, game: base.Game, symmetries: Sequence[int]
    ) -> HanabiGame:
        assert isinstance(game, HanabiGame)
        relabelings = [relabeling(number, game.table.spec.num_colors) for number in symmetries]
        return HanabiGame(config, game.table.copy(), relabelings)

    def worded_under(self, config: EnvConfig, action: str, symmetry: int) -> str:
        board = config.spec()
        # With two players, a hint without a target goes to the other player, whichever that is.
        move = parse_action(action, num_players=board.num_players, player=0)
        if move is None:
            return action
        seen = relabeling(symmetry, board.num_colors).action(move)
        return format_action(seen, style=config.observation, num_players=board.num_players)

    def start_id(self, config: EnvConfig, *, split: str, seed: int) -> str:
        """Return the name of the deck and, under Other-Play, of each player's colour order."""
        deck = shuffled_deck(config.spec(), split, seed)
        return _start_id(deck, _relabelings(config, split, seed))

    def recorded(self, config: EnvConfig, recording: Recording) -> tuple[HanabiGame, str]:
        """Deal the recorded deck to players who see its colours as the recorded players did.

        The recorded board may have a different hash: boards with the same rules may deal different
        decks. Recorded moves use their players' colours, with or without Other-Play.
        """
        if recording.episode.env != self.name:
            raise base.other_game(base.Setup(self, config).spec, recording)
        table = recorded_table(recording)
        if table.spec.rules_hash != config.spec().rules_hash:
            raise base.other_game(base.Setup(self, config).spec, recording)
        relabelings = recorded_relabelings(table.spec, recording.episode)
        return HanabiGame(config, table, relabelings), _start_id(table.deck, relabelings)

    def word_parts(self, config: EnvConfig) -> Mapping[str, tuple[str, ...]]:
        if config.observation != "compact" or config.deductions not in JOINED_LEVELS:
            return {}
        return joined_word_parts(config.spec(), config.deductions)

    def metrics(self, config: EnvConfig, episodes: Sequence[Episode]) -> dict[str, float]:
        return step_metrics(episodes)

    def render(self, config: EnvConfig, episode: Episode) -> Iterator[base.Frame]:
        return frames(Recording(episode=episode))


def _relabelings(config: EnvConfig, split: str, seed: int) -> list[Relabeling]:
    """Return how each player of a task sees the colours; empty without Other-Play."""
    if not config.other_play:
        return []
    return task_relabelings(config.spec(), split, seed)


def _recolored(table: Game, order: Relabeling) -> Game:
    """Return the same game on a table with other colours."""
    recolored = Game(table.spec, [order.card(card) for card in table.deck])
    for event in table.events:
        recolored.apply(order.action(event.action))
    return recolored


def _start_id(deck: Sequence[Card], relabelings: Sequence[Relabeling]) -> str:
    """Return the name of a start, e.g. "9f3c…-10-01" for the colour orders 10 and 01."""
    parts = [deck_id(deck)]
    for order in relabelings:
        parts.append(order.name)
    return "-".join(parts)


def deck_id(deck: Sequence[Card]) -> str:
    """Return hex digits that identify an order of cards."""
    text = " ".join(map(str, deck))
    return hashlib.sha256(text.encode()).hexdigest()[:_START_ID_DIGITS]


def _attainable(config: EnvConfig, board: GameSpec) -> float | None:
    """Return the board's best known score; None for games that it was not reached in.

    It comes from teams that may use colours as they like, and from games without a turn limit.
    """
    is_cut_short = 0 < config.max_turns < board.max_turns
    if config.other_play or is_cut_short:
        return None
    return attainable(board)


def _suffix(config: EnvConfig, board: GameSpec) -> str:
    """Return what a spec's hash says beside the board: what else makes it another game.

    Rewards are left out, so that runs with other rewards can be compared by their scores.
    """
    # Prompts of version 0.1 are those of "possible", and its hashes have no suffix.
    suffix = "" if config.deductions == "possible" else f"-{config.deductions}"
    if config.other_play:
        suffix += OTHER_PLAY_SUFFIX
    if config.bomb_rule != "zero":
        suffix += f"-bomb_{config.bomb_rule}"
    if config.max_turns not in (0, board.max_turns):
        suffix += f"-turns{config.max_turns}"
    return suffix


HANABI = Hanabi()
