"""Any environment as a PettingZoo environment, and one seat of it as a Gymnasium environment.

Actions are reply texts; observations are message texts.
"""

import string
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any, Generic

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Text
from gymnasium.utils import seeding
from pettingzoo import AECEnv

from hanabi_grpo.envs.base import C, Environment, Policy, Seat, Setup, Task
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import player_name, player_names


class AnyText(Text):
    """A space of all texts up to a maximum length; samples are printable ASCII."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Return True for a text within the maximum length."""
        return isinstance(x, str) and len(x) <= self.max_length


_REPLY_CHARS = 1 << 12
"""Maximum reply length in the action spaces."""
_MESSAGE_CHARS = 1 << 16
"""Maximum message length in the observation spaces."""
_NUM_SEEDS = 2**31
"""Number of starts to draw from if `reset` is not told which one."""
_AEC_OPTIONS = frozenset({"split", "seed"})
_SEAT_OPTIONS = frozenset({"split", "seed", "game"})


def _text_of(action: object) -> str:
    """Return an action, or raise an IllegalActionError if it is not a text."""
    if not isinstance(action, str):
        raise IllegalActionError(f"action={action!r}: an action must be the text of a reply.")
    return action


class _HoldsEpisode:
    """Shared by both wrappers: the episode started by `reset`."""

    _referee: Referee | None = None

    @property
    def referee(self) -> Referee:
        """The episode with all its secrets: for records and tests, never for players."""
        if self._referee is None:
            raise IllegalActionError("No episode has been started: call reset() first.")
        return self._referee


