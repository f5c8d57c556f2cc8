"""Does the team pay? A workflow beside one of its seats alone, and beside a vote that may say as
much.

The vote has as many answers as cost what the workflow's tokens cost: independent first answers of
the same seats, taken in turn. A team that is no better than it has gained nothing but the tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.workflows.environment import VOTE
from hanabi_grpo.envs.workflows.game import VoteGame
from hanabi_grpo.evaluation.matches import Served, Table, play_tables, start_numbers
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure
from hanabi_grpo.evaluation.tables import estimate_cells
from hanabi_grpo.runs.task_statistics import Estimate, difference, estimate
from hanabi_grpo.types import Episode, ReplyKind, Turn

SHARED = ("problems", "chain_terms", "chain_highest", "show", "style", "memory")
"""Fields that say what is asked and how it is worded; all workflows of a table have the same."""
_FIGURES = ("corrected", "misled", "agreement", "no answer")
_COLUMNS = ("lineup", "who answers", "right ± SE", "95 % interval", "tokens", *_FIGURES)
_NOTE = (
    "right: share of problems; of tied answers the mean. tokens: sampled for a problem; a "
    "script's reply counts as "
    "one. corrected: first answers that were wrong while the team's was right; misled: the "
    "reverse. agreement: pairs "
    "of last answers that are the same. no answer: replies that gave none."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRow:
    """One way to answer."""

    name: str
    right: Estimate
    tokens: float
    """Sampled for a problem, mean over problems."""
    figures: dict[str, float]
    """Of `_FIGURES` those that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamResult:
    """One lineup in one workflow."""

    workflow: str
    lineup: str
    rows: tuple[TeamRow, ...]
    gain: Estimate | None
    """The workflow's team minus the vote at as many tokens, problem by problem; None: it is that
    vote.
    """


def shared_setup(setup: Setup[Any], workflow: str) -> Setup[Any]:
    """Return another workflow over the same problems, with the number of seats and rounds of its
    preset.
    """
    if workflow == setup.env:
        return setup
    given = {name: getattr(setup.config, name) for name in SHARED}
    return registry.setup(workflow, registry.get(workflow).presets[workflow].model_dump() | given)


def evaluate_team(
    lineup: Lineup,
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str,
    served: Served | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TeamResult:
    """Play problems 0 to `num_tasks - 1` of a suite as the workflow of `setup` does, then the vote
    beside it.

    `progress` receives the number of problems done, at the end 2 `num_tasks`. Raises as
    `evaluate_lineup`."""
    starts = start_numbers(setup, suite, range(num_tasks))

    def play(game: Setup[Any], seats: int, num_games: int, before: int) -> Iterator[list[Episode]]:
        tables = [Table(seed, lineup.refs[:seats]) for seed in range(num_tasks)]
        done = before
        for groups in play_tables(
            tables, game, suite=suite, label=lineup.text, served=served, num_games=num_games
        ):
            yield from groups
            done += len(groups)
            progress(done)

    def row(
        name: str,
        values: Sequence[float],
        turns: Sequence[Sequence[Turn]],
        results: Sequence[Any] = (),
    ) -> TeamRow:
        figures = {
            one: fmean(found)
            for one in _FIGURES
            if (found := [done[one] for done in results if one in done])
        }
        kinds = [turn.kind is not ReplyKind.LEGAL for some in turns for turn in some]
        return TeamRow(
            name=name,
            right=estimate(tuple(values), starts),
            tokens=sum(map(_tokens, turns)) / num_tasks,
            figures=figures | {"no answer": fmean(kinds)},
        )

    games = [game for [game] in play(setup, setup.spec.num_players, 1, 0)]
    results = [game.result for game in games]
    finals = [result["final"] for result in results]
    first = [[turn for turn in game.turns if turn.step == 0] for game in games]
    seats = max(len(turns) for turns in first)
    spent = [_tokens(turns) / len(turns) for turns in first]
    whole = row(
        f"{setup.env} of {setup.spec.num_players}", finals, [game.turns for game in games], results
    )
    alone = row("one seat alone", [result["alone"] for result in results], first)
    rows = [replace(alone, tokens=fmean(spent))]
    gain = None
    if setup.env != VOTE.name:
        count = max(1, round(whole.tokens / fmean(spent)))
        vote = registry.setup(
            VOTE.name, shared_setup(setup, VOTE.name).config.model_dump() | {"players": seats}
        )
        asked = [
            [turn for game in group for turn in game.turns][:count]
            for group in play(vote, seats, -(-count // seats), num_tasks)
        ]
        votes = [_vote(vote, suite, seed, turns) for seed, turns in enumerate(asked)]
        rows.append(
            row(f"vote of {count}, as many tokens", [one["final"] for one in votes], asked, votes)
        )
        gain = difference([one["final"] for one in votes], finals, starts)
    # The last round is the team's own row.
    for number in range(sum(name.startswith("round_") for name in results[0]) - 1):
        said = [[turn for turn in game.turns if turn.step <= number] for game in games]
        rows.append(
            row(f"round {number + 1}", [result[f"round_{number + 1}"] for result in results], said)
        )
    progress(2 * num_tasks)
    return TeamResult(workflow=setup.env, lineup=lineup.label, rows=(*rows, whole), gain=gain)


def team_sheet(results: Sequence[TeamResult], title: str) -> Sheet:
    """Return one table of all results."""
    groups = []
    for result in results:
        rows = [
            (
                one.name,
                *estimate_cells(one.right),
                *map(figure, (one.tokens, *map(one.figures.get, _FIGURES))),
            )
            for one in result.rows
        ]
        if result.gain is not None:
            rows.append(
                (
                    f"{result.workflow} − that vote",
                    *estimate_cells(result.gain, "+"),
                    *[UNKNOWN] * (1 + len(_FIGURES)),
                )
            )
        groups.append(
            [(result.lineup if number == 0 else "", *row) for number, row in enumerate(rows)]
        )
    return Sheet(title=title, columns=_COLUMNS, groups=groups, num_names=2, note=_NOTE)


def team_document(results: Sequence[TeamResult], **about: Any) -> dict[str, Any]:
    """Return all figures as JSON has them."""
    return {
        **about,
        "results": [
            {
                **asdict(result),
                "rows": [{**asdict(one), "right": one.right.to_json()} for one in result.rows],
                "gain": result.gain and result.gain.to_json(),
            }
            for result in results
        ],
    }


def _tokens(turns: Sequence[Turn]) -> int:
    return sum(len(turn.reply_ids) or 1 for turn in turns)


def _vote(setup: Setup[Any], suite: str, seed: int, turns: Sequence[Turn]) -> dict[str, float]:
    problem = VOTE.problem(setup.config, split=suite, seed=seed)
    game = VoteGame(setup.config, (tuple(range(len(turns))),), VOTE.source(setup.config), problem)
    game.step({seat: turn.action for seat, turn in enumerate(turns)})
    return dict(game.result())
