"""One game of Hanabi: OpenSpiel decides what is legal and what it is worth, the table beside it is
ours.
"""

import copy
import functools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import pyspiel

from hanabi_grpo.envs.hanabi.rules.actions import (
    discard,
    format_action,
    hint_color,
    hint_rank,
    play,
)
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Event, Knowledge, PlayerView
from hanabi_grpo.errors import GameParameterError, IllegalActionError
from hanabi_grpo.types import player_name

_CHANCE = -1
T = TypeVar("T")


class Rules(NamedTuple):
    """What one board looks like to OpenSpiel."""

    game: pyspiel.Game
    actions: tuple[tuple[Action, ...], ...]
    """Per seat: the action of each OpenSpiel number."""


@functools.lru_cache(maxsize=64)  # pure; loading a board takes longer than playing a game on it
def load_rules(spec: GameSpec) -> Rules:
    """Load a board.

    OpenSpiel numbers moves by seat relative to the mover: discards of each slot, plays of each
    slot, then for each following seat its colours, then for each following seat its ranks."""
    slots, colors, ranks = range(spec.hand_size), range(spec.num_colors), range(spec.num_ranks)
    actions = []
    for player in range(spec.num_players):
        others = [(player + offset) % spec.num_players for offset in range(1, spec.num_players)]
        colors_told = [hint_color(seat, color) for seat in others for color in colors]
        ranks_told = [hint_rank(seat, rank) for seat in others for rank in ranks]
        actions.append((*map(discard, slots), *map(play, slots), *colors_told, *ranks_told))
    return Rules(pyspiel.load_game("hanabi", spec.openspiel_parameters), tuple(actions))


