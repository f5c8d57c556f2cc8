"""Exact beliefs of a player about what it cannot see.

A *world* is a start of the game (in Hanabi, a deck) that a player cannot distinguish from the real
one. Given the policies of the others, Bayes' rule weights it by the probability of their moves:

    P(world | what player i has seen)  ∝  P(world) · Π_t π_j(a_t | what player j sees in the world)

over the turns t of the other players j. All starts must be equally likely, and few enough to be
enumerated: 1120 decks on Hanabi boards with 2 colors and 2 ranks, 6 deals in Kuhn poker, 120 in
Leduc poker. A player's own moves carry no information about what it cannot see, because it chose
them without seeing it.

By the rules alone, whatever the others' policies, all worlds have equal weight. The difference
between the two posteriors is what the others' conventions convey.
"""

import functools
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from hanabi_grpo.envs.base import (
    FORFEIT,
    Game,
    MixingPolicy,
    Observation,
    ScriptSeat,
    Setup,
)
from hanabi_grpo.envs.draws import chances_of
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import ALL_STARTS, player_name

MOST_STARTS = 2000
"""Maximum number of starts that are enumerated."""

Answers = tuple[str, ...]
"""The answer to each of a player's questions; see `Game.truths`."""
Belief = dict[Answers, float]
"""Probability of each combination of answers."""
Marginal = dict[str, float]
"""Probability of each answer to one question."""
Chances = Callable[[Sequence[Observation]], Sequence[Mapping[str, float]]]
"""Maps a player's observations in several worlds to the probability of each action in each."""


class Shift(NamedTuple):
    """How another player's move changed what a player knows, as entropies in bits.

    Each entropy is that of the joint distribution of all answers.
    """

    before: float
    """Entropy before the move."""
    by_rules: float
    """After the move's public information, such as cards that a hint touches or a drawn card."""
    after: float
    """After also conditioning on the probability of that move."""


@dataclass(slots=True)
class World:
    """The current state of a game whose start some player considers possible."""

    game: Game
    likelihoods: list[float]
    """Per player: probability of all moves by the other players so far."""
    views: tuple[int, ...]
    """Per player: number of its current view."""


