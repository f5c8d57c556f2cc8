"""The symmetries of Hanabi: any permutation of the colours gives the same game.

Other-Play (Hu et al., arXiv 2003.02979) shows each player the table with the colours in its own
order. Conventions that depend on a colour then fail, and only conventions that strangers could find
as well remain. Nothing else in the rules is symmetric: ranks are played in order, and slots are
ordered by age.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from hanabi_grpo.envs.base import drawn_symmetries
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card, Event, Knowledge, PlayerView

OTHER_PLAY_SUFFIX = "-otherplay"
"""Hash suffix of rules under which each player sees the colours in its own order."""


@dataclass(frozen=True, slots=True)
class Relabeling:
    """A permutation of the colours: how one player sees the table."""

    seen: tuple[int, ...]
    """For each colour of the table, the colour that the player sees instead."""

    @property
    def inverse(self) -> "Relabeling":
        """The inverse permutation."""
        table = [0] * len(self.seen)
        for color, seen_color in enumerate(self.seen):
            table[seen_color] = color
        return Relabeling(tuple(table))

    @property
    def name(self) -> str:
        """Digits that identify the permutation, e.g. "021"."""
        return "".join(map(str, self.seen))

    def seen_as_by(self, other: "Relabeling") -> "Relabeling":
        """Return the permutation of the table that looks to `other` as the table looks to this one.

        For every card: `other.card(self.seen_as_by(other).card(card)) == self.card(card)`.
        """
        inverse = other.inverse
        return Relabeling(tuple(inverse.seen[color] for color in self.seen))

    @property
    def is_identity(self) -> bool:
        """Whether every colour is seen as it is."""
        return self.seen == tuple(range(len(self.seen)))

    def card(self, card: Card) -> Card:
        """Return a card as the player sees it."""
        return Card(self.seen[card.color], card.rank)

    def action(self, action: Action) -> Action:
        """Return a move as the player words it."""
        if action.kind != "hint_color":
            return action
        # A reply may also name a colour that the board lacks.
        if action.value >= len(self.seen):
            return action
        return replace(action, value=self.seen[action.value])

    def knowledge(self, known: Knowledge) -> Knowledge:
        """Return what is known of a card, in the player's colours."""
        colors = sorted(self.seen[color] for color in known.colors)
        return replace(known, colors=tuple(colors))

    def event(self, event: Event) -> Event:
        """Return a past move in the player's colours."""
        card = None if event.card is None else self.card(event.card)
        return event._replace(action=self.action(event.action), card=card)

    def view(self, view: PlayerView) -> PlayerView:
        """Return what a player may know, in its colours.

        Legal moves are ordered as if these were the table's colours, so that their order reveals
        nothing.
        """
        if self.is_identity:
            return view
        fireworks = [0] * view.num_colors
        for color, height in enumerate(view.fireworks):
            fireworks[self.seen[color]] = height
        return view._replace(
            fireworks=tuple(fireworks),
            discards=tuple(map(self.card, view.discards)),
            own_hand=tuple(map(self.knowledge, view.own_hand)),
            hands=tuple(tuple(map(self.card, hand)) for hand in view.hands),
            knowledge=tuple(tuple(map(self.knowledge, hand)) for hand in view.knowledge),
            legal_actions=self.actions(view.legal_actions),
            events=tuple(map(self.event, view.events)),
        )

    def actions(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """Return legal moves in the player's colours and their usual order."""
        places: dict[tuple[str, int], list[Action]] = {}
        for action in actions:
            places.setdefault((action.kind, action.target), []).append(self.action(action))
        for same_kind in places.values():
            # Slots and ranks keep their order; colours return to their usual order.
            same_kind.sort(key=lambda action: (action.slot, action.value))
        ordered = []
        for action in actions:
            ordered.append(places[action.kind, action.target].pop(0))
        return tuple(ordered)


def num_relabelings(num_colors: int) -> int:
    """Return how many orders of the colours there are."""
    return math.factorial(num_colors)


def relabeling(number: int, num_colors: int) -> Relabeling:
    """Return an order of colours by its number; 0 is the table's own."""
    for position, seen in enumerate(permutations(range(num_colors))):
        if position == number:
            return Relabeling(seen)
    raise ValueError(
        f"symmetry {number}: {num_colors} colours have {num_relabelings(num_colors)} symmetries, "
        "numbered from 0."
    )


def task_relabelings(spec: GameSpec, split: str, seed: int) -> list[Relabeling]:
    """Return how each player of a task sees the colours under Other-Play."""
    count = num_relabelings(spec.num_colors)
    numbers = drawn_symmetries(count, spec.num_players, split, seed)
    return [relabeling(number, spec.num_colors) for number in numbers]
