"""What hints tell about the cards of every hand, computed from the public record of moves."""

import functools
from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.rules.presets import MAX_COLORS, MAX_RANKS, GameSpec
from hanabi_grpo.envs.hanabi.rules.view import Event, Knowledge

# One number per card says all that hints have told: bits of the possible colours, bits of the possible ranks,
# and whether a hint of either kind touched the card. Hints are then single operations on it.
_COLOR_BITS = (1 << MAX_COLORS) - 1
_RANK_BITS = ((1 << MAX_RANKS) - 1) << MAX_COLORS
_COLOR_HINTED = 1 << (MAX_COLORS + MAX_RANKS)
_RANK_HINTED = _COLOR_HINTED << 1


class HintRecord:
    """The public knowledge of all hands, brought up to date only when somebody looks.

    A hint is positive for the cards it touches and negative for the other cards of that hand. Cards that are
    visible elsewhere are not counted.
    """

    __slots__ = ("_codes", "_deck_size", "_hands", "_num_seen", "_unknown")

    def __init__(self, spec: GameSpec) -> None:
        """Start with full hands about which nothing is known."""
        self._unknown = (1 << spec.num_colors) - 1 | ((1 << spec.num_ranks) - 1) << MAX_COLORS
        self._codes = [[self._unknown] * spec.hand_size for _ in range(spec.num_players)]
        self._hands = [tuple(map(_knowledge, codes)) for codes in self._codes]
        self._deck_size = spec.deck_size - spec.num_players * spec.hand_size
        self._num_seen = 0

    def update(self, events: Sequence[Event], *, is_over: bool) -> tuple[tuple[Knowledge, ...], ...]:
        """Read the events that are new since the last call and return the knowledge per seat and slot.

        Args:
            events: Every move of the game so far, oldest first.
            is_over: True when the last of them ended the game, since nothing is drawn after it.
        """
        num_events = len(events)
        for index in range(self._num_seen, num_events):
            event = events[index]
            action = event.action
            if action.slot < 0:
                seat = action.target
                codes = self._codes[seat] = _after_hint(self._codes[seat], action.kind, action.value, event.touched)
            else:
                seat = event.player
                codes = self._codes[seat]
                del codes[action.slot]
                if self._deck_size and not (is_over and index == num_events - 1):
                    self._deck_size -= 1
                    codes.append(self._unknown)
            self._hands[seat] = tuple(map(_knowledge, codes))
        self._num_seen = num_events
        return tuple(self._hands)

    def copy(self) -> "HintRecord":
        """Return an independent copy."""
        other = object.__new__(HintRecord)
        other._unknown = self._unknown
        other._codes = [list(codes) for codes in self._codes]
        other._hands = list(self._hands)
        other._deck_size = self._deck_size
        other._num_seen = self._num_seen
        return other


def _after_hint(codes: list[int], kind: str, value: int, touched: tuple[int, ...]) -> list[int]:
    if kind == "hint_color":
        bits, bit, hinted = _COLOR_BITS, 1 << value, _COLOR_HINTED
    else:
        bits, bit, hinted = _RANK_BITS, 1 << (MAX_COLORS + value), _RANK_HINTED
    after = [code & ~bit for code in codes]
    for slot in touched:
        after[slot] = codes[slot] & ~bits | bit | hinted
    return after


@functools.cache  # pure, and at most 4096 numbers
def _knowledge(code: int) -> Knowledge:
    return Knowledge(
        tuple(color for color in range(MAX_COLORS) if code >> color & 1),
        tuple(rank for rank in range(MAX_RANKS) if code >> (MAX_COLORS + rank) & 1),
        bool(code & _COLOR_HINTED),
        bool(code & _RANK_HINTED),
    )
