"""The hat bot: one hint advises every other player at once, for three players and more.

Source: the recommendation strategy of Cox et al., "How to Make the Perfect Fireworks Display: Two
Strategies for Hanabi" (Mathematics Magazine, 2015), which treats Hanabi as a hat puzzle. The
*advice* for each hand is a number: play slot 0, 1, ..., or discard slot 0, 1, .... A hint also
stands for a number, its *class*. The giver picks the class that is the sum of the advice for all
other players, modulo the number of advice values. Each of them sees every hand except its own and
the giver's, and subtracts the advice for these hands; the remainder is its own advice.

The paper covers five players and the full board. Here, any board with three or more players works:

- **Classes** exist for every hand. A hint names its target and either touches the target's newest
  card, by rank or by colour, or does not touch it. A hint that does not touch it always exists if
  the hand has more cards than there can be of one kind, three; otherwise that class is not used.
  That gives 6, 9 and 12 classes for three, four and five players on the full board; the paper has
  two for each target.
- **Advice values** are as many as classes, and at most two for each card of a hand: first slots to
  play, then slots to discard, as far as the values suffice. Three players on the full board have
  five slots to play and one value for "nothing to play"; with only that value, a player discards
  the card that is least likely to be missed.
- **A player moves** by the last hint since its own last move, so its move depends only on its view
  and on the others' moves since then. It plays as advised if the card surely scores, or if it
  probably scores and a life can be spared: some of the cards that fitted when the hint was given
  may have been played since. Otherwise it plays a card that surely fits, gives a hint that tells a
  player to play whom the last hint did not tell, discards as advised, or gives any hint.
- **A misplay** refutes the hints before it: nobody follows them, and those who were advised can be
  told again. One wrong hint, or one wrong reading, then costs one life and not one per reader.

In the plain convention (`Convention`), advice and hints follow the order of slots and ignore ranks,
and an advised card is not played if it may be of a kind that has been played since, by the hints on
it alone.

The code does not depend on the order of colours, so players who see them in different orders
(Other-Play) understand each other. With two players there is no code, because giver and receiver
see no hand in common.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text
from hanabi_grpo.envs.hanabi.policies.rules import play_safe_card
from hanabi_grpo.envs.hanabi.prompts.deductions import (
    DEAD,
    FITS,
    LATER,
    ONLY,
    Counted,
)
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs
from hanabi_grpo.envs.hanabi.rules.history import Moment, last_hint_since, table_before
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import (
    Action,
    Card,
    Event,
    Knowledge,
    PlayerView,
    other_seats,
)
from hanabi_grpo.errors import SettingsError

NAME = "hat-bot"
PLAIN_NAME = "plain-hat-bot"
LEAST_PLAYERS = 3
"""Players of the smallest table at which a hint can advise."""
_LEAST_CHANCE = 0.7
"""Minimum chance to fit at which an advised card is played that does not surely fit."""
_LEAST_LIVES_FOR_RISK = 2
"""Minimum lives at which a card is played that may not fit."""


class _Class(NamedTuple):
    """Hints that stand for one number."""

    target: int
    """Seat that is hinted."""
    touches_newest: bool
    """Whether they touch the target's newest card."""
    kind: str | None
    """"hint_rank" or "hint_color"; None: either."""


