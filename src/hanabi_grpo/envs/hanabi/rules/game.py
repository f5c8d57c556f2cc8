"""One game of Hanabi.

OpenSpiel decides which moves are legal and what they score; this module keeps the table (hands,
knowledge, stacks, events).
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

_CHANCE_PLAYER = -1
"""OpenSpiel's current player while a card is drawn."""
_NOBODY = -1
"""Our current player once the game is over."""
_MAX_LOADED_BOARDS = 64
_NUM_SHOWN_CARDS = 3
"""Cards of an invalid deck that an error message quotes."""

T = TypeVar("T")


class Rules(NamedTuple):
    """What one board looks like to OpenSpiel."""

    game: pyspiel.Game
    """OpenSpiel's game object."""
    actions: tuple[tuple[Action, ...], ...]
    """Per seat: the action of each OpenSpiel number."""


# Pure; loading a board takes longer than playing a game on it.
@functools.lru_cache(maxsize=_MAX_LOADED_BOARDS)
def load_rules(spec: GameSpec) -> Rules:
    """Load a board.

    OpenSpiel numbers moves by seat relative to the mover: discards of each slot, plays of each
    slot, then for each following seat its colours, then for each following seat its ranks.
    """
    game = pyspiel.load_game("hanabi", spec.openspiel_parameters)
    actions = tuple(_numbered_actions(spec, player) for player in range(spec.num_players))
    return Rules(game, actions)


def _numbered_actions(spec: GameSpec, player: int) -> tuple[Action, ...]:
    """Return a player's moves in the order of OpenSpiel's numbers."""
    slots = range(spec.hand_size)
    other_seats = [(player + offset) % spec.num_players for offset in range(1, spec.num_players)]
    actions = [discard(slot) for slot in slots]
    actions += [play(slot) for slot in slots]
    for seat in other_seats:
        actions += [hint_color(seat, color) for color in range(spec.num_colors)]
    for seat in other_seats:
        actions += [hint_rank(seat, rank) for rank in range(spec.num_ranks)]
    return tuple(actions)


