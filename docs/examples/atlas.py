"""Atlas: which of two rivers is longer? The player may look lengths up in a table."""

import random
from collections.abc import Callable, Mapping, Sequence

from hanabi_grpo.envs import base
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.envs.tools.lookup import lookup_tool
from hanabi_grpo.envs.tools.tool import Tool

LENGTHS = {"Danube": 2850, "Rhine": 1233, "Elbe": 1094, "Loire": 1006, "Oder": 840, "Seine": 775}
RIVERS = tuple(LENGTHS)
SYSTEM = "Say which of two rivers is longer. End your reply with its name on a line of its own."
LOOKUP = lookup_tool(
    {name: f"{length} km" for name, length in LENGTHS.items()},
    description="the length of a river",
    argument="river",
    calls_per_turn=2,
)


class AtlasConfig(base.EnvConfig):
    """The settings."""

    preset: str = "atlas"


class AtlasGame(base.Game):
    """One question, one answer."""

    def __init__(self, rivers: tuple[str, str]) -> None:
        self.rivers = rivers
        self.answer: str | None = None

    def to_act(self) -> tuple[int, ...]:
        return (0,) if self.answer is None else ()

    def state_message(self, player: int) -> str:
        return f"{self.rivers[0]} or {self.rivers[1]}?"

    def view(self, player: int) -> tuple[str, str]:
        return self.rivers

    def legal(self, player: int) -> tuple[str, ...]:
        return self.rivers if self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, RIVERS)

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        self.answer = actions[0]
        return [{"right": self.result()["right"]}]

    def result(self) -> Mapping[str, float]:
        longer = max(self.rivers, key=LENGTHS.__getitem__)
        return {"right": float(self.answer == longer)}


def look_up(seen: base.Observation, rng: random.Random) -> str:
    """Look up both rivers, then name the longer one."""
    rivers = seen.view()
    if len(seen.calls) < len(rivers) and seen.tools:
        return seen.call_of(LOOKUP, rivers[len(seen.calls)])
    lengths = [int(call.result.split()[0]) for call in seen.calls]
    if not lengths:
        return rng.choice(rivers)
    return rivers[lengths.index(max(lengths))]


class Atlas(base.Environment[AtlasConfig]):
    """An environment with a tool of its own."""

    name = "atlas"
    Config = AtlasConfig
    presets: Mapping[str, AtlasConfig] = {"atlas": AtlasConfig()}
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        "look-up": lambda: base.Script("look-up", look_up),
    }

    def spec(self, config: AtlasConfig) -> base.EnvSpec:
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash("atlas v1", SYSTEM, LENGTHS),
            num_players=1,
            roles=("reader",),
            payoff="team",
            max_turns=1,
            return_range=(0.0, 1.0),
            score="right",
            max_score=1.0,
        )

    def system(self, config: AtlasConfig, player: int) -> str:
        return SYSTEM

    def tools(self, config: AtlasConfig) -> tuple[Tool, ...]:
        return (LOOKUP,)

    def reset(self, config: AtlasConfig, *, split: str, seed: int) -> AtlasGame:
        first = base.draw("first", split, seed, below=len(RIVERS))
        second = base.draw("second", split, seed, below=len(RIVERS) - 1)
        others = [river for river in RIVERS if river != RIVERS[first]]
        return AtlasGame((RIVERS[first], others[second]))

    def start_id(self, config: AtlasConfig, *, split: str, seed: int) -> str:
        return self.reset(config, split=split, seed=seed).state_message(0)


ATLAS = Atlas()
