"""The lever game, in which independently trained teams cannot understand each other.

Two players pull one lever each at the same time, without talking. If it is the same lever, the team
is paid what this lever pays. All levers pay 1 except the last one, which pays less. A team that
trains together agrees on one of the equal levers, and which one is chance, so that two such teams
seldom agree with each other: their cross-play collapses. Under Other-Play the equal levers carry
other names for each player, and the last lever is the only one that both can find.

The game is from Hu et al., "Other-Play" for Zero-Shot Coordination, arXiv 2003.02979, section 3,
with the same ten levers and the same .9 for the last one.
"""

import math
import operator
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import Field

from hanabi_grpo.envs import base
from hanabi_grpo.envs.config import StateConfig
from hanabi_grpo.envs.replies import last_choice
from hanabi_grpo.types import Episode

NUM_PLAYERS = 2
LEVERS = (
    *("alfa", "bravo", "charlie", "delta", "echo"),
    *("foxtrot", "golf", "hotel", "india", "juliett"),
)
"""Names of the levers. The last one in the game pays less."""
RULES_VERSION = 1
"""Part of the hash; increased when the rules change."""
COMPACT_MESSAGE = "lever"
"""The message in the compact style. Every game is the same, so there is nothing else to say."""


class LeversConfig(StateConfig):
    """Settings of the lever game."""

    levers: int = Field(default=len(LEVERS), ge=2, le=len(LEVERS))
    """Number of levers in the lever game."""
    last_pays: float = Field(default=0.9, gt=0, lt=1)
    """What the last lever pays; the others pay 1."""
    reward_lever: float = 1.0
    """Reward of both players, multiplied by what the lever pays."""
    other_play: bool = Field(default=False, exclude_if=operator.not_)
    """Give the equal levers other names for each player, drawn for each task (Other-Play)."""


class LeversGame(base.Game):
    """One pull of each player."""

    def __init__(self, config: LeversConfig, orders: Sequence[Sequence[int]]) -> None:
        """Start a game.

        Args:
            config: The settings.
            orders: For each player, the number of the name by which it knows each lever.
        """
        self.config = config
        self.orders = tuple(tuple(order) for order in orders)
        self.pulled: tuple[int, ...] = ()

    def to_act(self) -> tuple[int, ...]:
        return () if self.pulled else tuple(range(NUM_PLAYERS))

    def state_message(self, player: int) -> str:
        if self.config.style == "compact":
            return COMPACT_MESSAGE
        return "Which lever do you pull?"

    def view(self, player: int) -> None:
        """Return nothing: a player sees nothing that differs from game to game."""
        return

    def legal(self, player: int) -> tuple[str, ...]:
        return LEVERS[: self.config.levers] if player in self.to_act() else ()

    def parse(self, player: int, reply: str) -> str | None:
        return last_choice(reply, LEVERS[: self.config.levers])

    def step(self, actions: Mapping[int, str]) -> Sequence[Mapping[str, float]]:
        """Pull both levers and pay both players."""
        pulled = []
        for player in range(NUM_PLAYERS):
            name = LEVERS.index(actions[player])
            pulled.append(self.orders[player].index(name))
        self.pulled = tuple(pulled)
        paid = {"lever": self.config.reward_lever * self._pays()}
        return [paid for _ in range(NUM_PLAYERS)]

    def result(self) -> Mapping[str, float]:
        """Return what the lever pays, whether both pulled the same, and whether it was the last."""
        is_same = len(set(self.pulled)) == 1
        last = self.config.levers - 1
        return {
            "paid": self._pays(),
            "same_lever": float(is_same),
            "both_last": float(is_same and last in self.pulled),
        }

    def hidden(self, player: int) -> Mapping[str, Any]:
        """Return the names under Other-Play, of which a player knows only those on its levers."""
        if not self.config.other_play:
            return {}
        return {"names": self.orders}

    def resampled(self, player: int, rng: random.Random) -> Self:
        other = self.copy()
        if self.config.other_play:
            count = num_orders(self.config.levers)
            numbers = [rng.randrange(count) for _ in range(NUM_PLAYERS)]
            other.orders = tuple(order(number, self.config.levers) for number in numbers)
        return other

    def _pays(self) -> float:
        """Return what the pulled lever pays; 0 if there are two, or before the pull."""
        if len(set(self.pulled)) != 1:
            return 0.0
        return self.config.last_pays if self.pulled[0] == self.config.levers - 1 else 1.0


def num_orders(num_levers: int) -> int:
    """Return the number of permutations of the levers that pay the same."""
    return math.factorial(num_levers - 1)


def order(number: int, num_levers: int) -> tuple[int, ...]:
    """Return a permutation of the equal levers, followed by the last lever.

    Args:
        number: Number of the permutation in lexicographic order, below `num_orders`; 0 is the
            identity.
        num_levers: Number of levers.

    Returns:
        The number of each lever's name.
    """
    remaining = list(range(num_levers - 1))
    names = []
    for num_others in range(num_levers - 2, -1, -1):
        place, number = divmod(number, math.factorial(num_others))
        names.append(remaining.pop(place))
    return (*names, num_levers - 1)