@dataclass(frozen=True, slots=True)
class Code:
    """What the hints of one player mean at one time, the same for all observers."""

    classes: tuple[_Class, ...]
    """Indexed by their numbers; classes past the last advice value are not used."""
    num_plays: int
    """Advices to play: slots from the oldest."""
    num_discards: int
    """Advices to discard: slots from the oldest."""
    is_plain: bool = False
    """Whether advice follows the order of slots alone, see `Convention`."""

    @property
    def modulus(self) -> int:
        """The number of advice values."""
        return self.num_plays + self.num_discards

    def number(self, hint: Event, sizes: Sequence[int]) -> int | None:
        """Return the number that a hint stands for, or None."""
        newest = sizes[hint.action.target] - 1
        touches_newest = newest in hint.touched
        for number, hints in enumerate(self.classes[: self.modulus]):
            if hints.target != hint.action.target or hints.touches_newest != touches_newest:
                continue
            if hints.kind is None or hints.kind == hint.action.kind:
                return number
        return None

    def hints(self, number: int, view: PlayerView) -> Iterator[Action]:
        """Yield the legal hints that stand for a number.

        There is at least one as long as hints are left.
        """
        hints = self.classes[number]
        newest = view.hands[hints.target][-1]
        for action in view.legal_actions:
            if action.target != hints.target or hints.kind not in (None, action.kind):
                continue
            value = newest.color if action.kind == "hint_color" else newest.rank
            if (action.value == value) == hints.touches_newest:
                yield action

    def hint(self, number: int, view: PlayerView) -> Action:
        """Return the hint that a player gives for a number: the first legal one that stands for it.

        In the plain convention, a hint that does not touch the newest card names the colour of the
        oldest card of another colour, or else the rank of the oldest card of another rank.
        """
        if not self.is_plain or self.classes[number].touches_newest:
            return next(self.hints(number, view))
        target = self.classes[number].target
        hand = view.hands[target]
        for card in hand:
            if card.color != hand[-1].color:
                return hint_color(target, card.color)
        for card in hand:
            if card.rank != hand[-1].rank:
                return hint_rank(target, card.rank)
        raise AssertionError("more cards than there can be of one kind are not all equal")

    def advice(self, counted: Counted, hand: Sequence[Card]) -> int:
        """Return the advice for the holder of a hand.

        Play the card that fits and completes its stack, else the fitting card of the lowest rank.
        Discard a dead card, else the card of the highest rank that neither fits nor is the last of
        its kind, else the oldest card. The oldest card wins ties, and in the plain convention the
        oldest card that fits, is dead, or can fit later wins whatever its rank.

        Args:
            counted: The view of a player who sees the hand, at the time of the hint.
            hand: The hand, oldest card first.
        """
        words = [counted.card_word(card) for card in hand]
        fitting = [slot for slot, word in enumerate(words[: self.num_plays]) if word == FITS]
        if fitting and self.is_plain:
            return fitting[0]
        if fitting:
            last_rank = counted.view.num_ranks - 1
            return min(fitting, key=lambda slot: (hand[slot].rank != last_rank, hand[slot].rank))
        discardable = words[: self.num_discards]
        if DEAD in discardable:
            return self.num_plays + discardable.index(DEAD)
        later = [slot for slot, word in enumerate(discardable) if word == LATER]
        if later and self.is_plain:
            return self.num_plays + later[0]
        return self.num_plays + max(later, key=lambda slot: hand[slot].rank, default=0)

    def advised(self, advice: int) -> Action:
        """Return the move that an advice names."""
        if advice < self.num_plays:
            return play(advice)
        return discard(advice - self.num_plays)


class Share(NamedTuple):
    """What one hand adds to the number of a hint."""

    seat: int
    """Holder of the hand."""
    advice: int
    """The advice for the hand, as a number of the code."""
    is_told: bool = False
    """Of a hint that is considered: whether the last hint since the holder's own last move already
    says to play that card."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """How a player reads a hint."""

    giver: int
    """Seat of the player who gave it."""
    number: int
    """The number that the hint stands for."""
    shares: tuple[Share, ...]
    """Of the hands that the reader sees, without the giver's, in the order of turns."""
    code: Code
    """What hints meant when it was given."""
    index: int
    """Number of the hint among the moves of the game."""
    moment: Moment
    """When it was given."""

    @property
    def remainders(self) -> list[int]:
        """What is left of the number after each share."""
        remainders = []
        left = self.number
        for share in self.shares:
            left = (left - share.advice) % self.code.modulus
            remainders.append(left)
        return remainders

    @property
    def advice(self) -> int:
        """The advice for the reader: what the hands in sight leave of the number."""
        return self.remainders[-1]

    @property
    def move(self) -> Action:
        """The advised move: a play, or a discard."""
        return self.code.advised(self.advice)

    @property
    def names_slot(self) -> bool:
        """Whether advice to discard names a card; otherwise it only says to play nothing."""
        return self.code.num_discards > 1


class Scored(NamedTuple):
    """A card that another player has played since a hint, and that scored."""

    event: Event
    """The move."""
    may_be_advised: bool
    """Whether the card that the hint advises the reader to play may be another copy, as far as the
    hints on that card tell."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The hint that a player would give."""

    shares: tuple[Share, ...]
    """Of all other players' hands, in the order of turns."""
    code: Code
    """What its hints mean."""

    @property
    def sums(self) -> list[int]:
        """The sum of the shares up to each one, modulo the number of advice values."""
        total = 0
        sums = []
        for share in self.shares:
            total = (total + share.advice) % self.code.modulus
            sums.append(total)
        return sums

    @property
    def number(self) -> int:
        """The number that the hint stands for."""
        return self.sums[-1]

    @property
    def is_needed(self) -> bool:
        """Whether a player is advised to play and has not been told."""
        for share in self.shares:
            if share.advice < self.code.num_plays and not share.is_told:
                return True
        return False


class Decision(NamedTuple):
    """A move of the bot, and what it worked out for it."""

    move: Action
    decoded: Decoded | None
    """The last hint since its own last move; None if there is none with a number."""
    encoded: Encoded | None
    """The hint that it considered; None if it decided earlier or cannot give any."""


