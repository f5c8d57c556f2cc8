"""HANABI_JUDGE: a frozen model behind a URL that scores finished games, as the reward part `judge`.

Only the games that the session's trainer learns from are judged: guests never spend the judge's
tokens, and validation scores do not depend on it. The question is a template filled with the
messages and replies of the game; identical questions are asked once. A question is asked as long as
a game waits for its score in a request that the judge's failures have not ended. A call that fails,
or an answer without a score, raises a `PartnerError`; HANABI_JUDGE_FAILURE decides what happens to
the game (`server.judging`).
"""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from hanabi_grpo.agents.url_calls import MAX_FAILED_CALLS, Budget, CallLimits, UrlCalls
from hanabi_grpo.agents.url_client import UrlSampling
from hanabi_grpo.agents.url_transcript import Transcript
from hanabi_grpo.envs.base import Task
from hanabi_grpo.envs.texts import public_text, quote, without_markup
from hanabi_grpo.errors import PartnerError, SettingsError, shown
from hanabi_grpo.settings import Settings
from hanabi_grpo.settings.judge import judge_description
from hanabi_grpo.settings.judge_template import PLACEHOLDER, judge_template
from hanabi_grpo.settings.values import PartnerUrl, split_partner_url
from hanabi_grpo.types import Episode, Turn, player_name, task_name

BEST_SCORE = 10.0
"""The highest score that a judge gives; the lowest is 0."""
_SCORE_LINE = re.compile(
    r"score\W{0,8}?([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(?:/\s*10)?\W*", re.ASCII | re.IGNORECASE
)
"""The line that holds the score, e.g. "**Score:** 7/10"."""
_SIGN = re.compile(r"[-−–]\s*[0-9]")
_MAX_CACHED = 10_000
"""Maximum number of cached scores."""
_SILENT = "(nothing)"
"""Stands for a reply that consists only of thoughts, complete or cut off."""


