"""HANABI_UPDATE=best_response: one player learns to answer the others as they are, then the next
one does.

A phase trains one player; the others play and rest. It ends when HANABI_EVAL_PATIENCE validations
in a row were no better than the best of the phase, to which the version that it began with belongs.
The next player in turn order goes on from there. A whole round of phases, one for each trained
player, without a version that is the best of the run ends the run: nobody finds a better answer.
For exact best responses this is the alternating maximisation of JESP (Nair et al., Taming
Decentralized POMDPs, IJCAI 2003), which ends in an equilibrium, not always in the best one.

Phases are read off the validations anew each time, so a resumed run has those of the run that was
not interrupted. A fork has no validations and begins with the first player. A player whose phase
ends stays at its last version; the best version of the whole run is `RUN@best`."""

from collections.abc import Sequence
from dataclasses import dataclass

from hanabi_grpo.runs.validation import Validated


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Who is trained, and for how long in vain."""

    number: int
    """From 0."""
    player: str
    stale: int
    """Validations since the best one of the phase."""
    ends_run: bool
    """Whether the last validation ended a round in which no version was the best of the run."""


def phase_after(rows: Sequence[Validated], players: Sequence[str], patience: int) -> Phase:
    """Return the phase that holds after some validations, oldest first.

    `rows` are all of the run up to now, `players` who is trained, in turn order; after `patience`
    validations without a better one, at least 1, a phase ends."""
    starts, best, record, ends_run = [0], 0, 0, False
    for place, row in enumerate(rows):
        ends_run = False
        if row.score > rows[record].score:
            record = place
        if row.score > rows[best].score:
            best = place
        elif place - best >= patience:
            ends_run = len(starts) >= len(players) and record <= starts[-len(players)]
            starts.append(place)
            best = place
    number = len(starts) - 1
    return Phase(
        number=number,
        player=players[number % len(players)],
        stale=max(0, len(rows) - 1 - best),
        ends_run=ends_run,
    )