class Tracker:
    """The exact beliefs of all players in one game, move by move.

    Example:
        tracker = Tracker(setup, setup.environment.reset(setup.config, split="eval", seed=7))
        [player] = tracker.game.to_act()
        seen = tracker.observations(player)
        chances = script_chances(setup, "iggi", player)
        tracker.advance("Hint 1", dict(zip(seen, chances(list(seen.values())))))
        tracker.belief(1)[("R1", "Y1", "Y2")] == 1 / 3
    """

    def __init__(self, setup: Setup[Any], game: Game) -> None:
        """Start at the beginning of a game.

        Args:
            setup: The environment and config.
            game: The real game before its first move; it is copied.

        Raises:
            SettingsError: See `check_setup`.
        """
        starts = _starts(setup)
        self.num_players = setup.spec.num_players
        self.game = game.copy()
        self._numbers = _Numbers(starts.numbers)
        self._views = self._numbers.views(self.game, self.num_players)
        worlds = []
        for number, views in enumerate(starts.views):
            world = World(
                game=starts.games[number], likelihoods=[1.0] * self.num_players, views=views
            )
            worlds.append(world)
        self.worlds = self._reachable(worlds)
        for world in self.worlds:
            world.game = world.game.copy()
        self._by_view = self._grouped()
        for player, view in enumerate(self._views):
            if view not in self._by_view[player]:
                raise SettingsError(
                    f"beliefs of {setup.env} {setup.spec.preset}: no numbered start matches "
                    "this one; the environment's num_starts omits some starts."
                )

    def mover(self) -> int | None:
        """Return the player to act, or None if the game is over.

        Raises:
            SettingsError: Several players act simultaneously.
        """
        acting = self.game.to_act()
        if len(acting) > 1:
            raise SettingsError(
                "beliefs: players of this game act simultaneously; beliefs can only be computed "
                "for games in which players take turns."
            )
        return acting[0] if acting else None

    def observations(self, player: int) -> dict[int, Observation]:
        """Return the possible observations of the mover over all worlds, by view number."""
        seen = {}
        for view, [world, *_] in self._by_view[player].items():
            seen[view] = Observation(world.game, player, window=1)
        return seen

    def advance(self, action: str, chances: Mapping[int, Mapping[str, float]]) -> dict[int, Shift]:
        """Apply the mover's move to the game and to all worlds.

        Args:
            action: The move, as the game words it.
            chances: Probability of each move of the mover, by the numbers of `observations`.

        Returns:
            What each of the other players learned; empty once the game is over.

        Raises:
            SettingsError: According to `chances`, the mover never makes this move here.
        """
        mover = self.mover()
        assert mover is not None
        if action == FORFEIT:
            # A forfeit ends the game, so no player can learn from it.
            self.game.step({mover: action})
            return {}
        if not chances[self._views[mover]].get(action, 0.0) > 0:
            raise SettingsError(
                f"beliefs: {player_name(mover)} made the move {action!r}, which its policy never "
                "makes there. Were the games played by other policies?"
            )
        others = [player for player in range(self.num_players) if player != mover]
        before = {player: entropy(self.belief(player)) for player in others}
        self.game.step({mover: action})
        if not self.game.to_act():
            return {}
        moved = []
        earlier: list[list[float]] = []
        for world in self.worlds:
            chance = chances[world.views[mover]].get(action, 0.0)
            legal = world.game.legal(mover)
            if legal is None or action not in legal:
                continue
            world.game.step({mover: action})
            world.views = self._numbers.views(world.game, self.num_players)
            earlier.append(list(world.likelihoods))
            for player in others:
                world.likelihoods[player] *= chance
            moved.append(world)
        self._views = self._numbers.views(self.game, self.num_players)
        shifts = {}
        for player in others:
            worlds = []
            likelihoods = []
            for world, of_players in zip(moved, earlier, strict=True):
                if world.views[player] == self._views[player]:
                    worlds.append(world)
                    likelihoods.append(of_players[player])
            shifts[player] = Shift(
                before=before[player],
                by_rules=entropy(_belief(worlds, likelihoods, player)),
                after=entropy(_belief_of(worlds, player)),
            )
        self.worlds = self._reachable(moved)
        self._by_view = self._grouped()
        return shifts

    def belief(self, player: int, *, by_rules: bool = False) -> Belief:
        """Return what a player should believe now.

        Args:
            player: Number of the player.
            by_rules: Whether the player knows only the rules, not how the others play.
        """
        worlds = self._by_view[player][self._views[player]]
        if by_rules:
            return _belief(worlds, [1.0] * len(worlds), player)
        return _belief_of(worlds, player)

    def others_marginals(self, player: int, other: int) -> list[Marginal]:
        """Return what a player should expect another player to believe (second-order beliefs).

        This is the mean of the other player's beliefs over the player's own posterior, because the
        player does not see everything that the other one sees.

        Args:
            player: Number of the player.
            other: Number of the other player.

        Returns:
            For each question to the other player, its expected probability of each answer.
        """
        worlds = self._by_view[player][self._views[player]]
        total = math.fsum(world.likelihoods[player] for world in worlds)
        shares: dict[int, float] = {}
        for world in worlds:
            view = world.views[other]
            shares[view] = shares.get(view, 0.0) + world.likelihoods[player] / total
        expected: list[Marginal] = []
        for view, share in shares.items():
            if not share:
                continue
            of_view = marginals(_belief_of(self._by_view[other][view], other))
            expected = expected or [{} for _ in of_view]
            for sums, marginal in zip(expected, of_view, strict=True):
                for answer, chance in marginal.items():
                    sums[answer] = sums.get(answer, 0.0) + share * chance
        return expected

    def _grouped(self) -> list[dict[int, list[World]]]:
        """Return the worlds grouped by view, per player."""
        by_view: list[dict[int, list[World]]] = [{} for _ in range(self.num_players)]
        for world in self.worlds:
            for player, view in enumerate(world.views):
                by_view[player].setdefault(view, []).append(world)
        return by_view

    def _reachable(self, worlds: list[World]) -> list[World]:
        """Return the worlds that a player considers in any world that another finds possible."""
        considered: list[set[int]] = [set() for _ in range(self.num_players)]
        for world in worlds:
            if any(map(operator.eq, world.views, self._views)):
                for player, view in enumerate(world.views):
                    considered[player].add(view)
        kept = []
        for world in worlds:
            if any(map(operator.contains, considered, world.views)):
                kept.append(world)
        return kept


