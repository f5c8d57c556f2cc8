"""Partners in training: who may take a seat, in which tasks, and which seats a run trains.

A task is self-play, or exactly one of its seats is a partner's: a script's, the base model's, a
frozen adapter's or a URL's. All games of a task have the same seats, so that a player's baseline
compares games against the same partner. Everything here is a function of its arguments; nothing is
read or sent."""

import hashlib
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings.game import HANABI
from hanabi_grpo.settings.model import Settings
from hanabi_grpo.settings.refs import (
    CheckpointRef,
    Place,
    Ref,
    Role,
    UrlRef,
    parse_ref,
    split_player,
)
from hanabi_grpo.types import SHARED_ADAPTER, adapter_of, player_name, player_names

MAX_LENT = 16
"""Frozen adapters that a rollout server holds at once."""
BLOCK = 16
"""Tasks within which the share of tasks with a partner is kept to the next whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """One entry of the pool."""

    word: str
    """As it was given, without the seat."""
    ref: Ref
    name: str
    """In metrics; entries with equal names are one figure."""
    seat: int | None = None
    """The only seat that it takes; None: any."""

    @property
    def is_earlier(self) -> bool:
        """True for versions of the run itself."""
        return self.ref is Role.EARLIER

    @property
    def place(self) -> Place | None:
        """Where its checkpoint is; None: a script, the base model, or an earlier version."""
        return self.ref.place if isinstance(self.ref, CheckpointRef) else None

    @property
    def adapter(self) -> str | None:
        """The only adapter of the checkpoint that is used; None: the one of the seat."""
        return self.ref.adapter if isinstance(self.ref, CheckpointRef) else None


class Draw(NamedTuple):
    """Who plays instead of a player of the run in one task."""

    partner: Partner
    seat: int


def parse_pool(entries: Sequence[str], num_players: int, env: str = HANABI) -> tuple[Partner, ...]:
    """Read HANABI_PARTNERS: each entry a script, base, earlier or a checkpoint, perhaps with
    player_1= before it.
    """
    scripts = registry.get(env).policies
    found = [_parse(entry, num_players, scripts) for entry in entries]
    for (word, seat), count in Counter((partner.word, partner.seat) for partner in found).items():
        if count > 1:
            given = word if seat is None else f"{player_name(seat)}={word}"
            raise SettingsError(
                f"HANABI_PARTNERS: {given!r} is in it {count} times; name each partner once."
            )
    return _with_names_apart(found)


def draw(
    pool: Sequence[Partner], task: int, *, share: float, seed: int, num_players: int
) -> Draw | None:
    """Return who takes which seat in a task; None: self-play.

    Of each block of 16 tasks the wanted share, rounded so that the sum over blocks is right, has a
    partner; a hash says which. These tasks go through all pairs of partner and seat before one
    comes again, each time in another order.

    `task` is its number in the run, from 0; `seed` is the run's.
    """
    block = task // BLOCK
    here = _partner_tasks(block, share, seed)
    if not pool or task not in here:
        return None
    number = _partner_tasks_before(block, share) + here.index(task)
    pairs = [
        Draw(one, seat if one.seat is None else one.seat)
        for one in pool
        for seat in range(num_players)
    ]
    cycle, position = divmod(number, len(pairs))
    order = sorted(range(len(pairs)), key=lambda index: _hash(seed, "pair", cycle, index))
    return pairs[order[position]]


def choose_step(steps: Sequence[int], task: int, *, seed: int) -> int:
    """Return which of several earlier versions plays in a task, each with the same probability.

    A step's chance in a task does not depend on the others: where one version is missing, only its
    tasks change hands (rendezvous hashing, Thaler and Ravishankar 1998)."""
    return max(steps, key=lambda step: _hash(seed, Role.EARLIER, task, step))


def always_partner(pool: Sequence[Partner], share: float) -> str | None:
    """Return the player whose seat is a partner's in every task, None where there is none."""
    seats = {partner.seat for partner in pool}
    seat = next(iter(seats)) if share == 1 and len(seats) == 1 else None
    return None if seat is None else player_name(seat)


def seated(num_players: int, version: int, swap_every: int) -> tuple[str, ...]:
    """Return which of a run's players sits in each seat: all move one seat on after `swap_every`
    steps; 0: nobody.
    """
    moved = version // swap_every if swap_every else 0
    return tuple(player_name((seat + moved) % num_players) for seat in range(num_players))


def own_seats(
    num_players: int, adapters: Sequence[str], version: int, swap_every: int = 0
) -> tuple[str, ...]:
    """Return per seat the word of a run's own player, e.g. ("player_0@7", "player_1@7")."""
    players = seated(num_players, version, swap_every)
    return tuple(f"{adapter_of(player, adapters)}@{version}" for player in players)


