"""The interface of an estimator: its row in the documentation's table, and its formula."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from hanabi_grpo.training.estimators.arithmetic import TurnValues
from hanabi_grpo.training.estimators.normalization import Method, Over, normalize
from hanabi_grpo.training.estimators.returns import discounted_return
from hanabi_grpo.types import Episode

Scale = Literal["std", "none"]
"""Values of HANABI_ADVANTAGE_SCALE: divide by the standard deviation, or not."""
EstimatorState = Mapping[str, float]
"""What an estimator remembers between steps, stored as a JSON object in checkpoints.

Empty before the first step, and always for an estimator without a state.
"""


class Pool(StrEnum):
    """Which episodes an estimator compares."""

    GROUP = "group"
    """The episodes of one group: NUM_GENERATIONS episodes of the same task."""
    STEP = "step"
    """All of a step's episodes on the same board."""


class Learned(StrEnum):
    """What an estimator needs to have learned besides the model, see `training.learned`."""

    NOTHING = "nothing"
    CRITIC = "critic"
    """A value of each state for each adapter, from what that player sees."""
    CENTRAL_CRITIC = "central critic"
    """A value of each joint state, from what all players see."""
    CREDIT_SUM = "credit sum"
    """Each player's share of the team's return; the shares add up to it."""
    CREDIT_MIXER = "credit mixer"
    """Each player's share of the team's return; a monotone network mixes them into the return."""

    @property
    def is_critic(self) -> bool:
        """True if a critic estimates the value of a state."""
        return self in (Learned.CRITIC, Learned.CENTRAL_CRITIC)

    @property
    def is_credit(self) -> bool:
        """True if the team's return is divided among its players."""
        return self in (Learned.CREDIT_SUM, Learned.CREDIT_MIXER)


class LearnedValues:
    """What was learned about a step's episodes; in this base class, nothing was learned.

    Subclasses in `training.learned` override the one method that their estimators read.
    """

    def chain(self, episode: Episode, player: int) -> Mapping[int, float]:
        """Return the values of the states on a player's chain of turns, in points.

        Args:
            episode: One of the step's episodes.
            player: Number of the seat.

        Returns:
            The value of the state in which each turn was taken, by the turn's number in the
            episode. Without a critic, 0 at each of the player's own turns.
        """
        turns = enumerate(episode.turns)
        return {number: 0.0 for number, turn in turns if turn.player == player}

    def is_team_chain(self, episode: Episode) -> bool:
        """Tell whether `chain` has the turns of all players of a team."""
        return False

    def token_chain(self, episode: Episode, player: int) -> Mapping[int, Sequence[float]] | None:
        """Return the values before each token of the player's replies, in points.

        Args:
            episode: One of the step's episodes.
            player: Number of the seat.

        Returns:
            The values by the turn's number in the episode; turns without a reply are left out.
            None: credit goes to turns, not tokens (HANABI_GAE_UNIT).
        """
        return None

    def share(self, episode: Episode, player: int) -> float:
        """Return the player's share of the episode's return, in points.

        If nothing was learned, this is the player's own return.

        Args:
            episode: One of the step's episodes.
            player: Number of the seat.
        """
        return episode.reward(player)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorOptions:
    """The settings of a run that estimators read."""

    scale: Scale | None = None
    """HANABI_ADVANTAGE_SCALE; None: as in the estimator's source."""
    gae_lambda: float = 1.0
    """HANABI_GAE_LAMBDA, for estimators with a critic; 1: later TD errors count fully."""
    gamma: float = 1.0
    """HANABI_GAMMA, for estimators with `discounts`; 1: later rewards count fully."""
    normalize: Method | None = None
    """HANABI_NORMALIZE; None: as in the estimator's source."""
    normalize_over: Over | None = None
    """HANABI_NORMALIZE_OVER; None: as in the estimator's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorContext:
    """What an estimator may use besides the episodes that it compares."""

    state: EstimatorState = field(default_factory=dict)
    """The state after the previous step, see `Estimator.next_state`."""
    values: LearnedValues = field(default_factory=LearnedValues)
    """What was learned besides the model, for this step's episodes."""


NOTHING_KNOWN = EstimatorContext()
"""The context before the first step, with nothing learned."""


