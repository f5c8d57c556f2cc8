"""Sources of problems: generated sums, files, or reasoning-gym.

A source creates problem number n. A hash of the question determines the split of a problem, so no
question is ever in two splits: of ten equal shares, `test`, `eval-…` (validation) and `eval` get
one each, and training gets the rest. A folder with separate files for `train` and `test` keeps
them: its test file is all of `test`, and its training file is divided among the other splits.
"""

import functools
import importlib
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows.answers import is_same
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
"""Shares that get one tenth of all questions each; training gets the rest."""
_TRAINING = "train"
_NUM_SHARES = 10
_CHAIN_SUM_VERSION = 1
"""Part of the digest; increased when the same number generates another sum."""
_ATTEMPTS = 20_000
"""Maximum number of problems drawn until one belongs to the requested split."""
_NUM_PROBLEMS = 1 << 62
"""Range of numbers from which problems are drawn."""
_POOL = 20_000
"""Number of problems per reasoning-gym data set; some generators make all of them at once."""
_RIGHT = 1.0
"""Score of a fully correct answer; lower scores are a verifier's partial credit."""
_SHA256 = "sha256:"
_UNREPEATABLE = ("codeio",)
"""Data sets of reasoning-gym 0.1.25 whose problem with a number differs from process to process.

This one runs snippets of code, whose results depend on the time and much else."""
_IN_ORDER_OF_HASHES = (
    "intermediate_integration",
    "isomorphic_strings",
    "knight_swap",
    "polynomial_multiplication",
    "ransom_note",
    "word_ladder",
)
"""Data sets of reasoning-gym 0.1.25 that iterate over sets of texts as they make a problem.

That order depends on Python's hash seed, which differs from process to process unless
PYTHONHASHSEED fixes it."""
_FROM_GLOBAL_GENERATOR = ("list_functions",)
"""Data sets of reasoning-gym 0.1.25 that also draw from Python's global generator."""
_LOCK = threading.RLock()
"""Held while the global generator is seeded for one problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its solution."""

    question: str
    answer: str
    """The solution, which no player sees; "" if the source can only verify answers."""
    work: tuple[str, ...] = ()
    """Intermediate results.

    A tiny model writes them down, too, because it can add two numbers but not three."""
    entry: Any = None
    """Data for another package's verifier."""


def _equals_solution(problem: Problem, answer: str) -> float:
    return float(is_same(problem.answer, answer))


@dataclass(frozen=True, slots=True)
class Source:
    """Problems by number."""

    name: str
    """The value of HANABI_PROBLEMS."""
    digest: str
    """Digest of everything that determines the problems; part of the environment's hash."""
    make: Callable[[int], Problem]
    """Returns the problem with a given number."""
    score: Callable[[Problem, str], float] = _equals_solution
    """Returns the score of an answer to a problem; 1.0 is correct."""
    verifier: str = ""
    """Name and version of the package that compares answers; "": the source itself does."""
    is_local: bool = False
    """Whether the name is a path on this machine."""
    by_share: Mapping[str, Sequence[Problem]] | None = field(default=None, compare=False)
    """The problems of each share, in task order, if the source defines the shares itself; None: the
    hash of the question determines the share."""

    @property
    def public_name(self) -> str:
        """The name without its path, which may differ between machines."""
        return self.name.rstrip("/").rpartition("/")[2]

    @property
    def public_digest(self) -> str:
        """The digest as "sha256:…" for files, otherwise unchanged."""
        return f"{_SHA256}{self.digest}" if self.is_local else self.digest

    def is_right(self, problem: Problem, answer: str) -> bool:
        """Return whether an answer is fully correct.

        Raises:
            VerifierError: The source's verifier failed, so the result is unknown.
        """
        try:
            return float(self.score(problem, answer)) >= _RIGHT
        except Exception as error:  # another package's verifier may raise anything
            raise VerifierError(
                f"{self.name}: its verifier raised {type(error).__name__} ({error!s:.100}) for the "
                f"answer {shown(answer)} to {shown(problem.question)}; the episode is discarded. "
                "If all episodes fail, choose other HANABI_PROBLEMS."
            ) from error


def _equals_or_means_solution(problem: Problem, answer: str) -> float:
    if _equals_solution(problem, answer):
        return _RIGHT
    return float(means_the_same(problem.answer, answer))


