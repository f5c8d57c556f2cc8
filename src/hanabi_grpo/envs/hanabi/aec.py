"""Hanabi as a PettingZoo environment: one agent per player, numbered moves, and vectors with a mask of legal moves."""

import operator
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from gymnasium.utils import seeding
from numpy.typing import NDArray
from pettingzoo import AECEnv

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rewards import move_rewards
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.deals import shuffled_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.openspiel import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.view_vector import ViewEncoder
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import ReplyKind, player_names

Observation = dict[str, NDArray[np.int8]]


class HanabiAECEnv(AECEnv[str, Observation, int | None]):
    """One game of Hanabi for agents `player_0` to `player_4`, dealt and played as in `HanabiEnv`.

    ## Action Space
    `Discrete`: OpenSpiel's number of a move: discards of each slot, plays of each slot, then for each following seat
    its colour hints, then for each following seat its rank hints. `action_text` words it. Only legal moves are taken:
    with a mask at hand a wrong number is a mistake of the caller, not of a player, so it raises. An agent whose game
    is over steps with None.

    ## Observation Space
    `Dict`: "observation", a vector of 0 and 1 (`ViewEncoder`), and "action_mask", 1 for each legal move, all 0 unless
    it is the agent's turn. The vector and not the text stands here because PettingZoo's checks read the `dtype` of
    every observation, which a `str` lacks. `prompt(agent)` gives the text that `HanabiEnv` shows.

    ## Rewards
    The team's parts `score` and `bomb` of each move, the same for every agent.

    ## Episode End
    Every agent terminates when the rules end the game, and is truncated after `max_turns` moves, if that is set. The
    info of every agent then holds `score` and `score_kept`; before, infos are empty.

    ## Arguments
    `reset(options={"suite": "eval", "seed": 17})` chooses the deal. Without options the suite is "pettingzoo" and the
    deal is drawn from a generator that `reset(seed=...)` seeds.

    Example:
        env = HanabiAECEnv(EnvConfig(preset="full", players=3))
        env.reset(seed=1)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            over = terminated or truncated
            env.step(None if over else env.action_space(agent).sample(observation["action_mask"]))
    """

    metadata = {"name": "hanabi_grpo_v0", "render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012 - as PettingZoo declares it

    def __init__(self, config: EnvConfig, *, render_mode: str | None = None) -> None:
        """Make an env without a game; call `reset` first.

        Args:
            config: The game and its rewards; its two penalties never apply here.
            render_mode: "ansi" lets `render` return text.

        Raises:
            SettingsError: Another render mode.
        """
        if render_mode not in (None, "ansi"):
            raise SettingsError(f"render_mode={render_mode!r}: give 'ansi', which renders text, or None.")
        self.config = config
        self.board: GameSpec = config.spec()
        self.render_mode = render_mode
        self.possible_agents = list(player_names(self.board.num_players))
        self.agents: list[str] = []
        self._seats = {agent: seat for seat, agent in enumerate(self.possible_agents)}
        self._rules = load_rules(self.board)
        self._encoder = ViewEncoder(self.board)
        self._num_actions = len(self._rules.actions[0])
        self.action_spaces = {agent: Discrete(self._num_actions) for agent in self.possible_agents}
        self.observation_spaces = {agent: self._make_observation_space() for agent in self.possible_agents}
        self._weights = config.weights
        self._max_turns = config.max_turns or self.board.max_turns
        self._generator: np.random.Generator | None = None
        self._game: Game | None = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Deal a new game; see the class for `options`. Warns of an option that it does not know.

        Raises:
            GameParameterError: `options` names no deal.
        """
        options = dict(options or {})
        suite = options.pop("suite", "pettingzoo")
        deal_seed = options.pop("seed", None)
        if options:
            # PettingZoo's own check passes an unknown option and expects no error.
            warnings.warn(f"reset options {sorted(options)}: unknown, ignored; allowed: suite, seed.", stacklevel=2)
        if seed is not None or self._generator is None:
            self._generator, _ = seeding.np_random(seed)
        if deal_seed is None:
            deal_seed = int(self._generator.integers(2**31))
        self._game = Game(self.board, shuffled_deck(self.board, suite, deal_seed))
        self.agents = self.possible_agents.copy()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]
        self._skip_agent_selection: str | None = None

    def step(self, action: int | None) -> None:
        """Make a move for the agent whose turn it is; None for an agent whose game is over.

        Raises:
            IllegalActionError: There is no game, or the move is not legal now; the game is unchanged.
        """
        game = self.game
        if not self.agents:
            raise IllegalActionError("The game is over and every agent has left: call reset() before the next step.")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            if action is not None:
                raise IllegalActionError(f"action={action!r}: the game of {agent} is over; step with None.")
            self._was_dead_step(action)
            return
        event = game.apply(self._rules.actions[self._seats[agent]][self._checked(action)])
        parts = move_rewards(
            self._weights,
            kind=ReplyKind.LEGAL,
            scored=event.scored,
            bombed=game.is_bombed,
            score_kept=game.score_kept,
        )
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, float(sum(parts.values())))
        self._accumulate_rewards()
        over, truncated = game.is_over, not game.is_over and game.num_turns >= self._max_turns
        if over or truncated:
            self.terminations = dict.fromkeys(self.agents, over)
            self.truncations = dict.fromkeys(self.agents, truncated)
            self.infos = {name: {"score": game.score, "score_kept": game.score_kept} for name in self.agents}
        self.agent_selection = self.possible_agents[(self._seats[agent] + 1) % len(self.possible_agents)]

    def observe(self, agent: str) -> Observation:
        """Return the vector and the mask of one agent.

        Raises:
            IllegalActionError: There is no game.
            SettingsError: There is no such agent.
        """
        seat = self._seat(agent)
        view = self.game.view(seat)
        mask = np.zeros(self._num_actions, dtype=np.int8)
        if view.legal_actions and not self._is_truncated:
            numbers = self._rules.action_ids[seat]
            mask[[numbers[action] for action in view.legal_actions]] = 1
        return {"observation": self._encoder.encode(view), "action_mask": mask}

    def prompt(self, agent: str) -> str:
        """Return what one agent may see as text, in the style and with the legal moves that `config` asks for.

        Raises:
            IllegalActionError: There is no game.
            SettingsError: There is no such agent.
        """
        view = self.game.view(self._seat(agent))
        return turn_prompt(view, style=self.config.observation, legal_moves=self.config.legal_moves)

    def action_text(self, agent: str, action: int) -> str:
        """Return the text of an agent's move, e.g. "Hint player_1 red".

        Raises:
            IllegalActionError: The board has no such number.
            SettingsError: There is no such agent.
        """
        move = self._rules.actions[self._seat(agent)][self._checked(action)]
        return format_action(move, style=self.config.observation, num_players=self.board.num_players)

    def render(self) -> str | None:
        """Return the text of the agent whose turn it is, and so no card that it must not see; None without a mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render mode shows nothing: make the env with render_mode='ansi'.")
            return None
        return self.prompt(self.agent_selection)

    def close(self) -> None:
        """Do nothing: the env holds neither windows nor processes."""

    def observation_space(self, agent: str) -> Dict:
        """Return the space of an agent's observations; equal for all agents."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        """Return the space of an agent's moves; equal for all agents."""
        return self.action_spaces[agent]

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
    def _is_truncated(self) -> bool:
        return self.game.num_turns >= self._max_turns

    def _make_observation_space(self) -> Dict:
        vector = Box(0, 1, (self._encoder.size,), dtype=np.int8)
        return Dict({"observation": vector, "action_mask": MultiBinary(self._num_actions)})

    def _seat(self, agent: str) -> int:
        seat = self._seats.get(agent)
        if seat is None:
            raise SettingsError(f"agent={agent!r}: this game has {', '.join(self.possible_agents)}.")
        return seat

    def _checked(self, action: int | None) -> int:
        rule = f"a move is a number from 0 to {self._num_actions - 1}; take one where the action_mask is 1"
        try:
            number = operator.index(action)  # type: ignore[arg-type]  # NumPy integers are welcome
        except TypeError:
            raise IllegalActionError(f"action={action!r}: {rule}.") from None
        if not 0 <= number < self._num_actions:
            raise IllegalActionError(f"action={number}: {rule}.")
        return number
