"""Where problems come from: sums of one's own, files, or reasoning-gym.

A source makes problem number n. Which split a problem belongs to follows from its question alone,
by a hash, so no question is ever in two of them: of ten shares `test` has one, `eval-…`
(validation) one, `eval` one, training the rest. A folder with files of its own for `train` and
`test` keeps them: all of `test` is its test file, and the others are shares of its training file.
"""

import functools
import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows.answers import normalize
from hanabi_grpo.envs.workflows.math_answers import load_math_verify, means_the_same
from hanabi_grpo.envs.workflows.problem_files import (
    FILE_ENDINGS,
    TEST,
    TRAIN,
    VALIDATION,
    is_problem_folder,
    read_problem_file,
    read_problem_folder,
)
from hanabi_grpo.errors import SettingsError, VerifierError, did_you_mean, shown

logger = logging.getLogger(__name__)

CHAIN_SUM = "chain_sum"
REASONING_GYM = "reasoning-gym:"
ALLOWED = (
    f"{CHAIN_SUM}, a file of JSON lines (*.jsonl) or parquet (*.parquet), a folder with train and "
    f"test files of either kind, {REASONING_GYM}DATASET"
)
_SHARES = ("eval", "eval-", "test")
"""Shares that have the first tenths of all questions, one each; training has the others."""
_TRAINING = "train"
_NUM_SHARES = 10
_CHAIN_SUM_VERSION = 1
"""Part of the digest; goes up when the same number makes another sum."""
_ATTEMPTS = 20_000
"""Problems that are drawn at most until one belongs to the wanted split."""
_NUM_PROBLEMS = 1 << 62
"""Numbers from which problems are drawn."""
_POOL = 20_000
"""Problems of a data set of reasoning-gym; some of its generators make all of them at once."""
_RIGHT = 1.0
"""Score of a fully right answer; less is a verifier's partial credit."""
_SHA256 = "sha256:"


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and what answers it."""

    question: str
    answer: str
    """The solution, which no player sees; "" where the source only knows one when it sees it."""
    work: tuple[str, ...] = ()
    """Results on the way to it.

    A tiny model writes them down as well, since it can add two numbers but not three."""
    entry: Any = None
    """What a verifier of another package needs."""


def _equals_solution(problem: Problem, answer: str) -> float:
    return float(normalize(answer) == normalize(problem.answer))


@dataclass(frozen=True, slots=True)
class Source:
    """Problems by number."""

    name: str
    """The value of HANABI_PROBLEMS."""
    digest: str
    """Of all that makes the problems; a part of the environment's hash."""
    make: Callable[[int], Problem]
    """Returns the problem of a number."""
    score: Callable[[Problem, str], float] = _equals_solution
    """Returns what an answer to a problem is worth, 1.0 for a right one."""
    verifier: str = ""
    """Name and version of the package that compares answers; "": none but the source's own."""
    is_local: bool = False
    """Whether the name is a path of this machine."""
    by_share: Mapping[str, Sequence[Problem]] | None = field(default=None, compare=False)
    """The problems of each share where the source says which these are, in the order of their
    tasks; None: the hash of a question says it."""

    @property
    def public_name(self) -> str:
        """The name without a path, which may differ from machine to machine."""
        return self.name.rstrip("/").rpartition("/")[2]

    @property
    def public_digest(self) -> str:
        """The digest of files as "sha256:…", else the whole digest."""
        return f"{_SHA256}{self.digest}" if self.is_local else self.digest

    def is_right(self, problem: Problem, answer: str) -> bool:
        """Tell whether an answer is fully right.

        Raises:
            VerifierError: The source's verifier failed, so nobody knows.
        """
        try:
            return float(self.score(problem, answer)) >= _RIGHT
        except Exception as error:  # whatever another package's verifier raises
            raise VerifierError(
                f"{self.name}: its verifier raised {type(error).__name__} ({error!s:.100}) for the "
                f"answer {shown(answer)} to {shown(problem.question)}; the episode does not count. "
                "If all of them fail, choose other HANABI_PROBLEMS."
            ) from error


