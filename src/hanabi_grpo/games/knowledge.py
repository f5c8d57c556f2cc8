"""What hints tell about the cards of every hand, computed from the public record of moves."""

from collections.abc import Sequence

from hanabi_grpo.games.presets import GameSpec
from hanabi_grpo.games.view import Event, Knowledge


class HintRecord:
    """The public knowledge of all hands, brought up to date only when somebody looks.

    A hint is positive for the cards it touches and negative for the other cards of that hand. Cards that are
    visible elsewhere are not counted.
    """

    __slots__ = ("_deck_size", "_hands", "_num_seen", "_unknown")

    def __init__(self, spec: GameSpec) -> None:
        """Start with full hands about which nothing is known."""
        self._unknown = Knowledge(tuple(range(spec.num_colors)), tuple(range(spec.num_ranks)), False, False)
        self._hands = [[self._unknown] * spec.hand_size for _ in range(spec.num_players)]
        self._deck_size = spec.deck_size - spec.num_players * spec.hand_size
        self._num_seen = 0

    def update(self, events: Sequence[Event], *, is_over: bool) -> tuple[tuple[Knowledge, ...], ...]:
        """Read the events that are new since the last call and return the knowledge per seat and slot.

        Args:
            events: Every move of the game so far, oldest first.
            is_over: True when the last of them ended the game, since nothing is drawn after it.
        """
        for index in range(self._num_seen, len(events)):
            event = events[index]
            action = event.action
            if action.kind in ("hint_color", "hint_rank"):
                self._hands[action.target] = [
                    _after_hint(known, action.kind, action.value, slot in event.touched)
                    for slot, known in enumerate(self._hands[action.target])
                ]
                continue
            del self._hands[event.player][action.slot]
            if self._deck_size and not (is_over and index == len(events) - 1):
                self._deck_size -= 1
                self._hands[event.player].append(self._unknown)
        self._num_seen = len(events)
        return tuple(map(tuple, self._hands))

    def copy(self) -> "HintRecord":
        """Return an independent copy."""
        other = object.__new__(HintRecord)
        other._unknown = self._unknown
        other._hands = [list(hand) for hand in self._hands]
        other._deck_size = self._deck_size
        other._num_seen = self._num_seen
        return other


def _after_hint(known: Knowledge, kind: str, value: int, touched: bool) -> Knowledge:
    if kind == "hint_color":
        colors = (value,) if touched else tuple(color for color in known.colors if color != value)
        return Knowledge(colors, known.ranks, known.color_hinted or touched, known.rank_hinted)
    ranks = (value,) if touched else tuple(rank for rank in known.ranks if rank != value)
    return Knowledge(known.colors, ranks, known.color_hinted, known.rank_hinted or touched)
