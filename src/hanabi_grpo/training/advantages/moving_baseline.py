"""A game against the moving mean of earlier steps' games, per player and board."""

from collections.abc import Mapping, Sequence
from functools import partial

from hanabi_grpo.training.advantages.estimator import Estimator, Values, divisor, mean, playing, spread_over_turns
from hanabi_grpo.types import Episode, player_name

DECAY = 0.9
"""What is kept of the baseline in each step: its memory is about ten steps."""


def above_baseline(episodes: Sequence[Episode], player: int, scaled: bool, *, baselines: Mapping[str, float]) -> Values:
    """Return R_i − b for every turn of game i; scaled, divided by (std R + ε).

    R_i is as in GRPO; b is the player's baseline on this board before the step. Without one (the first step) b is the
    mean of these games. The baseline holds no game that it judges, so the gradient is unbiased while nothing is
    divided; it knows nothing of a deal's difficulty.

    Source: REINFORCE with a reinforcement baseline, Williams 1992; one baseline for each player is SPIRAL's
    role-conditioned advantage (arXiv 2506.24119), which moves it with every game instead of every step.

    Args:
        episodes: All of one board.
        player: Number of the seat.
        scaled: See `Estimator`.
        baselines: Of `moved`.
    """
    games = playing(episodes, player)
    returns = [episodes[index].reward(player) for index in games]
    if not returns:
        return [[] for _ in episodes]
    centre = baselines.get(baseline_key(player, episodes[0].spec_hash), mean(returns))
    scale = divisor(returns, scaled)
    return spread_over_turns(episodes, player, games, [(value - centre) / scale for value in returns])


def moved(baselines: Mapping[str, float], episodes: Sequence[Episode], player: int) -> dict[str, float]:
    """Return the baselines after a step: b ← 0.9·b + 0.1·mean R for each board of its games, mean R at the first time.

    Args:
        baselines: Before the step, {"player_0 9f3c…": 1.75}: player and board.
        episodes: The step's games in which the player's seat is trained, of any boards.
        player: Number of the seat.
    """
    after = dict(baselines)
    for board in dict.fromkeys(episode.spec_hash for episode in episodes):
        here = [one.reward(player) for one in episodes if one.spec_hash == board and one.trajectory(player)]
        if here:
            key = baseline_key(player, board)
            after[key] = DECAY * baselines[key] + (1 - DECAY) * mean(here) if key in baselines else mean(here)
    return after


def baseline_key(player: int, board: str) -> str:
    """Return the name of a baseline in a checkpoint."""
    return f"{player_name(player)} {board}"


def moving_baseline(baselines: Mapping[str, float]) -> Estimator:
    """Return the estimator with the baselines of the steps before."""
    formula = partial(above_baseline, baselines=dict(baselines))
    return Estimator(name="baseline", formula=formula, pool="step", scaled=False)
