"""Moving baseline: the episode's return compared with the mean of earlier steps."""

from collections.abc import Sequence

from hanabi_grpo.training.estimators.arithmetic import compare_games, divisor, mean
from hanabi_grpo.training.estimators.base import (
    NOTHING_KNOWN,
    Estimator,
    EstimatorContext,
    EstimatorState,
    Pool,
    TurnValues,
)
from hanabi_grpo.types import SHARED_ADAPTER, Episode, player_name

DECAY = 0.9
"""Decay of a moving baseline per step: its memory is about ten steps."""


class MovingBaseline(Estimator):
    """R_i − b for every turn of episode i; scaled, divided by (std R + ε).

    b is the player's baseline on this board and in this seat before the step (`next_state`); if
    there is none yet, the mean over these episodes. No episode is part of the baseline that it is
    compared with, so the gradient is unbiased as long as nothing is divided.

    Source: REINFORCE with a reinforcement baseline, Williams 1992; one baseline per player is
    SPIRAL's role-conditioned advantage (arXiv 2506.24119), which updates it after every game
    instead of every step.
    """

    name = "baseline"
    credit = "return of the whole episode"
    compared_with = "the player's moving mean over earlier steps"
    source = "Williams 1992; per player as SPIRAL, arXiv 2506.24119"
    pool = Pool.STEP
    divides_by_deviation = False
    discounts = True

    def credits(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Return R_i − b for every turn of episode i, see `Estimator.credits`."""
        return self._above_baseline(episodes, player, context, is_divided=False)

    def advantages(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext = NOTHING_KNOWN,
    ) -> TurnValues:
        """Compare each return with the player's baseline, see `Estimator.advantages`."""
        return self._above_baseline(episodes, player, context, is_divided=self.scaled)

    def _above_baseline(
        self,
        episodes: Sequence[Episode],
        player: int,
        context: EstimatorContext,
        *,
        is_divided: bool,
    ) -> TurnValues:
        def compare(returns: Sequence[float]) -> list[float]:
            if not returns:
                return []
            key = baseline_key(episodes[0], player)
            baseline = context.state.get(key, mean(returns))
            scale = divisor(returns, is_divided)
            return [(value - baseline) / scale for value in returns]

        return compare_games(episodes, player, compare, self.game_return)

    def next_state(
        self, state: EstimatorState, episodes: Sequence[Episode], player: int
    ) -> EstimatorState:
        """Return the baselines after a step: b ← 0.9·b + 0.1·mean R for each board it played.

        In the player's first step on a board, b is mean R.

        Args:
            state: Baselines by player and board, see `baseline_key`: {"player_0 9f3c…": 1.75}.
            episodes: All of the step's episodes in which the player's seat is trained.
            player: Number of the seat.
        """
        returns_by_key: dict[str, list[float]] = {}
        for episode in episodes:
            if episode.trajectory(player):
                own_returns = returns_by_key.setdefault(baseline_key(episode, player), [])
                own_returns.append(self.game_return(episode, player))
        baselines = dict(state)
        for key, returns in returns_by_key.items():
            if key in state:
                baselines[key] = DECAY * state[key] + (1 - DECAY) * mean(returns)
            else:
                baselines[key] = mean(returns)
        return baselines


def baseline_key(episode: Episode, seat: int) -> str:
    """Return the name of an episode's baseline in a checkpoint: "player_0 9f3c…".

    A player that HANABI_SWAP_EVERY has moved to another seat has a separate baseline there,
    "player_1 in player_0 9f3c…": the values of seats differ, and one player's returns must not move
    another player's baseline. Players who share an adapter are distinguished by their seats.

    Args:
        episode: The episode.
        seat: Number of the seat that is trained in it.
    """
    own_seat = player_name(seat)
    adapter = episode.seats[seat].partition("@")[0] if episode.seats else own_seat
    if adapter in (own_seat, SHARED_ADAPTER):
        return f"{own_seat} {episode.spec_hash}"
    return f"{adapter} in {own_seat} {episode.spec_hash}"
