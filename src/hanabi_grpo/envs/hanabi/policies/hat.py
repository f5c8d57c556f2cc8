"""The hat bot: one hint advises every other player at once, for three players and more.

Source: the recommendation strategy of Cox et al., "How to Make the Perfect Fireworks Display: Two
Strategies for Hanabi" (Mathematics Magazine, 2015), which reads Hanabi as a puzzle of hats. Each
hand has an *advice*, a number: play slot 0, 1, ..., or discard slot 0, 1, .... A hint stands for a
number, too, its *class*. The giver picks the class that is the sum of all advice to the others,
modulo the number of advices. Each of them sees every hand but its own and the giver's, subtracts
what the others are advised, and what is left is its own advice.

The paper has five players and the whole board. What stands here for any board of three and more:

- **Classes** are those that every hand allows. A hint names its target, and either touches the
  target's newest card, by rank or by colour, or leaves it out. There is surely one that leaves it
  out where the hand has more cards than there can be of one kind, three; elsewhere that class does
  not count. That makes 6, 9 and 12 classes for three, four and five players on the whole board;
  the paper has two for each target.
- **Advices** are as many as classes, and at most two for each card of a hand: a slot to play, then
  a slot to discard, as many as there is room for. Three players on the whole board have five slots
  to play and one number for "nothing to play"; with that number alone a player discards the card
  that is least likely to be missed.
- **A player moves** by the last hint since its own last move, so by what is in its view and what
  the others have done since. It plays as it is advised if that surely scores, or probably and a
  life can be spared: of the cards that fitted when the hint was given, some may have been played
  since. Else it plays what surely fits, gives a hint that tells somebody to play who was not told
  by the last one, discards as advised, or gives any hint.

The code does not depend on the order of colours, so players who see them in different orders
(Other-Play) understand each other. Between two players there is no code: giver and receiver see no
hand in common.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text
from hanabi_grpo.envs.hanabi.policies.rules import play_safe_card
from hanabi_grpo.envs.hanabi.prompts.deductions import DEAD, FITS, LATER, ONLY, Counted
from hanabi_grpo.envs.hanabi.rules.actions import discard, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Event, Knowledge, PlayerView
from hanabi_grpo.errors import SettingsError

LEAST_PLAYERS = 3
"""Players of the smallest table at which a hint can advise."""
_LEAST_CHANCE = 0.7
"""Least chance to fit at which an advised card is played that does not surely fit."""
_LEAST_LIVES_FOR_RISK = 2
"""Lives from which on a card is played that may not fit."""


class _Moment(NamedTuple):
    """The table when a move was made, as one player sees it."""

    view: PlayerView
    """With the stacks, discards and hands of that time; all else is of now."""
    sizes: tuple[int, ...]
    """Per seat the number of cards in hand."""


class _Class(NamedTuple):
    """Hints that stand for one number."""

    target: int
    """Seat that is hinted."""
    touches_newest: bool
    """Whether they touch the target's newest card."""
    kind: str | None
    """"hint_rank" or "hint_color"; None: either."""


@dataclass(frozen=True, slots=True)
class _Code:
    """What hints of one player mean at one time: the same for all who look."""

    classes: tuple[_Class, ...]
    """By the number that they stand for; those past the last advice are not used."""
    num_plays: int
    """Advices to play: slots from the oldest."""
    num_discards: int
    """Advices to discard: slots from the oldest."""

    @property
    def modulus(self) -> int:
        """The number of advices."""
        return self.num_plays + self.num_discards

    def number(self, hint: Event, sizes: Sequence[int]) -> int | None:
        """Return the number that a hint stands for; None where it stands for none."""
        newest = sizes[hint.action.target] - 1
        touches_newest = newest in hint.touched
        for number, hints in enumerate(self.classes[: self.modulus]):
            if hints.target != hint.action.target or hints.touches_newest != touches_newest:
                continue
            if hints.kind is None or hints.kind == hint.action.kind:
                return number
        return None

    def hint(self, number: int, view: PlayerView) -> Action:
        """Return the first legal hint that stands for a number."""
        hints = self.classes[number]
        newest = view.hands[hints.target][-1]
        for action in view.legal_actions:
            if action.target != hints.target or hints.kind not in (None, action.kind):
                continue
            value = newest.color if action.kind == "hint_color" else newest.rank
            if (action.value == value) == hints.touches_newest:
                return action
        raise AssertionError("every class has a hint")

    def advice(self, counted: Counted, hand: Sequence[Card]) -> int:
        """Return what the holder of a hand is advised.

        To play the card that fits and ends its stack, else the one that fits of the lowest rank. To
        discard a dead card, else the card of the highest rank that neither fits nor is the last of
        its kind, else the oldest. The oldest of equals.

        Args:
            counted: The view of one who sees the hand, at the time of the hint.
            hand: The hand, oldest card first.
        """
        words = [counted.card_word(card) for card in hand]
        fitting = [slot for slot, word in enumerate(words[: self.num_plays]) if word == FITS]
        if fitting:
            last_rank = counted.view.num_ranks - 1
            return min(fitting, key=lambda slot: (hand[slot].rank != last_rank, hand[slot].rank))
        discardable = words[: self.num_discards]
        if DEAD in discardable:
            return self.num_plays + discardable.index(DEAD)
        later = [slot for slot, word in enumerate(discardable) if word == LATER]
        return self.num_plays + max(later, key=lambda slot: hand[slot].rank, default=0)

    def advised(self, advice: int) -> Action:
        """Return the move that an advice names."""
        if advice < self.num_plays:
            return play(advice)
        return discard(advice - self.num_plays)


