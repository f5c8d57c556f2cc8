"""The names and formulas of the figures: quotients of two sums of the counters of `counts`."""

from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    """How a figure is written."""

    SHARE = "share"
    BITS = "bits"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is one counter over another."""

    title: str
    over: str
    per: str
    unit: Unit = Unit.SHARE


OF_GAMES = {
    "score": Figure("score", "score", "games", Unit.NUMBER),
    "score_kept": Figure("points kept on a bomb", "score_kept", "games", Unit.NUMBER),
    "bombs": Figure("games bombed", "bombs", "games"),
}
"""Of the team, whoever moved."""

PER_GAME = {
    name: Figure(title, name, "games", Unit.NUMBER)
    for name, title in (
        ("turns", "turns"),
        ("hints", "hints given"),
        ("wasted_hints", "hints that told nothing new"),
        ("plays", "plays"),
        ("misplays", "misplays"),
        ("discards", "discards"),
        ("critical_discards", "discards of a last copy still needed"),
    )
}

OF_PLAYS = {
    "bits_per_play": Figure("bits from hints about the card played", "bits", "plays", Unit.BITS),
    "chance_per_play": Figure("chance to fit of the card played, as its player could know", "chance", "plays"),
    "certain_plays": Figure("plays that were certain", "certain_plays", "plays"),
    "misplay_share": Figure("plays that failed", "misplays", "plays"),
    "plays_knowing_none": Figure("plays knowing neither", "plays_none", "plays"),
    "plays_knowing_color": Figure("plays knowing the colour only", "plays_color", "plays"),
    "plays_knowing_rank": Figure("plays knowing the rank only", "plays_rank", "plays"),
    "plays_knowing_both": Figure("plays knowing both", "plays_both", "plays"),
    "misplays_knowing_none": Figure("failed, of plays knowing neither", "misplays_none", "plays_none"),
    "misplays_knowing_color": Figure("failed, of those knowing the colour", "misplays_color", "plays_color"),
    "misplays_knowing_rank": Figure("failed, of those knowing the rank", "misplays_rank", "plays_rank"),
    "misplays_knowing_both": Figure("failed, of those knowing both", "misplays_both", "plays_both"),
    "wasted_share": Figure("hints that told nothing new", "wasted_hints", "hints"),
    "unhinted_plays": Figure("turns without a new hint that play", "unhinted_plays", "unhinted_turns"),
}

OF_HINTS = {
    "plays": Figure("plays", "plays", "answered"),
    "discards": Figure("discards", "discards", "answered"),
    "hints_back": Figure("hints", "hints_back", "answered"),
    "plays_touched": Figure("plays a touched card", "plays_touched", "answered"),
    "touched_of_plays": Figure("of plays: a touched card", "plays_touched", "plays"),
    "oldest_of_choices": Figure("of choices: the oldest", "oldest", "choices"),
    "newest_of_choices": Figure("of choices: the newest", "newest", "choices"),
    "scored_of_touched": Figure("touched card scores", "touched_scored", "plays_touched"),
    "playable_when_hinted": Figure("touched cards that fit", "playable", "touched"),
    "touched_per_hint": Figure("cards touched", "touched", "hints", Unit.NUMBER),
}
"""Of one kind of hint to one seat."""

PLAY_SIGNAL = Figure("play signal", "", "")
"""P(plays a touched card | hinted) - P(plays | no new hint).

A receiver that does not listen plays as often as before, and a touched card at most every time: its signal is 0 or
less.
"""
