"""Held-out deals: who plays them, what comes out, and the paired difference of two line-ups.

Every line-up plays the same deals, so a difference is taken deal by deal and the luck of the deal drops out.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.rules import is_held_out
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.game_facts import GameFacts, game_facts, totals
from hanabi_grpo.evaluation.matches import PlayedGame, Served, play_line_up
from hanabi_grpo.rollout.lineups import LineUp, parse_line_up, short_name
from hanabi_grpo.runs.deal_statistics import Estimate, deck_numbers, difference, estimate
from hanabi_grpo.runs.evaluation_result import EvaluationResult, SeatOrder
from hanabi_grpo.runs.ledger import Ledger
from hanabi_grpo.settings.refs import is_frozen, seat_adapter

SUITE = "eval"
_FORMAT = 1
"""Of a ledger's rows."""


class _Row(BaseModel):
    seed: int
    games: list[GameFacts]


def _ignore(done: int) -> None:
    pass


def evaluate_line_up(
    line_up: LineUp,
    config: EnvConfig,
    num_deals: int,
    *,
    suite: str = SUITE,
    served: Served | None = None,
    rotate: bool = True,
    label: str | None = None,
    ledger: Path | None = None,
    progress: Callable[[int], None] = _ignore,
    keep: Callable[[Sequence[PlayedGame]], None] | None = None,
    clear: bool = True,
) -> EvaluationResult:
    """Let a line-up play deals 0 to `num_deals - 1`, each once in every seat order.

    Args:
        line_up: Who plays.
        config: The game.
        num_deals: How many deals.
        suite: Which stream of held-out deals.
        served: Needed unless scripts fill every seat.
        rotate: Whether a list of different players changes seats.
        label: What tables call it; None: see `default_label`.
        ledger: File for finished deals: an interrupted evaluation goes on from it. It is removed at the end.
        progress: Receives the number of deals done.
        keep: Receives the games of some deals at a time. Not together with `ledger`, which keeps no games.
        clear: Whether a complete ledger is removed; a command with more to do before its end does that itself.

    Raises:
        SettingsError: Fewer than two deals, a suite that training uses, or a ledger of other work.
        ServerError: The server failed, holds other adapters, or dropped a game.
    """
    if num_deals < 2:
        raise SettingsError(f"--deals {num_deals}: a mean with an error needs at least 2 deals.")
    if not is_held_out(suite):
        raise SettingsError(f"suite {suite!r}: training may have seen its deals; evaluate on {SUITE!r}.")
    if keep is not None and ledger is not None:
        raise SettingsError("a ledger holds figures, no games: give keep or ledger, not both.")
    games: dict[int, list[GameFacts]] = {}

    def play(book: Ledger | None) -> None:
        missing = [seed for seed in range(num_deals) if seed not in games]
        progress(num_deals - len(missing))
        for chunk in play_line_up(line_up, config, missing, suite=suite, served=served, rotate=rotate):
            fresh: dict[int, list[GameFacts]] = {}
            for played in sorted(chunk, key=lambda one: (one.seed, one.order)):
                fresh.setdefault(played.seed, []).append(game_facts(played))
            if book is not None:
                book.add(*({"seed": seed, "games": facts} for seed, facts in fresh.items()))
            if keep is not None:
                keep(chunk)
            games.update(fresh)
            progress(sum(seed < num_deals for seed in games))

    key = line_up_key(line_up, config, suite=suite, served=served, rotate=rotate)
    if ledger is None:
        play(None)
    else:
        with Ledger(ledger, key) as book:
            games.update(_finished(book, len(key["seats"])))
            play(book)
            if clear:
                book.remove()
    return summarise(
        line_up,
        config,
        [games[seed] for seed in range(num_deals)],
        suite=suite,
        seats=key["seats"],
        policies=key["policies"],
        rotate=rotate,
        label=label,
        temperature=served.temperature if served and line_up.needs_server else None,
    )


def evaluate_scripted(name: str, config: EnvConfig, num_deals: int, suite: str = SUITE) -> EvaluationResult:
    """Let one script fill every seat; see `evaluate_line_up`."""
    return evaluate_line_up(parse_line_up(name, config.players), config, num_deals, suite=suite)


