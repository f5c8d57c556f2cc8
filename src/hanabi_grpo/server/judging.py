"""The judge in one request: scores become rewards, and failed games are dropped or filled in.

HANABI_JUDGE_FAILURE decides what happens to a game without a score. `drop` drops it, counted like
any dropped game. `mean` gives it the mean reward of the judged games of its task, under a separate
name, so the judge neither favors nor penalizes it. In both cases the request ends with the reason
if the judge fails repeatedly, has used up its tokens, or leaves more than half of the games without
a score, since the remaining games would be a biased sample. A run never continues with rewards that
are silently missing.
"""

import logging
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from hanabi_grpo.agents.judge import FailedCalls, Judge
from hanabi_grpo.envs.base import Task, is_held_out
from hanabi_grpo.envs.rewards import with_parts
from hanabi_grpo.errors import PartnerDownError, PartnerError, SettingsError
from hanabi_grpo.types import JUDGE_MEAN_PART, JUDGE_PART, DroppedGame, Episode

logger = logging.getLogger(__name__)

_SHOWN_REASON = 300
"""Characters of the reason why a game was dropped."""


class Judging:
    """The judge in one request."""

    def __init__(self, judge: Judge | None, *, own: bool) -> None:
        """Begin with nothing judged.

        Args:
            judge: The server's judge; None for none.
            own: Whether the request is the session's trainer's.
        """
        self._judge = judge if own else None
        self._failed = FailedCalls()
        self._num_games = 0
        self._num_unjudged = 0
        self._first_failure = ""

    async def judge(self, task: Task[Any], episode: Episode) -> Episode | DroppedGame:
        """Return a game with its score as a reward; without a score, see HANABI_JUDGE_FAILURE.

        Raises:
            PartnerDownError: See `Judge.score`.
            SettingsError: The game is zero-sum.
        """
        judge = self._judge
        # Validation is scored by the game alone; an episode without a turn has no replies to judge.
        if judge is None or is_held_out(task.split) or not episode.turns:
            return episode
        if task.setup.spec.payoff == "zero_sum":
            raise SettingsError(
                f"HANABI_JUDGE={judge.spec} with a game of {episode.env}: the judge pays all "
                "players the same, and in a zero-sum game what one wins the others lose; remove "
                "its rows from DATASET, or unset HANABI_JUDGE."
            )
        self._num_games += 1
        try:
            score = await judge.score(task, episode, self._failed)
        except PartnerDownError:
            raise
        except PartnerError as error:
            self._num_unjudged += 1
            self._first_failure = self._first_failure or str(error)
            if judge.failure == "mean":
                logger.warning("game %d gets the mean score: %s", episode.game, error)
                return episode
            reason = f"{type(error).__name__}: {error}"[:_SHOWN_REASON]
            logger.warning("game %d dropped: %s", episode.game, reason)
            return DroppedGame(
                suite=episode.suite, seed=episode.seed, game=episode.game, reason=reason
            )
        return with_parts(episode, [{JUDGE_PART: judge.weight * score}] * episode.num_players)

    def finish(
        self, played: Sequence[Sequence[Episode | DroppedGame]]
    ) -> list[list[Episode | DroppedGame]]:
        """Return the games of a request; with `mean`, unscored games get the mean of their task.

        Raises:
            PartnerDownError: More than half of the games have no score.
        """
        groups = [list(group) for group in played]
        judge = self._judge
        if judge is None or not self._num_unjudged:
            return groups
        if 2 * self._num_unjudged > self._num_games:
            raise PartnerDownError(
                f"HANABI_JUDGE={judge.spec}: {self._num_unjudged} of {self._num_games} games have "
                f"no score, the first because of: {self._first_failure} Make sure that it answers "
                'with a line "Score: …" (its calls are in outputs/judge_calls-….jsonl), then run '
                "the same command again, in training with RESUME=latest."
            )
        if judge.failure == "mean":
            everybody = _scores([game for group in groups for game in group])
            for group in groups:
                _pay_mean(group, _scores(group) or everybody)
        return groups


def _scores(games: Sequence[Episode | DroppedGame]) -> list[float]:
    """Return the judge's rewards in the games that have a score."""
    scores = []
    for game in games:
        if isinstance(game, Episode) and game.turns:
            for parts in game.turns[-1].rewards:
                if JUDGE_PART in parts:
                    scores.append(parts[JUDGE_PART])
                    break
    return scores


def _pay_mean(group: list[Episode | DroppedGame], scores: Sequence[float]) -> None:
    """Give the unscored games of a group the mean of some scores."""
    for number, game in enumerate(group):
        if not isinstance(game, Episode) or not game.turns or _scores([game]):
            continue
        mean = fmean(scores)
        group[number] = with_parts(game, [{JUDGE_MEAN_PART: mean}] * game.num_players)