class Game:
    """A game in progress. Seat 0 moves first. What holds for the table stands in tuples, which
    views share.

    Attributes:
        spec: The board.
        deck: All cards, first dealt first: seat 0's whole hand, then seat 1's, then the draws.
        current_player: Seat to move; -1 once the game is over.
        lives: Left.
        hints: Tokens left.
        fireworks: Per colour, cards on the stack.
        events: Every move so far, oldest first.
        hands: The true hands per seat, oldest card first: for replays, never for a player's eyes.
        hand_positions: Where in `deck` each card of `hands` lies; replay formats name cards by it.
    """

    def __init__(self, spec: GameSpec, deck: Sequence[Card]) -> None:
        """Deal; a deck that is not an order of exactly this board's cards is a
        GameParameterError.
        """
        self.spec = spec
        self.deck = tuple(deck)
        self._rules = load_rules(spec)
        self._state = self._rules.game.new_initial_state()
        size = spec.hand_size
        self._num_dealt = spec.num_players * size
        if Counter(self.deck) != Counter(sorted_deck(spec.num_colors, spec.num_ranks)):
            raise GameParameterError(
                f"deck={', '.join(map(repr, deck[:3]))}, ... ({len(deck)} cards): a deck is some "
                "order of the "
                f"{spec.deck_size} cards of the {spec.num_colors}x{spec.num_ranks} board; take "
                "one from shuffled_deck."
            )
        for card in self.deck[: self._num_dealt]:
            self._state.apply_action(card.color * spec.num_ranks + card.rank)
        starts = range(0, self._num_dealt, size)
        self.hand_positions = tuple(tuple(range(start, start + size)) for start in starts)
        self.hands = tuple(self.deck[start : start + size] for start in starts)
        unknown = _unknown(spec.num_colors, spec.num_ranks)
        self._knowledge = ((unknown,) * size,) * spec.num_players
        self._turns_left = spec.num_players if self._num_dealt == len(self.deck) else None
        self.fireworks = (0,) * spec.num_colors
        self._discards: tuple[Card, ...] = ()
        self.lives = spec.max_lives
        self.hints = spec.max_hints
        self.current_player = 0
        self.events: tuple[Event, ...] = ()
        self._legal: tuple[Action, ...] | None = None

    @property
    def is_over(self) -> bool:
        """True when the rules have ended the game."""
        return self.current_player < 0

    @property
    def is_bombed(self) -> bool:
        """True when the last life is lost."""
        return self.lives == 0

    @property
    def score(self) -> int:
        """Points in OpenSpiel's scoring: 0 on a bomb."""
        return round(self._state.returns()[0])

    @property
    def score_kept(self) -> int:
        """Points on the table, kept on a bomb."""
        return sum(self.fireworks)

    def legal_actions(self) -> tuple[Action, ...]:
        """Return the mover's legal actions, in OpenSpiel's order; empty once the game is over."""
        if self._legal is None:
            ids = [] if self.is_over else self._state.legal_actions()
            self._legal = tuple(map(self._rules.actions[self.current_player].__getitem__, ids))
        return self._legal

    def apply(self, action: Action) -> Event:
        """Make a move for the player whose turn it is, and return it as everybody saw it.

        Raises:
            IllegalActionError: The move is not legal; the game is unchanged.
        """
        player = self.current_player
        text = functools.partial(format_action, style="full", num_players=self.spec.num_players)
        if player < 0:
            raise IllegalActionError(f"{text(action)}: the game is over; start another one.")
        if action not in self.legal_actions():
            legal = ", ".join(map(text, self.legal_actions()))
            raise IllegalActionError(
                f"{text(action)}: not legal for {player_name(player)} now; choose one of: {legal}."
            )
        self._state.apply_action(self._rules.actions[player].index(action))
        self._legal = None
        if self._turns_left is not None:
            self._turns_left -= 1
        event = (
            self._hint(player, action) if action.slot < 0 else self._give_up_card(player, action)
        )
        self.events += (event,)
        if self._state.current_player() == _CHANCE:
            self._draw(player)
        self.current_player = max(-1, self._state.current_player())
        return event

    def view(self, player: int) -> PlayerView:
        """Return everything that one seat may know now, and nothing more; an IllegalActionError: no
        such seat.
        """
        spec = self.spec
        if not 0 <= player < spec.num_players:
            raise IllegalActionError(
                f"player={player}: this game has seats 0 to {spec.num_players - 1}."
            )
        return PlayerView(
            player=player,
            num_players=spec.num_players,
            num_colors=spec.num_colors,
            num_ranks=spec.num_ranks,
            max_lives=spec.max_lives,
            max_hints=spec.max_hints,
            lives=self.lives,
            hints=self.hints,
            deck_size=len(self.deck) - self._num_dealt,
            turns_left=0 if self.is_over and self._turns_left is not None else self._turns_left,
            fireworks=self.fireworks,
            discards=self._discards,
            own_hand=self._knowledge[player],
            hands=_with(self.hands, player, ()),
            knowledge=self._knowledge,
            legal_actions=self.legal_actions() if player == self.current_player else (),
            events=self.events,
        )

    def copy(self) -> "Game":
        """Return an independent copy of the game as it stands."""
        other = copy.copy(self)
        other._state = self._state.clone()
        return other

    def _hint(self, player: int, action: Action) -> Event:
        self.hints -= 1
        target, value, is_color = action.target, action.value, action.kind == "hint_color"
        hand = self.hands[target]
        touched = tuple(
            [
                slot
                for slot, one in enumerate(hand)
                if (one.color if is_color else one.rank) == value
            ]
        )
        told = [
            _told(one, is_color, value, slot in touched)
            for slot, one in enumerate(self._knowledge[target])
        ]
        self._knowledge = _with(self._knowledge, target, tuple(told))
        return Event(player, action, None, False, touched)

    def _give_up_card(self, player: int, action: Action) -> Event:
        slot, hand = action.slot, self.hands[player]
        card = hand[slot]
        self.hands = _with(self.hands, player, _without(hand, slot))
        self.hand_positions = _with(
            self.hand_positions, player, _without(self.hand_positions[player], slot)
        )
        self._knowledge = _with(self._knowledge, player, _without(self._knowledge[player], slot))
        scored = action.kind == "play" and self.fireworks[card.color] == card.rank
        if scored:
            self.fireworks = _with(self.fireworks, card.color, card.rank + 1)
        else:
            self._discards += (card,)
        # A discard and a complete colour pay a hint back.
        if action.kind == "discard" or (scored and card.rank == self.spec.num_ranks - 1):
            self.hints = min(self.hints + 1, self.spec.max_hints)
        elif not scored:
            self.lives -= 1
        return Event(player, action, card, scored)

    def _draw(self, player: int) -> None:
        spec, position = self.spec, self._num_dealt
        card = self.deck[position]
        self._state.apply_action(card.color * spec.num_ranks + card.rank)
        self.hands = _with(self.hands, player, (*self.hands[player], card))
        self.hand_positions = _with(
            self.hand_positions, player, (*self.hand_positions[player], position)
        )
        unknown = _unknown(spec.num_colors, spec.num_ranks)
        self._knowledge = _with(self._knowledge, player, (*self._knowledge[player], unknown))
        self._num_dealt += 1
        if self._num_dealt == len(self.deck):
            self._turns_left = spec.num_players


