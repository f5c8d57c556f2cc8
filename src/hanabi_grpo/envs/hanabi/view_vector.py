"""What a player may see as a vector of 0 and 1, for learners that read no text; made from a `PlayerView` alone."""

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hanabi_grpo.envs.hanabi.rules.openspiel import load_rules
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import Event, Knowledge, PlayerView


class ViewEncoder:
    """Turns views of one board into vectors of one length.

    Seats are relative to the player, who is 0; "k of n" means n places, the first k of them 1. In order:

    - lives, hint tokens and cards in the deck: k of the board's most;
    - the last round: a flag, and moves left, k of players;
    - fireworks: per colour k of ranks; discards: per colour and rank k of the copies;
    - whose turn it is: one of players; after the end, who would be next;
    - per seat and slot: what hints have told: possible colours, possible ranks, colour hinted, rank hinted;
    - per other seat and slot: the card, one of colours × ranks;
    - the last moves, newest first, one per player: who (one of players), the move (its OpenSpiel number), the card
      that left the hand, whether it scored, the slots that a hint touched.

    So it holds what the prompts tell on the player's turn, except in which order cards were discarded. An empty slot
    and a move that was not yet made are zeros.

    Attributes:
        size: Length of the vector, e.g. 111 on the `laptop` board and 482 on `full` with two players.
    """

    def __init__(self, spec: GameSpec) -> None:
        """Lay out the vectors of a board."""
        self._spec = spec
        self._action_ids = load_rules(spec).action_ids
        self._num_cards = spec.num_colors * spec.num_ranks
        copies = [num_copies(rank, spec.num_ranks) for _ in range(spec.num_colors) for rank in range(spec.num_ranks)]
        self._first_copy = [sum(copies[:card]) for card in range(self._num_cards)]
        self._slot_size = spec.num_colors + spec.num_ranks + 2
        self._event_size = spec.num_players + len(self._action_ids[0]) + self._num_cards + 1 + spec.hand_size
        seats, hand = spec.num_players, spec.hand_size
        sizes = [
            spec.max_lives,
            spec.max_hints,
            spec.deck_size - seats * hand,
            1 + seats,
            self._num_cards,
            spec.deck_size,
            seats,
            seats * hand * self._slot_size,
            (seats - 1) * hand * self._num_cards,
            seats * self._event_size,
        ]
        self._starts = [sum(sizes[:block]) for block in range(len(sizes))]
        self.size = sum(sizes)

    def encode(self, view: PlayerView) -> NDArray[np.int8]:
        """Return the vector of one view of this board.

        Returns:
            Shape `(size,)`, values 0 and 1.
        """
        vector = np.zeros(self.size, dtype=np.int8)
        vector[list(self._ones(view))] = 1
        return vector

    def _ones(self, view: PlayerView) -> Iterator[int]:
        spec, me, seats = self._spec, view.player, self._spec.num_players
        lives, hints, deck, last_round, fireworks, discards, turn, knowledge, hands, events = self._starts
        yield from range(lives, lives + view.lives)
        yield from range(hints, hints + view.hints)
        yield from range(deck, deck + view.deck_size)
        if view.turns_left is not None:
            yield from range(last_round, last_round + 1 + view.turns_left)
        for color, height in enumerate(view.fireworks):
            yield from range(fireworks + color * spec.num_ranks, fireworks + color * spec.num_ranks + height)
        next_copy = self._first_copy.copy()
        for discarded in view.discards:
            card = discarded.color * spec.num_ranks + discarded.rank
            yield discards + next_copy[card]
            next_copy[card] += 1
        mover = (view.events[-1].player + 1) % seats if view.events else 0
        yield turn + (mover - me) % seats
        for step in range(seats):
            seat = (me + step) % seats
            place = knowledge + step * spec.hand_size * self._slot_size
            for known in view.knowledge[seat]:
                for offset in _known_ones(known, spec.num_colors, spec.num_ranks):
                    yield place + offset
                place += self._slot_size
            # The player's own entry is empty in every view.
            place = hands + (step - 1) * spec.hand_size * self._num_cards
            for held in view.hands[seat]:
                yield place + held.color * spec.num_ranks + held.rank
                place += self._num_cards
        for event in view.events[: -seats - 1 : -1]:
            for offset in self._event_ones(event, me):
                yield events + offset
            events += self._event_size

    def _event_ones(self, event: Event, me: int) -> Iterator[int]:
        yield (event.player - me) % self._spec.num_players
        place = self._spec.num_players
        yield place + self._action_ids[event.player][event.action]
        place += len(self._action_ids[0])
        if event.card is not None:
            yield place + event.card.color * self._spec.num_ranks + event.card.rank
        place += self._num_cards
        if event.scored:
            yield place
        for slot in event.touched:
            yield place + 1 + slot


@functools.lru_cache(maxsize=1 << 14)  # pure; a board has at most 31 x 31 x 4 of them
def _known_ones(known: Knowledge, num_colors: int, num_ranks: int) -> tuple[int, ...]:
    ones = [*known.colors, *(num_colors + rank for rank in known.ranks)]
    hinted = num_colors + num_ranks
    if known.color_hinted:
        ones.append(hinted)
    if known.rank_hinted:
        ones.append(hinted + 1)
    return tuple(ones)
