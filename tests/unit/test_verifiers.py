"""The package for verifiers: every seat an agent, here with a stand-in for the library.

verifiers pins other versions of mcp and openai, so it is never installed beside vLLM; the stand-in
has the few classes that the package builds on.
"""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict

from hanabi_grpo.types import MAX_PLAYERS, player_names

FOLDER = Path(__file__).parents[2] / "integrations" / "verifiers"
A = TypeVar("A")
B = TypeVar("B")


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Task(Generic[A]):
    def __init__(self, data: Any, config: Any = None) -> None:
        self.data = data
        self.config = config


class _Taskset(Generic[A, B]):
    def __init__(self, config: Any) -> None:
        self.config = config


class _Env(Generic[A]):
    def __init__(self, config: Any) -> None:
        self.config = config


class Trace:
    """What an agent's talk has recorded."""

    def __init__(self) -> None:
        self.rewards: dict[str, float] = {}
        self.metrics: dict[str, float] = {}

    def record_reward(self, name: str, value: float) -> None:
        self.rewards[name] = value

    def record_metric(self, name: str, value: float) -> None:
        self.metrics[name] = value


class Agent:
    """Replies by a function, and notes what it is told."""

    def __init__(self, reply: Callable[[str], str]) -> None:
        self.reply = reply
        self.trace = Trace()
        self.system: str | None = None

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator["Agent"]:
        self.system = task.data.system_prompt
        yield self

    async def turn(self, message: str) -> Any:
        return SimpleNamespace(terminated=False, last_reply=self.reply(message))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Any:
    v1 = ModuleType("verifiers.v1")
    for name in ("TasksetConfig", "TaskData", "EnvConfig", "AgentConfig"):
        setattr(v1, name, type(name, (_Model,), {}))
    for name, kind in (("Task", _Task), ("Taskset", _Taskset), ("Env", _Env)):
        setattr(v1, name, kind)
    for name in ("Agents", "Interaction"):
        setattr(v1, name, object)
    library: Any = ModuleType("verifiers")
    library.v1 = v1
    monkeypatch.setitem(sys.modules, "verifiers", library)
    monkeypatch.setitem(sys.modules, "verifiers.v1", v1)
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("hanabi_grpo_verifiers")
    del sys.modules["hanabi_grpo_verifiers"]


def play(package: Any, env: str, fields: dict[str, Any], scripts: dict[str, str]) -> dict[str, Any]:
    """Play the first start by agents that say the first legal action; return them by name."""
    config = package.GamesConfig(env=env, env_config={"preset": env, **fields}, starts=1)
    config.task = None
    [task] = package.Games(config).load()

    def reply(message: str) -> str:
        _, listed, actions = message.rpartition("Your actions: ")
        return actions.partition(",")[0] if listed else "Answer: 1"

    agents = {name: Agent(reply) for name in player_names(MAX_PLAYERS)}
    environment = package.GameEnv(package.GameEnvConfig(scripts=scripts))
    asyncio.run(environment.run(task, SimpleNamespace(**agents)))
    return agents


def test_an_agent_of_verifiers_plays_beside_a_script_and_gets_the_games_rewards(
    package: Any,
) -> None:
    agents = play(package, "kuhn_poker", {"instruction": "Be bold."}, {"player_1": "random"})
    first = agents["player_0"]
    assert first.system.startswith("You are the first player in a game of Kuhn poker.")
    assert first.system.endswith("\n\nBe bold.")
    won = first.trace.metrics["first"]
    assert first.trace.rewards["return"] == won
    assert abs(won) in (1.0, 2.0)
    assert agents["player_1"].system is None, "a script has its seat"


def test_every_seat_that_a_game_can_have_has_an_agent(package: Any) -> None:
    names = player_names(MAX_PLAYERS)
    assert set(names) <= set(package.GameEnvConfig.model_fields)
    agents = play(package, "vote", {"players": MAX_PLAYERS}, {})
    assert [list(agents[name].trace.rewards) for name in names] == [["correct"]] * MAX_PLAYERS
