"""Alarms of collapse: which figure, from which value on, what it means and what to do.

Every alarm looks at the mean of the last `WINDOW` readings of its figure. It is raised when that
mean crosses `raise_at` and over when the mean has crossed `clear_at` again. None is raised before
`after` readings, none stops a run. `GENERAL` holds for every environment and model
(docs/dynamics.md says where the thresholds come from); an environment adds its own in
`Environment.alarms`.
"""

from dataclasses import dataclass
from typing import Literal

WINDOW = 10
"""Readings (steps) of which the mean is looked at."""
NOISE = 8.0
"""Standard errors that a relative threshold is away from its reference at least."""
WARM_UP = 20
"""Readings before which nothing is raised; the first half of them is the reference `first`."""
_CLEAR_SHARE = 0.5
"""Share of the distance from a reference at which an alarm is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One alarm."""

    name: str
    """The metric is `alarm/<name>`."""
    figure: str
    """Metric that it reads; `{player}` stands for each player, `{board}` for each board."""
    title: str
    """What the figure is, with its unit."""
    raise_at: float
    """A value; with a reference, a factor of it."""
    clear_at: float
    """The same for the end of the alarm."""
    below: bool = False
    """Raised below the threshold, not above."""
    reference: Literal["first", "highest"] | None = None
    """What the threshold is relative to.

    "first" is the mean of the first `WINDOW` readings, "highest" the highest mean so far."""
    least_change: float = 0.0
    """With a reference: distance from it that raises the alarm at least.

    At half of it the alarm is over."""
    after: int = WARM_UP
    """Readings before which it is not raised."""
    means: str
    """What it says of the run, as the end of a sentence about the figure."""
    do: str
    """What somebody who sees the alarm can do."""

    def level(
        self, reference: float | None, *, noise: float = 0.0, clear: bool = False
    ) -> float | None:
        """Return the threshold of the mean.

        A relative one is at least `NOISE` standard errors away from its reference, since the
        highest of many means lies above what it estimates.

        Args:
            reference: Value of the reference; None while it is unknown.
            noise: Standard error of a mean over `WINDOW` readings.
            clear: Whether to return the threshold at which the alarm is over.

        Returns:
            The threshold, None while the reference is unknown.
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
    "Go back to a checkpoint before it (RESUME=RUN/checkpoint-N with a new OUTPUT_DIR), "
    "with a lower LEARNING_RATE"
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
        means="the team has lost much of what it had learnt.",
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
            "it is almost deterministic: the games of a task hardly differ, and comparing them "
            "teaches nothing."
        ),
        do=(
            "If the score is what you want, stop here; else a higher TEMPERATURE, or an earlier "
            "checkpoint with a lower LEARNING_RATE."
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
            "Look at the score: still rising is fine, flat is an early convergence. A higher "
            "TEMPERATURE or a lower LEARNING_RATE keeps more of it."
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
        means="its replies become random: updates push it away from what it could do.",
        do=f"{LESS_STEEP}, or a smaller MAX_GRAD_NORM.",
    ),
    Alarm(
        name="format",
        figure="{player}/bad_reply_share",
        title="share of replies without a legal move",
        raise_at=0.3,
        clear_at=0.2,
        means="many of its replies are illegal or cannot be read, and random moves replace them.",
        do=(
            "Look at replies (hanabi-grpo view RUN --illegal); compare the prompt with what the "
            "model was trained on, set HANABI_LEGAL_MOVES=true, or make HANABI_REWARD_ILLEGAL and "
            "HANABI_REWARD_UNPARSABLE count more."
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
            "its replies grow; time and memory grow with them, and length itself may be what is "
            "rewarded."
        ),
        do=(
            "Look at replies (hanabi-grpo view RUN); lower MAX_COMPLETION_LENGTH, or check what an "
            "advantage does to long replies."
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
        means="its replies shrink to less than half; with HANABI_THINKING it stops to think.",
        do=(
            "Look at replies (hanabi-grpo view RUN): if the score holds it is a saving, else BETA "
            "above 0 or a lower LEARNING_RATE."
        ),
    ),
    Alarm(
        name="cut",
        figure="{player}/cut_share",
        title="share of replies cut by the limit",
        raise_at=0.1,
        clear_at=0.05,
        means=(
            "replies end at MAX_COMPLETION_LENGTH before they end by themselves, mostly without a "
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
        means="the policy is far from the base model and may have lost its knowledge of language.",
        do="A higher BETA or a lower LEARNING_RATE holds it closer; harmless for the tiny model.",
    ),
    Alarm(
        name="clip",
        figure="clip_ratio/region_mean",
        title="share of tokens whose ratio is clipped",
        raise_at=0.3,
        clear_at=0.2,
        means=(
            "a large part of the tokens no longer contributes: the policy moves too far between two"
            " rollouts."
        ),
        do="A lower LEARNING_RATE, or fewer updates on the same games.",
    ),
    Alarm(
        name="late_games",
        figure="late/length_effect",
        title="correlation of length and reward in steps with late games",
        raise_at=0.3,
        clear_at=0.2,
        means=(
            "games are dropped because they take too long, and long games earn more or less than "
            "short ones: the remaining games are a biased sample."
        ),
        do=(
            "Raise HANABI_GAME_TIMEOUT, or look for what makes games slow (the server's log names "
            "them); until then read scores with care."
        ),
    ),
    Alarm(
        name="flat_groups",
        figure="flat_group_share",
        title="share of zero-variance groups",
        raise_at=0.8,
        clear_at=0.6,
        means=(
            "in most tasks all games earn the same, so comparing them teaches nothing: they are "
            "solved, hopeless, or always played alike."
        ),
        do=(
            "If the score is at its maximum, stop; else a higher TEMPERATURE, more NUM_GENERATIONS,"
            " or another preset."
        ),
    ),
)
"""On the figures that every run has, most telling first."""