def num_adapters(
    pool: Sequence[Partner], *, num_players: int, shared: bool, num_earlier: int
) -> int:
    """Return how many different frozen adapters a pool may need at most.

    `shared`: this run has one adapter for all players. `num_earlier`: versions of it that are kept.
    """
    needed: set[tuple[str, object]] = set()
    for partner in pool:
        seats = range(num_players) if partner.seat is None else (partner.seat,)
        if partner.is_earlier:
            adapters = (SHARED_ADAPTER,) if shared else seats
            needed |= {
                (f"{Role.EARLIER} {number}", adapter)
                for number in range(num_earlier)
                for adapter in adapters
            }
        elif partner.place is not None:
            needed |= {(str(partner.place), partner.adapter or player_name(seat)) for seat in seats}
    return len(needed)


def read_pool(settings: Settings) -> tuple[Partner, ...]:
    """Return the pool of HANABI_PARTNERS after the checks that need no file; empty: self-play
    alone.

    Raises: SettingsError: See `parse_pool`; more frozen adapters in one step than a server holds;
        or earlier versions of which none is ever kept.
    """
    pool, tasks = (
        parse_pool(settings.partners, settings.players, settings.env),
        settings.tasks_per_step,
    )
    shared, kept = settings.adapters == SHARED_ADAPTER, settings.save_total_limit
    needed = num_adapters(pool, num_players=settings.players, shared=shared, num_earlier=kept)
    if min(needed, tasks) > MAX_LENT:
        raise SettingsError(
            f"HANABI_PARTNERS: up to {min(needed, tasks)} different frozen adapters in one step "
            f"({needed} in the pool, "
            f"HANABI_TASKS_PER_STEP={tasks}); a server holds {MAX_LENT}. Name fewer, fix their "
            "seats (player_1=…), or "
            "lower SAVE_TOTAL_LIMIT or HANABI_TASKS_PER_STEP."
        )
    if settings.save_steps == settings.save_total_limit == 1 and any(
        partner.is_earlier for partner in pool
    ):
        raise SettingsError(
            "HANABI_PARTNERS=earlier with SAVE_STEPS=1 SAVE_TOTAL_LIMIT=1: the one checkpoint "
            "that is kept is the "
            "version that plays, never an earlier one. Set SAVE_TOTAL_LIMIT=2 or more."
        )
    return pool


def describe_pool(pool: Sequence[Partner], share: float) -> str:
    """Return one sentence for the log."""
    shown = [
        one.word + (" (any seat)" if one.seat is None else f" as {player_name(one.seat)}")
        for one in pool
    ]
    return (
        f"partners: {share:.0%} of the tasks (HANABI_PARTNER_SHARE={share:g}) with one of "
        f"{', '.join(shown)}"
    )


def _parse(entry: str, num_players: int, scripts: Collection[str]) -> Partner:
    player, word = split_player(entry)
    names = player_names(num_players)
    if player is not None and player not in names:
        raise SettingsError(
            f"HANABI_PARTNERS: {entry!r}: {player} is not at the table; allowed: "
            f"{', '.join(names)}."
        )
    ref = parse_ref(word, where="HANABI_PARTNERS", roles=(Role.BASE, Role.EARLIER), scripts=scripts)
    name = (
        ref.metric_name[1]
        if isinstance(ref, CheckpointRef)
        else ref.name
        if isinstance(ref, UrlRef)
        else word
    )
    return Partner(
        word=word, ref=ref, name=name, seat=None if player is None else names.index(player)
    )


def _with_names_apart(pool: Sequence[Partner]) -> tuple[Partner, ...]:
    # Two runs may both have a checkpoint-50: the run's name goes before it, and a number behind
    # what is equal still.
    names: dict[str, str] = {}
    for partner in pool:
        name = partner.name
        if (
            isinstance(partner.ref, CheckpointRef)
            and len({one.word for one in pool if one.name == name}) > 1
        ):
            name = ".".join(part for part in partner.ref.metric_name if part)
        numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        taken = {given for word, given in names.items() if word != partner.word}
        names.setdefault(partner.word, next(one for one in numbered if one not in taken))
    return tuple(replace(partner, name=names[partner.word]) for partner in pool)


def _partner_tasks_before(block: int, share: float) -> int:
    # The decimal that was typed: 0.1 is then a tenth, and no block gains or loses a task by
    # rounding.
    return int(Fraction(str(share)) * BLOCK * block)


def _partner_tasks(block: int, share: float, seed: int) -> list[int]:
    """Return the numbers of a block's tasks with a partner, ascending."""
    count = _partner_tasks_before(block + 1, share) - _partner_tasks_before(block, share)
    tasks = range(block * BLOCK, (block + 1) * BLOCK)
    return sorted(sorted(tasks, key=lambda task: _hash(seed, "share", task))[:count])


def _hash(*parts: object) -> bytes:
    return hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
