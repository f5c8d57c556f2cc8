"""The fragment of hanab.live's URLs that holds a whole game.

Three parts between commas, with a hyphen every 20 characters so that lines can wrap:

- the number of players, the lowest and the highest rank, and a character a card: suit * R + rank - lowest, where R is
  the number of ranks;
- the lowest and the highest type of action (T types), and two characters an action: (value + 1, or 0 without a value)
  * T + type - lowest, then the target;
- the number of the variant.

A character stands for a number from 0 to 61: a-z, 0-9, A-Z. Further parts (the seed, and `#` with a turn) may follow.
"""

import re

from hanabi_grpo.envs.hanabi.replays.live_game import (
    NUM_COLORS,
    NUM_RANKS,
    LiveAction,
    LiveGame,
    check_players,
    check_variant_id,
    complete_deck,
)
from hanabi_grpo.envs.hanabi.rules import Card
from hanabi_grpo.errors import SettingsError

URL = "https://hanab.live/replay-json/"

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NUMBERS = {character: number for number, character in enumerate(_ALPHABET)}
_NAMES = ("Alice", "Bob", "Cathy", "Donald", "Emily")
"""What hanab.live calls the players of a fragment, which names none."""
_WRAP = 20
_FRAGMENT = re.compile(
    r"(?:https?://)?(?:[\w.-]+/)?(?:(?:shared-)?replay-json/)?([0-9A-Za-z-]+(?:,[0-9A-Za-z-]*)+)(?:[#?].*)?", re.ASCII
)


def compact(game: LiveGame) -> str:
    """Return the fragment of a game; the players' names are not in it."""
    cards = "".join(_ALPHABET[card.color * NUM_RANKS + card.rank] for card in game.deck)
    text = f"{len(game.players)}1{NUM_RANKS}{cards},{_compact_actions(game.actions)},0"
    return "-".join(text[start : start + _WRAP] for start in range(0, len(text), _WRAP))


def looks_compact(text: str) -> bool:
    """Return True when a text can only be a fragment, alone or in a URL."""
    return _FRAGMENT.fullmatch(text.strip()) is not None


def expand(text: str) -> LiveGame:
    """Return the game of a fragment or of a whole URL.

    Raises:
        SettingsError: Malformed, or of another variant.
    """
    match = _FRAGMENT.fullmatch(text.strip())
    where = f"{text.strip()[:40]}…"
    parts = match[1].replace("-", "").split(",") if match else []
    if len(parts) < 3:
        raise SettingsError(
            f"{where}: no game of hanab.live; a fragment is players and deck, actions and variant between commas."
        )
    dealt, done, variant = parts[:3]
    if len(dealt) < 3 or not dealt[:3].isdigit():
        raise SettingsError(f"{where}: starts with {dealt[:3]!r}; the number of players and two ranks were expected.")
    check_variant_id(int(variant) if variant.isdigit() else variant, where)
    num_players = int(dealt[0])
    check_players(num_players, where)
    cards = _expand_deck(dealt[1:], where)
    return LiveGame(
        players=_NAMES[:num_players],
        deck=complete_deck(cards, where),
        num_known=len(cards),
        actions=_expand_actions(done, where),
    )


def _compact_actions(actions: tuple[LiveAction, ...]) -> str:
    if not actions:
        return "00"
    types = [action.type for action in actions]
    lowest, highest = min(types), max(types)
    span = highest - lowest + 1
    codes = (
        _ALPHABET[(0 if action.value is None else action.value + 1) * span + action.type - lowest]
        + _ALPHABET[action.target]
        for action in actions
    )
    return f"{lowest}{highest}{''.join(codes)}"


def _expand_deck(text: str, where: str) -> tuple[Card, ...]:
    lowest, highest = int(text[0]), int(text[1])
    if not 1 <= lowest <= highest <= NUM_RANKS:
        raise SettingsError(f"{where}: ranks {lowest} to {highest}; the board full has 1 to {NUM_RANKS}.")
    span = highest - lowest + 1
    cards = [Card(number // span, number % span + lowest - 1) for number in (_NUMBERS[one] for one in text[2:])]
    for card in cards:
        if card.color >= NUM_COLORS:
            raise SettingsError(f"{where}: a card of suit {card.color}; the board full has 0 to {NUM_COLORS - 1}.")
    return tuple(cards)


def _expand_actions(text: str, where: str) -> tuple[LiveAction, ...]:
    if not text:
        return ()
    if len(text) % 2 or not text[:2].isdigit() or text[0] > text[1]:
        raise SettingsError(
            f"{where}: actions {text[:10]!r}…: two digits (types) and two characters an action were expected."
        )
    lowest = int(text[0])
    span = int(text[1]) - lowest + 1
    actions = []
    for start in range(2, len(text), 2):
        value, kind = divmod(_NUMBERS[text[start]], span)
        target = _NUMBERS[text[start + 1]]
        actions.append(LiveAction(type=kind + lowest, target=target, value=value - 1 if value else None))
    return tuple(actions)
