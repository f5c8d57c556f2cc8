"""Partners in training: their pool, their tasks and seats, and the seats that a run trains.

A task is self-play, or exactly one of its seats belongs to a partner: a script, the base model, a
frozen adapter or a model behind a URL. All games of a task have the same seats, so a player's
baseline compares games with the same partner.

Everything here is a function of its arguments; nothing is read or sent.
"""

import hashlib
import math
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
    split_weight,
)
from hanabi_grpo.types import SHARED_ADAPTER, adapter_of, player_name, player_names

MAX_GUEST_ADAPTERS = 16
"""Guest adapters that a rollout server holds at once."""
BLOCK = 16
"""Size of a block of tasks; each block keeps the share of tasks with a partner, up to rounding."""
MAX_CYCLE = 1000
"""Largest sum of a pool's weights as whole numbers: 2 and 0.5 count as 4 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partner:
    """One entry of the pool."""

    spec: str
    """The policy spec as it was given, without the seat."""
    ref: Ref
    """The parsed policy spec."""
    name: str
    """Name in metrics; entries of the same name share one metric."""
    seat: int | None = None
    """The only seat that the partner takes; None: any seat."""
    weight: Fraction = Fraction(1)
    """How often it is drawn, as a multiple of the others' weights."""

    @property
    def is_earlier(self) -> bool:
        """True for earlier versions of the run itself."""
        return self.ref is Role.EARLIER

    @property
    def place(self) -> Place | None:
        """Location of its checkpoint; None if it has none, or is an earlier version."""
        return self.ref.place if isinstance(self.ref, CheckpointRef) else None

    @property
    def adapter(self) -> str | None:
        """The only adapter of the checkpoint that is used; None: the adapter of the seat."""
        return self.ref.adapter if isinstance(self.ref, CheckpointRef) else None


class Draw(NamedTuple):
    """The partner of one task, and the seat that it takes from a player of the run."""

    partner: Partner
    seat: int


def parse_pool(entries: Sequence[str], num_players: int, env: str = HANABI) -> tuple[Partner, ...]:
    """Read HANABI_PARTNERS.

    Args:
        entries: Each is a script, `base`, `earlier`, a URL or a checkpoint, optionally with the
            prefix `player_1=` for its only seat, and `*` with a weight at the end, e.g. ("iggi*3",
            "player_1=outputs/run").
        num_players: Seats of the game.
        env: Name of the environment, whose scripts are allowed.

    Raises:
        SettingsError: An entry is not a partner, or appears twice; or the weights are too unequal.
    """
    scripts = registry.get(env).policies
    pool = [_parse_partner(entry, num_players, scripts) for entry in entries]
    counts = Counter((partner.spec, partner.seat) for partner in pool)
    for (spec, seat), count in counts.items():
        if count > 1:
            entry = spec if seat is None else f"{player_name(seat)}={spec}"
            raise SettingsError(
                f"HANABI_PARTNERS: {entry!r} is listed {count} times; name each partner once. "
                "A weight sets how often it plays, as in iggi*2."
            )
    cycle = sum(_whole_weights(pool))
    if cycle > MAX_CYCLE:
        raise SettingsError(
            f"HANABI_PARTNERS: as whole numbers, the weights make a cycle of {cycle} tasks; at "
            f"most {MAX_CYCLE} are possible. Use simpler weights, e.g. iggi*3,piers*0.5."
        )
    return _with_distinct_names(pool)


def draw(
    pool: Sequence[Partner],
    task: int,
    *,
    share: float,
    seed: int,
    num_players: int,
    chances: Sequence[float] | None = None,
) -> Draw | None:
    """Return the partner of a task and its seat; None: self-play.

    In each block of 16 tasks the given share, rounded so that the sum over blocks is right, has a
    partner; a hash decides which tasks. These tasks cycle through all pairs of partner and seat, in
    a different order each time; a partner of weight 3 appears three times as often as one of weight
    1. With `chances`, each task draws its pair by these instead.

    Args:
        pool: The partners; empty: self-play alone.
        task: Number of the task in the run, from 0.
        share: Share of tasks with a partner, 0 to 1.
        seed: Seed of the run.
        num_players: Seats of the game.
        chances: Of each of `pairs`, at least 0, not all 0; None: by the weights alone.
    """
    block = task // BLOCK
    partner_tasks = _partner_tasks(block, share, seed)
    if not pool or task not in partner_tasks:
        return None
    number = _num_partner_tasks_before(block, share) + partner_tasks.index(task)
    choices = pairs(pool, num_players)
    if chances is not None:
        return choices[_draw_by(chances, seed, task)]
    deck = []
    for pair, copies in zip(choices, _copies(pool, num_players), strict=True):
        deck += [pair] * copies
    cycle, position = divmod(number, len(deck))

    def order_in_cycle(index: int) -> bytes:
        return _hash(seed, "pair", cycle, index)

    order = sorted(range(len(deck)), key=order_in_cycle)
    return deck[order[position]]


