"""What training gained: the evaluations of a run that show a before and an after.

Two evaluations show a gain where they differ in nothing but the training: the same tasks, messages,
sampling and opponents, the run's players in the same seats, once as they were at step 0 and once
after some steps. Any other pair, e.g. the trained team alone and a trained player with a
script, says nothing about what training changed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanabi_grpo.evaluation.comparison.kinds import split_spec
from hanabi_grpo.runs.evaluation_result import EvaluationResult, different_messages
from hanabi_grpo.runs.run_folder import run_home
from hanabi_grpo.settings.refs import BASE, seat_adapter

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
        if not after.trained_steps:
            continue
        seats = _seats(after, home)
        if seats is None:
            continue
        starts = []
        between = []
        for other in results:
            is_same = _seats(other, home) == seats and _is_played_alike(other, after)
            if not is_same:
                continue
            if other.trained_steps == 0:
                if starts_from_base or not _has_base(other):
                    starts.append(other)
            elif 0 < other.trained_steps < after.trained_steps and _has_same_players(other, after):
                between.append(other)
        if not starts:
            continue
        between.sort(key=lambda result: result.trained_steps)
        path = (starts[-1], *between, after)
        gains.append(Gain(path=path, partners=_partners(seats)))
    # max keeps the first of equals.
    return max(gains, key=lambda gain: (gain.after.trained_steps, not gain.partners), default=None)


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
    """Tell whether two results have the same sampling, base model and messages."""
    models = {result.policies.get(BASE) for result in (a, b)} - {None}
    is_sampled_alike = a.temperature == b.temperature and a.token_filter == b.token_filter
    return is_sampled_alike and len(models) < 2 and not different_messages([a, b])


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