def check_setup(setup: Setup[Any]) -> int:
    """Return the number of starts of a game, if beliefs can be computed for it.

    Raises:
        SettingsError: It has too many starts, they are not numbered, or the game has no questions.
    """
    what = f"beliefs of {setup.env} {setup.spec.preset}"
    num_starts = setup.environment.num_starts(setup.config)
    if num_starts is None or num_starts > MOST_STARTS:
        count = "its starts are not numbered"
        if num_starts is not None:
            count = f"it has {num_starts:.3g} starts"
        raise SettingsError(
            f"{what}: {count}; beliefs are computed over all starts, at most {MOST_STARTS}. "
            "Choose a board with 2 colors and 2 ranks such as laptop, or kuhn_poker or leduc_poker."
        )
    if getattr(setup.config, "other_play", False):
        raise SettingsError(
            f"{what}: with HANABI_OTHER_PLAY=1 players do not know how the others see the colors; "
            "unset it to measure beliefs."
        )
    if setup.spec.bad_reply == "skip":
        raise SettingsError(
            f"{what}: a bad reply loses a turn, and the probability of that is not computed; "
            "choose another game."
        )
    if setup.tools:
        raise SettingsError(f"{what}: players of this game call tools; set HANABI_TOOLS=none.")
    game = setup.environment.reset(setup.config, split=ALL_STARTS, seed=0)
    if not any(game.questions(player) for player in range(setup.spec.num_players)):
        raise SettingsError(f"{what}: the game has no questions for its players.")
    return num_starts


def script_chances(setup: Setup[Any], name: str, player: int) -> Chances:
    """Return the probabilities of a script's moves.

    Args:
        setup: The environment and config.
        name: Name of the script.
        player: Seat of the script.

    Raises:
        SettingsError: The script searches or has memory, so its probabilities are unknown.
    """
    policy = setup.environment.policies[name]()
    if isinstance(policy, MixingPolicy):
        by_view = policy.chances
        return lambda observations: [by_view(seen) for seen in observations]
    # A seat that is a pure function has no memory, so one seat serves all worlds.
    seat = policy.seat(player, task=setup.task(ALL_STARTS, 0), game=0)
    if not isinstance(seat, ScriptSeat):
        raise _unknown_chances(name)
    choose = seat.choose

    def chances(observations: Sequence[Observation]) -> list[dict[str, float]]:
        try:
            return [chances_of(partial(choose, seen)) for seen in observations]
        except NotImplementedError as error:
            raise _unknown_chances(name) from error

    start = setup.environment.reset(setup.config, split=ALL_STARTS, seed=0)
    if player in start.to_act():
        chances([Observation(start, player, window=1)])
    return chances


def _unknown_chances(name: str) -> SettingsError:
    return SettingsError(
        f"beliefs with {name}: the probabilities of its moves are unknown, because it searches or "
        "has memory; choose random, a rule bot such as hint-bot or iggi, best-response, or a model."
    )


def marginals(belief: Belief) -> list[Marginal]:
    """Return the probability of each answer to each question."""
    totals: list[Marginal] = [{} for _ in next(iter(belief), ())]
    for answers, chance in belief.items():
        for total, answer in zip(totals, answers, strict=True):
            total[answer] = total.get(answer, 0.0) + chance
    return totals


def entropy(belief: Mapping[Any, float]) -> float:
    """Return −Σ p log2 p, in bits."""
    return math.fsum(-chance * math.log2(chance) for chance in belief.values() if chance > 0)


class _Numbers:
    """Assigns numbers to views: equal views get the same number, which is fast to compare."""

    def __init__(self, numbers: Mapping[Hashable, int] | None = None) -> None:
        self.numbers: dict[Hashable, int] = dict(numbers or {})

    def views(self, game: Game, num_players: int) -> tuple[int, ...]:
        """Return the number of each player's view."""
        numbers = []
        for player in range(num_players):
            numbers.append(self.numbers.setdefault(game.view(player), len(self.numbers)))
        return tuple(numbers)


class _Starts(NamedTuple):
    """All starts of a game."""

    games: tuple[Game, ...]
    views: tuple[tuple[int, ...], ...]
    """Number of the view, per start and player."""
    numbers: Mapping[Hashable, int]
    """See `_Numbers`."""


@functools.lru_cache(maxsize=8)
def _starts(setup: Setup[Any]) -> _Starts:
    numbers = _Numbers()
    games = []
    views = []
    for number in range(check_setup(setup)):
        game = setup.environment.reset(setup.config, split=ALL_STARTS, seed=number)
        games.append(game)
        views.append(numbers.views(game, setup.spec.num_players))
    return _Starts(tuple(games), tuple(views), numbers.numbers)


def _belief_of(worlds: Sequence[World], player: int) -> Belief:
    """Return the belief of a player that considers these worlds possible."""
    return _belief(worlds, [world.likelihoods[player] for world in worlds], player)


def _belief(worlds: Sequence[World], likelihoods: Sequence[float], player: int) -> Belief:
    """Return the probability of each combination of a player's answers.

    Args:
        worlds: The worlds that the player considers possible.
        likelihoods: Likelihood of each world.
        player: Number of the player.
    """
    total = math.fsum(likelihoods)
    belief: Belief = {}
    for world, likelihood in zip(worlds, likelihoods, strict=True):
        answers = tuple(world.game.truths(player))
        belief[answers] = belief.get(answers, 0.0) + likelihood / total
    return belief
