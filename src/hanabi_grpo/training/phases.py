"""HANABI_UPDATE=best_response: players learn best responses to the others, one player at a time.

A phase trains one player; the others play with fixed weights. It ends when HANABI_EVAL_PATIENCE
validations in a row were no better than the best of the run. The player then returns to its weights
at the best version of the phase, which may be the version that the phase began with, and the next
player in turn order is trained. So the team always continues from its best version. The run ends
after a whole round of phases, one for each trained player, without a new best version of the run:
no player finds a better response. For exact best responses this is the alternating maximization of
JESP (Nair et al., Taming Decentralized POMDPs, IJCAI 2003), which ends in an equilibrium, not
always the best one.

The return is a step without games. Every version is one set of weights, and the version that ended
the phase is already served, with the weights that the player gives up; the version after the return
is the first that the next player can learn beside. It is not validated: nobody has learned.

Phases are recomputed from the validations each time, so a resumed run has the same phases as an
uninterrupted one. A fork has no validations and begins with the first player. The best version of
the whole run is `RUN@best`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.runs.validation import Validated


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The player that is trained, and the number of validations without progress."""

    number: int
    """Counted from 0."""
    player: str
    """The player that is trained."""
    stale: int
    """Number of validations since the best one, or since the one that the phase began with."""
    is_best: bool
    """Whether the last validated version is the best of the phase, or the one it began with."""
    finished_player: str | None
    """The player whose phase the last validation ended; None if it ended no phase."""
    ends_run: bool
    """Whether the last validation ended a round in which no version was the best of the run."""


def phase_after(rows: Sequence[Validated], players: Sequence[str], patience: int) -> Phase:
    """Return the phase that holds after some validations.

    Args:
        rows: All validations of the run up to now, oldest first.
        players: The trained players, in turn order.
        patience: Number of validations without improvement that ends a phase, at least 1.
    """
    starts = [0]
    """Number of the validation that each phase began with."""
    best = 0
    """Number of the best validation of the run."""
    since = 0
    """Number of the validation from which patience counts: the best, or the phase's first."""
    has_ended = False
    ends_run = False
    for number, row in enumerate(rows):
        has_ended = False
        ends_run = False
        if row.score > rows[best].score:
            best = number
            since = number
        elif number - since >= patience:
            has_ended = True
            is_whole_round = len(starts) >= len(players)
            ends_run = is_whole_round and best <= starts[-len(players)]
            starts.append(number)
            since = number
    phase_number = len(starts) - 1
    last = max(0, len(rows) - 1)
    return Phase(
        number=phase_number,
        player=players[phase_number % len(players)],
        stale=last - since,
        is_best=since == last,
        finished_player=players[(phase_number - 1) % len(players)] if has_ended else None,
        ends_run=ends_run,
    )
