"""Evaluation on held-out tasks: one lineup's scores, and the paired difference of two lineups.

Every lineup plays the same tasks, so a difference is paired by task, and variation between tasks
cancels out.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs.base import EnvSpec, Setup, is_held_out, reward_figures
from hanabi_grpo.envs.starts import HALF, start_numbers
from hanabi_grpo.envs.tools.figures import (
    FIGURES_OF_TURNS,
    SHARES_OF_CALLS,
    figures_of_tasks,
    tool_figures,
)
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served, Table, play_tables
from hanabi_grpo.evaluation.outcomes import (
    is_versus,
    outcome_figures,
    seat_of,
    task_outcomes,
)
from hanabi_grpo.runs.evaluation_result import (
    MIN_TASKS,
    EvaluationResult,
    SeatOrder,
    mean_figures,
)
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.runs.task_statistics import (
    MIN_TASKS_PER_START,
    Estimate,
    difference,
    estimate,
    estimate_of_all_starts,
)
from hanabi_grpo.settings.refs import is_frozen, is_url, seat_adapter
from hanabi_grpo.token_filter import ALL_TOKENS, TokenFilter
from hanabi_grpo.types import ALL_STARTS, Episode, ReplyKind

SUITE = "eval"
"""Default suite of an evaluation."""
RETURN = "return"
"""Value of `EnvSpec.score` where lineups are compared by their players' return."""
MOST_STARTS = 100_000
"""Largest number of starts of a game that is played on all of its starts."""
_FORMAT = 2
"""Version of a ledger's rows."""


class TaskFigures(BaseModel):
    """The figures of one task's games, one game per seat order."""

    seed: int
    """The task."""
    scores: list[float]
    """Per seat order."""
    figures: dict[str, float]
    """Means over the games, see `EvaluationResult.figures`."""
    is_sampled: bool = True
    """See `EvaluationResult.is_sampled`; a ledger of an earlier version does not say."""


