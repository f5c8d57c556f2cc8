"""Is a team worth its tokens? A workflow against one seat alone, and a vote that costs no less.

The vote has as many answers as are needed to cost at least the workflow's tokens: independent first
answers of the same seats, taken in turn. A team that does not beat this vote gains nothing from its
workflow.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.instructions import instruction_of_seats
from hanabi_grpo.envs.starts import start_numbers
from hanabi_grpo.envs.workflows.environment import VOTE, Workflow
from hanabi_grpo.envs.workflows.game import VoteGame
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.matches import Served, Table, play_tables
from hanabi_grpo.evaluation.sheets import UNKNOWN, Sheet, figure
from hanabi_grpo.evaluation.tables import estimate_cells
from hanabi_grpo.runs.task_statistics import Estimate, difference, estimate
from hanabi_grpo.settings.refs import Ref, UrlRef
from hanabi_grpo.types import Episode, ReplyKind, Turn

SHARED = (
    "problems",
    "verify",
    "chain_terms",
    "chain_highest",
    "show",
    "style",
    "memory",
    "tools",
    "tool_calls",
    "tool_timeout",
)
"""Fields of the problems, their wording and the tools, which all workflows of a table share."""
_NO_ANSWER = "no answer"
_FIGURES = ("corrected", "misled", "agreement", _NO_ANSWER)
"""Columns of a row's `figures`."""
_COLUMNS = ("lineup", "answered by", "right ± SE", "95 % interval", "tokens")
"""Columns before those of the figures."""
_NOTE = (
    "right: share of problems answered correctly; a tie counts as the mean of the tied answers. "
    "tokens: sampled per problem; a script's reply counts as one, and beside a model behind a URL, "
    "whose tokens are unknown, every reply does. corrected: share of first "
    "answers that were wrong while the team's was right; misled: the reverse. agreement: share of "
    "pairs of last answers that are the same. no answer: share of replies without an answer. "
    "Standard errors are clustered by problem: a problem that came up twice is one cluster."
)
_ROUNDING = 1e-9
"""A quotient of costs that exceeds a whole number by less is that number."""
_ROUND = "round_"
"""Prefix of the figures with the result of each round's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamRow:
    """One way to answer."""

    name: str
    """E.g. "one seat alone", "vote of 4, at least as many tokens", "debate of 2"."""
    right: Estimate
    """Share of problems that were answered correctly."""
    tokens: float
    """Mean cost per problem in tokens, or in replies (`Problems.unit`); 0 where nobody played."""
    figures: dict[str, float]
    """Values of the `_FIGURES` that the row has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamResult:
    """One lineup in one workflow."""

    workflow: str
    """Name of the environment."""
    lineup: str
    """Label of the lineup."""
    rows: tuple[TeamRow, ...]
    gain: Estimate | None
    """The workflow's team minus the vote at no fewer tokens, paired by problem; None: the workflow
    is that vote."""
    num_too_long: int = 0
    """Problems of the workflow that leave no room for a first reply; they count as wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problems:
    """The problems that a lineup answers."""

    lineup: Lineup
    suite: str
    num_tasks: int
    starts: tuple[int, ...]
    """Cluster of each problem."""
    served: Served | None

    @property
    def unit(self) -> str:
        """What an answer costs is counted in: "tokens", or "replies" with a model behind a URL.

        Such a model does not say how many tokens a reply has.
        """
        has_url = any(isinstance(ref, UrlRef) for ref in self.lineup.refs)
        return "replies" if has_url else "tokens"

    def nothing_fits(self, setup: Setup[Any]) -> SettingsError:
        """Return the error for problems that all leave no room for a reply."""
        return SettingsError(
            f"{setup.env}: none of {self.num_tasks} problems fits into HANABI_MAX_MODEL_LEN beside "
            "a reply of MAX_COMPLETION_LENGTH tokens; raise the one or lower the other."
        )

    def cost(self, turns: Sequence[Turn]) -> int:
        """Return what some turns cost in `unit`; a script's reply counts as one."""
        if self.unit == "replies":
            return len(turns)
        return sum(len(turn.reply_ids) or 1 for turn in turns)

    def play(
        self,
        setup: Setup[Any],
        refs: Sequence[Ref],
        num_games: int,
        count: Callable[[int], None],
    ) -> Iterator[list[Episode]]:
        """Play every problem `num_games` times.

        Args:
            setup: The workflow.
            refs: The seat assignment.
            num_games: Games of each problem.
            count: Receives the number of problems done.

        Yields:
            The games of one problem.
        """
        tables = [Table(seed, tuple(refs)) for seed in range(self.num_tasks)]
        num_done = 0
        for groups in play_tables(
            tables,
            setup,
            suite=self.suite,
            label=self.lineup.text,
            served=self.served,
            num_games=num_games,
        ):
            yield from groups
            num_done += len(groups)
            count(num_done)

    def row(
        self,
        name: str,
        shares_right: Sequence[float],
        turns: Sequence[Sequence[Turn]],
        results: Sequence[Mapping[str, float]] = (),
    ) -> TeamRow:
        """Return the row of one way to answer.

        Args:
            name: Name of the row.
            shares_right: Per problem, how correct the answer was, 0 to 1.
            turns: Per problem, its turns.
            results: Per problem, the result of its game; the figures are averages of these.
        """
        figures = {}
        for figure_name in _FIGURES:
            values = []
            for result in results:
                if figure_name in result:
                    values.append(result[figure_name])
            if values:
                figures[figure_name] = fmean(values)
        is_no_answer = []
        num_tokens = 0
        for problem_turns in turns:
            num_tokens += self.cost(problem_turns)
            for turn in _answers(problem_turns):
                is_no_answer.append(turn.kind is not ReplyKind.LEGAL)
        if is_no_answer:
            figures[_NO_ANSWER] = fmean(is_no_answer)
        return TeamRow(
            name=name,
            right=estimate(tuple(shares_right), self.starts),
            tokens=num_tokens / self.num_tasks,
            figures=figures,
        )