class AECWrapper(_HoldsEpisode, AECEnv[str, dict[str, str], str | None]):
    """One environment with one config; its agents are `player_0`, `player_1` ….

    - Action: the text of a reply, up to a maximum length; `Referee` handles bad replies.
      `infos[agent]["legal"]` lists the legal actions of an agent that is to act, if the environment
      lists them. An agent whose episode is over steps with None.
    - Observation: "message", what is new for the agent; "" for an agent that is not to act. A plain
      text would fail PettingZoo's check, which reads the `dtype` of every observation.
    - Rewards: the sum of the agent's reward parts in a step, which are in
      `infos[agent]["rewards"]`.
    - Players who act simultaneously are selected one after the other. The step is executed after
      the last of them has replied, and none of them sees the others' replies before that.
    - Every agent terminates when the game is over, and is truncated after the spec's `max_turns`
      steps. `infos[agent]` then holds "result".
    - `reset(options={"split": "eval", "seed": 17})` selects the start. Without options, the split
      is "pettingzoo" and the start is drawn from a generator seeded by `reset(seed=...)`.
    """

    metadata = {  # noqa: RUF012 - as PettingZoo declares it
        "name": "hanabi_grpo_v1",
        "render_modes": [],
        "is_parallelizable": False,
    }

    def __init__(self, environment: Environment[C], config: C) -> None:
        """Create an env without an episode; `reset` starts one."""
        self.environment = environment
        # Callers of a wrapper can only give actions, not tool calls.
        self.config = Setup(environment, config).without_tools().config
        self.possible_agents = list(player_names(environment.spec(config).num_players))
        self.agents: list[str] = []
        self.action_spaces = {}
        self.observation_spaces = {}
        self._players: dict[str, int] = {}
        for player, agent in enumerate(self.possible_agents):
            self.action_spaces[agent] = AnyText(_REPLY_CHARS)
            self.observation_spaces[agent] = Dict({"message": AnyText(_MESSAGE_CHARS)})
            self._players[agent] = player
        self._generator: np.random.Generator | None = None
        self._replies: dict[int, str] = {}
        """Replies of the step so far, by player."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a new episode; warns about unknown options.

        Args:
            seed: Seeds the generator that draws starts.
            options: Selects the start; see the class docstring.
        """
        options = options or {}
        unknown = sorted(set(options) - _AEC_OPTIONS)
        if unknown:
            # PettingZoo's own check passes an unknown option and expects no error.
            warnings.warn(
                f"reset options {unknown}: unknown, ignored; allowed: split, seed.", stacklevel=2
            )
        if seed is not None or self._generator is None:
            self._generator, _ = seeding.np_random(seed)
        number = options.get("seed")
        if number is None:
            number = int(self._generator.integers(_NUM_SEEDS))
        split = options.get("split", "pettingzoo")
        task = Task(environment=self.environment, config=self.config, split=split, seed=number)
        self._referee = Referee(task)
        self._replies = {}
        self.agents = self.possible_agents.copy()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._skip_agent_selection: str | None = None
        self._begin_step([{}] * len(self.agents))

    def step(self, action: str | None) -> None:
        """Take the reply of the selected agent; None from an agent whose episode is over.

        Raises:
            IllegalActionError: No episode has been started, every agent has left, or the action is
                not a text.
        """
        referee = self.referee
        if not self.agents:
            raise IllegalActionError(
                "The episode is over and every agent has left: call reset() before the next step."
            )
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._replies[self._players[agent]] = _text_of(action)
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if set(self._replies) == set(referee.to_act()):
            turns = referee.step(self._replies)
            self._replies = {}
            rewards = [referee.paid(turns, player) for player in range(len(self.agents))]
            for rewarded_agent, parts in zip(self.agents, rewards, strict=True):
                self.rewards[rewarded_agent] = float(sum(parts.values()))
            self._begin_step(rewards)
        else:
            self._select_agent()
        self._accumulate_rewards()

    def observe(self, agent: str) -> dict[str, str]:
        """Return the message of one agent.

        Raises:
            SettingsError: The environment has no such agent.
        """
        player = self._players.get(agent)
        if player is None:
            raise SettingsError(
                f"agent={agent!r}: this environment has {', '.join(self.possible_agents)}."
            )
        referee = self.referee
        if player not in referee.to_act():
            return {"message": ""}
        return {"message": referee.see(player).message()}

    def observation_space(self, agent: str) -> Dict:
        """Return the observation space of an agent; it is the same for all agents."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> AnyText:
        """Return the action space of an agent; it is the same for all agents."""
        return self.action_spaces[agent]

    def _begin_step(self, rewards: list[dict[str, float]]) -> None:
        """Fill in what agents are told before a step, and select the first player to act.

        `rewards` are the reward parts of the previous step, per player.
        """
        referee = self.referee
        self.infos: dict[str, dict[str, Any]] = {}
        for agent, parts in zip(self.agents, rewards, strict=True):
            self.infos[agent] = {"rewards": parts}
        for player in referee.to_act():
            self.infos[self.agents[player]]["legal"] = referee.see(player).legal()
        if referee.status is not None:
            is_truncated = referee.status.is_truncated
            self.terminations = dict.fromkeys(self.agents, not is_truncated)
            self.truncations = dict.fromkeys(self.agents, is_truncated)
            for info in self.infos.values():
                info["result"] = dict(referee.game.result())
        self._select_agent()

    def _select_agent(self) -> None:
        """Select the next player who has not acted in this step; at the end, the first player."""
        waiting = [player for player in self.referee.to_act() if player not in self._replies]
        next_player = waiting[0] if waiting else 0
        self.agent_selection = self.agents[next_player]


class SeatEnv(_HoldsEpisode, gymnasium.Env[str, str], Generic[C]):
    """An environment seen from one seat.

    Each step is one reply from the seat, followed by the partners' actions until its next turn.

    - Action and observation: texts as in `AECWrapper`; "" when the episode is over.
    - Reward: the seat's return since its last turn; its parts are in `info["rewards"]`. Rewards
      earned before its first turn are paid with its first step.
    - Terminated when the game is over, truncated after the spec's `max_turns` steps. If partners
      end the game before the seat's first turn, `reset` cannot report it. The first step then
      ignores its action and returns the end and the reward. Starting another game instead would
      change which starts are played.
    - Info: `player`, `system` (the system message) and `legal` (for the next turn; None: any text);
      after a step also `rewards`, and `action` and `kind` of the seat's own move; at the end also
      `result`.
    - `reset(options={"split": "eval", "seed": 17, "game": 3})` selects the start and the partners'
      random generators. Without options, the split is "gymnasium" and the start is drawn from the
      env's own generator.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium declares it without ClassVar

    def __init__(
        self, environment: Environment[C], config: C, seat: int, partners: Mapping[int, Policy]
    ) -> None:
        """Create an env without an episode; `reset` starts one.

        Args:
            environment: The environment.
            config: Its settings.
            seat: Number of the seat, from 0.
            partners: Scripts for all other seats, e.g. `{1: HANABI.policies["iggi"]()}`.

        Raises:
            SettingsError: The game has no such seat, or the partners do not fill the other seats.
        """
        num_players = environment.spec(config).num_players
        if not 0 <= seat < num_players:
            raise SettingsError(
                f"seat={seat}: a game of {num_players} players has seats 0 to {num_players - 1}."
            )
        others = [other for other in range(num_players) if other != seat]
        if sorted(partners) != others:
            raise SettingsError(
                f"partners for seats {sorted(partners)}: with seat={seat}, give one partner for "
                f"each of {others}."
            )
        self.environment = environment
        # Callers of a wrapper can only give actions, not tool calls.
        self.config = Setup(environment, config).without_tools().config
        self.seat = seat
        self.observation_space = AnyText(_MESSAGE_CHARS)
        self.action_space = AnyText(_REPLY_CHARS)
        self.partners = dict(partners)
        self._seats: dict[int, Seat] = {}
        """The partners as players of this episode."""
        self._unpaid: Counter[str] = Counter()
        """Reward parts since this seat's last turn; its next step returns them."""
        self._is_end_returned = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start a new episode and let the partners before this seat act.

        Args:
            seed: Seeds the generator that draws starts.
            options: Selects the start and the episode of its group; see the class docstring.

        Returns:
            The seat's first message and the info.

        Raises:
            SettingsError: An option is unknown.
        """
        super().reset(seed=seed)
        options = options or {}
        unknown = sorted(set(options) - _SEAT_OPTIONS)
        if unknown:
            raise SettingsError(f"reset options {unknown}: unknown; allowed: split, seed, game.")
        number = options.get("seed")
        if number is None:
            number = int(self.np_random.integers(_NUM_SEEDS))
        split = options.get("split", "gymnasium")
        game = options.get("game", 0)
        task = Task(environment=self.environment, config=self.config, split=split, seed=number)
        self._referee = Referee(task, number=game)
        self._seats = {}
        for player, policy in self.partners.items():
            self._seats[player] = policy.seat(player, task=task, game=game)
        self._unpaid = Counter()
        self._is_end_returned = False
        self._wait_for_my_turn()
        return self._observation()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take this seat's reply, then let the partners act until its next turn or the end.

        Returns:
            Message, reward, terminated, truncated and info, as in Gymnasium.

        Raises:
            IllegalActionError: There is no episode, it is over, the action is not a text, or a
                partner's action was not legal.
        """
        move: dict[str, Any] = {}
        if self.referee.status is None:
            move = self._step(_text_of(action))
            self._wait_for_my_turn()
        elif self._is_end_returned:
            raise IllegalActionError(
                f"The episode is over ({self.referee.status}): call reset() before the next step."
            )
        rewards = dict(self._unpaid)
        self._unpaid = Counter()
        status = self.referee.status
        self._is_end_returned = status is not None
        truncated = status is not None and status.is_truncated
        terminated = status is not None and not truncated
        message, info = self._observation()
        reward = float(sum(rewards.values()))
        return message, reward, terminated, truncated, {**info, **move, "rewards": rewards}

    def _wait_for_my_turn(self) -> None:
        while self.referee.status is None and self.seat not in self.referee.to_act():
            self._step(None)

    def _step(self, reply: str | None) -> dict[str, Any]:
        """Take one step with this seat's `reply`; return the resulting action and its kind.

        If this seat is not to act, `reply` is None and the result is empty.
        """
        referee = self.referee
        replies: dict[int, str] = {}
        if reply is not None:
            replies[self.seat] = reply
        for player in referee.to_act():
            if player != self.seat:
                replies[player] = self._ask_partner(player)
        turns = referee.step(replies)
        self._unpaid.update(referee.paid(turns, self.seat))
        for turn in turns:
            if turn.player == self.seat:
                return {"action": turn.action, "kind": turn.kind}
        return {}

    def _ask_partner(self, player: int) -> str:
        seen = self.referee.see(player)
        reply = self._seats[player].act(seen)
        legal = seen.legal()
        if legal is not None and seen.parse(reply) not in legal:
            raise IllegalActionError(
                f"{reply!r}: not a legal action of {self.partners[player].name} as "
                f"{player_name(player)}; a partner must choose one of {', '.join(legal)}."
            )
        return reply

    def _observation(self) -> tuple[str, dict[str, Any]]:
        """Return message and info for this seat."""
        info: dict[str, Any] = {
            "player": player_name(self.seat),
            "system": self.environment.system_message(self.config, self.seat),
        }
        if self.referee.status is not None:
            info["legal"] = ()
            info["result"] = dict(self.referee.game.result())
            return "", info
        seen = self.referee.see(self.seat)
        info["legal"] = seen.legal()
        return seen.message(), info
