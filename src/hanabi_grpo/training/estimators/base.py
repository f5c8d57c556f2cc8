"""What an estimator is: its row in the table of the documentation, and its formula."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from hanabi_grpo.training.estimators.arithmetic import TurnValues
from hanabi_grpo.training.estimators.normalization import Method, Over, normalize
from hanabi_grpo.training.estimators.returns import discounted_return
from hanabi_grpo.types import Episode

Scale = Literal["std", "none"]
"""Of HANABI_ADVANTAGE_SCALE: divide by the standard deviation, or not."""
EstimatorState = Mapping[str, float]
"""What an estimator remembers from step to step, as the JSON object of a checkpoint.

Empty before the first step, and always for an estimator that remembers nothing.
"""


class Pool(StrEnum):
    """Which games an estimator compares."""

    GROUP = "group"
    """Those of one group: NUM_GENERATIONS episodes of the same task."""
    STEP = "step"
    """All of a step's episodes that are on the same board."""


class Learned(StrEnum):
    """What has to be learned beside the model for an estimator, see `training.learned`."""

    NOTHING = "nothing"
    CRITIC = "critic"
    """A value of each state for each adapter, from what that player sees."""
    CENTRAL_CRITIC = "central critic"
    """A value of each joint state, from what all players see."""
    CREDIT_SUM = "credit sum"
    """Each player's share of the team's return; the shares add up to it."""
    CREDIT_MIXER = "credit mixer"
    """Each player's share of the team's return; a monotone network makes the return of them."""

    @property
    def is_critic(self) -> bool:
        """True where a critic says what a state is worth."""
        return self in (Learned.CRITIC, Learned.CENTRAL_CRITIC)

    @property
    def is_credit(self) -> bool:
        """True where the team's return is shared out among its players."""
        return self in (Learned.CREDIT_SUM, Learned.CREDIT_MIXER)


class LearnedValues:
    """What was learned about a step's episodes; this base class stands for nothing learned.

    Subclasses in `training.learned` override the one method that their estimators read.
    """

    def chain(self, episode: Episode, player: int) -> Mapping[int, float]:
        """Return the values of the states on a player's chain of turns, in points.

        Args:
            episode: One of the step's episodes.
            player: Number of the seat.

        Returns:
            The value of the state in which each turn was made, by the turn's number in the
            episode. Without a critic 0 at each of the player's own turns.
        """
        turns = enumerate(episode.turns)
        return {number: 0.0 for number, turn in turns if turn.player == player}

    def token_chain(self, episode: Episode, player: int) -> Mapping[int, Sequence[float]] | None:
        """Return the values before each token of the player's replies, in points.

        Args:
            episode: One of the step's episodes.
            player: Number of the seat.

        Returns:
            By the turn's number in the episode, without turns that have no reply. None: turns are
            credited, not tokens (HANABI_GAE_UNIT).
        """
        return None

    def share(self, episode: Episode, player: int) -> float:
        """Return the player's part in the episode's return, in points; unlearned, its own return.

        Args:
            episode: One of the step's episodes.
            player: Number of the seat.
        """
        return episode.reward(player)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorOptions:
    """The settings of a run that estimators read."""

    scale: Scale | None = None
    """HANABI_ADVANTAGE_SCALE; None: as the estimator's source does."""
    gae_lambda: float = 1.0
    """HANABI_GAE_LAMBDA, for estimators with a critic; 1: what comes later does not fade."""
    gamma: float = 1.0
    """HANABI_GAMMA, for estimators that `discounts`; 1: what comes later is worth as much."""
    normalize: Method | None = None
    """HANABI_NORMALIZE; None: as the estimator's source does."""
    normalize_over: Over | None = None
    """HANABI_NORMALIZE_OVER; None: as the estimator's source does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorContext:
    """What an estimator may know beside the games that it compares."""

    state: EstimatorState = field(default_factory=dict)
    """Of the steps before this one, see `Estimator.next_state`."""
    values: LearnedValues = field(default_factory=LearnedValues)
    """What was learned beside the model, for this step's episodes."""


NOTHING_KNOWN = EstimatorContext()
"""Before the first step, and without anything learned."""


