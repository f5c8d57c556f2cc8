"""Hanabi as a turn-based text environment: the only room that turns replies into moves and rewards."""

import hashlib
import string
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import parse_reply, turn_prompt
from hanabi_grpo.envs.hanabi.rewards import move_rewards
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.deals import shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, PlayerView
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import EpisodeStatus, ReplyKind, player_name

__all__ = ["EnvConfig", "HanabiEnv"]

MAX_OBSERVATION_CHARS = 1 << 16
MAX_REPLY_CHARS = 1 << 12


class HanabiEnv(gymnasium.Env[str, str]):
    """One game of Hanabi; each step is one player's reply.

    ## Action Space
    `Text`: the reply of the player whose turn it is. Any `str` is taken, also one outside the space. A reply that is
    no move, or no legal one, is penalised and replaced by a legal move drawn from (suite, seed, game, turn number).

    ## Observation Space
    `Text`, printable ASCII: what the player whose turn it is may see, in the configured style. With `observe=False`
    it is "" and `prompt()` builds the text when asked.

    ## Rewards
    The sum of the weighted parts of this move, `info["rewards"]`: `score` and `bomb` belong to the team, `illegal` and
    `unparsable` to the mover (`types.TEAM_PARTS`).

    ## Episode End
    Terminated when the rules end the game: no life left, every firework complete, or one more turn each after the
    last card was drawn. Truncated after `max_turns` moves, if that is set.

    ## Info
    `player` (whose turn it is), `legal_actions` (texts; left out with `observe=False`), `score` (0 after a bomb),
    `score_kept`; after a step also `mover`, `action` (the text of the move applied), `kind` and `rewards`.

    ## Arguments
    `reset(options={"suite": "eval", "seed": 17, "game": 3})` chooses the deal and the number of the game within its
    group. Without options the suite is "gymnasium" and the deal is drawn from the env's own generator.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it without ClassVar

    def __init__(self, config: EnvConfig, *, observe: bool = True) -> None:
        """Make an env without a game; call `reset` first.

        Args:
            config: The game and its rewards.
            observe: Build observation texts and lists of legal moves at every step.
        """
        self.config = config
        self.board: GameSpec = config.spec()
        self.observation_space = Text(MAX_OBSERVATION_CHARS, min_length=0, charset=string.printable)
        self.action_space = Text(MAX_REPLY_CHARS, min_length=0, charset=string.printable)
        self._observe = observe
        self._weights = config.weights
        self._max_turns = config.max_turns or self.board.max_turns
        self._deal = ("", 0, 0)
        self._game: Game | None = None
        self._view: PlayerView | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Deal a new game; see the class for `options`.

        Raises:
            SettingsError: `options` has an unknown key.
        """
        super().reset(seed=seed)
        options = dict(options or {})
        suite = options.pop("suite", "gymnasium")
        deal_seed = options.pop("seed", None)
        number = options.pop("game", 0)
        if options:
            raise SettingsError(f"reset options {sorted(options)}: unknown; allowed: suite, seed, game.")
        if deal_seed is None:
            deal_seed = int(self.np_random.integers(2**31))
        self._deal = (suite, deal_seed, number)
        self._game = Game(self.board, shuffled_deck(self.board, suite, deal_seed))
        self._view = None
        return self._observation(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply one reply of the current player.

        Raises:
            IllegalActionError: There is no game, or it is over.
        """
        game = self.game
        if self.status is not None:
            raise IllegalActionError(f"The game is over ({self.status}): call reset() before the next step.")
        mover = game.current_player
        move, kind = self._read(action, mover)
        event = game.apply(move)
        self._view = None
        parts = move_rewards(
            self._weights, kind=kind, scored=event.scored, bombed=game.is_bombed, score_kept=game.score_kept
        )
        info = self._info()
        info.update(mover=player_name(mover), action=self._text(move), kind=kind, rewards=parts)
        return self._observation(), float(sum(parts.values())), game.is_over, self._is_truncated, info

    @property
    def game(self) -> Game:
        """The game being played; it holds every hand, so it is for records and tests, never for players.

        Raises:
            IllegalActionError: `reset` was not called.
        """
        if self._game is None:
            raise IllegalActionError("No game was dealt: call reset() first.")
        return self._game

    @property
    def deal(self) -> tuple[str, int, int]:
        """Suite and seed of the deal, and the number of the game within its group.

        Raises:
            IllegalActionError: `reset` was not called.
        """
        if self._game is None:
            raise IllegalActionError("No game was dealt: call reset() first.")
        return self._deal

    @property
    def status(self) -> EpisodeStatus | None:
        """How the game ended; None while it goes on."""
        if self.game.is_over:
            return EpisodeStatus.FINISHED
        return EpisodeStatus.TRUNCATED_TURNS if self._is_truncated else None

    @property
    def current_player(self) -> int:
        """Seat whose turn it is; after the end, the seat that would be next."""
        game = self.game
        if game.is_over:
            return (game.events[-1].player + 1) % self.board.num_players
        return game.current_player

    def view(self) -> PlayerView:
        """Return what the current player may see."""
        if self._view is None:
            self._view = self.game.view(self.current_player)
        return self._view

    def prompt(self) -> str:
        """Return the observation text of the current player."""
        return turn_prompt(self.view(), style=self.config.observation, legal_moves=self.config.legal_moves)

    @property
    def _is_truncated(self) -> bool:
        return not self.game.is_over and self.game.num_turns >= self._max_turns

    def _read(self, reply: str, mover: int) -> tuple[Action, ReplyKind]:
        legal = self.game.legal_actions()
        move = parse_reply(reply, num_players=self.board.num_players, player=mover)
        if move is not None and move in legal:
            return move, ReplyKind.LEGAL
        kind = ReplyKind.UNPARSABLE if move is None else ReplyKind.ILLEGAL
        key = repr((*self._deal, self.game.num_turns)).encode()
        return legal[int.from_bytes(hashlib.sha256(key).digest()[:8]) % len(legal)], kind

    def _text(self, action: Action) -> str:
        return format_action(action, style=self.config.observation, num_players=self.board.num_players)

    def _observation(self) -> str:
        return self.prompt() if self._observe else ""

    def _info(self) -> dict[str, Any]:
        game = self.game
        info = {"player": player_name(self.current_player), "score": game.score, "score_kept": game.score_kept}
        if self._observe:
            over = self.status is not None
            info["legal_actions"] = [] if over else [self._text(action) for action in game.legal_actions()]
        return info