def pairs(pool: Sequence[Partner], num_players: int) -> list[Draw]:
    """Return every pair of partner and seat, in the order of the pool.

    A partner with a fixed seat has as many pairs as one that takes any seat, so that every partner
    of the same weight plays equally often.
    """
    choices = []
    for partner in pool:
        for player in range(num_players):
            seat = player if partner.seat is None else partner.seat
            choices.append(Draw(partner, seat))
    return choices


def _draw_by(chances: Sequence[float], seed: int, task: int) -> int:
    """Return an index drawn in proportion to `chances`, the same for the same task."""
    number = int.from_bytes(_hash(seed, "chance", task)[:8], "big")
    point = number / 2**64 * math.fsum(chances)
    total = 0.0
    last = 0
    for index, chance in enumerate(chances):
        if chance <= 0:
            continue
        last = index
        total += chance
        if point < total:
            return index
    # The sums may differ in their last bit.
    return last


def _copies(pool: Sequence[Partner], num_players: int) -> list[int]:
    """Return how often each of `pairs` appears in a cycle."""
    copies = []
    for weight in _whole_weights(pool):
        copies += [weight] * num_players
    return copies


def _whole_weights(pool: Sequence[Partner]) -> list[int]:
    """Return the weights as the smallest whole numbers of the same proportions."""
    factor = math.lcm(*[partner.weight.denominator for partner in pool])
    whole = [int(partner.weight * factor) for partner in pool]
    divisor = math.gcd(*whole)
    return [weight // divisor for weight in whole]


def choose_step(steps: Sequence[int], task: int, *, seed: int) -> int:
    """Return which of several earlier versions plays in a task, each with the same probability.

    A step's rank in a task does not depend on the others: if a version is missing, only its
    tasks are reassigned (rendezvous hashing, Thaler and Ravishankar 1998).

    Args:
        steps: Optimizer steps of the versions; at least one.
        task: Number of the task in the run, from 0.
        seed: Seed of the run.
    """

    def rank(step: int) -> bytes:
        return _hash(seed, Role.EARLIER, task, step)

    return max(steps, key=rank)


def without_weight(entry: str) -> str:
    """Return an entry of HANABI_PARTNERS without its weight."""
    return split_weight(entry)[0]


def replaced_player(settings: Settings) -> str | None:
    """Return the player who never plays, because a partner takes its seat in every task.

    None if all players have games: always with HANABI_ADAPTERS=shared, and with HANABI_SWAP_EVERY,
    where players change seats.
    """
    if settings.adapters == SHARED_ADAPTER or settings.swap_every:
        return None
    return always_partner(read_pool(settings), settings.partner_share)


def always_partner(pool: Sequence[Partner], share: float) -> str | None:
    """Return the player whose seat a partner takes in every task; None if there is no such seat."""
    seats = {partner.seat for partner in pool}
    if share != 1 or len(seats) != 1:
        return None
    (seat,) = seats
    return None if seat is None else player_name(seat)


def seated(num_players: int, version: int, swap_every: int) -> tuple[str, ...]:
    """Return the player of the run that takes each seat.

    Args:
        num_players: Seats of the game.
        version: Optimizer steps made so far.
        swap_every: Number of steps after which all players move on by one seat; 0: never.

    Returns:
        A player's name per seat, e.g. ("player_1", "player_0").
    """
    shift = version // swap_every if swap_every else 0
    players = []
    for seat in range(num_players):
        players.append(player_name((seat + shift) % num_players))
    return tuple(players)


def own_seats(
    num_players: int, adapters: Sequence[str], version: int, swap_every: int = 0
) -> tuple[str, ...]:
    """Return the seats of self-play as requests name them, e.g. ("player_0@7", "player_1@7").

    Args:
        num_players: Seats of the game.
        adapters: Names of the run's adapters: one per player, or the shared one.
        version: Optimizer steps made so far.
        swap_every: See `seated`.
    """
    players = seated(num_players, version, swap_every)
    seats = [f"{adapter_of(player, adapters)}@{version}" for player in players]
    return tuple(seats)


def num_adapters(
    pool: Sequence[Partner], *, num_players: int, shared: bool, num_earlier: int
) -> int:
    """Return the largest number of different frozen adapters that a pool may need.

    Args:
        pool: The partners.
        num_players: Seats of the game.
        shared: Whether this run has one adapter for all players.
        num_earlier: Number of this run's earlier versions that are kept.
    """
    needed: set[tuple[str, str]] = set()
    """Folder or version, and name of the adapter."""
    for partner in pool:
        seats = range(num_players) if partner.seat is None else (partner.seat,)
        for seat in seats:
            if partner.is_earlier:
                adapter = SHARED_ADAPTER if shared else player_name(seat)
                for number in range(num_earlier):
                    needed.add((f"{Role.EARLIER} {number}", adapter))
            elif partner.place is not None:
                adapter = partner.adapter or player_name(seat)
                needed.add((str(partner.place), adapter))
    return len(needed)


def num_kept_versions(settings: Settings) -> int:
    """Return the largest number of versions of itself that a run keeps as checkpoints.

    They are the last ones and, where versions are validated, the best one.
    """
    return settings.save_total_limit + (1 if settings.eval_steps else 0)


def check_partners_are_given(settings: Settings) -> None:
    """Refuse settings of a training run that expect partners if there are none.

    Raises:
        SettingsError: Partners are always seated, or drawn by their scores, but none is given; or
            a power is given but partners are not drawn by their scores.
    """
    if "partner_power" in settings.model_fields_set and settings.partner_draw != "worst":
        raise SettingsError(
            f"HANABI_PARTNER_POWER={settings.partner_power:g} with HANABI_PARTNER_DRAW="
            f"{settings.partner_draw}: partners are not drawn by their scores, so it would have no "
            "effect; set HANABI_PARTNER_DRAW=worst, or unset it."
        )
    if settings.partners:
        return
    if settings.partner_share == 1:
        raise SettingsError(
            "HANABI_PARTNER_SHARE=1 without HANABI_PARTNERS: there is no partner for any task, so "
            "players would play with each other; set HANABI_PARTNERS, or unset the share."
        )
    if settings.partner_draw == "worst":
        raise SettingsError(
            "HANABI_PARTNER_DRAW=worst without HANABI_PARTNERS: there is no partner to draw; set "
            "HANABI_PARTNERS, or unset it."
        )


def read_pool(settings: Settings) -> tuple[Partner, ...]:
    """Return the pool of HANABI_PARTNERS after the checks that need no file.

    An empty pool means self-play alone.

    Raises:
        SettingsError: As `parse_pool`; or a step may need more frozen adapters than a server holds;
            or earlier versions are partners but none is ever kept.
    """
    pool = parse_pool(settings.partners, settings.players, settings.env)
    needed = num_adapters(
        pool,
        num_players=settings.players,
        shared=settings.adapters == SHARED_ADAPTER,
        num_earlier=num_kept_versions(settings),
    )
    # A task has one partner at most.
    in_one_step = min(needed, settings.tasks_per_step)
    if in_one_step > MAX_GUEST_ADAPTERS:
        raise SettingsError(
            f"HANABI_PARTNERS: one step needs up to {in_one_step} different frozen adapters "
            f"({needed} in the pool, HANABI_TASKS_PER_STEP={settings.tasks_per_step}), but "
            f"a server holds {MAX_GUEST_ADAPTERS}. Name fewer, fix their seats (player_1=…), or "
            "lower SAVE_TOTAL_LIMIT or HANABI_TASKS_PER_STEP."
        )
    keeps_no_earlier = settings.save_steps == 1 and settings.save_total_limit == 1
    if keeps_no_earlier and any(partner.is_earlier for partner in pool):
        raise SettingsError(
            "HANABI_PARTNERS=earlier with SAVE_STEPS=1 SAVE_TOTAL_LIMIT=1: the only checkpoint "
            "kept is the version that plays, never an earlier one. "
            "Set SAVE_TOTAL_LIMIT=2 or more."
        )
    return pool


def describe_pool(pool: Sequence[Partner], share: float, *, by_score: bool = False) -> str:
    """Return one sentence for the log.

    Args:
        pool: The partners.
        share: Share of tasks with a partner.
        by_score: Whether scores decide who is drawn.
    """
    entries = []
    for partner in pool:
        seat = "(any seat)" if partner.seat is None else f"as {player_name(partner.seat)}"
        weight = "" if partner.weight == 1 else f", weight {float(partner.weight):g}"
        entries.append(f"{partner.spec} {seat}{weight}")
    how = ""
    if by_score:
        how = ", those with a low score more often (HANABI_PARTNER_DRAW=worst)"
    return (
        f"partners: {share:.0%} of the tasks (HANABI_PARTNER_SHARE={share:g}) with one of "
        f"{', '.join(entries)}{how}"
    )


def _parse_partner(entry: str, num_players: int, scripts: Collection[str]) -> Partner:
    player, weighted = split_player(entry)
    spec, typed_weight = split_weight(weighted)
    weight = Fraction(typed_weight or 1)
    if weight == 0:
        raise SettingsError(
            f"HANABI_PARTNERS: {entry!r}: a weight must be a number above 0; remove a partner that "
            "never plays."
        )
    names = player_names(num_players)
    if player is not None and player not in names:
        raise SettingsError(
            f"HANABI_PARTNERS: {entry!r}: {player} is not a player of this game; allowed: "
            f"{', '.join(names)}."
        )
    roles = (Role.BASE, Role.EARLIER)
    ref = parse_ref(spec, where="HANABI_PARTNERS", roles=roles, scripts=scripts)
    match ref:
        case CheckpointRef():
            _, name = ref.metric_name
        case UrlRef():
            name = ref.name
        case _:
            name = spec
    seat = None if player is None else names.index(player)
    return Partner(spec=spec, ref=ref, name=name, seat=seat, weight=weight)


def _with_distinct_names(pool: Sequence[Partner]) -> tuple[Partner, ...]:
    """Give different partners different names in metrics.

    Two runs may both have a checkpoint-50: such names get the run's name as a prefix, and names
    that are still the same get a number.
    """
    specs_by_name: dict[str, set[str]] = {}
    for partner in pool:
        specs_by_name.setdefault(partner.name, set()).add(partner.spec)
    names: dict[str, str] = {}
    """Name of each spec: a partner that is listed with several seats has one name."""
    for partner in pool:
        if partner.spec in names:
            continue
        name = partner.name
        if isinstance(partner.ref, CheckpointRef) and len(specs_by_name[name]) > 1:
            name = ".".join(filter(None, partner.ref.metric_name))
        names[partner.spec] = _free_name(name, taken=names.values())
    named = [replace(partner, name=names[partner.spec]) for partner in pool]
    return tuple(named)


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return a name, with a number appended if it is taken, e.g. "checkpoint-50-2"."""
    free = name
    number = 2
    while free in taken:
        free = f"{name}-{number}"
        number += 1
    return free


def _num_partner_tasks_before(block: int, share: float) -> int:
    # The exact decimal that was given: 0.1 is a tenth, and no block gains or loses a task by
    # rounding.
    return int(Fraction(str(share)) * BLOCK * block)


def _partner_tasks(block: int, share: float, seed: int) -> list[int]:
    """Return the numbers of a block's tasks with a partner, ascending."""
    num_before = _num_partner_tasks_before(block, share)
    count = _num_partner_tasks_before(block + 1, share) - num_before
    tasks = range(block * BLOCK, (block + 1) * BLOCK)
    shuffled = sorted(tasks, key=lambda task: _hash(seed, "share", task))
    return sorted(shuffled[:count])


def _hash(*parts: object) -> bytes:
    text = " ".join(map(str, parts))
    return hashlib.sha256(text.encode()).digest()