class _Advice(NamedTuple):
    """The last advice to a player."""

    move: Action
    """A play, or a discard."""
    names_slot: bool
    """Whether a discard is of a certain card; else the advice is to play nothing."""
    moment: _Moment
    """When the hint was given."""


class HatBot:
    """The bot of this module as a policy."""

    name = "hat-bot"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat, see `base.Policy.seat`; SettingsError where two play."""
        spec = task.config.spec()
        check_players(spec)

        def choose(seen: base.Observation, rng: random.Random) -> str:
            return move_text(seen, hat_move(spec, seen.view(), rng))

        return base.Script(self.name, choose).seat(player, task=task, game=game)


def check_players(spec: GameSpec) -> None:
    """Refuse a table at which no hint can advise, by a SettingsError."""
    if spec.num_players < LEAST_PLAYERS:
        raise SettingsError(
            f"hat-bot on {spec.preset} with {spec.num_players} players: its hints add up what "
            "giver and receiver both see in other hands, and with two there are none; set "
            f"HANABI_PLAYERS={LEAST_PLAYERS} or more, or take focus-bot."
        )


def hat_move(spec: GameSpec, view: PlayerView, rng: random.Random) -> Action:
    """Return the bot's move.

    Args:
        spec: The board.
        view: What the bot may know; it is the bot's turn.
        rng: For rules that are shared with other bots; this one draws nothing.
    """
    beliefs = Beliefs(view)
    advice = last_advice(spec, view)
    chance = None if advice is None else _chance_as_advised(beliefs, advice)
    if advice is not None and chance is not None:
        may_risk = view.lives >= _LEAST_LIVES_FOR_RISK and chance >= _LEAST_CHANCE
        if chance == 1 or may_risk:
            return advice.move
    sure = play_safe_card(beliefs, rng)
    if sure is not None:
        return sure
    hint, is_needed = _hint(spec, view)
    if hint is not None and is_needed:
        return hint
    likeliest = _likeliest_play(beliefs)
    is_last_round = view.turns_left is not None and view.lives >= _LEAST_LIVES_FOR_RISK
    if is_last_round and beliefs.chance_to_fit(view.own_hand[likeliest.slot]) > 0:
        return likeliest
    if view.hints < view.max_hints:
        return _discard(beliefs, advice, chance)
    return likeliest if hint is None else hint


def last_advice(spec: GameSpec, view: PlayerView) -> _Advice | None:
    """Return the advice of the last hint since the player's own last move.

    Args:
        spec: The board.
        view: What the player may know.

    Returns:
        None where nobody has given one, or the last hint is none that the bot would give.
    """
    index = _last_hint_for(view, view.player)
    return None if index is None else _read(spec, view, index)


def _last_hint_for(view: PlayerView, seat: int) -> int | None:
    """Return the number of the last hint since a player's last move; None where there is none."""
    for index in reversed(range(len(view.events))):
        event = view.events[index]
        if event.player == seat:
            return None
        if event.card is None:
            return index
    return None


def _read(spec: GameSpec, view: PlayerView, index: int) -> _Advice | None:
    """Return what a hint of another player advises the player of the view.

    Args:
        spec: The board.
        view: What the player may know.
        index: Number of the hint among the moves of the game.
    """
    hint = view.events[index]
    moment = _moment(view, index)
    code = _code(spec, moment.sizes, hint.player)
    number = code.number(hint, moment.sizes)
    if number is None:
        return None
    counted = Counted(moment.view)
    for seat, hand in enumerate(moment.view.hands):
        if seat not in (view.player, hint.player):
            number -= code.advice(counted, hand)
    move = code.advised(number % code.modulus)
    if move.slot >= len(view.own_hand):
        return None
    return _Advice(move=move, names_slot=code.num_discards > 1, moment=moment)


def _moment(view: PlayerView, index: int) -> _Moment:
    """Return the table before one of the moves, by taking back that move and all later ones.

    Args:
        view: What a player may know in a game that goes on; its own entry of `hands` stays empty.
        index: Number of the move, from 0.
    """
    hands = [list(hand) for hand in view.hands]
    sizes = [len(hand) for hand in view.knowledge]
    fireworks = list(view.fireworks)
    num_discards = len(view.discards)
    # Moves since the last card was drawn; the cards that left a hand in them were not replaced.
    num_last = 0 if view.turns_left is None else view.num_players - view.turns_left
    for number in reversed(range(index, len(view.events))):
        event = view.events[number]
        if event.card is None:
            continue
        is_replaced = number < len(view.events) - num_last
        if not is_replaced:
            sizes[event.player] += 1
        if event.player != view.player:
            hand = hands[event.player]
            if is_replaced:
                hand.pop()
            hand.insert(event.action.slot, event.card)
        if event.scored:
            fireworks[event.card.color] -= 1
        else:
            num_discards -= 1
    then = view._replace(
        fireworks=tuple(fireworks),
        discards=view.discards[:num_discards],
        hands=tuple(map(tuple, hands)),
    )
    return _Moment(then, tuple(sizes))