@dataclass(slots=True, kw_only=True, eq=False)
class FailedCalls:
    """How many calls in a row failed in one request."""

    number: int = 0
    last: str = ""
    """Why the last of them failed."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Question:
    """A question to the judge."""

    text: str
    where: Mapping[str, Any]
    """Task and game that asked first, for the transcript."""
    waiting: Counter[FailedCalls] = field(default_factory=Counter)
    """How many games of each request wait for the score."""
    score: "asyncio.Task[float]" = field(init=False)
    """Asks it."""


class Judge:
    """The judge of one server process. Use it from one event loop only."""

    def __init__(self, settings: Settings, transcript: Path | None = None) -> None:
        """Prepare the judge; no call is made yet.

        Args:
            settings: Name the judge, its template and its limits (HANABI_JUDGE_…).
            transcript: File in which calls are recorded; None: they are not recorded.

        Raises:
            SettingsError: HANABI_JUDGE is unset, or HANABI_PARTNER_URLS has no such URL.
        """
        self.spec = settings.judge or ""
        """The policy spec of its URL, e.g. "url:big"."""
        urls: dict[str, PartnerUrl] = {}
        for entry in settings.partner_urls:
            url = split_partner_url(entry)
            urls[f"url:{url.name}"] = url
        if self.spec not in urls:
            known = ", ".join(urls) or "none"
            raise SettingsError(
                f"HANABI_JUDGE={self.spec}: HANABI_PARTNER_URLS has {known}; set it in the "
                "server's terminal, e.g. HANABI_PARTNER_URLS=big=http://localhost:8001/v1#MODEL."
            )
        self.agreement = judge_description(settings)
        """The judge settings that server and trainer must share."""
        url = urls[self.spec]
        self.model = f"{url.base}#{url.model}"
        """URL and model."""
        self.described = f"{self.agreement}; {self.model}"
        self.weight = settings.judge_weight
        """Reward of the best score."""
        self.failure = settings.judge_failure
        """See HANABI_JUDGE_FAILURE."""
        self._template = judge_template(settings.judge_template)
        self._sampling = UrlSampling(max_tokens=settings.judge_reply_tokens, temperature=0.0)
        calls = Transcript(transcript)
        self._budget = Budget(
            variable="HANABI_JUDGE_TOKENS",
            limit=settings.judge_tokens or None,
            spent=calls.spent().total,
        )
        self._calls = UrlCalls(
            urls,
            key=settings.partner_key.get_secret_value() if settings.partner_key else "",
            limits=CallLimits(
                seconds=settings.judge_timeout,
                variable="HANABI_JUDGE_TIMEOUT",
                at_once=settings.judge_requests,
                length_variable="HANABI_JUDGE_REPLY_TOKENS",
            ),
            transcript=calls,
            totals=lambda: {"spent": self._budget.spent, "guests_spent": 0},
        )
        self._questions: OrderedDict[str, _Question] = OrderedDict()
        """By text, least recently used first; includes questions still being asked."""

    @property
    def spent(self) -> int:
        """Tokens of all questions and answers so far, as the URL counted them."""
        return self._budget.spent

    async def score(self, task: Task[Any], episode: Episode, failed: FailedCalls) -> float:
        """Return the judge's score of a finished game, from 0 to 1.

        When the last game that waits for a question is cancelled, the question is cancelled too.

        Args:
            task: The task that was played.
            episode: The game.
            failed: Counter of the failed calls of the request.

        Raises:
            PartnerDownError: The budget is exhausted, or `MAX_FAILED_CALLS` consecutive calls of
                the request failed.
            PartnerError: The call failed, or the answer contains no score.
        """
        self._check(failed)
        question = self._ask_once(task, episode)
        question.waiting[failed] += 1
        try:
            # Cancelling one game must not cancel the call for other games that wait for it.
            return await asyncio.shield(question.score)
        except PartnerError:
            self._check(failed)
            raise
        finally:
            self._leave(question, failed)

    def _ask_once(self, task: Task[Any], episode: Episode) -> _Question:
        """Return the question about a game, and begin to ask it if it is new."""
        text = fill_template(self._template, task, episode)
        question = self._questions.get(text)
        if question is None:
            where = {
                "task": f"{episode.env} {task_name(episode.suite, episode.seed)}",
                "game": episode.game,
            }
            question = _Question(text=text, where=where)
            question.score = asyncio.create_task(self._ask(question))
            question.score.add_done_callback(partial(self._forget_failed, question))
            self._questions[text] = question
            if len(self._questions) > _MAX_CACHED:
                self._questions.popitem(last=False)
        self._questions.move_to_end(text)
        return question

    def _leave(self, question: _Question, failed: FailedCalls) -> None:
        """Count one waiting game less; a question without any is cancelled.

        Args:
            question: The question; it may have its score.
            failed: The request of the game.
        """
        question.waiting[failed] -= 1
        if not question.waiting[failed]:
            del question.waiting[failed]
        if not question.waiting and question.score.cancel():
            # Whoever asks the same from now on must not get the cancelled task.
            self._forget(question)

    async def _ask(self, question: _Question) -> float:
        messages = [{"role": "user", "content": question.text}]
        outcome = await self._calls.ask(
            self.spec,
            messages,
            self._sampling,
            budget=self._budget,
            where=question.where,
            check=partial(self._check_wanted, question),
        )
        # Requests that failures have ended do not go on.
        going_on = [failed for failed in question.waiting if failed.number < MAX_FAILED_CALLS]
        if outcome.reason:
            failure = f"judge {self._calls.describe(self.spec, outcome)}"
            for failed in going_on:
                failed.number += 1
                failed.last = failure
            raise PartnerError(failure)
        for failed in going_on:
            failed.number = 0
        score = read_score(outcome.reply)
        if score is None:
            raise PartnerError(
                f'judge {self.spec}: no line "Score: …" with a number from 0 to '
                f"{BEST_SCORE:g} in its answer: {shown(outcome.reply[-80:])}."
            )
        return score / BEST_SCORE

    def _check(self, failed: FailedCalls) -> None:
        """Raise a PartnerDownError if the calls of a request keep failing."""
        if failed.number >= MAX_FAILED_CALLS:
            raise self._calls.down(failed.last, failed.number)

    def _check_wanted(self, question: _Question) -> None:
        """Raise a PartnerDownError if failures have ended all requests that wait for a question."""
        self._check(min(question.waiting, key=attrgetter("number")))

    def _forget_failed(self, question: _Question, done: "asyncio.Task[float]") -> None:
        """Drop a failed question from the cache, so that it is asked again next time."""
        if done.cancelled() or done.exception() is not None:
            self._forget(question)

    def _forget(self, question: _Question) -> None:
        if self._questions.get(question.text) is question:
            del self._questions[question.text]


def read_score(answer: str) -> float | None:
    r"""Return the score on the last line of an answer that begins with "Score"; None without one.

    Example:
        read_score("Well argued.\n**Score: 7/10**") == 7.0
    """
    text = public_text(answer)
    for line in reversed((text or "").splitlines()):
        words = line.strip(" \t*_`#>")
        if not words.lower().startswith("score"):
            continue
        match = _SCORE_LINE.fullmatch(words)
        if match is None or _SIGN.search(words):
            return None
        score = float(match[1])
        return score if score <= BEST_SCORE else None
    return None


def fill_template(template: str, task: Task[Any], episode: Episode) -> str:
    """Return the question to the judge.

    Messages and replies are quoted, replies without thoughts, and nothing in them is a special
    token. Text that looks like a placeholder is left as it is.

    Args:
        template: Text with `{rules}`, `{prompt}`, `{reply}` and `{episode}`.
        task: The task that was played.
        episode: The game.
    """
    # Scripts are shown no message, and their replies need no judge.
    turns = [turn for turn in episode.turns if turn.prompt] or episode.turns
    last_step = [turn for turn in turns if turn.step == turns[-1].step]
    values = {
        "rules": task.environment.system_message(task.config, last_step[0].player),
        "prompt": _shown(last_step[0]),
        "reply": _said_together(last_step),
        "episode": "\n\n".join(map(_shown_and_said, episode.turns)),
    }
    return PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _said_together(turns: list[Turn]) -> str:
    """Return the replies of one step, with the players' names where there are several."""
    if len(turns) == 1:
        return _said(turns[0])
    return "\n\n".join(f"{player_name(turn.player)}:\n{_said(turn)}" for turn in turns)


def _shown_and_said(turn: Turn) -> str:
    name = player_name(turn.player)
    if not turn.prompt:
        return f"{name} answered:\n{_said(turn)}"
    return f"{name} was shown:\n{_shown(turn)}\n\n{name} answered:\n{_said(turn)}"


def _shown(turn: Turn) -> str:
    return quote(without_markup(turn.prompt))


def _said(turn: Turn) -> str:
    text = public_text(turn.reply)
    return quote(text) if text else _SILENT
