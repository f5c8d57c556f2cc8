"""Lighthouse: one player knows the safe harbour and shows a light, the other reads it and sails."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.replies import last_choice

KEEPER = 0
CAPTAIN = 1
LIGHTS = ("red", "green", "white")
HARBOURS = ("north", "east", "south")
SYSTEM = (
    "You keep the lighthouse. One harbour is safe, and only you know which: north, east or south. "
    "Show one light, which the captain sees. End your reply with it on a line of its own: red, "
    "green or white.",
    "You are the captain. One harbour is safe: north, east or south. The keeper of the lighthouse "
    "knows which and shows you a light. End your reply with the harbour that you sail to, on a "
    "line of its own.",
)


class LighthouseConfig(base.EnvConfig):
    """The settings."""

    preset: str = "lighthouse"
    reward_safe: float = 1.0
    """Reward of both players when the captain reaches the safe harbour."""


class LighthouseGame(base.Game):
    """The keeper shows a light, then the captain sails."""

    def __init__(self, config: LighthouseConfig, safe: str) -> None:
        self.config = config
        self.safe = safe
        self.light: str | None = None
        self.destination: str | None = None

    def to_act(self) -> tuple[int, ...]:
        if self.light is None:
            return (KEEPER,)
        if self.destination is None:
            return (CAPTAIN,)
        return ()

    def state_message(self, player: int) -> str:
        if player == KEEPER:
            return f"The safe harbour is {self.safe}. Which light?"
        return f"The light is {self.light or 'still off'}. Which harbour?"

    def view(self, player: int) -> str | None:
        return self.safe if player == KEEPER else self.light

    def legal(self, player: int) -> tuple[str, ...]:
        if player not in self.to_act():
            return ()
        return LIGHTS if player == KEEPER else HARBOURS

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, LIGHTS + HARBOURS)

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        if self.light is None:
            self.light = actions[KEEPER]
            return [{}, {}]
        self.destination = actions[CAPTAIN]
        if self.destination != self.safe:
            return [{}, {}]
        reward = {"safe": self.config.reward_safe}
        return [reward, reward]

    def result(self) -> Mapping[str, float]:
        return {"safe": float(self.destination == self.safe)}

    def hidden(self, player: int) -> Mapping[str, Any]:
        return {} if player == KEEPER else {"safe harbour": self.safe}

    def resampled(self, player: int, rng: random.Random) -> "LighthouseGame":
        other = self.copy()
        other.safe = rng.choice(HARBOURS)
        return other


def by_the_book(seen: base.Observation, rng: random.Random) -> str:
    """Use the convention red: north, green: east, white: south."""
    if seen.player == KEEPER:
        return LIGHTS[HARBOURS.index(seen.view())]
    return HARBOURS[LIGHTS.index(seen.view())]


class Lighthouse(base.Environment[LighthouseConfig]):
    """Three starts, so every split has all of them."""

    name = "lighthouse"
    Config = LighthouseConfig
    presets: Mapping[str, LighthouseConfig] = {"lighthouse": LighthouseConfig()}
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        "by-the-book": lambda: base.Script("by-the-book", by_the_book),
    }

    def spec(self, config: LighthouseConfig) -> base.EnvSpec:
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash("lighthouse v1", SYSTEM),
            num_players=2,
            roles=("keeper", "captain"),
            payoff="team",
            max_turns=2,
            return_range=(0.0, config.reward_safe),
        )

    def system(self, config: LighthouseConfig, player: int) -> str:
        return SYSTEM[player]

    def reset(self, config: LighthouseConfig, *, split: str, seed: int) -> LighthouseGame:
        number = base.draw("lighthouse", split, seed, below=len(HARBOURS))
        return LighthouseGame(config, HARBOURS[number])

    def start_id(self, config: LighthouseConfig, *, split: str, seed: int) -> str:
        return self.reset(config, split=split, seed=seed).safe


LIGHTHOUSE = Lighthouse()
