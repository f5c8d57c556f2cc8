"""Where problems come from: sums of one's own, a file, or reasoning-gym.

A source makes problem number n. Which split a problem belongs to follows from its question alone,
by a hash, so no question is ever in two of them: of ten shares `test` has one, `eval-…`
(validation) one, `eval` one, training the rest."""

import functools
import hashlib
import importlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hanabi_grpo.envs import base
from hanabi_grpo.envs.workflows.answers import same
from hanabi_grpo.errors import SettingsError, VerifierError, did_you_mean, shown

CHAIN_SUM = "chain_sum"
REASONING_GYM = "reasoning-gym:"
ALLOWED = f"{CHAIN_SUM}, a file of JSON lines (*.jsonl), {REASONING_GYM}DATASET"
_SHARES = ("eval", "eval-", "test")
"""Of the first tenths; training has the others."""
_ATTEMPTS = 20_000
_POOL = 20_000
"""Problems of a data set of reasoning-gym; some of its generators make all of them at once."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and what answers it."""

    question: str
    answer: str
    """The solution, which no player sees; "" where the source only knows one when it sees it."""
    work: tuple[str, ...] = ()
    """Results on the way to it, which a tiny model writes down as well, since it can add two
    numbers but not three.
    """
    entry: Any = None
    """What a verifier of another package needs."""


@dataclass(frozen=True, slots=True)
class Source:
    """Problems by number."""

    name: str
    digest: str
    """Of all that makes the problems; a part of the environment's hash."""
    make: Callable[[int], Problem]
    score: Callable[[Problem, str], float] = lambda problem, answer: float(
        same(answer) == same(problem.answer)
    )

    def is_right(self, problem: Problem, answer: str) -> bool:
        """Tell whether an answer is fully right; a VerifierError where the source's verifier fails,
        so nobody knows.
        """
        try:
            return float(self.score(problem, answer)) >= 1.0
        except Exception as error:  # whatever another package's verifier raises
            raise VerifierError(
                f"{self.name}: its verifier raised {type(error).__name__} ({error!s:.100}) for "
                "the answer "
                f"{shown(answer)} to {shown(problem.question)}; the episode does not count. If "
                "all of them fail, "
                "choose other HANABI_PROBLEMS."
            ) from error


@functools.lru_cache(maxsize=4096)
def draw_problem(source: Source, split: str, seed: int) -> Problem:
    """Return problem `seed` of a split, the same on every machine; SettingsError where the split
    has none.
    """
    name = split.removeprefix("split-")
    share = next((one for one in ("test", "eval-", "eval") if name.startswith(one)), "train")
    for attempt in range(_ATTEMPTS):
        problem = source.make(base.draw("problem", split, seed, attempt, below=1 << 62))
        if share_of(problem.question) == share:
            return problem
    raise SettingsError(
        f"HANABI_PROBLEMS={source.name}: no problem for the split {split!r}; give more of them."
    )


def share_of(question: str) -> str:
    """Return the share that a question belongs to: "train", "eval", "eval-" or "test"."""
    return dict(enumerate(_SHARES)).get(
        base.draw("share", " ".join(question.split()), below=10), "train"
    )


@functools.lru_cache(maxsize=16)
def load_source(problems: str, terms: int, highest: int) -> Source:
    """Return the source of HANABI_PROBLEMS, a file read once a process; a SettingsError: no or bad
    problems.
    """
    if problems == CHAIN_SUM:
        return Source(
            problems,
            f"{CHAIN_SUM} 1 {terms} {highest}",
            lambda number: chain_sum(number, terms, highest),
        )
    if problems.startswith(REASONING_GYM):
        return _reasoning_gym(problems)
    if problems.endswith(".jsonl"):
        return _file(problems)
    raise SettingsError(f"HANABI_PROBLEMS={shown(problems)}: allowed: {ALLOWED}.")


def chain_sum(number: int, terms: int, highest: int) -> Problem:
    """Return e.g. 3 + 4 - 2; every number from 0 on, every sign as likely."""
    numbers = [base.draw(CHAIN_SUM, number, place, below=highest + 1) for place in range(terms)]
    signs = [
        1,
        *(
            1 - 2 * base.draw(CHAIN_SUM, "sign", number, place, below=2)
            for place in range(1, terms)
        ),
    ]
    rest = (
        f" {'+' if sign > 0 else '-'} {value}"
        for sign, value in zip(signs[1:], numbers[1:], strict=True)
    )
    sums = itertools.accumulate(sign * value for sign, value in zip(signs, numbers, strict=True))
    *work, total = map(str, sums)
    return Problem(f"{numbers[0]}{''.join(rest)} = ?", total, tuple(work[1:]))


def _file(name: str) -> Source:
    """Read a file of {"question": …, "answer": …}; as in GSM8K, the answer is what follows the last
    ####.
    """
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: cannot be read ({error.strerror})."
        ) from error
    found: dict[str, tuple[Problem, int]] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"HANABI_PROBLEMS={name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{where}: not JSON ({error!s:.80}).") from error
        fields = row if isinstance(row, dict) else {}
        question, answer = (str(fields.get(key) or "").strip() for key in ("question", "answer"))
        problem = Problem(question, answer.rpartition("####")[2].strip())
        if not (problem.question and problem.answer):
            missing = "question" if not question else "answer"
            raise SettingsError(
                f'{where}: no "{missing}"; each line needs {{"question": …, "answer": …}}.'
            )
        known, first = found.setdefault(problem.question, (problem, number))
        if same(known.answer) != same(problem.answer):
            raise SettingsError(
                f"{where}: the question of line {first} with another answer; keep one of them."
            )
    rows = [problem for problem, _ in found.values()]
    if absent := sorted({*_SHARES, "train"} - {share_of(one.question) for one in rows}):
        raise SettingsError(
            f"HANABI_PROBLEMS={name}: {len(rows)} different problems, of which none falls to "
            f"{', '.join(absent)} by "
            "the hash of its question; give more of them, some 100 or more."
        )
    return Source(
        name, hashlib.sha256(content).hexdigest(), lambda number: rows[number % len(rows)]
    )


def _reasoning_gym(name: str) -> Source:
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
    made = factory.create_dataset(dataset, seed=0, size=_POOL)

    def make(number: int) -> Problem:
        entry = made[number % _POOL]
        return Problem(
            entry["question"], "" if entry["answer"] is None else str(entry["answer"]), (), entry
        )

    version = metadata.version("reasoning-gym")
    return Source(
        name,
        f"{name} {version}",
        make,
        lambda problem, answer: made.score_answer(answer, problem.entry),
    )
