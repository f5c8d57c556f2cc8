"""Where problems come from: sums of one's own, a file, or reasoning-gym.

A source makes problem number n. Which split a problem belongs to follows from its question alone,
by a hash, so no question is ever in two of them: of ten shares `test` has one, `eval-…`
(validation) one, `eval` one, training the rest.
"""

import functools
import hashlib
import importlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows.answers import normalize
from hanabi_grpo.errors import SettingsError, VerifierError, did_you_mean, shown

CHAIN_SUM = "chain_sum"
REASONING_GYM = "reasoning-gym:"
ALLOWED = f"{CHAIN_SUM}, a file of JSON lines (*.jsonl), {REASONING_GYM}DATASET"
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
_FILE_ENDING = ".jsonl"
_SHA256 = "sha256:"
MAX_FILE_BYTES = 256 << 20
"""Longest file of problems; GSM8K has 4 MB."""
_GSM8K_MARK = "####"
"""What stands before the answer at the end of a solution in GSM8K."""


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

    @property
    def public_name(self) -> str:
        """The name without a path, which may differ from machine to machine."""
        return self.name.rpartition("/")[2]

    @property
    def public_digest(self) -> str:
        """The digest of a file as "sha256:…", else the whole digest."""
        return f"{_SHA256}{self.digest}" if self.name.endswith(_FILE_ENDING) else self.digest

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


@functools.lru_cache(maxsize=4096)
def draw_problem(source: Source, split: str, seed: int) -> Problem:
    """Return problem `seed` of a split, the same on every machine.

    Raises:
        SettingsError: The source has no problem for the split.
    """
    share = _share_of_split(split)
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
    if problems.endswith(_FILE_ENDING):
        return _read_file(problems)
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


def _read_file(name: str) -> Source:
    """Read a file of {"question": …, "answer": …}.

    As in GSM8K, the answer is what follows the last ####.
    """
    content = _read_bytes(name)
    problems: dict[str, Problem] = {}
    first_lines: dict[str, int] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"HANABI_PROBLEMS={name}, line {number}"
        problem = _read_line(line, where)
        question = problem.question
        if question not in problems:
            problems[question] = problem
            first_lines[question] = number
        elif normalize(problems[question].answer) != normalize(problem.answer):
            raise SettingsError(
                f"{where}: the question of line {first_lines[question]} with another answer; keep "
                "one of them."
            )
    shares = {share_of(question) for question in problems}
    absent = sorted({*_SHARES, _TRAINING} - shares)
    if absent:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {len(problems)} different problems, of which none falls to "
            f"{', '.join(absent)} by the hash of its question; give more of them, some 100 or more."
        )
    rows = list(problems.values())
    return Source(
        name=name,
        digest=hashlib.sha256(content).hexdigest(),
        make=lambda number: rows[number % len(rows)],
    )


def _read_bytes(name: str) -> bytes:
    """Return the content of a regular file; a pipe or a device may never end."""
    if "\0" in name:
        raise SettingsError(f"HANABI_PROBLEMS={shown(name)}: a file's name has no NUL.")
    try:
        # O_NONBLOCK: opening a pipe would wait for its other end.
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_regular(name, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                # No more: it may grow meanwhile.
                return file.read(MAX_FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: cannot be read ({error.strerror})."
        ) from error


def _check_regular(name: str, status: os.stat_result) -> None:
    """Refuse what is no regular file, or is too large, by a SettingsError."""
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: is no regular file; give a file of JSON lines."
        )
    if status.st_size > MAX_FILE_BYTES:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {status.st_size} bytes, at most {MAX_FILE_BYTES} are read; "
            "leave some problems out."
        )


def _read_line(line: bytes, where: str) -> Problem:
    """Return the problem of one line of a file.

    Args:
        line: A JSON object.
        where: File and line for errors.

    Raises:
        SettingsError: The line is not JSON or lacks a question or an answer.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where}: not JSON ({error!s:.80}).") from error
    fields = row if isinstance(row, dict) else {}
    question = str(fields.get("question") or "").strip()
    solution = str(fields.get("answer") or "").strip()
    answer = solution.rpartition(_GSM8K_MARK)[2].strip()
    if not question or not answer:
        missing = "answer" if question else "question"
        raise SettingsError(
            f'{where}: no "{missing}"; each line needs {{"question": …, "answer": …}}.'
        )
    return Problem(question, answer)


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
