"""HANABI_UPDATE=best_response: one player learns to answer the others, then the next one does.

A phase trains one player; the others play and rest. It ends when HANABI_EVAL_PATIENCE validations
in a row were no better than the best of the run. The player then returns to its weights at the best
version of the phase, to which the version that it began with belongs, and the next player in turn
order is trained. So the team always continues from its best version. A whole round of phases, one
for each trained player, without a version that is the best of the run ends the run: nobody finds a
better answer. For exact best responses this is the alternating maximisation of JESP (Nair et al.,
Taming Decentralized POMDPs, IJCAI 2003), which ends in an equilibrium, not always in the best one.

Phases are read off the validations anew each time, so a resumed run has those of the run that was
not interrupted. A fork has no validations and begins with the first player. The best version of the
whole run is `RUN@best`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.runs.validation import Validated


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Who is trained, and for how long in vain."""

    number: int
    """Counted from 0."""
    player: str
    """Who is trained."""
    stale: int
    """Validations since the best one, or since the one that the phase began with."""
    is_best: bool
    """Whether the last validated version is the best of the phase, or the one it began with."""
    finished_player: str | None
    """Whose phase the last validation ended; None: it ended none."""
    ends_run: bool
    """Whether the last validation ended a round in which no version was the best of the run."""


def phase_after(rows: Sequence[Validated], players: Sequence[str], patience: int) -> Phase:
    """Return the phase that holds after some validations.

    Args:
        rows: All validations of the run up to now, oldest first.
        players: Who is trained, in turn order.
        patience: Validations without a better one after which a phase ends, at least 1.
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
