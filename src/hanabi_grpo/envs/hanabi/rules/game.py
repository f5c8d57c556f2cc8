"""One game of Hanabi: OpenSpiel decides what is legal and what it is worth, the table beside it is ours."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.knowledge import HintRecord
from hanabi_grpo.envs.hanabi.rules.openspiel import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Event, PlayerView
from hanabi_grpo.errors import GameParameterError, IllegalActionError
from hanabi_grpo.types import player_name

_CHANCE = -1


class Game:
    """A game in progress. Seat 0 moves first.

    Example:
        spec = make_spec("laptop")
        game = Game(spec, shuffled_deck(spec, "train", 17))
        while not game.is_over:
            game.apply(random.choice(game.legal_actions()))

    Attributes:
        spec: The board.
        deck: All cards, first dealt first: seat 0's whole hand, then seat 1's, then the draws.
    """

    __slots__ = (
        "_cards", "_colors", "_deck_position", "_discards", "_events", "_fireworks", "_hands", "_hints", "_legal_ids",
        "_lives", "_player", "_ranks", "_record", "_rules", "_state", "_turns_left", "deck", "spec",
    )  # fmt: skip

    def __init__(self, spec: GameSpec, deck: Sequence[Card]) -> None:
        """Deal.

        Raises:
            GameParameterError: The deck is not an order of exactly this board's cards.
        """
        self.spec = spec
        self.deck = tuple(deck)
        self._rules = load_rules(spec)
        self._colors, self._ranks, card_ids = _checked_deck(spec, self.deck, self._rules.sorted_card_ids)
        self._state = self._rules.game.new_initial_state()
        num_dealt = spec.num_players * spec.hand_size
        for card_id in card_ids[:num_dealt]:
            self._state.apply_action(card_id)
        hand = spec.hand_size
        self._hands = [list(range(seat * hand, (seat + 1) * hand)) for seat in range(spec.num_players)]
        # The same cards as tuples, kept so that views share them.
        self._cards = [self.deck[seat * hand : (seat + 1) * hand] for seat in range(spec.num_players)]
        self._deck_position = num_dealt
        self._turns_left = spec.num_players if num_dealt == len(self.deck) else None
        self._fireworks = [0] * spec.num_colors
        self._discards: list[Card] = []
        self._lives = spec.max_lives
        self._hints = spec.max_hints
        self._player = 0
        self._events: list[Event] = []
        self._legal_ids: list[int] | None = None
        self._record: HintRecord | None = None

    @property
    def current_player(self) -> int:
        """Seat to move; -1 once the game is over."""
        return self._player

    @property
    def is_over(self) -> bool:
        """True when the rules have ended the game."""
        return self._player < 0

    @property
    def is_bombed(self) -> bool:
        """True when the last life is lost."""
        return self._lives == 0

    @property
    def score(self) -> int:
        """Points in OpenSpiel's scoring: 0 on a bomb."""
        return round(self._state.returns()[0])

    @property
    def score_kept(self) -> int:
        """Points on the table, kept on a bomb."""
        return sum(self._fireworks)

    @property
    def lives(self) -> int:
        """Lives left."""
        return self._lives

    @property
    def hints(self) -> int:
        """Hint tokens left."""
        return self._hints

    @property
    def num_turns(self) -> int:
        """Moves made so far, by all players."""
        return len(self._events)

    @property
    def events(self) -> tuple[Event, ...]:
        """Every move so far, oldest first."""
        return tuple(self._events)

    @property
    def hands(self) -> tuple[tuple[Card, ...], ...]:
        """The true hands per seat, oldest card first: for replays, never for a player's eyes."""
        return tuple(self._cards)

    @property
    def hand_positions(self) -> tuple[tuple[int, ...], ...]:
        """Where in `deck` each card of `hands` lies; replay formats name cards by it."""
        return tuple(map(tuple, self._hands))

    def legal_actions(self) -> tuple[Action, ...]:
        """Return the mover's legal actions, in OpenSpiel's order; empty once the game is over."""
        if self._player < 0:
            return ()
        if self._legal_ids is None:
            self._legal_ids = self._state.legal_actions()
        return tuple(map(self._rules.actions[self._player].__getitem__, self._legal_ids))

    def apply(self, action: Action) -> Event:
        """Make a move for the player whose turn it is, and return it as everybody saw it.

        Raises:
            IllegalActionError: The move is not legal; the game is unchanged.
        """
        player = self._player
        if player < 0:
            raise IllegalActionError(f"{_text(action, self.spec)}: the game is over; start another one.")
        if self._legal_ids is None:
            self._legal_ids = self._state.legal_actions()
        action_id = self._rules.action_ids[player].get(action)
        if action_id is None or action_id not in self._legal_ids:
            legal = ", ".join(_text(choice, self.spec) for choice in self.legal_actions())
            raise IllegalActionError(
                f"{_text(action, self.spec)}: not legal for {player_name(player)} now; choose one of: {legal}."
            )
        self._state.apply_action(action_id)
        self._legal_ids = None
        if self._turns_left is not None:
            self._turns_left -= 1
        event = self._record_move(player, action)
        self._events.append(event)
        following = self._state.current_player()
        if following == _CHANCE:
            self._draw(player)
            following = self._state.current_player()
        self._player = following if following >= 0 else -1
        return event

    def view(self, player: int) -> PlayerView:
        """Return everything that one seat may know now, and nothing more.

        Raises:
            IllegalActionError: No such seat.
        """
        spec = self.spec
        if not 0 <= player < spec.num_players:
            raise IllegalActionError(f"player={player}: this game has seats 0 to {spec.num_players - 1}.")
        if self._record is None:
            self._record = HintRecord(spec)
        is_over = self._player < 0
        knowledge = self._record.update(self._events, is_over=is_over)
        hands = self._cards.copy()
        hands[player] = ()
        return PlayerView(
            player=player,
            num_players=spec.num_players,
            num_colors=spec.num_colors,
            num_ranks=spec.num_ranks,
            max_lives=spec.max_lives,
            max_hints=spec.max_hints,
            lives=self._lives,
            hints=self._hints,
            deck_size=len(self.deck) - self._deck_position,
            turns_left=0 if is_over and self._turns_left is not None else self._turns_left,
            fireworks=tuple(self._fireworks),
            discards=tuple(self._discards),
            own_hand=knowledge[player],
            hands=tuple(hands),
            knowledge=knowledge,
            legal_actions=self.legal_actions() if player == self._player else (),
            events=tuple(self._events),
        )

    def copy(self) -> "Game":
        """Return an independent copy of the game as it stands."""
        other = object.__new__(Game)
        other.spec = self.spec
        other.deck = self.deck
        other._rules = self._rules
        other._colors = self._colors
        other._ranks = self._ranks
        other._state = self._state.clone()
        other._hands = [list(hand) for hand in self._hands]
        other._cards = list(self._cards)
        other._discards = list(self._discards)
        other._deck_position = self._deck_position
        other._turns_left = self._turns_left
        other._fireworks = list(self._fireworks)
        other._lives = self._lives
        other._hints = self._hints
        other._player = self._player
        other._events = list(self._events)
        other._legal_ids = self._legal_ids
        other._record = None if self._record is None else self._record.copy()
        return other

    def _record_move(self, player: int, action: Action) -> Event:
        """Bring the table up to date with a move that OpenSpiel has accepted."""
        if action.slot < 0:
            self._hints -= 1
            values, value = (self._colors if action.kind == "hint_color" else self._ranks), action.value
            hand = self._hands[action.target]
            touched = tuple([slot for slot, position in enumerate(hand) if values[position] == value])
            return Event(player, action, None, False, touched)
        slot = action.slot
        card = self.deck[self._hands[player].pop(slot)]
        held = self._cards[player]
        self._cards[player] = held[:slot] + held[slot + 1 :]
        if action.kind == "discard":
            self._hints += 1
            self._discards.append(card)
            return Event(player, action, card)
        scored = self._fireworks[card.color] == card.rank
        if scored:
            self._fireworks[card.color] += 1
            # A complete colour pays a hint back.
            if card.rank == self.spec.num_ranks - 1 and self._hints < self.spec.max_hints:
                self._hints += 1
        else:
            self._lives -= 1
            self._discards.append(card)
        return Event(player, action, card, scored)

    def _draw(self, player: int) -> None:
        position = self._deck_position
        self._state.apply_action(self._colors[position] * self.spec.num_ranks + self._ranks[position])
        self._hands[player].append(position)
        self._cards[player] += (self.deck[position],)
        self._deck_position += 1
        if self._deck_position == len(self.deck):
            self._turns_left = self.spec.num_players


def _checked_deck(
    spec: GameSpec, deck: tuple[Card, ...], sorted_ids: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return colour, rank and OpenSpiel's number of each card of a complete deck."""
    colors = [card.color for card in deck]
    ranks = [card.rank for card in deck]
    card_ids = [color * spec.num_ranks + rank for color, rank in zip(colors, ranks, strict=True)]
    # A rank off the board could pass for a card of another colour.
    if sorted(card_ids) != sorted_ids or min(ranks) < 0 or max(ranks) >= spec.num_ranks:
        raise GameParameterError(
            f"deck={', '.join(map(repr, deck[:3]))}, ... ({len(deck)} cards): a deck is some order of the "
            f"{spec.deck_size} cards of the {spec.num_colors}x{spec.num_ranks} board; take one from shuffled_deck."
        )
    return colors, ranks, card_ids


def _text(action: Action, spec: GameSpec) -> str:
    try:
        return format_action(action, style="full", num_players=spec.num_players)
    except IllegalActionError:
        return repr(action)