def _equals_or_means_solution(problem: Problem, answer: str) -> float:
    if _equals_solution(problem, answer):
        return _RIGHT
    return float(means_the_same(problem.answer, answer))


def with_math(source: Source) -> Source:
    """Return a source whose answers are compared by math-verify where their texts differ.

    Raises:
        SettingsError: The package is missing, or the source has a verifier of its own.
    """
    if source.name == CHAIN_SUM:
        raise SettingsError(
            f"HANABI_VERIFY=math with HANABI_PROBLEMS={CHAIN_SUM}: its answers are numbers, which "
            "are compared as numbers anyway; unset HANABI_VERIFY."
        )
    if source.score is not _equals_solution:
        raise SettingsError(
            f"HANABI_VERIFY=math with HANABI_PROBLEMS={source.name}, which has a verifier of its "
            "own; unset HANABI_VERIFY."
        )
    return replace(source, score=_equals_or_means_solution, verifier=load_math_verify())


@functools.lru_cache(maxsize=4096)
def draw_problem(source: Source, split: str, seed: int) -> Problem:
    """Return problem `seed` of a split, the same on every machine.

    Raises:
        SettingsError: The source has no problem for the split.
    """
    share = _share_of_split(split)
    if source.by_share is not None:
        problems = source.by_share[share]
        return problems[seed % len(problems)]
    for attempt in range(_ATTEMPTS):
        problem = source.make(base.draw("problem", split, seed, attempt, below=_NUM_PROBLEMS))
        if share_of(problem.question) == share:
            return problem
    raise SettingsError(
        f"HANABI_PROBLEMS={source.name}: no problem for the split {split!r}; give more of them."
    )


def _share_of_split(split: str) -> str:
    name = split.removeprefix("split-")
    for share in ("test", "eval-", "eval"):
        if name.startswith(share):
            return share
    return _TRAINING


def share_of(question: str) -> str:
    """Return the share that a question belongs to: "train", "eval", "eval-" or "test"."""
    number = base.draw("share", " ".join(question.split()), below=_NUM_SHARES)
    if number < len(_SHARES):
        return _SHARES[number]
    return _TRAINING


def load_source(problems: str, terms: int, highest: int) -> Source:
    """Return the source of HANABI_PROBLEMS; a file is read once per process.

    A path is opened here, so a request of another program must never come this far with one of its
    own (see `envs.access`).

    Args:
        problems: The value of HANABI_PROBLEMS.
        terms: Numbers of a chain sum.
        highest: The greatest number of a chain sum.

    Raises:
        SettingsError: There is no such source, or its problems are bad.
    """
    if problems == CHAIN_SUM:
        return _chain_sums(terms, highest)
    return _load_outside(problems)


@functools.lru_cache(maxsize=16)
def _chain_sums(terms: int, highest: int) -> Source:
    return Source(
        name=CHAIN_SUM,
        digest=f"{CHAIN_SUM} {_CHAIN_SUM_VERSION} {terms} {highest}",
        make=lambda number: chain_sum(number, terms, highest),
    )


# Without a limit: nothing that a request says may push a source out, which would be read again.
@functools.cache
def _load_outside(problems: str) -> Source:
    if problems.startswith(REASONING_GYM):
        return _reasoning_gym(problems)
    if problems.endswith(FILE_ENDINGS):
        return _file(problems)
    if is_problem_folder(problems):
        return _folder(problems)
    raise SettingsError(f"HANABI_PROBLEMS={shown(problems)}: allowed: {ALLOWED}.")