class Estimator:
    """Estimates how much better a turn was than its alternatives, for one player at a time.

    R_i is the player's return in episode i, discounted by HANABI_GAMMA if that is set. Episodes in
    which the player had no turn are part of no mean and no standard deviation.

    A subclass in its own file in this package is discovered automatically: its `name` becomes a
    value of HANABI_ADVANTAGE, and its row appears in the documentation's table. Estimator objects
    are stateless: the state comes in with the context, and `next_state` returns the new one.

    Example:
        >>> Grpo().advantages(games_of_one_task, player=0)
        [[0.93, 0.93], [-1.06], [0.13]]
    """

    name: ClassVar[str]
    """Its value of HANABI_ADVANTAGE."""
    credit: ClassVar[str]
    """The credit of a turn, as a cell of the documentation's table."""
    compared_with: ClassVar[str]
    """What the credit is compared with, as the next cell."""
    source: ClassVar[str]
    """The paper, as the last cell."""
    pool: ClassVar[Pool]
    """Which episodes are compared."""
    divides_by_deviation: ClassVar[bool]
    """Whether the source divides by the standard deviation; HANABI_ADVANTAGE_SCALE overrides it."""
    needs: ClassVar[Learned] = Learned.NOTHING
    """What `training` must learn besides the model."""
    once_a_game: ClassVar[bool] = True
    """Whether an episode counts once among the compared credits, because all its turns have the
    same credit; else each turn counts."""
    discounts: ClassVar[bool] = False
    """Whether the estimator reads HANABI_GAMMA."""
    credits_within_group: ClassVar[bool] = False
    """Whether the credits are themselves a comparison with the group's other episodes."""
    is_experimental: ClassVar[bool] = False
    """True if the estimator has not beaten the default in any comparison (docs/results.md)."""

    def __init__(self, options: EstimatorOptions | None = None) -> None:
        """Store a run's options; None: those of the estimator's source."""
        self.options = options or EstimatorOptions()

    @property
    def scaled(self) -> bool:
        """Whether advantages are divided by a standard deviation in this run."""
        if self.options.scale is None:
            return self.divides_by_deviation
        return self.options.scale == "std"

    @property
    def over(self) -> Over:
        """Which credits are compared in this run: as in the paper, or HANABI_NORMALIZE_OVER."""
        if self.options.normalize_over is not None:
            return self.options.normalize_over
        return Over.GROUP if self.pool is Pool.GROUP else Over.ENVIRONMENT

    @property
    def method(self) -> Method | None:
        """How the settings normalize credits; None: `advantages` does it, as in the paper.

        HANABI_NORMALIZE_OVER alone does not change whether the standard deviation divides.
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
        """Return the credit of each turn of a player, before it is compared with others.

        With HANABI_GAE_UNIT=token, it is the credit of each token of the player's replies, in
        order.

        HANABI_NORMALIZE compares these credits. By default the credit is R_i for every turn of
        episode i. A comparison with something learned, remembered or seen before (a critic, a
        moving baseline, the same history) is part of the credit.

        Args:
            episodes: As in `advantages`.
            player: Number of the seat.
            context: What is known besides these episodes.
        """
        values: TurnValues = []
        for episode in episodes:
            num_turns = len(episode.trajectory(player))
            values.append([self.game_return(episode, player)] * num_turns)
        return values

    def game_return(self, episode: Episode, player: int) -> float:
        """Return R_i of one episode, see `Estimator`."""
        return discounted_return(episode, player, self.options.gamma)

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return the advantage of each turn of a player, episode by episode.

        By default the mean of the credits is subtracted, and the result is divided by their
        standard deviation if the source does so.

        Args:
            episodes: Episodes of one `pool`; the player's seat is trained in all of them.
            player: Number of the seat.
            context: What is known besides these episodes.
        """
        credits = self.credits(episodes, player, context)
        return normalize(credits, self._own_method, once_a_game=self.once_a_game)

    def next_state(
        self, state: EstimatorState, episodes: Sequence[Episode], player: int
    ) -> EstimatorState:
        """Return the state after a step; empty for an estimator without a state.

        Args:
            state: The state before the step, updated by the players before this one.
            episodes: All of the step's episodes in which the player's seat is trained.
            player: Number of the seat.
        """
        return {}

    @classmethod
    def learns_from_flat_groups(cls) -> bool:
        """Tell whether a group whose episodes all have the same return yields a gradient.

        It does not if its episodes are compared only with each other. Learned values may still
        distinguish the episodes of a flat group. For settings that normalize over more than the
        group, see `compares_more_than_a_group`.
        """
        return cls.pool is Pool.STEP or cls.needs is not Learned.NOTHING

    def compares_more_than_a_group(self) -> bool:
        """Tell whether an episode is compared with more than the episodes of its group.

        This holds if credits are compared over the whole step or board, or if no mean is subtracted
        that would give a single episode an advantage of 0. NUM_GENERATIONS=1 requires it.
        """
        if self.credits_within_group:
            return False
        if self.method is not None and not self.method.is_centered:
            return True
        return self.over in (Over.ENVIRONMENT, Over.STEP)
