"""The hat bot, thinking aloud: it writes down the sums by which it reads and gives hints.

A move of the bot (`policies.hat`) may take seven advices and two sums modulo the number of advice
values. A small model cannot compute that in one step, but it can learn each part: the advice for
one hand, one addition, one card. A thought has three parts, each only if the bot got so far:

- the number of the last hint; then, for each hand in sight but the giver's, the advice at the time
  of the hint, and what remains of the number. The last remainder is the player's own advice. If it
  is to play a card, and others have scored since: what hints tell of that card, and for each card
  that scored, whether the own card may be another copy;
- for each other player's hand, the advice now, whether the player has been told, and the sum so
  far. The last sum is the number of the hint that the player can give;
- if it gives that hint: to whom, the newest card there, and the oldest card that the hint touches
  if it does not touch the newest one. The number says who gets the hint and whether it touches the
  newest card, and the cards say which colour or rank that takes.

A number is written as the advice that it stands for. In the compact style, `player_0` to `player_4`
name players at the time of the hint, and `mate1` to `mate4` the players now, in turns, as in the
prompt. A thought of player_2 with five players:

    player_4 play2 player_3 play2 play0 player_0 play2 discard2 player_1 play1 discard1 say
    mate1 play2 told mate2 play0 play2 mate3 play0 play2 mate4 play0 play2 mate1 Y 3 W 5

player_4's hint stands for play2, the number 2 of 8. The hand of player_3 had the advice play2,
which leaves 0 (play0), that of player_0 play2, which leaves 6 (discard2), and that of player_1
play1, which leaves 5: player_2 should discard slot 1. It gives a hint first, with the number
2 + 0 + 0 + 0 = 2. That is a hint to the next player, player_3, that does not touch its newest card,
the yellow 3, so it names white, the colour of its oldest other card. If the advice had been to play
slot 1, and a white 2 had scored since, the prompt's words for that slot and for that move would
come before "say", and behind them "maybe" if the card in slot 1 could be another white 2
(`policies.hat.Scored`): with HANABI_DEDUCTIONS=counted, "slot1fit2 cRW r2 Play 0 W2 good maybe".
"""

import random
from typing import Any

from hanabi_grpo.envs.base import Observation, Script, Seat, Task
from hanabi_grpo.envs.hanabi.policies.aloud import SUFFIX, with_thought
from hanabi_grpo.envs.hanabi.policies.hat import (
    Code,
    Convention,
    Decision,
    HatBot,
    check_players,
    decide,
    scored_since,
)
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text
from hanabi_grpo.envs.hanabi.prompts.compact import (
    MAY_BE_OWN,
    TOLD,
    WILL_HINT,
    advice_word,
    mate_words,
    move_words,
    own_card_words,
)
from hanabi_grpo.envs.hanabi.prompts.deductions import Deductions
from hanabi_grpo.envs.hanabi.prompts.full import card_name, known_text
from hanabi_grpo.envs.hanabi.rules.view import (
    COLOR_LETTERS,
    Action,
    Card,
    PlayerView,
)
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
        check_players(convention.spec, name=self.name)

        def write(decision: Decision, view: PlayerView) -> str:
            if config.observation == "compact":
                return thought_words(decision, view, config.deductions)
            return thought_sentences(decision, view)

        def choose(seen: Observation, rng: random.Random) -> str:
            view = seen.view()
            decision = decide(convention, view, rng)
            return with_thought(write(decision, view), move_text(seen, decision.move))

        return Script(self.name, choose).seat(player, task=task, game=game)


