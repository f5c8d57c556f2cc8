"""Environments of another package in some of whose episodes a call never returns, or worse."""

import asyncio
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.envs import base
from hanabi_grpo.envs.tools.tool import Tool
from toy_environments import DILEMMA, GUESS, Dilemma, Guess, GuessGame, ToyConfig

MESSAGE_LENGTH = 400_000
"""Length of a message of "wordy" in characters, more than a socket takes at once."""
PERIOD = 100
"""One task of so many is a trap."""
SLOW_SECONDS = 2.0
"""How long a call takes in the traps of "slow"."""
TRAP = 7
"""Seed of the first trap; the others follow in steps of `PERIOD`."""


class TrapGame(GuessGame):
    """`GuessGame`, but the second guess of a trap is its last."""

    def __init__(self, config: ToyConfig, number: int, spring: Callable[[], object] | None) -> None:
        super().__init__(config, number)
        self.spring = spring

    def to_act(self) -> tuple[int, ...]:
        # Nobody ever guesses right, so that all games have the same length.
        return () if len(self.guesses) == 4 else (0,)

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        if len(self.guesses) == 1 and self.spring is not None:
            self.spring()
        rewards = super().step(actions)
        return [{**rewards[0], "guess": 0.25}]


class Trap(Guess):
    """An environment whose traps do something that no environment should do."""

    def __init__(self, name: str, spring: Callable[[], object]) -> None:
        self.name = name
        self.spring = spring

    def spec(self, config: ToyConfig) -> base.EnvSpec:
        spec = GUESS.spec(config)
        return base.EnvSpec(
            env=self.name,
            preset=spec.preset,
            hash=base.stable_hash(self.name),
            num_players=1,
            roles=spec.roles,
            payoff="general",
            max_turns=8,
            return_range=(0.0, 2.0),
            bad_reply="skip",
        )

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> TrapGame:
        number = GUESS.reset(config, split="train", seed=seed).number
        is_trap = seed % PERIOD == TRAP
        return TrapGame(config, number, self.spring if is_trap else None)


def _sleep_for_ever() -> None:
    while True:
        time.sleep(1000)


def _compute_for_ever() -> None:
    while True:
        pass


def _die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


SLEEPS = Trap("sleeps", _sleep_for_ever)
COMPUTES = Trap("computes", _compute_for_ever)
DIES = Trap("dies", _die)
SLOW = Trap("slow", lambda: time.sleep(SLOW_SECONDS))


def _leave() -> None:
    sys.exit(3)


def _cancel() -> None:
    raise asyncio.CancelledError


def _fail_with_half_a_pair() -> None:
    raise ValueError("half of a pair: \ud800")


class _SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _fail_without_a_text() -> None:
    raise _SilentError


LEAVES = Trap("leaves", _leave)
CANCELS = Trap("cancels", _cancel)
HALVES = Trap("halves", _fail_with_half_a_pair)
SILENT = Trap("silent", _fail_without_a_text)


class ListingGame(TrapGame):
    """A game whose result is no figure in traps."""

    def result(self) -> Mapping[str, Any]:
        return super().result() if self.spring is None else {"guesses": [1, 2]}


class Lists(Trap):
    """An environment of `ListingGame`."""

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> ListingGame:
        game = super().reset(config, split=split, seed=seed)
        return ListingGame(config, game.number, game.spring)


LISTS = Lists("lists", lambda: None)


class BoundlessGame(TrapGame):
    """A game that pays what is no number in traps."""

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        rewards = super().step(actions)
        return rewards if self.spring is None else [{"guess": math.nan}]


class Boundless(Trap):
    """An environment of `BoundlessGame`."""

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> BoundlessGame:
        game = super().reset(config, split=split, seed=seed)
        return BoundlessGame(config, game.number, game.spring)


BOUNDLESS = Boundless("boundless", lambda: None)


class WordyGame(TrapGame):
    """A game whose messages are longer than what a socket takes at once."""

    def message(self, player: int) -> str:
        return super().message(player) + " " + "x" * MESSAGE_LENGTH


class Wordy(Trap):
    """An environment of `WordyGame`."""

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> WordyGame:
        game = super().reset(config, split=split, seed=seed)
        return WordyGame(config, game.number, game.spring)


WORDY = Wordy("wordy", _sleep_for_ever)
WORDY_DIES = Wordy("wordy_dies", _die)


class Quitters(Dilemma):
    """Three players who act at the same time, by a script that ends the process."""

    name = "quitters"
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "quitter": lambda: base.Script("quitter", lambda seen, rng: sys.exit("enough"))
    }

    def spec(self, config: ToyConfig) -> base.EnvSpec:
        return replace(DILEMMA.spec(config), env=self.name)


QUITTERS = Quitters()


class MisfitGame(TrapGame):
    """`GuessGame`, but what it says in a trap has a type that it must not have."""

    def message(self, player: int) -> str:
        message: Any = super().message(player)
        if self.spring is not None and len(self.guesses) == 1:
            message = self.spring()
        return message

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        rewards = GuessGame.step(self, actions)
        return [{**rewards[0], "guess": 0.25}]

    def result(self) -> Mapping[str, float]:
        figures: Any = super().result()
        if self.spring is not None and not self.to_act():
            figures = {"winner": self.spring()}
        return figures


class Misfit(Trap):
    """An environment that says something of a wrong type in its traps."""

    def reset(self, config: ToyConfig, *, split: str, seed: int) -> MisfitGame:
        game = super().reset(config, split=split, seed=seed)
        return MisfitGame(config, game.number, game.spring)


WRONG_MESSAGE = Misfit("wrong_message", lambda: 5)
WRONG_RESULT = Misfit("wrong_result", lambda: "red")


def _wait_or_answer(text: str) -> str:
    if text == "R":
        _sleep_for_ever()
    return text


class SlowTool(Trap):
    """Without traps, but with a slow tool, which never returns for one argument."""

    def tools(self, config: ToyConfig) -> tuple[Tool, ...]:
        # A word of the tests' tokenizer.
        return (Tool(name="Hint", description="waits for R", run=_wait_or_answer, slow=True),)

    def has_short_calls(self, config: ToyConfig) -> bool:
        return True


SLOW_TOOL = SlowTool("slow_tool", lambda: None)


_NAMES = (
    "sleeps",
    "computes",
    "dies",
    "slow",
    "slow_tool",
    "leaves",
    "cancels",
    "halves",
    "silent",
    "lists",
    "boundless",
    "wordy",
    "wordy_dies",
    "quitters",
    "wrong_message",
    "wrong_result",
)
"""Environments, each a constant of this module in capitals."""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the environments as an installed package would be, also for child processes."""
    info = folder / "traps-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: traps\nVersion: 1.0\n")
    lines = ["[hanabi_grpo.environments]"]
    for name in _NAMES:
        lines.append(f"{name} = blocking_environments:{name.upper()}")
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(str(folder))
    tests = str(Path(__file__).parent)
    if tests not in sys.path:
        monkeypatch.syspath_prepend(tests)
