"""Puzzles in parts: the team against its exact ceilings, one seat alone and a vote.

One seat alone and the vote answer the same puzzles but hear randomly drawn words, so that each seat
knows only its own part.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hanabi_grpo.client.lineups import Lineup
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.envs.parts.puzzle import Puzzle
from hanabi_grpo.envs.starts import start_numbers
from hanabi_grpo.envs.workflows.answers import majority_worth
from hanabi_grpo.evaluation.matches import Served
from hanabi_grpo.evaluation.sheets import Sheet
from hanabi_grpo.evaluation.teams import (
    Problems,
    TeamResult,
    TeamRow,
    result_sheet,
    votes_for,
)
from hanabi_grpo.runs.task_statistics import Estimate, difference
from hanabi_grpo.types import Episode, Turn

PUZZLES = ("split_sum", "hat_line")
"""Names of the puzzles in parts."""
LEAST_VOTES = 3
"""Least number of answers of a vote, even where the team's tokens pay for fewer."""
_BITS_NEEDED = "bits needed"
_FIGURES = ("words_used", "word_bits", _BITS_NEEDED, "no answer")
"""Columns of a row's `figures`."""
_NOTE = (
    "right: share of correct answers. One seat alone and the vote hear randomly drawn words. "
    "tokens: sampled per puzzle; a script's reply counts as one. words_used: distinct words of the "
    "first seat; word_bits: their entropy; bits needed: to match the best team. no answer: share "
    "of replies without an answer. The two rows of the best are exact."
)


def puzzle_setup(setup: Setup[Any], name: str) -> Setup[Any]:
    """Return a puzzle with the style and memory of another game.

    Args:
        setup: The game of the settings, which may be the puzzle itself.
        name: Name of the puzzle.
    """
    if setup.env == name:
        return setup
    config = registry.get(name).presets[name].model_dump()
    common = {field: getattr(setup.config, field) for field in ("style", "memory")}
    return registry.setup(name, config | common)


def evaluate_puzzle(
    lineup: Lineup,
    setup: Setup[Any],
    num_tasks: int,
    *,
    suite: str,
    served: Served | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TeamResult:
    """Play puzzles 0 to `num_tasks - 1` of a suite, then again with randomly drawn words.

    Args:
        lineup: The seat assignment.
        setup: The puzzle.
        num_tasks: Number of puzzles.
        suite: Suite of the puzzles.
        served: How models are played; needed unless scripts fill every seat.
        progress: Receives the number of puzzles done, up to 2 * `num_tasks`.

    Raises:
        SettingsError: As `evaluate_lineup`.
        ServerError: As `evaluate_lineup`.
    """
    environment = setup.environment
    if not isinstance(environment, Puzzle):
        raise TypeError(f"{setup.env} is not a puzzle in parts")
    problems = Problems(
        lineup=lineup,
        suite=suite,
        num_tasks=num_tasks,
        starts=start_numbers(setup, suite, range(num_tasks)),
        served=served,
    )
    num_players = setup.spec.num_players
    refs = lineup.refs[:num_players]
    games: list[Episode] = []
    for group in problems.play(setup, refs, 1, progress):
        games += group
    rights = [game.result["right"] for game in games]
    team = problems.row(f"{setup.env} of {num_players}", rights, [game.turns for game in games])
    used = setup.metrics(games)
    figures = {name: used[name] for name in ("words_used", "word_bits")}
    figures[_BITS_NEEDED] = environment.bits_needed(setup.config)
    team = replace(team, figures=team.figures | figures)

    deaf = Setup(environment, setup.config.model_copy(update={"channel": "random"}))
    answering = set(environment.reset(setup.config, split=suite, seed=0).answers())
    tokens_alone = sum(problems.cost(_answers(game, answering)) for game in games) / num_tasks
    if not tokens_alone:
        raise problems.nothing_fits(setup)
    num_votes = max(LEAST_VOTES, votes_for(team.tokens, tokens_alone))

    def count(done: int) -> None:
        progress(num_tasks + done)

    alone_rights = []
    vote_rights = []
    alone_turns = []
    vote_turns = []
    for seed, group in enumerate(problems.play(deaf, refs, num_votes, count)):
        right = environment.reset(deaf.config, split=suite, seed=seed).answers()
        answers = [_answers(game, answering) for game in group]
        alone_rights.append(group[0].result["right"])
        alone_turns.append(answers[0])
        votes = []
        for seat, right_answer in right.items():
            given = [turn.action for turns in answers for turn in turns if turn.player == seat]
            votes.append(majority_worth(given, [float(text == right_answer) for text in given]))
        vote_rights.append(sum(votes) / len(votes))
        vote_turns.append([turn for turns in answers for turn in turns])
    name_of_vote = f"vote of {num_votes}, at least as many {problems.unit}"
    rows = (
        _exact("best without words", environment.ceiling_without_words(setup.config), num_tasks),
        problems.row("one seat alone", alone_rights, alone_turns),
        problems.row(name_of_vote, vote_rights, vote_turns),
        team,
        _exact("best team", setup.spec.attainable or 0.0, num_tasks),
    )
    progress(2 * num_tasks)
    gain = difference(vote_rights, rights, problems.starts)
    return TeamResult(workflow=setup.env, lineup=lineup.label, rows=rows, gain=gain)


def _answers(game: Episode, answering: set[int]) -> list[Turn]:
    """Return the turns of the seats whose words are answers."""
    return [turn for turn in game.turns if turn.player in answering]


def _exact(name: str, value: float, num_tasks: int) -> TeamRow:
    """Return the row of an exactly computed figure."""
    right = Estimate(
        mean=value,
        standard_error=0.0,
        low=value,
        high=value,
        num_tasks=num_tasks,
        num_starts=num_tasks,
    )
    return TeamRow(name=name, right=right, tokens=0.0, figures={})


def puzzle_sheet(results: Sequence[TeamResult], title: str) -> Sheet:
    """Return one table of all results."""
    return result_sheet(results, title, figure_names=_FIGURES, note=_NOTE)