def _always(lever: Callable[[tuple[str, ...]], str], name: str) -> base.Script:
    """Return a script that pulls the same lever in every game."""

    def act(seen: base.Observation, rng: random.Random) -> str:
        return lever(seen.legal() or ())

    return base.Script(name, act)


class Levers(base.Environment[LeversConfig]):
    """Without Other-Play there is one start, which every split contains."""

    name = "levers"
    Config = LeversConfig
    presets: Mapping[str, LeversConfig] = {"levers": LeversConfig(preset="levers")}
    policies: Mapping[str, Callable[[], base.Policy]] = {
        "random": base.random_policy,
        "first": lambda: _always(lambda names: names[0], "first"),
        "last": lambda: _always(lambda names: names[-1], "last"),
    }
    teachers = ("random",)

    def spec(self, config: LeversConfig) -> base.EnvSpec:
        texts = [self.system(config, player) for player in range(NUM_PLAYERS)]
        least, greatest = sorted((0.0, config.reward_lever))
        return base.EnvSpec(
            env=self.name,
            preset=config.preset,
            hash=base.stable_hash(self.name, RULES_VERSION, texts, config.rule_fields()),
            num_players=NUM_PLAYERS,
            roles=("player",) * NUM_PLAYERS,
            payoff="team",
            max_turns=1,
            return_range=(least, greatest),
            score="paid",
            max_score=1.0,
            attainable=self._attainable(config),
        )

    def system(self, config: LeversConfig, player: int) -> str:
        if config.style == "compact":
            return ""
        names = LEVERS[: config.levers]
        return (
            f"There are {config.levers} levers: {', '.join(names)}. You and another player pull "
            "one lever each at the same time, and you cannot talk. If it is the same lever, you "
            f"are both paid: {config.last_pays:g} for {names[-1]}, 1 for any other. If not, you "
            "are paid nothing. End your reply with the name of a lever on a line of its own."
        )

    def reset(self, config: LeversConfig, *, split: str, seed: int) -> LeversGame:
        return LeversGame(config, self._orders(config, split, seed))

    def start_id(self, config: LeversConfig, *, split: str, seed: int) -> str:
        orders = self._orders(config, split, seed)
        return "-".join("".join(map(str, names)) for names in orders)

    def num_symmetries(self, config: LeversConfig) -> int:
        return num_orders(config.levers)

    def seen_under(
        self, config: LeversConfig, game: base.Game, symmetries: Sequence[int]
    ) -> LeversGame:
        assert isinstance(game, LeversGame)
        orders = [order(number, config.levers) for number in symmetries]
        seen = LeversGame(config, orders)
        seen.pulled = game.pulled
        return seen

    def worded_under(self, config: LeversConfig, action: str, symmetry: int) -> str:
        return LEVERS[order(symmetry, config.levers)[LEVERS.index(action)]]

    def picture(self, config: LeversConfig, game: LeversGame) -> str:
        """Return the names of the levers for each player, and those that were pulled."""
        lines = []
        for player, names in enumerate(game.orders):
            known = " ".join(LEVERS[name] for name in names)
            pulled = ""
            if game.pulled:
                pulled = f"; pulled number {game.pulled[player] + 1}"
            lines.append(f"player_{player}: {known}{pulled}")
        return "\n".join(lines)

    def metrics(self, config: LeversConfig, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the means of the results, and how concentrated each player's choice is.

        `favourite/player_N` is the share of the games in which a player pulls the lever that it
        pulls most often, by the name that it reads.
        """
        figures = super().metrics(config, episodes)
        for player in range(NUM_PLAYERS):
            pulled: Counter[str] = Counter()
            for episode in episodes:
                pulled.update(turn.action for turn in episode.turns if turn.player == player)
            if pulled:
                figures[f"favourite/player_{player}"] = max(pulled.values()) / pulled.total()
        return figures

    def _orders(self, config: LeversConfig, split: str, seed: int) -> list[tuple[int, ...]]:
        """Return by which name each player knows each lever."""
        if not config.other_play:
            return [order(0, config.levers)] * NUM_PLAYERS
        count = num_orders(config.levers)
        numbers = base.drawn_symmetries(count, NUM_PLAYERS, split, seed)
        return [order(number, config.levers) for number in numbers]

    def _attainable(self, config: LeversConfig) -> float:
        """Return the highest mean: 1, or under Other-Play that of the better kind of lever.

        The equal levers' names then say nothing, so that two players who pull one of these meet in
        one of `levers` - 1 games.
        """
        if not config.other_play:
            return 1.0
        return max(config.last_pays, 1 / (config.levers - 1))


LEVERS_GAME = Levers()
