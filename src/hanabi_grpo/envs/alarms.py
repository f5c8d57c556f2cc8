"""Alarms for training collapse: which figure, which threshold, what it means and what to do.

Every alarm watches the mean of the last `WINDOW` readings of its figure. It is raised when that
mean crosses `raise_at`, and cleared when the mean crosses `clear_at` again. No alarm is raised
before `after` readings, and no alarm stops a run. The alarms in `GENERAL` apply to every
environment and model (docs/dynamics.md explains the thresholds); an environment adds its own in
`Environment.alarms`.
"""

from dataclasses import dataclass
from typing import Literal

WINDOW = 10
"""Number of readings (steps) that are averaged."""
NOISE = 8.0
"""Minimum distance of a relative threshold from its reference, in standard errors."""
WARM_UP = 20
"""Readings before any alarm is raised; the first half of them defines the reference `first`."""
_CLEAR_SHARE = 0.5
"""Share of the distance from a reference at which an alarm is cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One alarm."""

    name: str
    """The metric is `alarm/<name>`."""
    figure: str
    """Metric that it watches; `{player}` stands for each player, `{board}` for each board."""
    title: str
    """What the figure is, with its unit."""
    raise_at: float
    """Threshold: a value, or with a reference, a multiple of the reference."""
    clear_at: float
    """The same for clearing the alarm."""
    below: bool = False
    """Whether the alarm is raised below the threshold instead of above."""
    reference: Literal["first", "highest"] | None = None
    """What the threshold is relative to.

    "first" is the mean of the first `WINDOW` readings, "highest" the highest mean so far."""
    least_change: float = 0.0
    """With a reference: minimum distance from it that raises the alarm.

    The alarm is cleared at half of that distance."""
    after: int = WARM_UP
    """Number of readings before the alarm can be raised."""
    means: str
    """What the alarm means for the run, as the end of a sentence about the figure."""
    do: str
    """What to do about it."""

    def level(
        self, reference: float | None, *, noise: float = 0.0, clear: bool = False
    ) -> float | None:
        """Return the threshold of the mean.

        A relative threshold is at least `NOISE` standard errors away from its reference, because
        the highest of many means overestimates the true value.

        Args:
            reference: Value of the reference; None while it is unknown.
            noise: Standard error of a mean over `WINDOW` readings.
            clear: Whether to return the threshold at which the alarm is cleared.

        Returns:
            The threshold, or None while the reference is unknown.
        """
        factor = self.clear_at if clear else self.raise_at
        if self.reference is None:
            return factor
        if reference is None:
            return None
        change = max(self.least_change, NOISE * noise)
        if clear:
            change *= _CLEAR_SHARE
        if self.below:
            return min(factor * reference, reference - change)
        return max(factor * reference, reference + change)


LESS_STEEP = (
    "Go back to an earlier checkpoint (RESUME=RUN/checkpoint-N with a new OUTPUT_DIR) "
    "and use a lower LEARNING_RATE"
)