def evaluate_lineup(
    lineup: Lineup,
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str = SUITE,
    served: Served | None = None,
    rotate: bool = True,
    label: str | None = None,
    ledger: Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> EvaluationResult:
    """Play tasks 0 to `num_tasks - 1` of a held-out suite, each once in every seat order.

    Args:
        lineup: The seat assignment.
        setup: Environment and configuration.
        num_tasks: Number of tasks, at least two.
        suite: A held-out suite.
        served: How models are played; needed unless scripts fill every seat.
        rotate: Whether a list of different players changes seats.
        label: Name in tables; None: see `Lineup.label`.
        ledger: File for finished tasks, from which an interrupted evaluation continues; the caller
            removes it once the result is kept.
        progress: Receives the number of tasks done.

    Raises:
        SettingsError: Fewer than two tasks, a suite that training uses, or a ledger of another job.
        ServerError: The server failed, holds other adapters, or dropped a game.
    """
    if suite == ALL_STARTS:
        _check_all_starts(setup, num_tasks)
    else:
        check_tasks(num_tasks, suite)
    key = lineup_key(lineup, setup, suite=suite, served=served, rotate=rotate)
    orders = lineup.orders(rotate=rotate)
    num_orders = len(orders)
    with Ledger(ledger, _ledger_key(key, setup.spec)) if ledger else nullcontext() as book:
        finished = _finished_tasks(book, num_orders) if book else {}
        missing_tables = []
        for seed in range(num_tasks):
            if seed not in finished:
                missing_tables += [Table(seed, order) for order in orders]
        progress(_num_finished(finished, num_tasks))
        sampled_seeds: set[int] = set()
        for groups in play_tables(
            missing_tables,
            setup,
            suite=suite,
            label=lineup.text,
            served=served,
            together=num_orders,
            drawn=lambda table: sampled_seeds.add(table.seed),
        ):
            games = [game for [game] in groups]
            rows = []
            for start in range(0, len(games), num_orders):
                games_of_task = games[start : start + num_orders]
                is_sampled = games_of_task[0].seed in sampled_seeds
                task = task_figures(setup, games_of_task, is_sampled=is_sampled)
                finished[task.seed] = task
                rows.append(task.model_dump())
            if book:
                book.add(*rows)
            progress(_num_finished(finished, num_tasks))
    tasks = [finished[seed] for seed in range(num_tasks)]
    return summarise(lineup, setup, tasks, key=key, label=label)


def _ledger_key(key: dict[str, Any], spec: EnvSpec) -> dict[str, Any]:
    """Return the key of an evaluation's ledger.

    Where roles repeat, it has the names of the roles: rows of earlier versions have the outcomes of
    only one seat, under the name of the role alone.
    """
    names = spec.role_names
    if not is_versus(spec) or names == spec.roles:
        return key
    return {**key, "roles": names}


def _num_finished(finished: Mapping[int, TaskFigures], num_tasks: int) -> int:
    """Return how many of tasks 0 to `num_tasks - 1` are finished; a ledger may hold later ones."""
    return sum(seed < num_tasks for seed in finished)


def check_tasks(num_tasks: int, suite: str) -> None:
    """Check the tasks of an evaluation.

    Raises:
        SettingsError: There are fewer than two, training uses the suite, or it is that of all
            starts.
    """
    if num_tasks < MIN_TASKS:
        raise SettingsError(
            f"--tasks {num_tasks}: a standard error needs at least {MIN_TASKS} tasks."
        )
    remedy = "use evaluate --all-starts to play all of it"
    check_suite(suite, f"--suite {suite!r}", for_all_starts=remedy)


def check_suite(suite: str, given: str, *, for_all_starts: str) -> None:
    """Check the suite of an evaluation.

    Args:
        suite: The suite.
        given: How it was given, for messages.
        for_all_starts: What to do to play every start, for messages.

    Raises:
        SettingsError: Training uses the suite, or it is that of all starts.
    """
    if suite == ALL_STARTS:
        raise SettingsError(
            f"{given}: contains every start, and a part of it is not a fair sample; "
            f"{for_all_starts}, or choose eval or test."
        )
    if not is_held_out(suite):
        raise SettingsError(f"{given}: training may have seen its tasks; play on eval or test.")


def tasks_of_all_starts(setup: Setup[Any], option: str = "--all-starts") -> int:
    """Return the number of tasks of the suite `ALL_STARTS`: each start twice.

    Args:
        setup: Environment and configuration.
        option: What chooses the suite, for messages.

    Raises:
        SettingsError: The game does not number its starts, or there are more than `MOST_STARTS`.
    """
    num_starts = setup.environment.num_starts(setup.config)
    if num_starts is None:
        raise SettingsError(
            f"{option}: {setup.env} {setup.spec.preset} does not number its starts; leave it out "
            "and choose the number of tasks."
        )
    if num_starts > MOST_STARTS:
        raise SettingsError(
            f"{option}: {setup.env} {setup.spec.preset} has {num_starts:.3g} starts, but at most "
            f"{MOST_STARTS} can be played; leave it out and choose the number of tasks."
        )
    return MIN_TASKS_PER_START * num_starts


def _check_all_starts(setup: Setup[Any], num_tasks: int) -> None:
    """Raise a SettingsError unless all starts are played."""
    needed = tasks_of_all_starts(setup)
    if num_tasks != needed:
        raise SettingsError(
            f"suite {ALL_STARTS}: {num_tasks} tasks are not all of {setup.spec.preset}; play "
            f"{needed}, or choose another suite."
        )


def lineup_key(
    lineup: Lineup,
    setup: Setup[Any],
    *,
    suite: str = SUITE,
    served: Served | None = None,
    rotate: bool = True,
) -> dict[str, Any]:
    """Return everything that a task's games depend on; two evaluations of one key are the same job.

    A warning is logged where players learned the preset with other messages, see
    `SeatResolver.compare_messages`.

    Args:
        lineup: The seat assignment.
        setup: Environment and configuration.
        suite: Suite of the tasks.
        served: How models are played; needed unless scripts fill every seat.
        rotate: Whether a list of different players changes seats.

    Raises:
        SettingsError: A model has to play and there is no server, or a checkpoint cannot be used.
        ServerError: The server lacks one of the adapters.
    """
    orders = lineup.orders(rotate=rotate)
    key: dict[str, Any] = {
        "format": _FORMAT,
        "lineup": lineup.text,
        "seats": [tuple(map(str, order)) for order in orders],
        "policies": {},
        **setup.row(),
        "spec_hash": setup.spec.hash,
        "suite": suite,
        "rotate": rotate,
    }
    if not lineup.needs_server:
        return key
    if served is None:
        raise SettingsError(
            f"lineup {lineup.text!r}: needs a rollout server: start one, or add --own-server."
        )
    seats = [served.resolver.seats(order) for order in orders]
    served.resolver.compare_messages(lineup.refs, setup)
    if not served.token_filter.keeps_all:
        key["top_p"] = served.token_filter.top_p
        key["top_k"] = served.token_filter.top_k
    return {
        **key,
        "seats": seats,
        "policies": _policies(served, seats),
        "temperature": served.temperature,
        "max_tokens": served.max_tokens,
        "seed": served.seed,
    }


def _policies(served: Served, seats: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return what names on the server stand for: the base model, adapters and URLs.

    A guest adapter's name is a digest of its weights already; the name of a served one says nothing
    about the run that made it, so its digest is needed.
    """
    names = set()
    for order in seats:
        for seat in order:
            adapter = seat_adapter(seat)
            if is_url(seat):
                names.add(seat)
            elif adapter is not None and not is_frozen(seat):
                names.add(adapter[0])
    digests = served.resolver.digests()
    policies = {"base": served.resolver.model()}
    for name in sorted(names):
        policies[name] = digests[name]
    return policies


def task_figures(
    setup: Setup[Any], games: Sequence[Episode], *, is_sampled: bool = True
) -> TaskFigures:
    """Return the figures of one task's games, one game per seat order.

    Args:
        setup: Environment and configuration.
        games: The games.
        is_sampled: Whether a reply was drawn at random, or may have been. Otherwise, the task is
            sampled only if a random move replaced a bad reply, or symmetries were drawn for it.
    """
    spec = setup.spec
    num_games = len(games)
    scores = []
    reply_kinds: list[ReplyKind] = []
    num_truncated = 0
    for order, game in enumerate(games):
        scores.append(lineup_score(spec, game, order))
        reply_kinds += [turn.kind for turn in game.moves]
        num_truncated += game.status.is_truncated
    figures = {
        **mean_figures(game.result for game in games),
        **reward_figures(setup.environment, games),
        "truncated": num_truncated / num_games,
        "illegal_per_game": reply_kinds.count(ReplyKind.ILLEGAL) / num_games,
        "unparsable_per_game": reply_kinds.count(ReplyKind.UNPARSABLE) / num_games,
        "turns_per_game": len(reply_kinds) / num_games,
    }
    if setup.tools:
        figures |= tool_figures(games)
    if is_versus(spec):
        figures |= outcome_figures(spec, games)
    if spec.has_common_score:
        greatest = score_range(spec)[1]
        num_perfect = sum(score >= greatest for score in scores)
        figures["perfect"] = num_perfect / num_games
    has_bad_replies = any(kind is not ReplyKind.LEGAL for kind in reply_kinds)
    has_random_moves = has_bad_replies and spec.bad_reply == "random_legal"
    return TaskFigures(
        seed=games[0].seed,
        scores=scores,
        figures=figures,
        is_sampled=is_sampled or has_random_moves or getattr(setup.config, "other_play", False),
    )


def lineup_score(spec: EnvSpec, game: Episode, order: int) -> float:
    """Return the score by which lineups are compared.

    If that is the return, all players of a team have the same one. In other games it is the return
    of the lineup's first policy, which moves one seat to the left with each seat order.

    Args:
        spec: Rules of the game.
        game: The episode.
        order: Number of the seat order in which it was played.
    """
    if spec.score != RETURN:
        return float(game.result[spec.score])
    if spec.payoff == "team":
        return game.reward(0)
    return game.reward(seat_of(order, spec.num_players))


def played_facts(
    setup: Setup[Any],
    *,
    suite: str,
    num_tasks: int,
    temperature: float | None,
    token_filter: TokenFilter,
) -> dict[str, Any]:
    """Return what was played and how models sampled, for documents of several lineups."""
    spec = setup.spec
    return {
        **setup.row(),
        "preset": spec.preset,
        "num_players": spec.num_players,
        "spec_hash": spec.hash,
        "score": spec.score,
        "score_range": score_range(spec),
        "suite": suite,
        "num_tasks": num_tasks,
        "temperature": temperature,
        "top_p": token_filter.top_p,
        "top_k": token_filter.top_k,
    }


def describe_sampling(temperature: float | None, token_filter: TokenFilter) -> str:
    """Return how models sampled, as the end of a line; "" where scripts played.

    Example:
        describe_sampling(0.7, TokenFilter(top_p=0.9)) == ", temperature 0.7, top-p 0.9"
    """
    if temperature is None:
        return ""
    if temperature == 0:
        return ", greedy"
    tokens = "" if token_filter.keeps_all else f", {token_filter}"
    return f", temperature {temperature:g}{tokens}"


def score_range(spec: EnvSpec) -> tuple[float, float]:
    """Return the lowest and the highest possible `EnvSpec.score`."""
    return spec.score_range


def summarise(
    lineup: Lineup,
    setup: Setup[Any],
    tasks: Sequence[TaskFigures],
    *,
    key: dict[str, Any],
    label: str | None = None,
) -> EvaluationResult:
    """Return the result of one lineup.

    Args:
        lineup: The seat assignment.
        setup: Environment and configuration.
        tasks: Figures of tasks 0 to n-1.
        key: See `lineup_key`.
        label: Name in tables; None: see `Lineup.label`.
    """
    spec = setup.spec
    suite = key["suite"]
    seeds = tuple(task.seed for task in tasks)
    starts = start_numbers(setup, suite, seeds)
    orders = []
    for number, refs in enumerate(lineup.orders(rotate=key["rotate"])):
        scores = [task.scores[number] for task in tasks]
        if suite == ALL_STARTS:
            mean_score = estimate_of_all_starts(scores, starts)
        else:
            mean_score = estimate(tuple(scores), starts)
        order = SeatOrder(
            words=tuple(map(str, refs)),
            seats=tuple(key["seats"][number]),
            mean=mean_score.mean,
            standard_error=mean_score.standard_error,
        )
        orders.append(order)
    return EvaluationResult(
        label=label or lineup.label,
        lineup=lineup.text,
        orders=tuple(orders),
        policies=key["policies"],
        **setup.row(),
        preset=spec.preset,
        num_players=spec.num_players,
        spec_hash=spec.hash,
        score=spec.score,
        score_range=score_range(spec),
        # The best known score is for the whole game, not for half of its starts.
        attainable=None if suite.startswith(HALF) else spec.attainable,
        suite=suite,
        temperature=key.get("temperature"),
        is_sampled=any(task.is_sampled for task in tasks),
        top_p=key.get("top_p", ALL_TOKENS.top_p),
        top_k=key.get("top_k", ALL_TOKENS.top_k),
        max_tokens=key.get("max_tokens"),
        seeds=seeds,
        starts=starts,
        scores=tuple(fmean(task.scores) for task in tasks),
        figures=_figures_of_tasks(tasks),
        outcomes=task_outcomes([task.figures for task in tasks]),
    )


def _figures_of_tasks(tasks: Sequence[TaskFigures]) -> dict[str, float]:
    """Return the mean of each figure over tasks; those of tools are over all turns or calls."""
    figures = mean_figures(task.figures for task in tasks)
    for name in (*FIGURES_OF_TURNS, *SHARES_OF_CALLS):
        figures.pop(name, None)
    # Every task has the same number of games.
    num_turns = [task.figures.get("turns_per_game", 0.0) for task in tasks]
    return figures | figures_of_tasks([task.figures for task in tasks], num_turns)


def paired_difference(a: EvaluationResult, b: EvaluationResult) -> Estimate:
    """Return the mean of `b - a`, paired by task, with its interval and error, clustered by start.

    Raises:
        SettingsError: The two did not play the same tasks.
    """
    rules_of_a = f"{a.preset} {a.spec_hash}"
    rules_of_b = f"{b.preset} {b.spec_hash}"
    if rules_of_a != rules_of_b:
        raise _not_comparable(a, b, "games", f"{rules_of_a}; {rules_of_b}")
    if a.suite != b.suite:
        raise _not_comparable(a, b, "suites", f"{a.suite}; {b.suite}")
    if a.seeds != b.seeds:
        raise _not_comparable(a, b, "tasks", f"{a.num_tasks}; {b.num_tasks}")
    return difference(
        a.scores,
        b.scores,
        a.starts,
        covers_all_starts=a.covers_all_starts,
        is_sampled=a.is_sampled or b.is_sampled,
    )


def _not_comparable(
    a: EvaluationResult, b: EvaluationResult, what: str, values: str
) -> SettingsError:
    return SettingsError(
        f"{a.label} and {b.label} played different {what} ({values}); "
        "evaluate both with the same --preset and --tasks."
    )


def _finished_tasks(book: Ledger, num_orders: int) -> dict[int, TaskFigures]:
    """Return the tasks of a ledger by seed; a SettingsError where a row is damaged."""
    try:
        rows = TypeAdapter(list[TaskFigures]).validate_python(book.rows)
    except ValidationError as error:
        raise SettingsError(
            f"{book.path}: damaged ({error.errors()[0]['msg']}); move it away."
        ) from error
    finished = {}
    for row in rows:
        if len(row.scores) != num_orders:
            raise SettingsError(
                f"{book.path}: damaged (a task without one game per seat order); move it away."
            )
        finished[row.seed] = row
    return finished