class Convention(NamedTuple):
    """What the players of a team have agreed on."""

    spec: GameSpec
    """The board."""
    is_plain: bool = False
    """Advice names the oldest card that fits or can be spared, whatever its rank; so do hints that
    must not touch the newest card. An advised card is played unless it may be of a kind that has
    been played since (`Scored.may_be_advised`), whoever holds the other copies.

    This costs .5 to 1.6 points on the full board. Who imitates the bot need not compare ranks,
    search hands for copies or estimate chances.
    """


class HatBot:
    """The bot of this module as a policy."""

    def __init__(self, *, is_plain: bool = False) -> None:
        """Return the bot.

        Args:
            is_plain: See `Convention.is_plain`; the name is then `plain-hat-bot`.
        """
        self.name = PLAIN_NAME if is_plain else NAME
        self._is_plain = is_plain

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> base.ScriptSeat:
        """Return a seat, see `base.Policy.seat`; SettingsError with two players."""
        spec = task.config.spec()
        check_players(spec, name=self.name)
        convention = Convention(spec, self._is_plain)

        def choose(seen: base.Observation, rng: random.Random) -> str:
            return move_text(seen, decide(convention, seen.view(), rng).move)

        return base.Script(self.name, choose).seat(player, task=task, game=game)


def check_players(spec: GameSpec, *, name: str = NAME) -> None:
    """Raise a SettingsError for a table at which no hint can advise.

    Args:
        spec: The board.
        name: Name of the bot, for the message.
    """
    if spec.num_players < LEAST_PLAYERS:
        raise SettingsError(
            f"{name} on {spec.preset} with {spec.num_players} players: its hints encode hands "
            "that giver and receiver both see, and with two players there are none; set "
            f"HANABI_PLAYERS={LEAST_PLAYERS} or more, or use focus-bot."
        )


def decide(convention: Convention, view: PlayerView, rng: random.Random) -> Decision:
    """Return the bot's move and what it worked out for it.

    Args:
        convention: What the team has agreed on.
        view: What the bot may know; it is the bot's turn.
        rng: For rules shared with other bots; this bot draws nothing.
    """
    return decide_by(last_hint(convention, view), convention, view, rng)


def decide_by(
    decoded: Decoded | None, convention: Convention, view: PlayerView, rng: random.Random
) -> Decision:
    """Return what the bot does if it reads the last hint in a given way.

    Args:
        decoded: The bot's own reading is `last_hint(convention, view)`.
        convention: What the team has agreed on.
        view: What the bot may know; it is the bot's turn.
        rng: For rules shared with other bots; this bot draws nothing.
    """
    beliefs = Beliefs(view)
    advice = decoded
    if decoded is not None and decoded.move.slot >= len(view.own_hand):
        # The bot would not have given that hint.
        advice = None
    chance = None if advice is None else _chance_as_advised(beliefs, advice)
    if advice is not None and chance is not None:
        if convention.is_plain:
            is_played = not any(scored.may_be_advised for scored in scored_since(advice, view))
        else:
            may_risk = view.lives >= _LEAST_LIVES_FOR_RISK
            is_played = chance == 1 or (may_risk and chance >= _LEAST_CHANCE)
        if is_played:
            return Decision(advice.move, decoded, None)
    sure = play_safe_card(beliefs, rng)
    if sure is not None:
        return Decision(sure, decoded, None)
    encoded = _encoded(convention, view)
    hint = None if encoded is None else encoded.code.hint(encoded.number, view)
    if encoded is not None and hint is not None and encoded.is_needed:
        return Decision(hint, decoded, encoded)
    likeliest = _likeliest_play(beliefs)
    is_last_round = view.turns_left is not None and view.lives >= _LEAST_LIVES_FOR_RISK
    if is_last_round and beliefs.chance_to_fit(view.own_hand[likeliest.slot]) > 0:
        return Decision(likeliest, decoded, encoded)
    if view.hints < view.max_hints:
        return Decision(_discard(beliefs, advice, chance), decoded, encoded)
    return Decision(likeliest if hint is None else hint, decoded, encoded)


def last_hint(convention: Convention, view: PlayerView) -> Decoded | None:
    """Return how a player reads the last hint since its own last move.

    Args:
        convention: What the team has agreed on.
        view: What the player may know.

    Returns:
        None if there is no hint to trust, or if it stands for no number.
    """
    index = _trusted_hint(view, view.player)
    return None if index is None else _decoded(convention, view, index)


