"""Results of `hanabi-grpo beliefs`: beliefs in the games of lineups, and their tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hanabi_grpo.client.beliefs import (
    AskedPlayer,
    ScriptPlayer,
    ServedPlayer,
    belief_document,
    check_memory,
    measure_beliefs,
)
from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.posterior import check_setup, script_chances
from hanabi_grpo.envs.starts import HALF
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served, Table, play_tables
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet
from hanabi_grpo.settings.refs import Ref, ScriptRef, UrlRef
from hanabi_grpo.token_filter import ALL_TOKENS
from hanabi_grpo.types import player_name

SAMPLING_TEMPERATURE = 1.0
"""The server computes the action probabilities of policies at this temperature."""
_BELIEF_FIGURES = (
    "log_loss_rules",
    "log_loss_exact",
    "log_loss",
    "brier_rules",
    "brier_exact",
    "brier",
    "kl",
    "kl_others",
)
_BELIEF_COLUMNS = (
    "log loss, rules",
    "exact",
    "stated",
    "Brier, rules",
    "exact",
    "stated",
    "KL(exact‖stated)",
    "KL of others'",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOrder:
    """The beliefs of a lineup in one seat order."""

    seats: tuple[str, ...]
    """The policy of each seat."""
    figures: Mapping[str, Any]
    """See `client.beliefs.belief_document`."""


def check_lineup(setup: Setup[Any], lineup: Lineup, *, suite: str) -> None:
    """Check that everything can be measured, before anything is played.

    Args:
        setup: Environment and configuration.
        lineup: The seat assignment.
        suite: Suite of the tasks.

    Raises:
        SettingsError: The game is too large, the suite has only some of its starts, a model
            remembers more than its turn, or the action probabilities of a policy are unknown.
    """
    check_setup(setup)
    if suite.startswith(HALF):
        raise SettingsError(
            f"--suite {suite}: contains half of the starts, and beliefs are computed over all of "
            "them; choose eval or test."
        )
    for player, ref in enumerate(lineup.refs):
        if isinstance(ref, UrlRef):
            raise SettingsError(
                f"beliefs with {ref}: a model behind a URL does not return the probabilities of "
                "its moves; choose a script or a model on the rollout server."
            )
        if isinstance(ref, ScriptRef):
            script_chances(setup, str(ref), player)
    if lineup.needs_server:
        check_memory(setup)


def lineup_beliefs(
    lineup: Lineup,
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str,
    served: Served | None,
    rotate: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> list[SeatOrder]:
    """Play tasks in every seat order, at temperature 1, and measure all beliefs in them.

    Args:
        lineup: The seat assignment.
        setup: Environment and configuration.
        num_tasks: Number of tasks.
        suite: A held-out suite.
        served: How models are played; needed unless scripts fill every seat.
        rotate: Whether a list of different players changes seats.
        progress: Receives the number of games played.

    Raises:
        SettingsError: As `check_lineup`.
        ServerError: The server failed, or dropped a game.
    """
    check_lineup(setup, lineup, suite=suite)
    if served is not None:
        served = replace(served, temperature=SAMPLING_TEMPERATURE, token_filter=ALL_TOKENS)
    results = []
    num_played = 0
    for order in lineup.orders(rotate=rotate):
        tables = [Table(seed, order) for seed in range(num_tasks)]
        episodes = []
        for groups in play_tables(tables, setup, suite=suite, label=lineup.text, served=served):
            episodes += [episode for [episode] in groups]
            progress(num_played + len(episodes))
        num_played += len(episodes)
        measured = measure_beliefs(setup, episodes, asked_players(setup, order, served))
        figures = belief_document(measured, setup.spec.num_players)
        results.append(SeatOrder(seats=tuple(map(str, order)), figures=figures))
    return results


def asked_players(
    setup: Setup[Any], order: Sequence[Ref], served: Served | None
) -> list[AskedPlayer]:
    """Return the player of each seat, for measuring beliefs.

    Args:
        setup: What is played.
        order: The policy of each seat.
        served: The server of models.
    """
    seats = served.resolver.seats(order) if served is not None else ()
    players: list[AskedPlayer] = []
    for player, ref in enumerate(order):
        if isinstance(ref, ScriptRef):
            players.append(ScriptPlayer(script_chances(setup, str(ref), player)))
            continue
        assert served is not None
        players.append(
            ServedPlayer(setup=setup, player=player, seat=seats[player], client=served.client)
        )
    return players


def belief_sheets(
    title: str, lineups: Mapping[str, Sequence[SeatOrder]], num_players: int
) -> list[Sheet]:
    """Return the tables: what players believe, and what moves tell.

    Args:
        title: Name of the game.
        lineups: Per lineup its seat orders.
        num_players: Players of the game.
    """
    belief_groups = []
    message_groups = []
    for name, orders in lineups.items():
        beliefs = []
        messages = []
        for order in orders:
            label = name if len(orders) == 1 else ",".join(order.seats)
            for player in range(num_players):
                row = order.figures["players"].get(player_name(player))
                if row is not None:
                    cells = [_cell(row.get(figure)) for figure in _BELIEF_FIGURES]
                    beliefs.append((label, player_name(player), *cells))
            for kind, means in order.figures["messages"].items():
                by_rules = means["by_rules"]
                by_convention = means["by_convention"]
                cells = [
                    str(by_rules["count"]),
                    _cell(by_rules),
                    _cell(by_convention),
                    _cell(by_convention, with_error=True),
                ]
                messages.append((label, kind, *cells))
        belief_groups.append(beliefs)
        message_groups.append(messages)
    return [
        Sheet(
            title=f"{title}: beliefs about hidden cards, bits per card",
            columns=("lineup", "player", *_BELIEF_COLUMNS),
            groups=belief_groups,
            num_names=2,
            note="Rules: without knowing how the others play. Exact: knowing their policies. "
            "Stated: by the player, when asked on its turn. Others': what the player should expect "
            "the others to believe. Brier: 0 at best, 2 at worst.",
        ),
        Sheet(
            title=f"{title}: what a move tells the other player, bits",
            columns=("lineup", "move", "moves", "by rules", "by convention", "± over games"),
            groups=message_groups,
            num_names=2,
            note="By convention: what the choice of the move tells beyond what the rules reveal.",
        ),
    ]


def _cell(mean: Mapping[str, Any] | None, *, with_error: bool = False) -> str:
    value = mean.get("standard_error" if with_error else "mean") if mean else None
    return UNKNOWN if value is None else f"{value:.3f}"
