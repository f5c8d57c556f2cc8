"""What the bots score elsewhere: published figures, and those measured with other implementations on OpenSpiel's rules.

Cards shift left when one leaves the hand, as in OpenSpiel; with fixed slots, as in the engine of Walton-Rivers et al.
(2017), the rule bots score up to half a point less.
"""

from typing import NamedTuple

PUBLISHED = "published"
"""By the bot's author."""
MEASURED = "measured"
"""With another implementation, on open_spiel 2.0.2."""


_FULL = 0.035
"""Of the rule bots' figures on Full; the source gives it for IGGI with two players, the others are taken as alike."""


class PublishedScore(NamedTuple):
    """One figure to compare with."""

    bot: str
    preset: str
    num_players: int
    mean: float
    """Points, 0 after a bomb."""
    standard_error: float | None
    """None where the source gives none."""
    source: str

    @property
    def board(self) -> str:
        """Short name of board and table, e.g. "full, 2 players"."""
        return f"{self.preset}, {self.num_players} players"


def _row(bot: str, source: str, **boards: tuple[tuple[int, float, float | None], ...]) -> tuple[PublishedScore, ...]:
    return tuple(
        PublishedScore(bot, preset.replace("_", "-"), players, mean, error, source)
        for preset, figures in boards.items()
        for players, mean, error in figures
    )


PUBLISHED_SCORES: tuple[PublishedScore, ...] = (
    *_row("simple-bot", PUBLISHED, full=((2, 16.92, None), (3, 18.48, None), (4, 19.32, None), (5, 18.50, None))),
    *_row(
        "iggi",
        MEASURED,
        full=((2, 17.56, _FULL), (3, 16.97, _FULL), (4, 16.19, _FULL), (5, 15.17, _FULL)),
        marshal_mini=((2, 2.829, 0.009),),
        marshal_simple=((2, 2.945, 0.005),),
        marshal_full=((2, 7.593, 0.019),),
        hle_small=((2, 5.705, 0.030),),
    ),
    *_row(
        "piers",
        MEASURED,
        full=((2, 17.52, _FULL), (3, 17.69, _FULL), (4, 17.09, _FULL)),
        marshal_mini=((2, 2.537, 0.015),),
        marshal_simple=((2, 2.518, 0.017),),
        marshal_full=((2, 7.853, 0.020),),
        hle_small=((2, 5.620, 0.027),),
    ),
    *_row(
        "outer",
        MEASURED,
        full=((2, 14.76, _FULL), (3, 14.79, _FULL), (4, 13.31, _FULL), (5, 12.83, _FULL)),
        marshal_mini=((2, 2.825, 0.009),),
        marshal_simple=((2, 2.945, 0.005),),
        marshal_full=((2, 6.939, 0.023),),
        hle_small=((2, 4.566, 0.029),),
    ),
    *_row(
        "random",
        MEASURED,
        marshal_mini=((2, 1.437, 0.003),),
        marshal_simple=((2, 1.583, 0.004),),
        marshal_full=((2, 1.174, 0.010),),
    ),
    *_row(
        "blind",
        MEASURED,
        marshal_mini=((2, 2.300, 0.006),),
        marshal_simple=((2, 2.534, 0.006),),
        marshal_full=((2, 0.046, 0.004),),
    ),
)