def shared_setup(setup: Setup[Any], workflow: str, **fields: Any) -> Setup[Any]:
    """Return another workflow over the same problems, with the instructions of its seats.

    Args:
        setup: One workflow.
        workflow: Name of the other.
        fields: Fields of its config that are not those of its own preset, e.g. `players`.
    """
    if workflow == setup.env:
        return setup
    config = registry.get(workflow).presets[workflow].model_dump()
    for name in SHARED:
        config[name] = getattr(setup.config, name)
    shared = registry.setup(workflow, config | fields)
    instruction = instruction_of_seats(setup.config.instruction or "", shared.spec.num_players)
    if not instruction:
        return shared
    return registry.setup(workflow, config | fields | {"instruction": instruction})


def evaluate_team(
    lineup: Lineup,
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str,
    served: Served | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TeamResult:
    """Answer problems 0 to `num_tasks - 1` of a suite in a workflow, then by a vote.

    Args:
        lineup: The seat assignment.
        setup: The workflow.
        num_tasks: Number of problems.
        suite: Suite of the problems.
        served: How models are played; needed unless scripts fill every seat.
        progress: Receives the number of problems done, up to 2 * `num_tasks`.

    Raises:
        SettingsError: As `evaluate_lineup`; or no problem fits into the context.
        ServerError: As `evaluate_lineup`.
    """
    problems = Problems(
        lineup=lineup,
        suite=suite,
        num_tasks=num_tasks,
        starts=start_numbers(setup, suite, range(num_tasks)),
        served=served,
    )
    num_players = setup.spec.num_players
    games: list[Episode] = []
    for group in problems.play(setup, lineup.refs[:num_players], 1, progress):
        games += group
    results = [game.result for game in games]
    finals = [result["final"] for result in results]
    firsts = [result["alone"] for result in results]
    all_turns = [game.turns for game in games]
    first_turns = _turns_up_to(games, 0)
    # Per problem, the number of first answers, and the mean tokens of one with its tool calls.
    num_first_answers = [len(_answers(turns)) for turns in first_turns]
    tokens_alone = []
    for problem_turns, num_answers in zip(first_turns, num_first_answers, strict=True):
        # A problem that is too long for the context has no answer.
        if num_answers:
            tokens_alone.append(problems.cost(problem_turns) / num_answers)
    if not tokens_alone:
        raise problems.nothing_fits(setup)

    team = problems.row(f"{setup.env} of {num_players}", finals, all_turns, results)
    alone = problems.row("one seat alone", firsts, first_turns)
    rows = [replace(alone, tokens=fmean(tokens_alone))]
    gain = None
    if setup.env != VOTE.name:
        tokens_of_team = team.tokens * num_tasks / len(tokens_alone)
        num_votes = votes_for(tokens_of_team, fmean(tokens_alone))
        vote = _play_vote(problems, setup, max(num_first_answers), num_votes, progress)
        rows.append(vote.row)
        gain = difference(vote.finals, finals, problems.starts)
    # The last round is the team's own row.
    num_rounds = sum(name.startswith(_ROUND) for name in results[0])
    for number in range(1, num_rounds):
        shares_right = [result[f"{_ROUND}{number}"] for result in results]
        turns = _turns_up_to(games, _step_of_round(setup, number))
        rows.append(problems.row(f"round {number}", shares_right, turns))
    rows.append(team)
    progress(2 * num_tasks)
    return TeamResult(
        workflow=setup.env,
        lineup=lineup.label,
        rows=tuple(rows),
        gain=gain,
        num_too_long=num_first_answers.count(0),
    )


def votes_for(cost_of_team: float, cost_of_answer: float) -> int:
    """Return the least number of answers that cost no less than the team, at least one.

    Args:
        cost_of_team: Mean cost of the team per problem.
        cost_of_answer: Mean cost of one answer.

    Example:
        votes_for(50, 20) == 3
    """
    return max(1, math.ceil(cost_of_team / cost_of_answer - _ROUNDING))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vote:
    """The vote that samples at least as many tokens as the workflow."""

    row: TeamRow
    finals: list[float]
    """Per problem, how correct its answer was."""


def _play_vote(
    problems: Problems,
    setup: Setup[Any],
    num_seats: int,
    num_answers: int,
    progress: Callable[[int], None],
) -> _Vote:
    """Let the same seats vote on each problem.

    Args:
        problems: The problems of the workflow.
        setup: The workflow.
        num_seats: Seats that give a first answer in the workflow; in the vote they take turns.
        num_answers: Answers of each vote.
        progress: Receives the number of problems done, including those of the workflow.
    """
    vote_setup = shared_setup(setup, VOTE.name, players=num_seats)
    num_games = math.ceil(num_answers / num_seats)
    refs = problems.lineup.refs[:num_seats]

    def count(done: int) -> None:
        progress(problems.num_tasks + done)

    turns = []
    results = []
    for seed, group in enumerate(problems.play(vote_setup, refs, num_games, count)):
        # Per game and seat, its tool calls and then its answer.
        trajectories = [game.trajectory(seat) for game in group for seat in range(num_seats)]
        group_turns: list[Turn] = []
        # The last game may give more answers than the vote has.
        for trajectory in trajectories[:num_answers]:
            group_turns += trajectory
        turns.append(group_turns)
        answers = _answers(group_turns)
        results.append(_count_votes(vote_setup, problems.suite, seed, answers))
    finals = [result["final"] for result in results]
    name = f"vote of {num_answers}, at least as many {problems.unit}"
    row = problems.row(name, finals, turns, results)
    return _Vote(row=row, finals=finals)


def _count_votes(
    setup: Setup[Any], suite: str, seed: int, turns: Sequence[Turn]
) -> dict[str, float]:
    """Return the result of one vote over the answers of some turns; no answers are wrong."""
    if not turns:
        return dict.fromkeys(("final", "alone", "corrected", "misled"), 0.0)
    problem = VOTE.problem(setup.config, split=suite, seed=seed)
    all_seats_at_once = (tuple(range(len(turns))),)
    game = VoteGame(setup.config, all_seats_at_once, VOTE.source(setup.config), problem)
    actions = {seat: turn.action for seat, turn in enumerate(turns)}
    game.step(actions)
    return dict(game.result())


def _step_of_round(setup: Setup[Any], number: int) -> int:
    """Return the step in which round `number`, counted from 1, is answered."""
    workflow = setup.environment
    if isinstance(workflow, Workflow):
        return workflow.step_of_round(setup.config, number)
    return number - 1


def _turns_up_to(games: Sequence[Episode], step: int) -> list[list[Turn]]:
    """Return each game's turns of steps 0 to `step`."""
    turns_of_games = []
    for game in games:
        turns_of_games.append([turn for turn in game.turns if turn.step <= step])
    return turns_of_games


def _answers(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns that answer, without tool calls."""
    return [turn for turn in turns if not turn.is_call]


def team_sheet(results: Sequence[TeamResult], title: str) -> Sheet:
    """Return one table of all results."""
    return result_sheet(results, title, figure_names=_FIGURES, note=_NOTE)


def result_sheet(
    results: Sequence[TeamResult], title: str, *, figure_names: Sequence[str], note: str
) -> Sheet:
    """Return one table of results with the same figures.

    Args:
        results: The results.
        title: Its title.
        figure_names: Figures of the rows, shown in the last columns.
        note: What the columns mean.
    """
    groups = []
    for result in results:
        rows: list[tuple[str, ...]] = []
        for row in result.rows:
            label = "" if rows else result.lineup
            cells = [label, row.name, *estimate_cells(row.right), figure(row.tokens)]
            for name in figure_names:
                cells.append(figure(row.figures.get(name)))
            rows.append(tuple(cells))
        if result.gain is not None:
            unknown = [UNKNOWN] * (1 + len(figure_names))
            name = f"{result.workflow} − vote"
            rows.append(("", name, *estimate_cells(result.gain, "+"), *unknown))
        groups.append(rows)
    columns = (*_COLUMNS, *figure_names)
    return Sheet(title=title, columns=columns, groups=groups, num_names=2, note=note)


def team_document(results: Sequence[TeamResult], **about: Any) -> dict[str, Any]:
    """Return all figures as a JSON object; `about` holds further facts of the evaluation."""
    documents = []
    for result in results:
        rows = []
        for row in result.rows:
            rows.append({**asdict(row), "right": row.right.to_json()})
        gain = None if result.gain is None else result.gain.to_json()
        documents.append({**asdict(result), "rows": rows, "gain": gain})
    return {**about, "results": documents}
