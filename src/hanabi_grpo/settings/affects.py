"""What a setting affects.

The single source for which settings a resume, a fork or a comparison of runs has to check.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Affects(StrEnum):
    """What changes in a run when one of its settings does.

    Each field of the settings names one of these. Code that needs a list of settings (for a resumed
    run, a fork, a comparison of runs) derives it from them, so a new setting is in every list.
    """

    WEIGHTS = "weights"
    """Which model and which adapters the saved tensors were made for."""
    PLAY = "play"
    """Which games are played, how many, by whom, and what players may say."""
    SEED = "seed"
    """Which tasks and samples chance chooses; repetitions of a run differ in these only."""
    LEARNING = "learning"
    """What is optimized: the estimator, the loss, and who is trained when."""
    SCHEDULE = "schedule"
    """Where a run starts from, how fast and how long it learns; may be adjusted along the way."""
    MACHINE = "machine"
    """The hardware and the limits of a run. The same step differs only by rounding, because sums
    are computed in a different order.
    """
    RECORD = "record"
    """What is measured in addition, what is kept, and what trackers call the run."""
    PLACE = "place"
    """Where the parts of a run are and how they connect: folders, addresses, keys, timeouts."""

    @property
    def is_fixed_in_fork(self) -> bool:
        """Whether a fork, a new run from another run's checkpoint, must keep the value."""
        return self is Affects.WEIGHTS

    @property
    def is_fixed_in_resume(self) -> bool:
        """Whether a run that is resumed must keep the value."""
        return self in (Affects.WEIGHTS, Affects.PLAY, Affects.SEED, Affects.LEARNING)

    @property
    def is_told_on_resume(self) -> bool:
        """Whether a resumed run reports a changed value, if a change is allowed."""
        return self is not Affects.PLACE

    @property
    def is_condition(self) -> bool:
        """Whether two runs with different values are runs under different conditions.

        A seed is not a condition: runs that differ in their seed repeat one experiment.
        """
        return self not in (Affects.SEED, Affects.RECORD, Affects.PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectsWhen:
    """What a setting affects instead while another setting has a certain value.

    Example:
        With HANABI_UPDATE=best_response, validations decide who is trained, so the number of
        validation tasks affects LEARNING: `AffectsWhen(field="update", value="best_response",
        affects=Affects.LEARNING)`.
    """

    field: str
    """Name of the other setting's field."""
    value: Any
    """The value for which `affects` holds."""
    affects: Affects