class Estimator:
    """One way to say how much better a turn was than its alternatives, for one player at a time.

    R_i is the player's return of game i, discounted by HANABI_GAMMA where that is set. Games in
    which it had no turn enter no mean and no deviation.

    A subclass in a file of its own in this package is found by itself: its `name` is a value of
    HANABI_ADVANTAGE from then on, and its row is in the documentation's table. Estimators hold no
    state: what one remembers goes in by the context, and comes out of `next_state`.

    Example:
        >>> Grpo().advantages(games_of_one_task, player=0)
        [[0.93, 0.93], [-1.06], [0.13]]
    """

    name: ClassVar[str]
    """Of HANABI_ADVANTAGE."""
    credit: ClassVar[str]
    """What a turn is credited with, as a cell of the documentation's table."""
    compared_with: ClassVar[str]
    """What that is compared with, as the next cell."""
    source: ClassVar[str]
    """The paper, as the last cell."""
    pool: ClassVar[Pool]
    """Which games are compared."""
    divides_by_deviation: ClassVar[bool]
    """Whether the source divides by the standard deviation; HANABI_ADVANTAGE_SCALE overrules it."""
    needs: ClassVar[Learned] = Learned.NOTHING
    """What `training` must learn beside the model."""
    once_a_game: ClassVar[bool] = True
    """Whether a game counts once among the credits that are compared, since all its turns are
    credited alike; else each turn counts."""
    discounts: ClassVar[bool] = False
    """Whether HANABI_GAMMA is read."""
    credits_within_group: ClassVar[bool] = False
    """Whether credits themselves come from a comparison with other games of the group."""
    is_experimental: ClassVar[bool] = False
    """True for one that has not beaten the default in any comparison (docs/results.md)."""

    def __init__(self, options: EstimatorOptions | None = None) -> None:
        """Take a run's options; without any, those of the estimator's source."""
        self.options = options or EstimatorOptions()

    @property
    def scaled(self) -> bool:
        """Whether advantages are divided by a standard deviation in this run."""
        if self.options.scale is None:
            return self.divides_by_deviation
        return self.options.scale == "std"

    @property
    def over(self) -> Over:
        """With which credits one is compared in this run, by its paper or HANABI_NORMALIZE_OVER."""
        if self.options.normalize_over is not None:
            return self.options.normalize_over
        return Over.GROUP if self.pool is Pool.GROUP else Over.ENVIRONMENT

    @property
    def method(self) -> Method | None:
        """How credits are normalised by the settings; None: by `advantages`, as in the paper.

        HANABI_NORMALIZE_OVER alone keeps the paper's way: divided by the deviation, or not.
        """
        if self.options.normalize is not None:
            return self.options.normalize
        if self.options.normalize_over is None:
            return None
        return self._own_method

    @property
    def _own_method(self) -> Method:
        return Method.MEAN_STD if self.scaled else Method.MEAN

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return what each turn of a player is credited with, before it is compared with others.

        With HANABI_GAE_UNIT=token it is each token of its replies, in their order.

        HANABI_NORMALIZE compares these. By default it is R_i for every turn of game i. What is
        compared with something learned, remembered or met before (a critic, a moving baseline, the
        same history) is a credit already.

        Args:
            episodes: As in `advantages`.
            player: Number of the seat.
            context: What is known beside these games.
        """
        values: TurnValues = []
        for episode in episodes:
            num_turns = len(episode.trajectory(player))
            values.append([self.game_return(episode, player)] * num_turns)
        return values

    def game_return(self, episode: Episode, player: int) -> float:
        """Return R_i of one game, see `Estimator`."""
        return discounted_return(episode, player, self.options.gamma)

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return the advantage of each turn of a player, game by game.

        By default credits are centered at their mean, and divided by their deviation where that is
        the source's way.

        Args:
            episodes: Games of one `pool`, in all of which the player's seat is trained.
            player: Number of the seat.
            context: What is known beside these games.
        """
        credits = self.credits(episodes, player, context)
        return normalize(credits, self._own_method, once_a_game=self.once_a_game)

    def next_state(
        self, state: EstimatorState, episodes: Sequence[Episode], player: int
    ) -> EstimatorState:
        """Return the state after a step; nothing for an estimator that remembers nothing.

        Args:
            state: That of all players before the step, or after the players before this one.
            episodes: All of the step's episodes in which the player's seat is trained.
            player: Number of the seat.
        """
        return {}

    @classmethod
    def learns_from_flat_groups(cls) -> bool:
        """Tell whether a group whose games all earned the same can move anything.

        It cannot where the group is all that its games are compared with. What was learned may
        tell such games apart all the same. Normalisation over more than the group, by the settings,
        is `compares_more_than_a_group`.
        """
        return cls.pool is Pool.STEP or cls.needs is not Learned.NOTHING

    def compares_more_than_a_group(self) -> bool:
        """Tell whether an episode has something to be compared with beside those of its group.

        It does where credits of the whole step or board are compared, or where nothing is
        subtracted that would leave an only episode at 0. NUM_GENERATIONS=1 needs it.
        """
        if self.credits_within_group:
            return False
        if self.method is Method.NONE:
            return True
        return self.over in (Over.ENVIRONMENT, Over.STEP)