def line_up_key(
    line_up: LineUp, config: EnvConfig, *, suite: str = SUITE, served: Served | None = None, rotate: bool = True
) -> dict[str, Any]:
    """Return everything that a deal's games depend on; two evaluations of one key are the same work.

    Raises:
        SettingsError: A model has to play and there is no server, or a checkpoint cannot be used.
        ServerError: The server lacks one of the adapters.
    """
    orders = line_up.orders(rotate=rotate)
    key: dict[str, Any] = {
        "format": _FORMAT,
        "line_up": line_up.text,
        "seats": [tuple(map(str, order)) for order in orders],
        "policies": {},
        "env_config": config.model_dump(mode="json"),
        "spec_hash": config.spec().hash,
        "suite": suite,
        "rotate": rotate,
    }
    if not line_up.needs_server:
        return key
    if served is None:
        raise SettingsError(f"line-up {line_up.text!r}: needs a rollout server: start one, or add --own-server.")
    seats = [served.resolver.seats(order) for order in orders]
    digests = served.resolver.digests()
    names = {named[0] for order in seats for seat in order if not is_frozen(seat) and (named := seat_adapter(seat))}
    return {
        **key,
        "seats": seats,
        # A lent adapter's name is a digest of its weights; a served one's says nothing about the run that made it.
        "policies": {"base": served.resolver.model(), **{name: digests[name] for name in sorted(names)}},
        "temperature": served.temperature,
        "max_tokens": served.max_tokens,
    }


def summarise(
    line_up: LineUp,
    config: EnvConfig,
    games: Sequence[Sequence[GameFacts]],
    *,
    suite: str = SUITE,
    seats: Sequence[Sequence[str]] | None = None,
    policies: dict[str, str] | None = None,
    rotate: bool = True,
    label: str | None = None,
    temperature: float | None = None,
) -> EvaluationResult:
    """Return the figures of one line-up.

    Args:
        line_up: Who played.
        config: The game.
        games: Of deals 0 to n-1, one game per seat order.
        suite: Which stream of deals.
        seats: Who sat where, per seat order; None: the words themselves.
        policies: See `EvaluationResult`.
        rotate: Whether the line-up changed seats.
        label: What tables call it; None: see `default_label`.
        temperature: Of sampling, 0 for greedy; None for scripts.
    """
    spec = config.spec()
    words = [tuple(map(str, order)) for order in line_up.orders(rotate=rotate)]
    seeds = tuple(range(len(games)))
    decks = deck_numbers(spec, suite, seeds)
    total = totals([game for deal in games for game in deal])
    num_games = sum(map(len, games))
    orders = []
    for number, order in enumerate(words):
        found = estimate(tuple(float(deal[number].score) for deal in games), decks)
        orders.append(
            SeatOrder(
                words=order,
                seats=tuple(seats[number] if seats else order),
                mean=found.mean,
                standard_error=found.standard_error,
            )
        )
    return EvaluationResult(
        label=label or default_label(line_up),
        line_up=line_up.text,
        orders=tuple(orders),
        policies=dict(policies or {}),
        preset=spec.preset,
        num_players=spec.num_players,
        spec_hash=spec.hash,
        env_config=config.model_dump(mode="json"),
        reachable_max=spec.reachable_max,
        suite=suite,
        temperature=temperature,
        seeds=seeds,
        decks=decks,
        scores=tuple(statistics.fmean(game.score for game in deal) for deal in games),
        scores_kept=tuple(statistics.fmean(game.kept for game in deal) for deal in games),
        bomb_share=total.bombed / num_games,
        truncated_share=total.truncated / num_games,
        perfect_share=total.perfect / num_games,
        illegal_per_game=total.illegal / num_games,
        unparsable_per_game=total.unparsable / num_games,
        hints_per_turn=total.hints / max(1, total.turns),
        misplays_per_turn=total.misplays / max(1, total.turns),
        turns_per_game=total.turns / num_games,
    )


def default_label(line_up: LineUp) -> str:
    """Return what tables call a line-up: its text, with folders by their last two names."""
    return ",".join(short_name(word.strip()) for word in line_up.text.split(","))


def paired_difference(a: EvaluationResult, b: EvaluationResult) -> Estimate:
    """Return mean, error and interval of `b - a` over the deals that both played, clustered by deck.

    Raises:
        SettingsError: The two did not play the same deals.
    """
    for what, mine, theirs in (
        ("boards", f"{a.preset} {a.spec_hash}", f"{b.preset} {b.spec_hash}"),
        ("suites", a.suite, b.suite),
        ("deals", _range(a.seeds), _range(b.seeds)),
    ):
        if mine != theirs or (what == "deals" and a.seeds != b.seeds):
            raise SettingsError(
                f"{a.label} and {b.label} played different {what} ({mine}; {theirs}); "
                "evaluate both with the same --preset and --deals."
            )
    return difference(a.scores, b.scores, a.decks)


def _finished(book: Ledger, num_orders: int) -> dict[int, list[GameFacts]]:
    try:
        rows = TypeAdapter(list[_Row]).validate_python(book.rows)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SettingsError(f"{book.path}: damaged ({where}: {first['msg']}); move it away.") from error
    if any(len(row.games) != num_orders for row in rows):
        raise SettingsError(f"{book.path}: damaged (a deal without one game per seat order); move it away.")
    return {row.seed: row.games for row in rows}


def _range(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} deals, {seeds[0]} to {seeds[-1]}"
