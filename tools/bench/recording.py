"""Games recorded reply by reply, and replayed.

Two arms are comparable if they do the same work. A `Recorder` sits between the scheduler and the
engine and records every request. A `ForcedSampler` lets the engine sample as usual, up to the
recorded length, but returns the recorded reply to the game. Prompts, their order and the moves are
then those of the recording, whoever plays.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hanabi_grpo.errors import ServerError
from hanabi_grpo.server.engine import Sample, SamplingConfig


class _Sampler(Protocol):
    async def generate(
        self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any, *game: Any
    ) -> Sample: ...

    @property
    def is_dead(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request to the engine and its answer."""

    reply_ids: tuple[int, ...]
    """The sampled tokens."""
    logprobs: tuple[float, ...] = ()
    """Logprobs of the sampled tokens; empty: unknown."""
    prompt_ids: tuple[int, ...] = ()
    """The whole conversation so far; empty: unknown, so not compared."""
    adapter: str = ""
    """Name without version, e.g. "player_0"; "" for the base model."""
    num_cached: int = 0
    """Prompt tokens that the engine did not compute."""
    started: float = 0.0
    """When it was sent, by time.perf_counter()."""
    ended: float = 0.0
    """When it was answered."""


GameCalls = tuple[Call, ...]
"""One game's calls, oldest first: each depends on the one before it."""


class _Numbering:
    """Numbers games in the order of their first call; each game is a separate asyncio task.

    The scheduler starts them group by group, so the same request gives the same numbers, except
    that games of one group may be swapped, which begin with the same prompt.
    """

    def __init__(self) -> None:
        self._numbers: dict[asyncio.Task[Any], int] = {}

    def number(self) -> int:
        task = asyncio.current_task()
        if task is None:
            raise ServerError(
                "a reply was requested outside any asyncio task; let the scheduler play the games."
            )
        return self._numbers.setdefault(task, len(self._numbers))


class Recorder:
    """Forwards calls and records them with their times."""

    def __init__(self, sampler: _Sampler) -> None:
        """Record what goes to `sampler`."""
        self._sampler = sampler
        self._numbering = _Numbering()
        self._games: list[list[Call]] = []

    @property
    def games(self) -> list[GameCalls]:
        """The games recorded so far, in order of their first calls."""
        return [tuple(calls) for calls in self._games]

    @property
    def is_dead(self) -> bool:
        """Whether the engine is dead."""
        return self._sampler.is_dead

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None, *game: Any
    ) -> Sample:
        """Sample one reply."""
        number = self._numbering.number()
        if number == len(self._games):
            self._games.append([])
        started = time.perf_counter()
        sample = await self._sampler.generate(prompt_ids, sampling, lora, *game)
        self._games[number].append(
            Call(
                prompt_ids=tuple(prompt_ids),
                reply_ids=sample.ids,
                logprobs=sample.logprobs,
                adapter=adapter_name(lora),
                num_cached=sample.num_cached_tokens,
                started=started,
                ended=time.perf_counter(),
            )
        )
        return sample


class ForcedSampler:
    """Lets the engine work, then returns the recorded replies."""

    def __init__(self, sampler: _Sampler, games: Sequence[GameCalls]) -> None:
        """Replay `games` on `sampler`."""
        self._sampler = sampler
        self._script = games
        self._numbering = _Numbering()
        self._made = [0] * len(games)
        self._refused = ""
        self.num_tokens = 0
        """Tokens sampled so far; fewer than recorded if the engine ends replies early."""

    def check_complete(self) -> None:
        """Reject an arm that did less or more than the recording.

        Raises:
            ServerError: Not every recorded call was made exactly once.
        """
        wrong = [
            number for number, game in enumerate(self._script) if self._made[number] != len(game)
        ]
        if wrong or self._refused:
            reason = f" ({self._refused})" if self._refused else ""
            raise ServerError(
                f"{len(wrong)} of {len(self._script)} games did not follow the recording{reason}; "
                "the two arms would not have done the same work."
            )

    @property
    def is_dead(self) -> bool:
        """Whether the engine is dead."""
        return self._sampler.is_dead

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingConfig, lora: Any | None, *game: Any
    ) -> Sample:
        """Sample a reply of the recorded length, and return the recorded one.

        Raises:
            ServerError: The game's request was not recorded, so the arms would not do the same
                work.
        """
        number = self._numbering.number()
        is_recorded_game = number < len(self._script)
        if not is_recorded_game or self._made[number] >= len(self._script[number]):
            raise self._refuse(
                f"game {number} asks for more replies than the {len(self._script)} recorded games "
                "have"
            )
        call = self._script[number][self._made[number]]
        self._made[number] += 1
        if call.prompt_ids and call.prompt_ids != tuple(prompt_ids):
            raise self._refuse(
                f"game {number}: its prompt {self._made[number]} is not the recorded one"
            )
        limited = replace(sampling, max_tokens=len(call.reply_ids))
        sample = await self._sampler.generate(prompt_ids, limited, lora, *game)
        self.num_tokens += len(sample.ids)
        logprobs = call.logprobs or (0.0,) * len(call.reply_ids)
        return replace(sample, ids=call.reply_ids, logprobs=logprobs)

    def _refuse(self, reason: str) -> ServerError:
        # The scheduler would treat it as a transient failure and play the game again.
        self._refused = self._refused or reason
        return ServerError(f"{reason}; record again with the same tasks.")


def adapter_name(lora: Any | None) -> str:
    """Return an engine handle's adapter without its version; "" for the base model."""
    return "" if lora is None else str(getattr(lora, "lora_name", lora)).split("@")[0]


def reply_tokens(games: Sequence[GameCalls]) -> int:
    """Return the number of tokens in the replies of these games."""
    return sum(len(call.reply_ids) for game in games for call in game)


def tail_share(games: Sequence[GameCalls], share: float = 0.1) -> float:
    """Return the time during which the last `share` of the games end, over the total time.

    Args:
        games: At least one game with a call.
        share: With 0.1, the time starts when nine tenths of the games have ended.
    """
    ends = sorted(game[-1].ended for game in games if game)
    start = min(game[0].started for game in games if game)
    total = ends[-1] - start
    if total <= 0:
        return 0.0
    num_before_tail = math.ceil(len(ends) * (1 - share))
    tail_start = ends[max(0, num_before_tail - 1)]
    return (ends[-1] - tail_start) / total


def mean_active(games: Sequence[GameCalls]) -> float:
    """Return the mean number of games in play over the whole time, divided by the number of games.

    A game counts from the first game's start to its own last reply, because all were requested at
    once.
    """
    played = [game for game in games if game]
    start = min(game[0].started for game in played)
    end = max(game[-1].ended for game in played)
    if end <= start:
        return 1.0
    time_in_play = sum(game[-1].ended - start for game in played)
    return time_in_play / (end - start) / len(played)
