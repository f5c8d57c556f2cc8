"""SimpleBot: every hint means "play this", so a team of it never loses a life.

Source: Arthur O'Dwyer's SimpleBot (github.com/Quuxplusone/Hanabi), whose published means on Full are 16.92, 18.48,
19.32 and 18.50 with 2 to 5 players.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hanabi_grpo.envs import base
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.policies.rule_bots import move_text
from hanabi_grpo.envs.hanabi.rules.actions import discard, hint_color, hint_rank, play
from hanabi_grpo.envs.hanabi.rules.presets import MAX_COLORS, GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Event, PlayerView


class Mark(NamedTuple):
    """What the convention says about one card; -1 where it says nothing."""

    color: int
    rank: int
    is_playable: bool


_UNMARKED = Mark(-1, -1, False)


class SimpleBot:
    """The first of three rules that applies; deterministic.

    1. Play the card marked playable of lowest rank, the oldest of equals.
    2. With a hint token: of the hints that touch only cards that fit now, give the one that touches most cards not
       yet marked playable; the first of equals, over players in turn order, colours, then ranks.
    3. Discard the oldest card; with all hint tokens, stall: tell the previous player the rank of its oldest card.
    """

    name = "simple-bot"

    def seat(self, player: int, *, task: base.Task[EnvConfig], game: int) -> "SimpleBotSeat":
        """Return a fresh seat."""
        return SimpleBotSeat(task.config.spec())


class SimpleBotSeat:
    """One player, with the marks on every card; they follow from public moves, so all seats agree on them."""

    def __init__(self, spec: GameSpec) -> None:
        """Start with full hands and no marks."""
        self._spec = spec
        self._marks = [[_UNMARKED] * spec.hand_size for _ in range(spec.num_players)]
        self._fireworks = [0] * spec.num_colors
        self._hints = spec.max_hints
        self._deck_size = spec.deck_size - spec.num_players * spec.hand_size
        self._num_seen = 0

    def act(self, seen: base.Observation) -> str:
        """Return the chosen move as text."""
        return move_text(seen, self.move(seen.view()))

    def move(self, view: PlayerView) -> Action:
        """Return the move of the first rule that applies."""
        self._read(view.events)
        playable = [(mark.rank, slot) for slot, mark in enumerate(self._marks[view.player]) if mark.is_playable]
        if playable:
            return play(min(playable)[1])
        hint = self._best_hint(view) if view.hints else None
        return hint or (discard(0) if view.hints < view.max_hints else _stall(view))

    def _read(self, events: Sequence[Event]) -> None:
        """Bring the marks up to date with the moves since the last look."""
        for event in events[self._num_seen :]:
            action = event.action
            if action.slot < 0:
                self._read_hint(event)
                self._hints -= 1
                continue
            if action.kind == "play" and event.card is not None:
                self._read_play(event.card, event.scored)
            else:
                self._hints += 1
            marks = self._marks[event.player]
            del marks[action.slot]
            if self._deck_size:
                self._deck_size -= 1
                marks.append(_UNMARKED)
        self._num_seen = len(events)

    def _read_hint(self, event: Event) -> None:
        action = event.action
        marks = self._marks[action.target]
        if action.kind == "hint_color":
            rank = self._fireworks[action.value]
            mark = Mark(action.value, rank, True) if rank < self._spec.num_ranks else Mark(action.value, -1, False)
            for slot in event.touched:
                marks[slot] = mark
            return
        follows = event.player == (action.target + 1) % self._spec.num_players
        if self._hints == self._spec.max_hints and follows and event.touched[0] == 0:
            return  # a stall says nothing
        for slot in event.touched:
            marks[slot] = Mark(marks[slot].color, action.value, True)

    def _read_play(self, card: Card, scored: bool) -> None:
        """Take back the marks of cards that may be copies of the played one."""
        num_ranks = self._spec.num_ranks
        if scored:
            self._fireworks[card.color] += 1
            if card.rank == num_ranks - 1 and self._hints < self._spec.max_hints:
                self._hints += 1
        if num_copies(card.rank, num_ranks) == 1:
            return
        for marks in self._marks:
            for slot, mark in enumerate(marks):
                if mark.is_playable and mark.rank == card.rank and mark.color in (-1, card.color):
                    marks[slot] = Mark(mark.color, mark.rank, False)

    def _best_hint(self, view: PlayerView) -> Action | None:
        best, best_worth = None, 0
        for step in range(1, view.num_players):
            seat = (view.player + step) % view.num_players
            found = _hint_for(view.hands[seat], self._marks[seat], view.fireworks)
            if found is not None and found[0] > best_worth:
                best_worth, value = found
                best = hint_color(seat, value) if value < MAX_COLORS else hint_rank(seat, value - MAX_COLORS)
        return best


def _stall(view: PlayerView) -> Action:
    """Tell the previous player that still holds a card the rank of its oldest one; without hint tokens, play."""
    if view.hints:
        for step in range(1, view.num_players):
            seat = (view.player - step) % view.num_players
            if view.hands[seat]:
                return hint_rank(seat, view.hands[seat][0].rank)
    return play(0)


def _hint_for(hand: Sequence[Card], marks: Sequence[Mark], fireworks: Sequence[int]) -> tuple[int, int] | None:
    """Return the worth of the best hint for a hand and its value: a colour, or MAX_COLORS + a rank."""
    misleading: set[int] = set()
    worth: Counter[int] = Counter()
    for card, mark in zip(hand, marks, strict=True):
        values = card.color, MAX_COLORS + card.rank
        if fireworks[card.color] != card.rank:
            misleading.update(values)
        elif not mark.is_playable:
            worth.update(values)
    # Of equals the lowest value: colours before ranks, both ascending.
    true = ((count, -value) for value, count in worth.items() if value not in misleading)
    count, negated = max(true, default=(0, 0))
    return (count, -negated) if count else None
