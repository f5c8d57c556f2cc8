"""Any environment as a PettingZoo environment: one agent per player, replies as actions, messages as observations."""

import string
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Text
from gymnasium.utils import seeding
from pettingzoo import AECEnv

from hanabi_grpo.envs.base import C, Environment, Task
from hanabi_grpo.envs.referee import Referee, parts_of
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import player_names

MAX_REPLY_CHARS = 1 << 12
MAX_MESSAGE_CHARS = 1 << 16


class AnyText(Text):
    """A space that holds every text up to a length; samples are printable ASCII."""

    def __init__(self, max_length: int) -> None:
        """Hold texts of at most `max_length` characters."""
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Return True for a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


class HoldsEpisode:
    """Something that plays one episode after the other."""

    _referee: Referee | None = None

    @property
    def referee(self) -> Referee:
        """The episode; it knows everything, so it is for records and tests, never for players.

        Raises:
            IllegalActionError: `reset` was not called.
        """
        if self._referee is None:
            raise IllegalActionError("No episode was started: call reset() first.")
        return self._referee


class AECWrapper(HoldsEpisode, AECEnv[str, dict[str, str], str | None]):
    """One environment with one config; its agents are `player_0`, `player_1` ….

    ## Action Space
    `Text`: a reply. Any text is one, see `Referee` for bad ones; `infos[agent]["legal"]` lists the legal actions of an
    agent that is to act, where the environment lists them. An agent whose episode is over steps with None.

    ## Observation Space
    `Dict` with "message": what is new for the agent, or the whole state with `memory="turn"`; "" for an agent that is
    not to act. A bare text would fail PettingZoo's check, which reads the `dtype` of every observation.

    ## Rewards
    The sum of the agent's reward parts of a step, `infos[agent]["rewards"]`.

    ## Turns
    Players who answer at the same time are selected one after the other; the step is made when the last has answered,
    and none of them sees the others' answers before.

    ## Episode End
    Every agent terminates when the game is over, and is truncated after the spec's `max_turns` steps. `infos[agent]`
    then holds "result".

    ## Arguments
    `reset(options={"split": "eval", "seed": 17})` chooses the start. Without options the split is "pettingzoo" and the
    start is drawn from a generator that `reset(seed=...)` seeds.

    Example:
        env = AECWrapper(HANABI, HANABI.presets["laptop"])
        env.reset(seed=1)
        for agent in env.agent_iter():
            observation, reward, terminated, truncated, info = env.last()
            env.step(None if terminated or truncated else reply_to(observation["message"]))
    """

    metadata = {"name": "hanabi_grpo_v1", "render_modes": ["ansi"], "is_parallelizable": False}  # noqa: RUF012 - as PettingZoo declares it

    def __init__(
        self, environment: Environment[C], config: C, *, memory: str = "game", render_mode: str | None = None
    ) -> None:
        """Make an env without a game; call `reset` first.

        Args:
            environment: What is played.
            config: Its settings.
            memory: "game" (messages tell what is new) or "turn" (messages tell the whole state).
            render_mode: "ansi" lets `render` return the message of the agent to act.

        Raises:
            SettingsError: Another memory or render mode.
        """
        if render_mode not in (None, "ansi"):
            raise SettingsError(f"render_mode={render_mode!r}: give 'ansi', which renders text, or None.")
        if memory not in ("game", "turn"):
            raise SettingsError(f"memory={memory!r}: give 'game' or 'turn'.")
        self.environment = environment
        self.config = config
        self.render_mode = render_mode
        self.possible_agents = list(player_names(environment.spec(config).num_players))
        self.agents: list[str] = []
        self.action_spaces = {agent: AnyText(MAX_REPLY_CHARS) for agent in self.possible_agents}
        self.observation_spaces = {
            agent: Dict({"message": AnyText(MAX_MESSAGE_CHARS)}) for agent in self.possible_agents
        }
        self._memory = memory
        self._players = {agent: player for player, agent in enumerate(self.possible_agents)}
        self._generator: np.random.Generator | None = None
        self._replies: dict[int, str] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start a new episode; see the class for `options`. Warns of an option that it does not know."""
        options = dict(options or {})
        split = options.pop("split", "pettingzoo")
        number = options.pop("seed", None)
        if options:
            # PettingZoo's own check passes an unknown option and expects no error.
            warnings.warn(f"reset options {sorted(options)}: unknown, ignored; allowed: split, seed.", stacklevel=2)
        if seed is not None or self._generator is None:
            self._generator, _ = seeding.np_random(seed)
        if number is None:
            number = int(self._generator.integers(2**31))
        self._referee = Referee(Task(environment=self.environment, config=self.config, split=split, seed=number))
        self._replies = {}
        self.agents = self.possible_agents.copy()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._skip_agent_selection: str | None = None
        self._tell([{}] * len(self.agents))

    def step(self, action: str | None) -> None:
        """Take the reply of the selected agent; None from an agent whose episode is over.

        Raises:
            IllegalActionError: There is no game, or the action is no text; the game is unchanged.
        """
        referee = self.referee
        if not self.agents:
            raise IllegalActionError("The episode is over and every agent has left: call reset() before the next step.")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            if action is not None:
                raise IllegalActionError(f"action={action!r}: the episode of {agent} is over; step with None.")
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            raise IllegalActionError(f"action={action!r}: an action is the text of a reply.")
        self._replies[self._players[agent]] = action
        self._cumulative_rewards[agent] = 0.0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        if set(self._replies) == set(referee.to_act()):
            turns = referee.step(self._replies)
            self._replies = {}
            parts = [parts_of(turns, player) for player in range(len(self.agents))]
            self.rewards = {agent: float(sum(part.values())) for agent, part in zip(self.agents, parts, strict=True)}
            self._tell(parts)
        else:
            self._select()
        self._accumulate_rewards()

    def observe(self, agent: str) -> dict[str, str]:
        """Return the message of one agent.

        Raises:
            IllegalActionError: There is no game.
            SettingsError: There is no such agent.
        """
        player = self._players.get(agent)
        if player is None:
            raise SettingsError(f"agent={agent!r}: this environment has {', '.join(self.possible_agents)}.")
        if player not in self.referee.to_act():
            return {"message": ""}
        seen = self.referee.see(player)
        return {"message": seen.message() if self._memory == "game" else seen.state_message()}

    def render(self) -> str | None:
        """Return the message of the selected agent, and so nothing that it must not see; None without a mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() without a render mode shows nothing: make the env with render_mode='ansi'.")
            return None
        return self.observe(self.agent_selection)["message"]

    def close(self) -> None:
        """Do nothing: the env holds neither windows nor processes."""

    def observation_space(self, agent: str) -> Dict:
        """Return the space of an agent's observations; equal for all agents."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> AnyText:
        """Return the space of an agent's replies; equal for all agents."""
        return self.action_spaces[agent]

    def _tell(self, parts: list[dict[str, float]]) -> None:
        referee = self.referee
        self.infos: dict[str, dict[str, Any]] = {
            agent: {"rewards": part} for agent, part in zip(self.agents, parts, strict=True)
        }
        for player in referee.to_act():
            self.infos[self.agents[player]]["legal"] = referee.see(player).legal()
        if referee.status is not None:
            self.terminations = dict.fromkeys(self.agents, not referee.status.is_truncated)
            self.truncations = dict.fromkeys(self.agents, referee.status.is_truncated)
            for info in self.infos.values():
                info["result"] = dict(referee.game.result())
        self._select()

    def _select(self) -> None:
        waiting = [player for player in self.referee.to_act() if player not in self._replies]
        self.agent_selection = self.agents[waiting[0] if waiting else 0]