def with_math(source: Source) -> Source:
    """Return a source that compares answers with math-verify if their texts differ.

    Raises:
        SettingsError: The package is missing, or the source has its own verifier.
    """
    if source.name == CHAIN_SUM:
        raise SettingsError(
            f"HANABI_VERIFY=math with HANABI_PROBLEMS={CHAIN_SUM}: its answers are numbers, which "
            "are always compared as numbers; unset HANABI_VERIFY."
        )
    if source.score is not _equals_solution:
        raise SettingsError(
            f"HANABI_VERIFY=math with HANABI_PROBLEMS={source.name}, which has its own verifier; "
            "unset HANABI_VERIFY."
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
        f"HANABI_PROBLEMS={source.name}: no problem for the split {split!r}; add more problems."
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
    """Return the source for a value of HANABI_PROBLEMS; a file is read once per process.

    This opens paths, so a path from another program's request must never reach it (see
    `envs.access`).

    Args:
        problems: The value of HANABI_PROBLEMS.
        terms: Number of terms of a chain sum.
        highest: Largest term of a chain sum.

    Raises:
        SettingsError: The source does not exist, or its problems are invalid.
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


# Unlimited: no request may evict a source from the cache and cause it to be read again.
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
    """Return a sum such as 3 + 4 - 2, with uniformly drawn numbers and signs."""
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
    """Return the source for one file, whose questions are split by their hash."""
    content = read_problem_file(name)
    rows = [Problem(row.question, row.answer) for row in content.rows]
    shares = {share_of(problem.question) for problem in rows}
    absent = sorted({*_SHARES, _TRAINING} - shares)
    if absent:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {len(rows)} distinct problems, but the hashes of their "
            f"questions assign none to {', '.join(absent)}; give at least about 100 problems."
        )
    return Source(
        name=name,
        digest=content.digest,
        make=lambda number: rows[number % len(rows)],
        is_local=True,
    )


def _folder(name: str) -> Source:
    """Return the source for a folder, which defines its own test set."""
    content = read_problem_folder(name)
    if content.num_left_out:
        logger.warning(
            "HANABI_PROBLEMS=%s: %d questions of its train or validation files are also in a later "
            "split; they are only used there.",
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
            f"HANABI_PROBLEMS={name}: train has {len(content.rows[TRAIN])} distinct problems, but "
            f"the hashes of their questions assign none to {', '.join(absent)}; give at least "
            "about 100 problems."
        )
    ordered = {}
    for share, problems in by_share.items():
        # Files may be sorted by difficulty; shuffling makes tasks 0 to n - 1 a random sample.
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
    """Return the share of a question from one of a folder's files."""
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
    """Return the source for e.g. "reasoning-gym:leg_counting"."""
    try:
        # Only this source needs the package.
        factory = importlib.import_module("reasoning_gym.factory")
        importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: needs reasoning-gym ({error}). Install it on every machine "
            "of the run: uv pip install reasoning-gym==0.1.25."
        ) from error
    dataset = name.removeprefix(REASONING_GYM)
    if dataset not in factory.DATASETS:
        hint = did_you_mean(dataset, factory.DATASETS)
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: no such data set; {hint}{len(factory.DATASETS)} are "
            "available."
        )
    _check_repeatable(name, dataset)
    entries = factory.create_dataset(dataset, seed=0, size=_POOL)
    is_seeded_here = dataset in _FROM_GLOBAL_GENERATOR

    def make(number: int) -> Problem:
        place = number % _POOL
        with _seeded_generator(place) if is_seeded_here else nullcontext():
            entry = entries[place]
        answer = "" if entry["answer"] is None else str(entry["answer"])
        return Problem(entry["question"], answer, entry=entry)

    def score(problem: Problem, answer: str) -> float:
        return entries.score_answer(answer, problem.entry)

    digest = f"{name} {metadata.version('reasoning-gym')}"
    if dataset in _IN_ORDER_OF_HASHES:
        # Another version of Python may hash, or order a set, in another way.
        digest += f" PYTHONHASHSEED=0 Python {sys.version_info.major}.{sys.version_info.minor}"
    if is_seeded_here:
        digest += " seeded"
    return Source(name=name, digest=digest, make=make, score=score)


def _check_repeatable(name: str, dataset: str) -> None:
    """Reject a data set whose problems would differ from process to process.

    Args:
        name: The value of HANABI_PROBLEMS.
        dataset: Name of the data set.
    """
    if dataset in _UNREPEATABLE:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: this data set makes a different problem from the same number "
            "in each process, so a task would not be the same for everyone; choose another one."
        )
    # Python hashes texts with a random seed in each process, unless the variable is 0 at its start.
    if dataset in _IN_ORDER_OF_HASHES and sys.flags.hash_randomization:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: its problems depend on Python's hash seed, which differs "
            "between processes. Set PYTHONHASHSEED=0 in the environment of every process of the "
            "run, in both terminals, or choose a data set other than "
            f"{', '.join(_IN_ORDER_OF_HASHES)}."
        )


@contextmanager
def _seeded_generator(seed: int) -> Iterator[None]:
    """Seed Python's global generator within the block, and restore it afterward."""
    with _LOCK:
        outer_state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(outer_state)