class Game:
    """A game in progress. Seat 0 moves first. The table is made of tuples, which views share.

    Attributes:
        spec: The board.
        deck: All cards, first dealt first: seat 0's whole hand, then seat 1's, then the draws.
        current_player: Seat to move; -1 once the game is over.
        lives: Lives left.
        hints: Hint tokens left.
        fireworks: Per colour, cards on the stack.
        events: Every move so far, oldest first.
        hands: The true hands per seat, oldest card first: for replays only, never for players.
        hand_positions: Position in `deck` of each card in `hands`; replay formats identify cards by
            it.
    """

    def __init__(self, spec: GameSpec, deck: Sequence[Card]) -> None:
        """Deal the cards.

        Args:
            spec: The board.
            deck: A permutation of the board's cards, first dealt first.

        Raises:
            GameParameterError: The deck is not a permutation of exactly this board's cards.
        """
        _check_deck(spec, deck)
        self.spec = spec
        self.deck = tuple(deck)
        self._rules = load_rules(spec)
        self._state = self._rules.game.new_initial_state()
        size = spec.hand_size
        self._num_dealt = spec.num_players * size
        for card in self.deck[: self._num_dealt]:
            self._state.apply_action(_chance_action(spec, card))
        starts = range(0, self._num_dealt, size)
        self.hand_positions = tuple(tuple(range(start, start + size)) for start in starts)
        self.hands = tuple(self.deck[start : start + size] for start in starts)
        unknown = _unknown(spec.num_colors, spec.num_ranks)
        self._knowledge = ((unknown,) * size,) * spec.num_players
        is_deck_empty = self._num_dealt == len(self.deck)
        self._turns_left = spec.num_players if is_deck_empty else None
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
        return self.current_player == _NOBODY

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
            if self.is_over:
                self._legal = ()
            else:
                actions = self._rules.actions[self.current_player]
                # `map` is faster than a generator, and every turn calls this.
                self._legal = tuple(map(actions.__getitem__, self._state.legal_actions()))
        return self._legal

    def apply(self, action: Action) -> Event:
        """Make a move for the player whose turn it is, and return it as everybody saw it.

        Raises:
            IllegalActionError: The move is not legal; the game is unchanged.
        """
        player = self.current_player
        if self.is_over or action not in self.legal_actions():
            raise self._illegal(action)
        self._state.apply_action(self._rules.actions[player].index(action))
        self._legal = None
        if self._turns_left is not None:
            self._turns_left -= 1
        if action.slot < 0:
            event = self._give_hint(player, action)
        else:
            event = self._give_up_card(player, action)
        self.events += (event,)
        if self._state.current_player() == _CHANCE_PLAYER:
            self._draw(player)
        # OpenSpiel marks a finished game with a different negative number.
        self.current_player = max(_NOBODY, self._state.current_player())
        return event

    def view(self, player: int) -> PlayerView:
        """Return everything that one seat may know now, and nothing more.

        Raises:
            IllegalActionError: No such seat.
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

    def _illegal(self, action: Action) -> IllegalActionError:
        """Return the error of a move that the rules forbid now."""
        text = functools.partial(format_action, style="full", num_players=self.spec.num_players)
        if self.is_over:
            return IllegalActionError(f"{text(action)}: the game is over; start another one.")
        legal = ", ".join(text(move) for move in self.legal_actions())
        return IllegalActionError(
            f"{text(action)}: not legal for {player_name(self.current_player)} now; "
            f"choose one of: {legal}."
        )

    def _give_hint(self, player: int, action: Action) -> Event:
        """Spend a hint token and update what the target knows."""
        self.hints -= 1
        target = action.target
        touched = []
        knowledge = []
        is_color = action.kind == "hint_color"
        cards = zip(self.hands[target], self._knowledge[target], strict=True)
        for slot, (card, known) in enumerate(cards):
            is_touched = (card.color if is_color else card.rank) == action.value
            if is_touched:
                touched.append(slot)
            knowledge.append(_after_hint(known, is_color, action.value, is_touched))
        self._knowledge = _with(self._knowledge, target, tuple(knowledge))
        return Event(player, action, None, False, tuple(touched))

    def _give_up_card(self, player: int, action: Action) -> Event:
        """Play or discard a card: remove it from the hand, score it, update hints and lives."""
        slot = action.slot
        hand = self.hands[player]
        positions = self.hand_positions[player]
        card = hand[slot]
        self.hands = _with(self.hands, player, _without(hand, slot))
        self.hand_positions = _with(self.hand_positions, player, _without(positions, slot))
        self._knowledge = _with(self._knowledge, player, _without(self._knowledge[player], slot))
        scored = action.kind == "play" and self.fireworks[card.color] == card.rank
        if scored:
            self.fireworks = _with(self.fireworks, card.color, card.rank + 1)
        else:
            self._discards += (card,)
        completes_color = scored and card.rank == self.spec.num_ranks - 1
        if action.kind == "discard" or completes_color:
            self.hints = min(self.hints + 1, self.spec.max_hints)
        elif not scored:
            self.lives -= 1
        return Event(player, action, card, scored)

    def _draw(self, player: int) -> None:
        """Give the player the next card of the deck."""
        spec = self.spec
        position = self._num_dealt
        positions = self.hand_positions[player]
        card = self.deck[position]
        unknown = _unknown(spec.num_colors, spec.num_ranks)
        self._state.apply_action(_chance_action(spec, card))
        self.hands = _with(self.hands, player, (*self.hands[player], card))
        self.hand_positions = _with(self.hand_positions, player, (*positions, position))
        self._knowledge = _with(self._knowledge, player, (*self._knowledge[player], unknown))
        self._num_dealt += 1
        if self._num_dealt == len(self.deck):
            self._turns_left = spec.num_players


def with_other_cards(game: Game, player: int, rng: random.Random) -> Game:
    """Return a game that looks the same to a player, with other cards in its hand and in the deck.

    The player's cards are exchanged with each other and with those still in the deck, such that all
    hints to the player remain true; then the same moves are replayed. What the hints allow is read
    from the public moves, never from a view, so that a view that leaks a card cannot hide the leak.
    The new hand equals the old one only if no other is possible.

    Args:
        game: The game in progress.
        player: The seat that must not notice.
        rng: Chooses the hand and the order of the rest of the deck.
    """
    own_positions = game.hand_positions[player]
    old_hand = game.hands[player]
    num_dealt = len(game.deck) - game.view(player).deck_size
    undealt_positions = range(num_dealt, len(game.deck))
    unseen = Counter(game.deck[position] for position in (*own_positions, *undealt_positions))
    possible_hands = _possible_hands(_cards_allowed_by_hints(game, player), unseen, rng)
    new_hand = next((hand for hand in possible_hands if hand != old_hand), old_hand)
    rest = list((unseen - Counter(new_hand)).elements())
    rng.shuffle(rest)
    deck = list(game.deck)
    for position, card in zip(own_positions, new_hand, strict=True):
        deck[position] = card
    deck[num_dealt:] = rest
    other = Game(game.spec, deck)
    for event in game.events:
        other.apply(event.action)
    return other


def _cards_allowed_by_hints(game: Game, player: int) -> list[set[Card]]:
    """Return, for each own card, oldest first, the cards that agree with all hints."""
    table = Game(game.spec, game.deck)
    all_cards = set(game.deck)
    allowed = [all_cards for _ in table.hands[player]]
    for event in game.events:
        table.apply(event.action)
        action = event.action
        if action.target == player:
            is_color = action.kind == "hint_color"
            named = {
                card
                for card in all_cards
                if (card.color if is_color else card.rank) == action.value
            }
            for slot, cards in enumerate(allowed):
                allowed[slot] = cards & (named if slot in event.touched else all_cards - named)
        elif event.player == player and action.slot >= 0:
            del allowed[action.slot]
            has_drawn = len(table.hands[player]) > len(allowed)
            if has_drawn:
                allowed.append(all_cards)
    return allowed


def _possible_hands(
    allowed: Sequence[set[Card]],
    unseen: Counter[Card],
    rng: random.Random,
    hand: tuple[Card, ...] = (),
) -> Iterator[tuple[Card, ...]]:
    """Yield every possible hand that begins with `hand`, each once, in random order.

    Args:
        allowed: Per slot, the cards that the hints allow.
        unseen: Counts of the cards that make up the hand and the deck, without `hand`.
        rng: Chooses the order.
        hand: The first cards of the hand.
    """
    if len(hand) == len(allowed):
        yield hand
        return
    allowed_here = allowed[len(hand)]
    # Sorted, since a counter's keys are in the order of the deck.
    cards = sorted((card for card in unseen if card in allowed_here), key=str)
    for card in rng.sample(cards, len(cards)):
        yield from _possible_hands(allowed, unseen - Counter([card]), rng, (*hand, card))


def _check_deck(spec: GameSpec, deck: Sequence[Card]) -> None:
    if Counter(deck) == Counter(sorted_deck(spec.num_colors, spec.num_ranks)):
        return
    first_cards = ", ".join(map(repr, deck[:_NUM_SHOWN_CARDS]))
    raise GameParameterError(
        f"deck={first_cards}, ... ({len(deck)} cards): a deck must be a permutation of the "
        f"{spec.deck_size} cards of the {spec.num_colors}x{spec.num_ranks} board; get one from "
        "shuffled_deck."
    )


def _chance_action(spec: GameSpec, card: Card) -> int:
    """Return OpenSpiel's number for dealing a card."""
    return card.color * spec.num_ranks + card.rank


@functools.cache  # pure, and at most 25 boards
def _unknown(num_colors: int, num_ranks: int) -> Knowledge:
    """Return what is known of a card before any hint."""
    return Knowledge(tuple(range(num_colors)), tuple(range(num_ranks)), False, False)


@functools.cache  # pure, and at most 4096 pieces of knowledge times 10 hints
def _after_hint(known: Knowledge, is_color: bool, value: int, touched: bool) -> Knowledge:
    """Return what is known of a card after a hint.

    Args:
        known: What was known before.
        is_color: True for a colour hint, False for a rank hint.
        value: The colour or rank, from 0.
        touched: True for the cards that have it (positive), False for the hand's other cards.
    """
    before = known.colors if is_color else known.ranks
    values = (value,) if touched else tuple(other for other in before if other != value)
    if is_color:
        return replace(known, colors=values, color_hinted=known.color_hinted or touched)
    return replace(known, ranks=values, rank_hinted=known.rank_hinted or touched)


def _with(row: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """Return the tuple with another value at an index."""
    return (*row[:index], value, *row[index + 1 :])


def _without(row: tuple[T, ...], index: int) -> tuple[T, ...]:
    """Return the tuple without the value at an index."""
    return row[:index] + row[index + 1 :]