def thought_words(decision: Decision, view: PlayerView, deductions: Deductions) -> str:
    """Return a thought as words of `compact_vocabulary`, separated by single spaces.

    Args:
        decision: What the bot worked out.
        view: What the bot may know.
        deductions: The level of the prompt, whose words for a card and for a move are repeated.
    """
    names = player_names(view.num_players)
    words = []
    decoded = decision.decoded
    if decoded is not None:
        words += [names[decoded.giver], _word(decoded.code, decoded.number)]
        for share, left in zip(decoded.shares, decoded.remainders, strict=True):
            words += [names[share.seat], _word(decoded.code, share.advice)]
            words.append(_word(decoded.code, left))
        scored_cards = scored_since(decoded, view)
        if scored_cards:
            words += own_card_words(view, decoded.move.slot, deductions)
        for scored in scored_cards:
            words += move_words(scored.event, view, deductions)
            if scored.may_be_advised:
                words.append(MAY_BE_OWN)
    encoded = decision.encoded
    if encoded is not None:
        words.append(WILL_HINT)
        for share, total in zip(encoded.shares, encoded.sums, strict=True):
            words += [_mate_word(view, share.seat), _word(encoded.code, share.advice)]
            if share.is_told:
                words.append(TOLD)
            if share is not encoded.shares[0]:
                words.append(_word(encoded.code, total))
    return " ".join([*words, *hint_words(decision.move, view)])


def hint_words(move: Action, view: PlayerView) -> list[str]:
    """Return the last part of a thought, which decides what a hint names; empty for other moves."""
    if move.target < 0:
        return []
    words = [_mate_word(view, move.target)]
    for card in cards_of_hint(move, view):
        words += [COLOR_LETTERS[card.color], str(card.rank + 1)]
    return words


def cards_of_hint(move: Action, view: PlayerView) -> list[Card]:
    """Return the cards that decide which colour or rank a hint names; none for other moves.

    Returns:
        The newest card of the player who gets the hint; behind it, if the hint does not touch it,
        the oldest card that the hint touches.
    """
    if move.target < 0:
        return []
    hand = view.hands[move.target]
    touched = [card for card in hand if _value(move, card) == move.value]
    if hand[-1] in touched:
        return [hand[-1]]
    return [hand[-1], touched[0]]


def _value(hint: Action, card: Card) -> int:
    return card.color if hint.kind == "hint_color" else card.rank


def _mate_word(view: PlayerView, seat: int) -> str:
    """Return the word before a player's present hand in a prompt, e.g. "mate1" for the next one.

    A prompt may also hold earlier hands (HANABI_DEDUCTIONS=recalled), after `player_0` and so on.
    """
    offset = (seat - view.player) % view.num_players
    return mate_words(view.num_players)[offset - 1]


def _word(code: Code, number: int) -> str:
    return advice_word(code.advised(number))


def thought_sentences(decision: Decision, view: PlayerView) -> str:
    """Return a thought as English sentences, a line for each hand.

    Args:
        decision: What the bot worked out.
        view: What the bot may know.
    """
    names = player_names(view.num_players)
    lines = []
    decoded = decision.decoded
    if decoded is not None:
        number = _text(decoded.code, decoded.number)
        lines.append(f"The last hint, by {names[decoded.giver]}, stands for {number}.")
        for share, left in zip(decoded.shares, decoded.remainders, strict=True):
            advice = _text(decoded.code, share.advice)
            rest = _text(decoded.code, left)
            lines.append(f"Then {names[share.seat]} had to {advice}. That leaves {rest}.")
        scored_cards = scored_since(decoded, view)
        if scored_cards:
            slot = decoded.move.slot
            lines.append(f"My slot {slot}: {known_text(view.own_hand[slot], view)}.")
        for scored in scored_cards:
            line = f"Then {card_name(scored.event.card)} was played."
            if scored.may_be_advised:
                line += " My card may be the same."
            lines.append(line)
    encoded = decision.encoded
    if encoded is not None:
        for share, total in zip(encoded.shares, encoded.sums, strict=True):
            line = f"{names[share.seat]} should {_text(encoded.code, share.advice)}."
            if share.is_told:
                line += " It knows that."
            if share is not encoded.shares[0]:
                line += f" Together {_text(encoded.code, total)}."
            lines.append(line)
    cards = cards_of_hint(decision.move, view)
    for place, card in zip(("newest", "oldest touched"), cards, strict=False):
        target = names[decision.move.target]
        lines.append(f"The {place} card of {target} is {card_name(card)}.")
    return "\n".join(lines)


def _text(code: Code, number: int) -> str:
    action = code.advised(number)
    return f"{action.kind} slot {action.slot}"
