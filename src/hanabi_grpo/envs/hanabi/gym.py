"""One seat of Hanabi as a Gymnasium environment; scripts play the others."""

import string
from collections import Counter
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.env import MAX_OBSERVATION_CHARS, MAX_REPLY_CHARS, HanabiEnv
from hanabi_grpo.envs.hanabi.policies.seats import MovingPolicy, MovingSeat
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import player_name


class HanabiSeatEnv(gymnasium.Env[str, str]):
    """A game of `HanabiEnv` seen from one seat: each step is one reply of it and the moves of all partners after it.

    ## Action Space
    `Text`: a reply, read as in `HanabiEnv`.

    ## Observation Space
    `Text`, printable ASCII: what this seat may see on its turn, or at the end, in the configured style.

    ## Rewards
    The sum of the seat's return since its last turn, `info["rewards"]`: the team's parts `score` and `bomb` of every
    move, and `illegal` and `unparsable` of its own. What partners score before the seat's first turn is paid with its
    first step.

    ## Episode End
    As in `HanabiEnv`. Where partners end the game before the seat's first turn, which `reset` cannot say, the first
    step takes no reply: whatever it is given, it returns the end and its reward. Dealing again instead would change
    which deals are played.

    ## Info
    `player` (this seat), `legal_actions` (texts; empty at the end), `score` (0 after a bomb), `score_kept`; after a
    step also `rewards`, and `action` (the text of the move applied) and `kind` if the reply was taken.

    ## Arguments
    `reset(options={"suite": "eval", "seed": 17, "game": 3})` chooses the deal and the partners' random generators.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it without ClassVar

    def __init__(self, config: EnvConfig, seat: int, partners: Mapping[int, MovingPolicy]) -> None:
        """Make an env without a game; call `reset` first.

        Args:
            config: The game and its rewards.
            seat: The seat that the replies are for, from 0, which moves first.
            partners: The policy of every other seat, e.g. `{1: make_policy("iggi")}`.

        Raises:
            SettingsError: There is no such seat, or the partners are not one for every other seat.
        """
        if not 0 <= seat < config.players:
            raise SettingsError(f"seat={seat}: players={config.players} have seats 0 to {config.players - 1}.")
        others = [other for other in range(config.players) if other != seat]
        if sorted(partners) != others:
            raise SettingsError(f"partners for seats {sorted(partners)}: with seat={seat} give one each for {others}.")
        self.config = config
        self.seat = seat
        self.observation_space = Text(MAX_OBSERVATION_CHARS, min_length=0, charset=string.printable)
        self.action_space = Text(MAX_REPLY_CHARS, min_length=0, charset=string.printable)
        self._partners = dict(partners)
        self._env = HanabiEnv(config, observe=False)
        self._movers: dict[int, MovingSeat] = {}
        self._owed: Counter[str] = Counter()
        self._is_end_told = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Deal a new game and let the partners before this seat move; see the class for `options`.

        Raises:
            SettingsError: `options` has an unknown key.
            IllegalActionError: A partner made an illegal move.
        """
        super().reset(seed=seed)
        self._env.reset(seed=seed, options=options)
        suite, deal_seed, game = self._env.deal
        self._movers = {
            player: policy.seat(player, spec=self.board, suite=suite, seed=deal_seed, game=game)
            for player, policy in self._partners.items()
        }
        self._owed = Counter()
        self._is_end_told = False
        self._let_partners_move()
        return self._observation(), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Apply this seat's reply, then the partners' moves until its next turn or the end.

        Raises:
            IllegalActionError: There is no game, or it is over, or a partner made an illegal move.
        """
        own: dict[str, Any] = {}
        if self._env.status is None:
            *_, info = self._env.step(action)
            self._owed.update(info["rewards"])
            own = {"action": info["action"], "kind": info["kind"]}
            self._let_partners_move()
        elif self._is_end_told:
            raise IllegalActionError(f"The game is over ({self._env.status}): call reset() before the next step.")
        rewards, self._owed = dict(self._owed), Counter()
        status = self._env.status
        self._is_end_told = status is not None
        truncated = status is not None and status.is_truncated
        observation, info = self._observation(), {**self._info(), **own, "rewards": rewards}
        return observation, float(sum(rewards.values())), self._is_end_told and not truncated, truncated, info

    @property
    def board(self) -> GameSpec:
        """The board."""
        return self._env.board

    @property
    def game(self) -> Game:
        """The game being played; it holds every hand, so it is for records and tests, never for players.

        Raises:
            IllegalActionError: `reset` was not called.
        """
        return self._env.game

    def _let_partners_move(self) -> None:
        env = self._env
        while env.status is None and env.current_player != self.seat:
            player, view = env.current_player, env.view()
            move = self._movers[player].move(view)
            text = format_action(move, style=self.config.observation, num_players=self.config.players)
            if move not in view.legal_actions:
                raise IllegalActionError(
                    f"{text}: {self._partners[player].name} as {player_name(player)} may not do that now; "
                    f"a partner has to choose from its view's legal_actions."
                )
            *_, info = env.step(text)
            self._owed.update(info["rewards"])

    def _observation(self) -> str:
        view = self._env.game.view(self.seat)
        return turn_prompt(view, style=self.config.observation, legal_moves=self.config.legal_moves)

    def _info(self) -> dict[str, Any]:
        game, over = self._env.game, self._env.status is not None
        style, players = self.config.observation, self.config.players
        legal = () if over else game.legal_actions()
        return {
            "player": player_name(self.seat),
            "legal_actions": [format_action(action, style=style, num_players=players) for action in legal],
            "score": game.score,
            "score_kept": game.score_kept,
        }