def _code(spec: GameSpec, sizes: Sequence[int], giver: int) -> _Code:
    """Return what a player's hints mean.

    Args:
        spec: The board.
        sizes: Per seat the number of cards in hand.
        giver: Seat of the player.
    """
    classes = tuple(_classes(spec, sizes, giver))
    modulus = min(len(classes), 2 * spec.hand_size)
    # One number at least says that nothing is to be played.
    num_plays = min(spec.hand_size, max(modulus - 1, 0))
    return _Code(classes, num_plays, modulus - num_plays)


def _classes(spec: GameSpec, sizes: Sequence[int], giver: int) -> Iterator[_Class]:
    """Yield the classes of hints that a player can give whatever the others hold."""
    most_of_a_kind = max(num_copies(rank, spec.num_ranks) for rank in range(spec.num_ranks))
    for offset in range(1, spec.num_players):
        target = (giver + offset) % spec.num_players
        if sizes[target]:
            yield _Class(target, touches_newest=True, kind="hint_rank")
            yield _Class(target, touches_newest=True, kind="hint_color")
        if sizes[target] > most_of_a_kind:
            yield _Class(target, touches_newest=False, kind=None)


def _hint(spec: GameSpec, view: PlayerView) -> tuple[Action | None, bool]:
    """Return the hint with the player's advice to all others, and whether one of them needs it.

    One who is advised to play needs it, unless the last hint since its own last move says the same.
    None where no hint can be given.
    """
    code = _code(spec, [len(hand) for hand in view.knowledge], view.player)
    if not view.hints or not code.modulus:
        return None, False
    counted = Counted(view)
    total = 0
    is_needed = False
    for seat, hand in enumerate(view.hands):
        if seat == view.player:
            continue
        advice = code.advice(counted, hand)
        total += advice
        if advice < code.num_plays and _last_advice_to(spec, view, seat) != play(advice):
            is_needed = True
    return code.hint(total % code.modulus, view), is_needed


def _last_advice_to(spec: GameSpec, view: PlayerView, seat: int) -> Action | None:
    """Return what the last hint since another player's last move advises that player."""
    index = _last_hint_for(view, seat)
    if index is None:
        return None
    moment = _moment(view, index)
    code = _code(spec, moment.sizes, view.events[index].player)
    return code.advised(code.advice(Counted(moment.view), moment.view.hands[seat]))


def _chance_as_advised(beliefs: Beliefs, advice: _Advice) -> float | None:
    """Return how likely a card fits now that fitted when it was advised.

    Returns:
        None of an advice to discard, and where no unseen card fitted then: the giver has not given
        that advice.
    """
    if advice.move.kind != "play":
        return None
    view = beliefs.view
    known = view.own_hand[advice.move.slot]
    num_fitting = 0
    num_possible = 0
    for color in known.colors:
        rank = advice.moment.view.fireworks[color]
        if rank not in known.ranks:
            continue
        count = beliefs.num_unseen(Card(color, rank))
        num_possible += count
        if view.fireworks[color] == rank:
            num_fitting += count
    return num_fitting / num_possible if num_possible else None


def _likeliest_play(beliefs: Beliefs) -> Action:
    """Return the play of the own card that is most likely to fit, the oldest of equals."""
    hand = beliefs.view.own_hand
    return play(max(range(len(hand)), key=lambda slot: beliefs.chance_to_fit(hand[slot])))


def _discard(beliefs: Beliefs, advice: _Advice | None, chance: float | None) -> Action:
    """Return the discard of a dead card, else of the advised one, else of the least missed.

    Args:
        beliefs: Of the player.
        advice: The last one to the player.
        chance: Of an advised play, how likely it scores.
    """
    counted = Counted(beliefs.view)
    hand = beliefs.view.own_hand
    for slot, known in enumerate(hand):
        if counted.is_dead(known):
            return discard(slot)
    if advice is not None:
        if chance == 0:  # others have played all that it can be
            return discard(advice.move.slot)
        if advice.move.kind == "discard" and advice.names_slot:
            return advice.move
    return discard(min(range(len(hand)), key=lambda slot: _loss(counted, hand[slot])))


def _loss(counted: Counted, known: Knowledge) -> tuple[float, float]:
    """Return how likely an own card is the last of its kind, then how likely it is of use."""
    num_cards = 0
    num_last = 0
    num_useful = 0
    for color in known.colors:
        for rank in known.ranks:
            card = Card(color, rank)
            count = counted.beliefs.num_unseen(card)
            word = counted.card_word(card)
            num_cards += count
            num_last += count * (word == ONLY)
            num_useful += count * (word != DEAD)
    return num_last / num_cards, num_useful / num_cards
