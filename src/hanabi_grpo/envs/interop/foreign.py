"""Common base of games from other libraries.

The other library runs the game and decides what each player is told. This breaks one promise of
`base.Game`: a game is not pure, because the other library holds its state. What a player is shown
is therefore stored here at the start and after each action. These games list no hidden values, so
`conformance` cannot check what they hide from whom.
"""

import importlib
import math
import random
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.config import EnvConfig
from hanabi_grpo.envs.texts import think_parts
from hanabi_grpo.errors import NonFiniteError, SettingsError

_BRACKETED = re.compile(r"\[\s*[^\[\]\s][^\[\]\n]{0,40}\]")
"""A short text in brackets, as TextArena's messages write actions: "[check]"."""
_NUM_SEEDS = 2**31
_NUM_GUESSES = 10
"""Number of integers, from 0, that the random script tries if a message names no action."""
_REFEREES_WORDS = (base.FORFEIT, base.SKIP)
"""Actions reserved for bad replies; a player who says one must not escape the penalty."""
_SHOWN = 40
"""Maximum length of an action quoted in an error message."""
_NOT_IN_HASH = frozenset({"preset", "memory", "least_return", "greatest_return"})
"""Settings that affect neither rules nor prompts."""


class Package(NamedTuple):
    """An installed package."""

    name: str
    version: str


class ForeignConfig(EnvConfig):
    """Settings that the other library does not provide for its game."""

    instructions: str = ""
    """System message; often the game's own first message is enough. HANABI_INSTRUCTION appends to
    it.
    """
    max_turns: int = Field(default=200, ge=1)
    """Maximum number of turns of a game."""
    least_return: float = -1.0
    """Minimum return of a player, for charts."""
    greatest_return: float = 1.0
    """Maximum return of a player, for charts and as the best score."""


class ForeignGame(base.Game):
    """One episode of another library's game.

    A subclass implements `begin` and `advance`, which set `actor` and `messages`.
    """

    bad_reply: ClassVar[Any] = "forfeit"

    def __init__(self, config: Any, seed: int) -> None:
        """Start the episode with a seed."""
        self.config = config
        self.seed = seed
        num_players = self.num_players(config)
        self.actor: int | None = 0
        """Whose turn it is; None when the game is over."""
        self.messages = dict.fromkeys(range(num_players), "")
        """The last message to each player."""
        self.actions: list[str] = []
        """All actions so far, so that `copy` can replay them."""
        self.totals = [0.0] * num_players
        """Sum of rewards so far, per player."""
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
        """Apply the action of `actor`; return the reward of each player."""

    def to_act(self) -> tuple[int, ...]:
        return () if self.actor is None else (self.actor,)

    def message(self, player: int) -> str:
        return self.messages[player]

    def state_message(self, player: int) -> str:
        """Return the same message: nothing is known about the relevance of earlier turns."""
        return self.messages[player]

    def legal(self, player: int) -> tuple[str, ...] | None:
        return None if player == self.actor else ()

    def parse(self, player: int, reply: str) -> str | None:
        """Return what a reply says outside its thoughts; None if that is nothing.

        Some games show an action to the other players, who must not read the thoughts.
        """
        _, parts, is_cut_off = think_parts(reply)
        if is_cut_off:
            return None
        said = "\n".join(filter(None, (part.strip() for part in parts)))
        if said in _REFEREES_WORDS:
            return None
        return said.encode("utf-8", "replace").decode("utf-8") or None

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Pass the action to the other library; a forfeit ends the game."""
        [action] = actions.values()
        self.actions.append(action)
        if action == base.FORFEIT:
            self.actor = None
            return [{} for _ in self.totals]
        text = "" if action == base.SKIP else action
        rewards = [float(reward) for reward in self.advance(text)]
        if not all(map(math.isfinite, rewards)):
            raise NonFiniteError(
                f"{self.config.preset}: the other library's rewards for {action[:_SHOWN]!r} are "
                f"{rewards}; rewards must be finite."
            )
        for player, reward in enumerate(rewards):
            self.totals[player] += reward
        return [{"reward": reward} for reward in rewards]

    def result(self) -> Mapping[str, float]:
        """Return the total reward so far, per player if there are several."""
        if len(self.totals) == 1:
            return {"total": self.totals[0]}
        return {f"total_{player}": total for player, total in enumerate(self.totals)}

    def copy(self) -> Self:
        """Return a replayed copy of the game: the library's own state may not be copyable."""
        twin = type(self)(self.config, self.seed)
        for action in self.actions:
            twin.step({twin.actor or 0: action})
        return twin


class Foreign(base.Environment[Any]):
    """A game of another library with a name such as "textarena:Nim-v0".

    Its only preset is the part after the colon.
    """

    def __init__(
        self,
        name: str,
        game: type[ForeignGame],
        config: type[Any],
        version: str,
        *,
        package: Package | None = None,
        key: Sequence[object] = (),
        **values: Any,
    ) -> None:
        """Make an environment.

        Args:
            name: Library and game, e.g. "textarena:Nim-v0".
            game: Creates an episode from a config and a seed.
            config: Class of the settings.
            version: Version of the library.
            package: The package that the game comes from; None: this one knows only how to reach
                the game.
            key: What distinguishes the game from others of this name; part of the hash.
            **values: Settings of the preset that differ from the defaults of `config`.
        """
        self.name = name
        self.Config = config
        self._game = game
        self._version = version
        self.package = package
        self._key = tuple(key)
        _, _, preset = name.partition(":")
        self.presets = {preset: config(preset=preset, **values)}
        self.policies: Mapping[str, Callable[[], base.Policy]] = {
            "random": lambda: base.Script("random", _any_action)
        }

    def spec(self, config: Any) -> base.EnvSpec:
        """Return what is known; a game of several players is not assumed to be zero-sum."""
        num_players = self._game.num_players(config)
        fields = config.model_dump(exclude=_NOT_IN_HASH)
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, self._version, sorted(fields.items()), *self._key),
            num_players=num_players,
            roles=tuple(f"player {player}" for player in range(num_players)),
            payoff="team" if num_players == 1 else "general",
            max_turns=config.max_turns,
            return_range=(config.least_return, config.greatest_return),
            bad_reply=self._game.bad_reply,
        )

    def system(self, config: Any, player: int) -> str:
        return str(config.instructions)

    def reset(self, config: Any, *, split: str, seed: int) -> ForeignGame:
        return self._game(config, base.draw(self.name, split, seed, below=_NUM_SEEDS))


def import_module(module: str, name: str, extra: str) -> Any:
    """Return a module of another package.

    Args:
        module: Name of the module.
        name: Environment that needs it, for the error message.
        extra: The extra of this package that installs it.

    Raises:
        SettingsError: The package is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"env={name!r}: {error}; install it on every machine that plays: uv pip install "
            f"'hanabi-grpo[{extra}]'."
        ) from error


def _any_action(seen: base.Observation, rng: random.Random) -> str:
    """Return a legal action.

    If none are listed, it is an action that the message shows in brackets, or a small number in
    brackets.
    """
    candidates = seen.legal() or _BRACKETED.findall(seen.message())
    if not candidates:
        candidates = [f"[{rng.randrange(_NUM_GUESSES)}]"]
    return rng.choice(candidates)