GENERAL: tuple[Alarm, ...] = (
    Alarm(
        name="score_fall",
        figure="score/{board}",
        title="mean score",
        below=True,
        reference="highest",
        raise_at=0.6,
        clear_at=0.8,
        least_change=0.4,
        means="the team has lost much of what it had learned.",
        do=f"{LESS_STEEP}.",
    ),
    Alarm(
        name="entropy",
        figure="{player}/entropy_estimate",
        title="entropy, nats per reply token",
        below=True,
        raise_at=0.01,
        clear_at=0.02,
        means=(
            "it is almost deterministic: the episodes of a group hardly differ, so comparing them "
            "teaches nothing."
        ),
        do=(
            "If the score is high enough, stop here. Otherwise use a higher TEMPERATURE, or an "
            "earlier checkpoint with a lower LEARNING_RATE."
        ),
    ),
    Alarm(
        name="entropy_fall",
        figure="{player}/entropy_estimate",
        title="entropy, nats per reply token",
        below=True,
        reference="first",
        raise_at=0.1,
        clear_at=0.2,
        means=(
            "nine tenths of its initial entropy are gone; it can hardly learn actions that it no "
            "longer samples."
        ),
        do=(
            "Check the score: if it still rises, this is fine; if it is flat, the policy converged "
            "too early. A higher TEMPERATURE or a lower LEARNING_RATE preserves more entropy."
        ),
    ),
    Alarm(
        name="entropy_rise",
        figure="{player}/entropy_estimate",
        title="entropy, nats per reply token",
        reference="first",
        raise_at=2.0,
        clear_at=1.5,
        least_change=0.3,
        means="its replies become random: updates are destroying what it had learned.",
        do=f"{LESS_STEEP}, or a smaller MAX_GRAD_NORM.",
    ),
    Alarm(
        name="format",
        figure="{player}/bad_reply_share",
        title="share of replies without a legal move",
        raise_at=0.3,
        clear_at=0.2,
        means="many of its replies are illegal or cannot be parsed, and random moves replace them.",
        do=(
            "Look at replies (hanabi-grpo view RUN --illegal); compare the prompt with what the "
            "model was trained on, set HANABI_LEGAL_MOVES=true, or increase the penalties "
            "HANABI_REWARD_ILLEGAL and HANABI_REWARD_UNPARSABLE."
        ),
    ),
    Alarm(
        name="other_replies",
        figure="illegal_mass",
        title="probability of replies that exploitability leaves out",
        raise_at=0.05,
        clear_at=0.03,
        means=(
            "players say their actions in other words than exploitability is computed from "
            "(thoughts, or two replies for one action), so it is not that of how they play."
        ),
        do=(
            "Look at replies (hanabi-grpo view RUN). An entropy bonus pays for every token: use a "
            "smaller HANABI_ENTROPY_BONUS, or a MAX_COMPLETION_LENGTH that leaves room for an "
            "action and its end token alone."
        ),
    ),
    Alarm(
        name="length_rise",
        figure="{player}/tokens_per_reply",
        title="tokens per reply",
        reference="first",
        raise_at=2.0,
        clear_at=1.5,
        least_change=1.0,
        means=(
            "its replies are getting longer; time and memory grow with them, and the reward may "
            "favor length itself."
        ),
        do=(
            "Look at replies (hanabi-grpo view RUN); lower MAX_COMPLETION_LENGTH, or check how the "
            "advantages affect long replies."
        ),
    ),
    Alarm(
        name="length_fall",
        figure="{player}/tokens_per_reply",
        title="tokens per reply",
        below=True,
        reference="first",
        raise_at=0.5,
        clear_at=0.7,
        least_change=1.0,
        means="its replies shrank to less than half; with HANABI_THINKING it stops thinking.",
        do=(
            "Look at replies (hanabi-grpo view RUN). If the score holds, shorter replies save "
            "time. Otherwise set BETA above 0 or lower LEARNING_RATE."
        ),
    ),
    Alarm(
        name="cut",
        figure="{player}/cut_share",
        title="share of replies cut off by the limit",
        raise_at=0.1,
        clear_at=0.05,
        means=(
            "replies are cut off at MAX_COMPLETION_LENGTH before they finish, usually without a "
            "move."
        ),
        do="Raise MAX_COMPLETION_LENGTH, or set HANABI_THINKING=false.",
    ),
    Alarm(
        name="kl",
        figure="kl",
        title="KL to the base model, nats per token",
        raise_at=1.0,
        clear_at=0.5,
        means="the policy is far from the base model and may have lost its language ability.",
        do="A higher BETA or a lower LEARNING_RATE keeps it closer; harmless for the tiny model.",
    ),
    Alarm(
        name="clip",
        figure="clip_ratio/region_mean",
        title="share of tokens whose ratio is clipped",
        raise_at=0.3,
        clear_at=0.2,
        means=(
            "many tokens no longer contribute to the gradient: the policy moves too far between "
            "two rollouts."
        ),
        do="Lower LEARNING_RATE, or make fewer updates on the same episodes.",
    ),
    Alarm(
        name="late_games",
        figure="late/length_effect",
        title="correlation of length and reward in steps with late games",
        raise_at=0.3,
        clear_at=0.2,
        means=(
            "episodes are dropped because they take too long, and long episodes earn more or less "
            "than short ones: the remaining episodes are a biased sample."
        ),
        do=(
            "Raise HANABI_GAME_TIMEOUT, or find out what makes games slow (the server's log names "
            "them); until then, interpret scores with caution."
        ),
    ),
    Alarm(
        name="flat_groups",
        figure="flat_group_share",
        title="share of zero-variance groups",
        raise_at=0.8,
        clear_at=0.6,
        means=(
            "in most groups all episodes earn the same, so comparing them teaches nothing: the "
            "tasks are solved, too hard, or always played the same way."
        ),
        do=(
            "If the score is at its maximum, stop. Otherwise use a higher TEMPERATURE, more "
            "NUM_GENERATIONS, or another preset."
        ),
    ),
)
"""Alarms on figures that every run has, most informative first."""