def _trusted_hint(view: PlayerView, seat: int) -> int | None:
    """Return the number of the hint that advises a player, among the moves of the game.

    Args:
        view: What a player may know.
        seat: The player who is advised; it need not be the player of the view.

    Returns:
        The last hint since the player's own last move. None if there is none, or if a card was
        misplayed since: then that hint, or somebody's reading of it, was probably wrong.
    """
    index = last_hint_since(view, seat)
    if index is None:
        return None
    for event in view.events[index:]:
        if event.action.kind == "play" and not event.scored:
            return None
    return index


def _decoded(convention: Convention, view: PlayerView, index: int) -> Decoded | None:
    """Return how the player of the view reads a hint; None if it stands for no number.

    Args:
        convention: What the team has agreed on.
        view: What the player may know.
        index: Number of the hint, given by another player, among the moves of the game.
    """
    hint = view.events[index]
    moment = table_before(view, index)
    code = _code(convention, moment.sizes, hint.player)
    number = code.number(hint, moment.sizes)
    if number is None:
        return None
    counted = Counted(moment.view)
    shares = []
    for seat in other_seats(view):
        if seat != hint.player:
            advice = code.advice(counted, moment.view.hands[seat])
            shares.append(Share(seat, advice))
    return Decoded(hint.player, number, tuple(shares), code, index, moment)


def scored_since(advice: Decoded, view: PlayerView) -> list[Scored]:
    """Return the cards that have scored since a hint that advises the reader to play.

    Args:
        advice: How the player of the view reads the hint.
        view: What the player may know.

    Returns:
        Nothing for advice to discard, or to play a card that the player does not have.
    """
    move = advice.move
    if move.kind != "play" or move.slot >= len(view.own_hand):
        return []
    known = view.own_hand[move.slot]
    cards = []
    for event in view.events[advice.index :]:
        card = event.card
        if card is None or not event.scored:
            continue
        is_possible = card.color in known.colors and card.rank in known.ranks
        has_copies = num_copies(card.rank, view.num_ranks) > 1
        cards.append(Scored(event, may_be_advised=is_possible and has_copies))
    return cards


def _code(convention: Convention, sizes: Sequence[int], giver: int) -> Code:
    """Return what a player's hints mean.

    Args:
        convention: What the team has agreed on.
        sizes: Per seat the number of cards in hand.
        giver: Seat of the player.
    """
    spec = convention.spec
    classes = tuple(_classes(spec, sizes, giver))
    modulus = min(len(classes), 2 * spec.hand_size)
    # At least one value says that nothing is to be played.
    num_plays = min(spec.hand_size, max(modulus - 1, 0))
    return Code(classes, num_plays, modulus - num_plays, convention.is_plain)


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


def _encoded(convention: Convention, view: PlayerView) -> Encoded | None:
    """Return the hint with the player's advice to all others; None if none can be given."""
    code = _code(convention, [len(hand) for hand in view.knowledge], view.player)
    if not view.hints or not code.modulus:
        return None
    counted = Counted(view)
    shares = []
    for seat in other_seats(view):
        advice = code.advice(counted, view.hands[seat])
        is_play = advice < code.num_plays
        is_told = is_play and _last_advice_to(convention, view, seat) == play(advice)
        shares.append(Share(seat, advice, is_told))
    return Encoded(tuple(shares), code)


def _last_advice_to(convention: Convention, view: PlayerView, seat: int) -> Action | None:
    """Return what the last hint since another player's last move advises that player."""
    index = _trusted_hint(view, seat)
    if index is None:
        return None
    moment = table_before(view, index)
    code = _code(convention, moment.sizes, view.events[index].player)
    return code.advised(code.advice(Counted(moment.view), moment.view.hands[seat]))


def _chance_as_advised(beliefs: Beliefs, advice: Decoded) -> float | None:
    """Return how likely a card that fitted when it was advised still fits.

    Returns:
        None for advice to discard, or if no unseen card fitted then: the giver did not give that
        advice.
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
    """Return the play of the own card that is most likely to fit; the oldest wins ties."""
    hand = beliefs.view.own_hand
    return play(max(range(len(hand)), key=lambda slot: beliefs.chance_to_fit(hand[slot])))


def _discard(beliefs: Beliefs, advice: Decoded | None, chance: float | None) -> Action:
    """Return the discard of a dead card, else of the advised one, else of the least missed.

    Args:
        beliefs: The player's beliefs.
        advice: The last advice to the player.
        chance: How likely an advised play scores.
    """
    counted = Counted(beliefs.view)
    hand = beliefs.view.own_hand
    for slot, known in enumerate(hand):
        if counted.is_dead(known):
            return discard(slot)
    if advice is not None:
        if chance == 0:  # others have played every card that it can be
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