def chain_sum(number: int, terms: int, highest: int) -> Problem:
    """Return e.g. 3 + 4 - 2; every number from 0 on, every sign as likely."""
    total = base.draw(CHAIN_SUM, number, 0, below=highest + 1)
    question = str(total)
    sums = []
    for index in range(1, terms):
        value = base.draw(CHAIN_SUM, number, index, below=highest + 1)
        is_negative = base.draw(CHAIN_SUM, "sign", number, index, below=2) == 1
        if is_negative:
            question += f" - {value}"
            total -= value
        else:
            question += f" + {value}"
            total += value
        sums.append(str(total))
    *work, answer = sums
    return Problem(f"{question} = ?", answer, tuple(work))


def _file(name: str) -> Source:
    """Return the source of one file, whose questions are divided by their hash."""
    content = read_problem_file(name)
    rows = [Problem(row.question, row.answer) for row in content.rows]
    shares = {share_of(problem.question) for problem in rows}
    absent = sorted({*_SHARES, _TRAINING} - shares)
    if absent:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {len(rows)} different problems, of which none falls to "
            f"{', '.join(absent)} by the hash of its question; give more of them, some 100 or more."
        )
    return Source(
        name=name,
        digest=content.digest,
        make=lambda number: rows[number % len(rows)],
        is_local=True,
    )


def _folder(name: str) -> Source:
    """Return the source of a folder, which says itself what is tested on."""
    content = read_problem_folder(name)
    if content.num_left_out:
        logger.warning(
            "HANABI_PROBLEMS=%s: %d questions of its train or validation files are in a later "
            "split too; they stay there alone.",
            name,
            content.num_left_out,
        )
    by_share: dict[str, list[Problem]] = {share: [] for share in (*_SHARES, _TRAINING)}
    has_validation = VALIDATION in content.rows
    for split, rows in content.rows.items():
        for row in rows:
            share = _share_in_folder(split, row.question, has_validation)
            by_share[share].append(Problem(row.question, row.answer))
    absent = sorted(share for share, problems in by_share.items() if not problems)
    if absent:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: train has {len(content.rows[TRAIN])} different problems, of "
            f"which none falls to {', '.join(absent)} by the hash of its question; give more of "
            "them, some 100 or more."
        )
    ordered = {}
    for share, problems in by_share.items():
        # Files may be sorted by difficulty; tasks 0 to n - 1 are a sample.
        ordered[share] = tuple(sorted(problems, key=_shuffled_place))
    everything = tuple(problem for problems in ordered.values() for problem in problems)
    return Source(
        name=name,
        digest=content.digest,
        make=lambda number: everything[number % len(everything)],
        is_local=True,
        by_share=ordered,
    )


def _share_in_folder(split: str, question: str, has_validation: bool) -> str:
    """Return the share of a question of one of a folder's files."""
    if split == TEST:
        return "test"
    if split == VALIDATION:
        return "eval-"
    share = share_of(question)
    is_given_away = share == "test" or (share == "eval-" and has_validation)
    return _TRAINING if is_given_away else share


def _shuffled_place(problem: Problem) -> int:
    return base.draw("place", " ".join(problem.question.split()), below=_NUM_PROBLEMS)


def _reasoning_gym(name: str) -> Source:
    """Return the source of e.g. "reasoning-gym:leg_counting"."""
    try:
        # Another package, which only this source needs.
        factory = importlib.import_module("reasoning_gym.factory")
        importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: needs reasoning-gym ({error}); on every machine of the run: "
            "uv pip install reasoning-gym==0.1.25."
        ) from error
    dataset = name.removeprefix(REASONING_GYM)
    if dataset not in factory.DATASETS:
        hint = did_you_mean(dataset, factory.DATASETS)
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: no such data set; {hint}{len(factory.DATASETS)} are known."
        )
    entries = factory.create_dataset(dataset, seed=0, size=_POOL)

    def make(number: int) -> Problem:
        entry = entries[number % _POOL]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        return Problem(entry["question"], answer, entry=entry)

    def score(problem: Problem, answer: str) -> float:
        return entries.score_answer(answer, problem.entry)

    version = metadata.version("reasoning-gym")
    return Source(name=name, digest=f"{name} {version}", make=make, score=score)
