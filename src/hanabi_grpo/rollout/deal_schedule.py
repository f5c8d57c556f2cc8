"""Which row of a dataset a deal belongs to: rows with shares, and rows that play in some steps only.

Everything is a function of the rows and of the deal's number. A resumed run and every process therefore agree on it,
and nothing has to be saved.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hanabi_grpo.errors import SettingsError

MAX_BLOCK = 10_000
"""Most deals in which shares come out exactly; 0.9999 and 0.0001 are just allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """When a row plays, and how often beside the others that play then: it may have deals `first` to `end` - 1."""

    share: Fraction
    """Above 0; what counts is its ratio to the shares of the other rows."""
    first: int = 0
    end: int | None = None
    """None: it plays for ever."""

    def covers(self, deal: int) -> bool:
        """Tell whether the row may have this deal."""
        return self.first <= deal and (self.end is None or deal < self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of deals within which the same rows play, from `first` to before `end`."""

    first: int
    end: int | None
    order: tuple[int, ...]
    """Numbers of the rows of one block of deals, which is repeated: each row as often as its share says."""
    before: tuple[int, ...]
    """Per row, deals that it had before this phase."""

    def visits(self, deal: int) -> tuple[int, ...]:
        """Return per row how many deals it had before this deal."""
        blocks, position = divmod(deal - self.first, len(self.order))
        part = self.order[:position]
        return tuple(
            before + blocks * self.order.count(row) + part.count(row) for row, before in enumerate(self.before)
        )


def locate(terms: tuple[Terms, ...], deal: int) -> tuple[int, int]:
    """Return the number of a deal's row, and how many deals that row had before; SettingsError: no row plays then."""
    for phase in plan_phases(terms):
        if phase.first <= deal and (phase.end is None or deal < phase.end):
            row = phase.order[(deal - phase.first) % len(phase.order)]
            return row, phase.visits(deal)[row]
    raise SettingsError(f"deal {deal}: no row of the dataset plays then; give one of them no until_step.")


@functools.lru_cache(maxsize=8)
def plan_phases(terms: tuple[Terms, ...]) -> tuple[Phase, ...]:
    """Return the phases in order, see `block_order`; deals that no row covers are in none of them."""
    cuts = sorted({row.first for row in terms} | {row.end for row in terms if row.end is not None})
    before = (0,) * len(terms)
    phases: list[Phase] = []
    for first, end in zip(cuts, [*cuts[1:], None], strict=True):
        playing = [index for index, row in enumerate(terms) if row.covers(first)]
        if not playing:
            continue
        order = tuple(playing[place] for place in block_order([terms[index].share for index in playing]))
        phases.append(Phase(first=first, end=end, order=order, before=before))
        if end is not None:
            before = phases[-1].visits(end)
    return tuple(phases)


def block_order(shares: Sequence[Fraction]) -> list[int]:
    """Return the shortest list in which each index occurs exactly as often as its share says, spread evenly.

    The k-th of n occurrences belongs at (k + 1/2) / n of the list, so a step that is a part of it has nearly the shares
    too (Webster's method, as a sequence). Equal shares give 0, 1, 2, …

    Raises:
        SettingsError: The list would have more than `MAX_BLOCK` entries.
    """
    scale = math.lcm(*(share.denominator for share in shares))
    counts = [int(share * scale) for share in shares]
    common = math.gcd(*counts)
    counts = [count // common for count in counts]
    if sum(counts) > MAX_BLOCK:
        given = ", ".join(f"{float(share):g}" for share in shares)
        raise SettingsError(
            f"shares {given}: they come out exactly only in {sum(counts)} deals, allowed are {MAX_BLOCK}; "
            "give rounder numbers, such as 3 and 1."
        )
    places = [(Fraction(2 * k + 1, 2 * count), index, k) for index, count in enumerate(counts) for k in range(count)]
    return [index for _, index, _ in sorted(places)]
