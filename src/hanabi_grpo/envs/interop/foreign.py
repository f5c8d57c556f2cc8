"""What games of other libraries have in common here: they play themselves, and say what each player
is told.

They break one promise of `base.Game`: a game is not pure, since the other library keeps it. What a
player is shown is therefore kept here when a game begins and after each action. They name no hidden
values, so nothing is shown of what they hide from whom."""

import importlib
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.config import EnvConfig
from hanabi_grpo.errors import SettingsError

_MENTIONED = re.compile(r"\[\s*[^\[\]\s][^\[\]\n]{0,40}\]")


class ForeignConfig(EnvConfig):
    """What another library does not say of its game."""

    instructions: str = ""
    """System message; the game's own first message often says enough."""
    max_turns: int = Field(default=200, ge=1)
    """Turns after which a game is cut."""
    least_return: float = -1.0
    """Least return of a player, for charts."""
    greatest_return: float = 1.0
    """Greatest return of a player, for charts and as the best score."""


class ForeignGame(base.Game):
    """One episode of another library's game; a subclass writes `begin` and `advance`, and sets
    `actor` and `told`.
    """

    bad_reply: ClassVar[Any] = "forfeit"

    def __init__(self, config: Any, seed: int) -> None:
        self.config, self.seed = config, seed
        self.actor: int | None = 0
        self.told = dict.fromkeys(range(self.num_players(config)), "")
        """What each player was told last."""
        self.taken: list[str] = []
        self.totals = [0.0] * len(self.told)
        self.begin()

    @staticmethod
    def num_players(config: Any) -> int:
        """Return the number of players."""
        return 1

    @abstractmethod
    def begin(self) -> None:
        """Start the other library's game."""

    @abstractmethod
    def advance(self, action: str) -> Sequence[float]:
        """Give it the action of `actor`; return the reward of each player."""

    def to_act(self) -> tuple[int, ...]:
        return () if self.actor is None else (self.actor,)

    def message(self, player: int) -> str:
        return self.told[player]

    def state_message(self, player: int) -> str:
        """Return the same: what matters of earlier turns is not known."""
        return self.told[player]

    def legal(self, player: int) -> tuple[str, ...] | None:
        return None if player == self.actor else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return the reply without blanks around it; None for an empty one."""
        return reply.encode("utf-8", "replace").decode("utf-8").strip() or None

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Give the action to the other library; a forfeit ends the game."""
        [action] = actions.values()
        self.taken.append(action)
        if action == base.FORFEIT:
            self.actor = None
            return [{} for _ in self.totals]
        paid = [float(value) for value in self.advance("" if action == base.SKIP else action)]
        self.totals = [total + value for total, value in zip(self.totals, paid, strict=True)]
        return [{"reward": value} for value in paid]

    def result(self) -> Mapping[str, float]:
        """Return the rewards so far, by player where there are several."""
        many = len(self.totals) > 1
        return {
            f"total_{player}" if many else "total": total
            for player, total in enumerate(self.totals)
        }

    def copy(self) -> Self:
        """Return the same game, played again: the library's own state need not be copyable."""
        twin = type(self)(self.config, self.seed)
        for action in self.taken:
            twin.step({twin.actor or 0: action})
        return twin


class Foreign(base.Environment[Any]):
    """A game of another library under a name such as "textarena:Nim-v0"; its one preset is the part
    behind the colon.

    `play` makes a game from a config and a seed, `version` is the library's, `values` are the
    preset's own."""

    def __init__(
        self, name: str, play: type[ForeignGame], config: type[Any], version: str, **values: Any
    ) -> None:
        self.name, self.Config, self._play, self._version = name, config, play, version
        preset = name.partition(":")[2]
        self.presets = {preset: config(preset=preset, **values)}
        self.policies: Mapping[str, Callable[[], base.Policy]] = {
            "random": lambda: base.Script("random", _any_action)
        }

    def spec(self, config: Any) -> base.EnvSpec:
        """Return what is known; of several players nobody says that one wins what others lose."""
        players = self._play.num_players(config)
        shown = config.model_dump(exclude={"preset", "memory", "least_return", "greatest_return"})
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, self._version, sorted(shown.items())),
            num_players=players,
            roles=tuple(f"player {player}" for player in range(players)),
            payoff="team" if players == 1 else "general",
            max_turns=config.max_turns,
            return_range=(config.least_return, config.greatest_return),
            bad_reply=self._play.bad_reply,
        )

    def system(self, config: Any, player: int) -> str:
        return str(config.instructions)

    def reset(self, config: Any, *, split: str, seed: int) -> ForeignGame:
        return self._play(config, base.draw(self.name, split, seed, below=2**31))


def needed(module: str, name: str, extra: str) -> Any:
    """Return a module of another package; a SettingsError says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"env={name!r}: {error}; install it on every machine that plays: uv pip install "
            f"'hanabi-grpo[{extra}]'."
        ) from error


def _any_action(seen: base.Observation, rng: random.Random) -> str:
    """Return a legal action; where none is listed, one that the message has in brackets, or a small
    number in them.
    """
    return rng.choice(
        seen.legal() or _MENTIONED.findall(seen.message()) or [f"[{rng.randrange(10)}]"]
    )
