"""The hat bot, thinking aloud: it writes down the sums by which it reads and gives hints.

A move of the bot (`policies.hat`) may take seven advices and two sums modulo the number of advice
values. A small model cannot compute that in one step, but it can learn each part: the advice for
one hand, and one addition. A thought has two parts, each only if the bot got so far:

- the number of the last hint; then, for each hand in sight but the giver's, the advice at the time
  of the hint, and what remains of the number. The last remainder is the player's own advice;
- for each other player's hand, the advice now, whether the player has been told, and the sum so
  far. The last sum is the number of the player's own hint.

A number is written as the advice that it stands for. A thought of player_4 in the compact style,
with five players:

    player_2 play2 player_0 play1 play1 player_1 play3 discard2 player_3 play0 discard2 say
    player_0 play1 told player_1 play3 told discard0 player_2 play2 discard2 player_3 play0 discard2

player_2's hint stands for play2, the number 2 of 8. The hand of player_0 had the advice play1,
which leaves 1 (play1), that of player_1 play3, which leaves 6 (discard2), and so on: the own advice
is discard2. The hint that player_4 could give also has the number 6: 1 + 3 + 2 + 0.
"""

import random
from collections.abc import Iterator
from typing import Any

from hanabi_grpo.envs.base import Observation, Script, Seat, Task
from hanabi_grpo.envs.hanabi.policies.aloud import SUFFIX
from hanabi_grpo.envs.hanabi.policies.hat import (
    Code,
    Convention,
    Decision,
    Decoded,
    Encoded,
    HatBot,
    check_players,
    decide,
)
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text
from hanabi_grpo.envs.hanabi.prompts.compact import TOLD, WILL_HINT, advice_word
from hanabi_grpo.types import player_names


class HatAloud:
    """The policy of this module. It plays as `HatBot` does."""

    def __init__(self, *, is_plain: bool = False) -> None:
        """Return the bot that thinks aloud.

        Args:
            is_plain: See `Convention.is_plain`.
        """
        self.name = HatBot(is_plain=is_plain).name + SUFFIX
        self._is_plain = is_plain

    def seat(self, player: int, *, task: Task[Any], game: int) -> Seat:
        """Return a seat, see `base.Policy.seat`; SettingsError with two players."""
        config = task.setup.config
        convention = Convention(config.spec(), self._is_plain)
        check_players(convention.spec)
        write = thought_words if config.observation == "compact" else thought_sentences

        def choose(seen: Observation, rng: random.Random) -> str:
            decision = decide(convention, seen.view(), rng)
            thought = write(decision, convention.spec.num_players)
            return f"<think>\n{thought}\n</think>\n{move_text(seen, decision.move)}"

        return Script(self.name, choose).seat(player, task=task, game=game)


def thought_words(decision: Decision, num_players: int) -> str:
    """Return a thought as words of `compact_vocabulary`, separated by single spaces.

    Args:
        decision: What the bot worked out.
        num_players: Players of the game.
    """
    names = player_names(num_players)
    words = []
    decoded = decision.decoded
    if decoded is not None:
        words += [names[decoded.giver], _word(decoded.code, decoded.number)]
        for share, left in zip(decoded.shares, remainders(decoded), strict=True):
            words += [names[share.seat], _word(decoded.code, share.advice)]
            words.append(_word(decoded.code, left))
    encoded = decision.encoded
    if encoded is not None:
        words.append(WILL_HINT)
        for share, total in zip(encoded.shares, sums(encoded), strict=True):
            words += [names[share.seat], _word(encoded.code, share.advice)]
            if share.is_told:
                words.append(TOLD)
            if share is not encoded.shares[0]:
                words.append(_word(encoded.code, total))
    return " ".join(words)


def _word(code: Code, number: int) -> str:
    return advice_word(code.advised(number))


def thought_sentences(decision: Decision, num_players: int) -> str:
    """Return a thought as English sentences, a line for each hand.

    Args:
        decision: What the bot worked out.
        num_players: Players of the game.
    """
    names = player_names(num_players)
    lines = []
    decoded = decision.decoded
    if decoded is not None:
        number = _text(decoded.code, decoded.number)
        lines.append(f"The last hint, by {names[decoded.giver]}, stands for {number}.")
        for share, left in zip(decoded.shares, remainders(decoded), strict=True):
            advice = _text(decoded.code, share.advice)
            rest = _text(decoded.code, left)
            lines.append(f"Then {names[share.seat]} had to {advice}. That leaves {rest}.")
    encoded = decision.encoded
    if encoded is not None:
        for share, total in zip(encoded.shares, sums(encoded), strict=True):
            line = f"{names[share.seat]} should {_text(encoded.code, share.advice)}."
            if share.is_told:
                line += " It knows that."
            if share is not encoded.shares[0]:
                line += f" Together {_text(encoded.code, total)}."
            lines.append(line)
    return "\n".join(lines)


def _text(code: Code, number: int) -> str:
    action = code.advised(number)
    return f"{action.kind} slot {action.slot}"


def remainders(decoded: Decoded) -> Iterator[int]:
    """Yield what is left of a hint's number after each share; the last is the own advice."""
    left = decoded.number
    for share in decoded.shares:
        left = (left - share.advice) % decoded.code.modulus
        yield left


def sums(encoded: Encoded) -> Iterator[int]:
    """Yield the sum of the shares up to each one; the last is the number of the hint."""
    total = 0
    for share in encoded.shares:
        total = (total + share.advice) % encoded.code.modulus
        yield total