def with_other_cards(game: Game, player: int, rng: random.Random) -> Game:
    """Return a game in which a player has lived through the same, with other cards in its hand and
    in the deck.

    Its cards are exchanged among themselves and with those still in the deck, as far as the hints
    that it was given stay true; then the same moves are replayed. What the hints allow is read from
    the public moves, never from a view, so that a view that leaks a card cannot hide it. The new
    hand is the old one only when no other is possible."""
    held, own = game.hand_positions[player], game.hands[player]
    num_dealt = len(game.deck) - game.view(player).deck_size
    pool = Counter(game.deck[position] for position in (*held, *range(num_dealt, len(game.deck))))
    hands = _hands(_allowed(game, player), pool, rng)
    new_hand = next((hand for hand in hands if hand != own), own)
    rest = list((pool - Counter(new_hand)).elements())
    rng.shuffle(rest)
    deck = list(game.deck)
    for position, card in zip(held, new_hand, strict=True):
        deck[position] = card
    deck[num_dealt:] = rest
    other = Game(game.spec, deck)
    for event in game.events:
        other.apply(event.action)
    return other


def _allowed(game: Game, player: int) -> list[set[Card]]:
    """Return per card that the player holds, oldest first, the cards about which all hints would
    have said the same.
    """
    table, kinds = Game(game.spec, game.deck), set(game.deck)
    allowed = [kinds for _ in table.hands[player]]
    for event in game.events:
        table.apply(event.action)
        action = event.action
        if action.target == player:
            is_color = action.kind == "hint_color"
            named = {
                card for card in kinds if (card.color if is_color else card.rank) == action.value
            }
            told = [
                named if slot in event.touched else kinds - named for slot in range(len(allowed))
            ]
            allowed = [before & now for before, now in zip(allowed, told, strict=True)]
        elif event.player == player and action.slot >= 0:
            del allowed[action.slot]
            allowed += [kinds] * (len(table.hands[player]) - len(allowed))
    return allowed


def _hands(
    allowed: Sequence[set[Card]],
    pool: Counter[Card],
    rng: random.Random,
    hand: tuple[Card, ...] = (),
) -> Iterator[tuple[Card, ...]]:
    """Yield every allowed hand from the pool that begins with `hand`, each once, in random
    order.
    """
    if len(hand) == len(allowed):
        yield hand
        return
    cards = sorted((card for card in pool if card in allowed[len(hand)]), key=str)
    for card in rng.sample(cards, len(cards)):
        yield from _hands(allowed, pool - Counter([card]), rng, (*hand, card))


@functools.cache  # pure, and at most 25 boards
def _unknown(num_colors: int, num_ranks: int) -> Knowledge:
    return Knowledge(tuple(range(num_colors)), tuple(range(num_ranks)), False, False)


@functools.cache  # pure, and at most 4096 pieces of knowledge times 10 hints
def _told(known: Knowledge, is_color: bool, value: int, touched: bool) -> Knowledge:
    """Return what is known of a card after a hint: positive where it touches, negative for the
    others of the hand.
    """
    before = known.colors if is_color else known.ranks
    after = (value,) if touched else tuple(one for one in before if one != value)
    if is_color:
        return replace(known, colors=after, color_hinted=known.color_hinted or touched)
    return replace(known, ranks=after, rank_hinted=known.rank_hinted or touched)


def _with(row: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*row[:place], value, *row[place + 1 :])


def _without(row: tuple[T, ...], place: int) -> tuple[T, ...]:
    return row[:place] + row[place + 1 :]
