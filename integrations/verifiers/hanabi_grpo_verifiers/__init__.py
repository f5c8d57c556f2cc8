r"""The environments of hanabi-grpo for verifiers v1.

Each seat is an agent with its own trace and rewards.

    vf-eval hanabi-grpo-verifiers --env.taskset.env kuhn_poker \
        --env.taskset.env-config '{"preset": "kuhn_poker"}'

Agents without a seat in the game are never called. `scripts` assigns scripts of the environment to
seats.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.referee import Referee
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.messages import check_script
from hanabi_grpo.types import player_name

__all__ = ["GameEnv", "GameEnvConfig", "GameTask", "Games", "GamesConfig"]

_AGENT: Any = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""A plain chat, which runs no code from the model, so it needs no sandbox."""


class GamesConfig(vf.TasksetConfig):
    """The environment and the starts that are played."""

    env: str = "hanabi"
    env_config: dict[str, Any] = {"preset": "laptop"}  # noqa: RUF012 - a pydantic field
    """As in a dataset row; omitted keys have the environment's defaults."""
    split: str = "train"
    starts: int = 64
    """Number of tasks: the starts 0, 1, … of the split."""


class GameData(vf.TaskData):
    """One start."""

    env: str
    env_config: dict[str, Any]
    split: str
    seed: int


class GameTask(vf.Task[GameData]):
    """One start; its rewards come from the game."""


class Games(vf.Taskset[GameTask, GamesConfig]):
    """The starts of one environment."""

    def load(self) -> Iterator[GameTask]:
        """Yield one task per start.

        Raises:
            SettingsError: There is no such environment, or its config is wrong.
        """
        config = self.config
        registry.setup(config.env, config.env_config)
        for seed in range(config.starts):
            start = {
                "env": config.env,
                "env_config": config.env_config,
                "split": config.split,
                "seed": seed,
            }
            name = f"{config.env} {config.split}/{seed}"
            yield GameTask(GameData(name=name, prompt=None, **start), config.task)


class GameEnvConfig(vf.EnvConfig):
    """An agent for each seat that a game can have."""

    player_0: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_1: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_2: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_3: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_4: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_5: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_6: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    player_7: vf.AgentConfig = vf.AgentConfig(**_AGENT)
    scripts: dict[str, str] = {}  # noqa: RUF012 - a pydantic field
    """Seats played by scripts instead, e.g. {"player_1": "iggi"}."""


class GameEnv(vf.Env[GameEnvConfig]):
    """One game per task.

    The referee of hanabi-grpo decides what a reply means and what a bad one costs.
    """

    async def run(self, task: GameTask, agents: vf.Agents) -> None:
        """Play a game.

        Each agent is asked when its seat is to act; seats that act together are asked in parallel.
        """
        data = task.data
        # verifiers does not ask an agent again within a turn, so agents have no tools.
        setup = registry.setup(data.env, data.env_config).without_tools()
        start = setup.task(data.split, data.seed)
        referee = Referee(start)
        names = [player_name(player) for player in range(referee.spec.num_players)]
        unknown = self.config.scripts.keys() - names
        if unknown:
            raise SettingsError(
                f"scripts for {', '.join(sorted(unknown))}: this game has only {', '.join(names)}."
            )
        scripts = {}
        for name, script in self.config.scripts.items():
            check_script(setup, script)
            player = names.index(name)
            policy = setup.environment.policies[script]()
            scripts[player] = policy.seat(player, task=start, game=0)
        talks: dict[int, vf.Interaction] = {}
        async with AsyncExitStack() as stack:

            async def ask(player: int) -> str | None:
                """Return a reply, or None if the agent has reached a limit."""
                seen = referee.see(player)
                if player in scripts:
                    return scripts[player].act(seen)
                if player not in talks:
                    system = setup.environment.system_message(setup.config, player) or None
                    seat_data = data.model_copy(update={"system_prompt": system})
                    seat_task = type(task)(seat_data, task.config)
                    agent = getattr(agents, names[player])
                    talks[player] = await stack.enter_async_context(agent.interaction(seat_task))
                segment = await talks[player].turn(seen.message())
                return None if segment.terminated else segment.last_reply

            while referee.status is None:
                acting = referee.to_act()
                answers = await asyncio.gather(*map(ask, acting))
                replies = dict(zip(acting, answers, strict=True))
                ended = [player for player, reply in replies.items() if reply is None]
                if ended:
                    referee.out_of_tokens(ended[0])
                else:
                    referee.step({player: reply or "" for player, reply in replies.items()})
        episode = referee.episode()
        for player, talk in talks.items():
            rewards: dict[str, float] = {}
            for turn in episode.turns:
                for part, value in turn.rewards[player].items():
                    rewards[part] = rewards.get(part, 0.0) + value
            if not rewards:
                rewards["none"] = 0.0
            for part, value in rewards.items():
                talk.trace.record_reward(part, value)
            for name, value in episode.result.items():
                talk.trace.record_metric(name, float(value))
