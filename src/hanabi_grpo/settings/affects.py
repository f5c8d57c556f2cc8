"""What a setting affects.

The one place that says which settings a resume, a fork or a comparison of runs has to look at.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Affects(StrEnum):
    """What changes in a run when one of its settings does.

    Each field of the settings names one of these. Whoever needs a list of settings (a resumed run,
    a fork, a comparison of runs) derives it from them, so that a new setting is in every list.
    """

    WEIGHTS = "weights"
    """Which model and which adapters the saved tensors were made for."""
    PLAY = "play"
    """Which games are played, how many, by whom, and what players may say."""
    SEED = "seed"
    """Which tasks and samples chance chooses; repetitions of a run differ in these only."""
    LEARNING = "learning"
    """What is optimised: the estimator, the loss, and who is trained when."""
    SCHEDULE = "schedule"
    """From where, how fast and how long a run learns; what one may adjust on the way."""
    MACHINE = "machine"
    """On which hardware and within which limits it runs. Equal steps are equal but for rounding,
    because sums are taken in another order.
    """
    RECORD = "record"
    """What is measured beside the run, kept of it, and how it is called elsewhere."""
    PLACE = "place"
    """Where its parts are and how they find each other: folders, addresses, keys, waiting times."""

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
        """Whether a resumed run tells of another value than before, where it may have one."""
        return self is not Affects.PLACE

    @property
    def is_condition(self) -> bool:
        """Whether two runs with different values are runs under different conditions.

        A seed is none: runs that differ in their seed repeat one experiment.
        """
        return self not in (Affects.SEED, Affects.RECORD, Affects.PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AffectsWhen:
    """A setting affects something else while another setting has a certain value.

    Example:
        With HANABI_UPDATE=best_response validations decide who is trained, so that the number of
        their tasks affects LEARNING: `AffectsWhen(field="update", value="best_response",
        affects=Affects.LEARNING)`.
    """

    field: str
    """Name of the other setting's field."""
    value: Any
    """The value for which `affects` holds."""
    affects: Affects
