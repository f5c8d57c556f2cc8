"""What training gained: the evaluations of a run that show a before and an after.

Two evaluations show a gain where they differ in nothing but the training: the same tasks, messages,
sampling and opponents, the run's players in the same seats, once as they were at step 0 and once
after some steps. Any other pair, e.g. the trained team alone and a trained player with a
script, says nothing about what training changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from hanabi_grpo.evaluation.comparison.kinds import split_spec
from hanabi_grpo.evaluation.tables import ALL_PAIRS_UP_TO, Pair
from hanabi_grpo.runs.evaluation_result import EvaluationResult, different_messages
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.settings.refs import BASE, is_url, seat_adapter

_TRAINED = "trained"
"""Replaces the players of the run, at any step, in the seats of a lineup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The same seats at step 0 and after training."""

    path: tuple[EvaluationResult, ...]
    """These seats at every evaluated step, in the order of training; at least two."""
    partners: tuple[str, ...]
    """The policies in the other seats, e.g. ("iggi",); empty: the run's players fill all seats."""

    @property
    def before(self) -> EvaluationResult:
        """The result at step 0."""
        return self.path[0]

    @property
    def after(self) -> EvaluationResult:
        """The result of the longest training."""
        return self.path[-1]


def find_gain(
    results: Sequence[EvaluationResult], home: Path, *, starts_from_base: bool
) -> Gain | None:
    """Return the gain of the longest training; None where no two results may be compared.

    Of several lineups that were evaluated after the same steps, that of the run's players alone is
    preferred, then the first one.

    Args:
        results: Evaluations of the same tasks.
        home: The run's folder.
        starts_from_base: Whether the run's adapters began as the base model; then `base` is the
            run at step 0.
    """
    gains = []
    for after in results:
        seats = _seats(after, home)
        starts = []
        between = []
        for other in results:
            if not _is_before(other, after, home, starts_from_base=starts_from_base):
                continue
            if other.trained_steps:
                between.append(other)
            else:
                starts.append(other)
        if seats is None or not starts:
            continue
        between.sort(key=lambda result: result.trained_steps)
        path = (starts[-1], *between, after)
        gains.append(Gain(path=path, partners=_partners(seats)))
    # max keeps the first of equals.
    return max(gains, key=lambda gain: (gain.after.trained_steps, not gain.partners), default=None)


def trained_pairs(
    results: Sequence[EvaluationResult], home: Path, *, starts_from_base: bool
) -> list[Pair]:
    """Return the pairs of results that differ in nothing but the training, the earlier one first.

    Of more than `ALL_PAIRS_UP_TO` results, each is paired only with the earliest.

    Args:
        results: Evaluations of the same tasks, in the order of training.
        home: The run's folder.
        starts_from_base: See `find_gain`.
    """
    pairs = []
    for before, after in combinations(results, 2):
        if _is_before(before, after, home, starts_from_base=starts_from_base):
            pairs.append((before, after))
    if len(results) <= ALL_PAIRS_UP_TO:
        return pairs
    later = {id(after) for _, after in pairs}
    return [pair for pair in pairs if id(pair[0]) not in later]


def _is_before(
    before: EvaluationResult, after: EvaluationResult, home: Path, *, starts_from_base: bool
) -> bool:
    """Tell whether two results differ in nothing but the training, which went on after the first.

    Args:
        before: A result, which may be of step 0.
        after: Another one on the same tasks.
        home: The run's folder.
        starts_from_base: See `find_gain`.
    """
    if before.trained_steps >= after.trained_steps:
        return False
    seats = _seats(after, home)
    if seats is None or _seats(before, home) != seats or not _is_played_alike(before, after):
        return False
    if before.trained_steps == 0:
        return starts_from_base or not _has_base(before)
    return _has_same_players(before, after)


def _seats(result: EvaluationResult, home: Path) -> frozenset[tuple[str, ...]] | None:
    """Return the seat orders with the run's players called "trained".

    Returns:
        None if no player of the run plays, or if its players are from several steps or runs, or
        from another run.
    """
    step = result.trained_steps
    orders = set()
    places = set()
    for order in result.orders:
        names = []
        for spec, seat in zip(order.words, order.seats, strict=True):
            adapter = seat_adapter(seat)
            if adapter is None:
                # Next to trained players, the base model is an opponent.
                names.append(_TRAINED if seat == BASE and not step else seat)
                continue
            if adapter[1] != step:
                return None
            places.add(split_spec(spec, seat)[0])
            names.append(_TRAINED)
        orders.add(tuple(names))
    is_played = any(_TRAINED in names for names in orders)
    if not is_played or len(places) > 1 or any(_is_elsewhere(place, home) for place in places):
        return None
    return frozenset(orders)


def _is_elsewhere(place: str, home: Path) -> bool:
    """Tell whether a checkpoint is in a folder of this machine that is not the run's."""
    if not place:
        return False
    folder = Path(place.removesuffix("@best"))
    if not folder.is_dir():
        return False
    resolved = run_home(folder).resolve()
    return home.resolve() not in (resolved, *resolved.parents)


def _is_played_alike(a: EvaluationResult, b: EvaluationResult) -> bool:
    """Tell whether two results have the same sampling, models and messages.

    What an earlier version did not record counts as the same.
    """
    is_sampled_alike = a.temperature == b.temperature and a.token_filter == b.token_filter
    limits = {a.max_tokens, b.max_tokens} - {None}
    has_same_models = True
    for spec in a.policies.keys() & b.policies.keys():
        # Adapters are what training changes.
        if (spec == BASE or is_url(spec)) and a.policies[spec] != b.policies[spec]:
            has_same_models = False
    is_same = is_sampled_alike and len(limits) < 2 and has_same_models
    return is_same and not different_messages([a, b])


def _has_same_players(a: EvaluationResult, b: EvaluationResult) -> bool:
    """Tell whether the seats have the same specs, apart from the checkpoint's step."""
    return _chosen_players(a) == _chosen_players(b)


def _chosen_players(result: EvaluationResult) -> list[list[str]]:
    orders = []
    for order in result.orders:
        players = []
        for spec, seat in zip(order.words, order.seats, strict=True):
            players.append(split_spec(spec, seat)[1] if seat_adapter(seat) else seat)
        orders.append(players)
    return orders


def _has_base(result: EvaluationResult) -> bool:
    return any(BASE in order.seats for order in result.orders)


def _partners(seats: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for order in sorted(seats):
        names |= dict.fromkeys(name for name in order if name != _TRAINED)
    return tuple(names)
