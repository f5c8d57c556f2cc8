"""The names, formulas and sources of the figures.

Most are quotients of two sums of counters, so their formula is the line that defines them.
"""

from dataclasses import dataclass
from enum import StrEnum

from hanabi_grpo.envs.hanabi.conventions.layout import MICRO, HintCount, SeatCount


class Unit(StrEnum):
    """How a figure is written."""

    SHARE = "share"
    BITS = "bits"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure that is `scale` times one counter over another; without `per`, over the number of games."""

    title: str
    over: int
    per: int | None
    unit: Unit = Unit.SHARE
    scale: float = 1.0


PER_GAME: dict[str, Ratio] = {
    "turns": Ratio("turns", SeatCount.TURNS, None, Unit.NUMBER),
    "hints": Ratio("hints given", SeatCount.HINTS, None, Unit.NUMBER),
    "wasted_hints": Ratio("hints that told nothing new", SeatCount.WASTED_HINTS, None, Unit.NUMBER),
    "plays": Ratio("plays", SeatCount.PLAYS, None, Unit.NUMBER),
    "misplays": Ratio("misplays", SeatCount.MISPLAYS, None, Unit.NUMBER),
    "discards": Ratio("discards", SeatCount.DISCARDS, None, Unit.NUMBER),
    "critical_discards": Ratio("discards of a last copy still needed", SeatCount.CRITICAL_DISCARDS, None, Unit.NUMBER),
}

OF_PLAYS: dict[str, Ratio] = {
    "bits_per_play": Ratio(
        "bits from hints about the card played", SeatCount.MICROBITS, SeatCount.PLAYS, Unit.BITS, 1 / MICRO
    ),
    "chance_per_play": Ratio(
        "chance to fit of the card played, as its player could know", SeatCount.MICROCHANCE, SeatCount.PLAYS,
        Unit.SHARE, 1 / MICRO,
    ),
    "certain_plays": Ratio("plays that were certain", SeatCount.CERTAIN_PLAYS, SeatCount.PLAYS),
    "misplay_share": Ratio("plays that failed", SeatCount.MISPLAYS, SeatCount.PLAYS),
    "plays_knowing_none": Ratio("plays knowing neither", SeatCount.PLAYS_NONE, SeatCount.PLAYS),
    "plays_knowing_color": Ratio("plays knowing the colour only", SeatCount.PLAYS_COLOR, SeatCount.PLAYS),
    "plays_knowing_rank": Ratio("plays knowing the rank only", SeatCount.PLAYS_RANK, SeatCount.PLAYS),
    "plays_knowing_both": Ratio("plays knowing both", SeatCount.PLAYS_BOTH, SeatCount.PLAYS),
    "misplays_knowing_none": Ratio("failed, of plays knowing neither", SeatCount.MISPLAYS_NONE, SeatCount.PLAYS_NONE),
    "misplays_knowing_color": Ratio("failed, of those knowing the colour", SeatCount.MISPLAYS_COLOR,
                                    SeatCount.PLAYS_COLOR),
    "misplays_knowing_rank": Ratio("failed, of those knowing the rank", SeatCount.MISPLAYS_RANK, SeatCount.PLAYS_RANK),
    "misplays_knowing_both": Ratio("failed, of those knowing both", SeatCount.MISPLAYS_BOTH, SeatCount.PLAYS_BOTH),
    "wasted_share": Ratio("hints that told nothing new", SeatCount.WASTED_HINTS, SeatCount.HINTS),
    "unhinted_plays": Ratio("turns without a new hint that play", SeatCount.UNHINTED_PLAYS, SeatCount.UNHINTED_TURNS),
}  # fmt: skip

OF_HINTS: dict[str, Ratio] = {
    "plays": Ratio("plays", HintCount.PLAYS, HintCount.ANSWERED),
    "discards": Ratio("discards", HintCount.DISCARDS, HintCount.ANSWERED),
    "hints_back": Ratio("hints", HintCount.HINTS_BACK, HintCount.ANSWERED),
    "plays_touched": Ratio("plays a touched card", HintCount.PLAYS_TOUCHED, HintCount.ANSWERED),
    "discards_touched": Ratio("discards a touched card", HintCount.DISCARDS_TOUCHED, HintCount.ANSWERED),
    "touched_of_plays": Ratio("of plays: a touched card", HintCount.PLAYS_TOUCHED, HintCount.PLAYS),
    "oldest_of_choices": Ratio("of choices: the oldest", HintCount.OLDEST, HintCount.CHOICES),
    "newest_of_choices": Ratio("of choices: the newest", HintCount.NEWEST, HintCount.CHOICES),
    "scored_of_touched": Ratio("touched card scores", HintCount.PLAYS_TOUCHED_SCORED, HintCount.PLAYS_TOUCHED),
    "playable_when_hinted": Ratio("touched cards that fit", HintCount.TOUCHED_PLAYABLE, HintCount.TOUCHED),
    "touched_per_hint": Ratio("cards touched", HintCount.TOUCHED, HintCount.HINTS, Unit.NUMBER),
}

OTHERS: dict[str, tuple[str, Unit]] = {
    "score": ("score", Unit.NUMBER),
    "score_kept": ("points kept on a bomb", Unit.NUMBER),
    "bombs": ("games bombed", Unit.SHARE),
    "action_information": ("I(my move; partner's next move)", Unit.BITS),
    "hint_information": ("I(which hint; receiver's next move)", Unit.BITS),
    "next_entropy": ("H(partner's next move)", Unit.BITS),
    "play_signal": ("play signal", Unit.SHARE),
}
"""Figures that are no such quotient: title and unit."""


def title_of(name: str) -> tuple[str, Unit]:
    """Return what a page calls a figure of a side, and its unit."""
    if name in OTHERS:
        return OTHERS[name]
    ratio = {**PER_GAME, **OF_PLAYS}[name]
    return ratio.title, ratio.unit
