"""hanab.live's JSON of a game, and the rules that it must have to be a game of the board `full`.

Format: https://github.com/Hanabi-Live/hanabi-live/blob/main/misc/example_game_with_comments.jsonc
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from hanabi_grpo.envs.hanabi.rules import Card
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.errors import SettingsError

VARIANT = "No Variant"
PLAY, DISCARD, COLOR_HINT, RANK_HINT, END_GAME, END_BY_VOTE = range(6)
"""Types of actions; the last two stop a game before its end."""
NUM_COLORS = NUM_RANKS = 5

_NEUTRAL_OPTIONS = frozenset({"timed", "timeBase", "timePerTurn", "speedrun", "tableName", "maxPlayers", "password"})
"""Options about clocks and tables; no rule of the cards depends on them."""
_RULES = ("variant", "variantName", "startingPlayer", "firstPlayer")
"""Options that may stand beside `options` too."""
_Int = Annotated[int, Field(strict=True)]


class LiveAction(BaseModel, frozen=True):
    """One entry of `actions`."""

    type: _Int
    target: _Int
    """Position in the deck of the card that is played or discarded, else the seat that is hinted."""
    value: _Int | None = None
    """Colour from 0, or printed rank; of no meaning for a card."""


class _LiveCard(BaseModel):
    suitIndex: Annotated[int, Field(strict=True, ge=0, lt=NUM_COLORS)]
    rank: Annotated[int, Field(strict=True, ge=1, le=NUM_RANKS)]


class _Row(BaseModel):
    players: Annotated[list[Annotated[str, Field(strict=True)]], Field(min_length=2, max_length=5)]
    deck: list[_LiveCard]
    actions: list[LiveAction] = []
    options: dict[str, Any] | None = None
    characters: list[Any] | None = None
    id: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGame:
    """A game in hanab.live's terms, with the rules of the board `full`."""

    players: tuple[str, ...]
    deck: tuple[Card, ...]
    """All 50 cards in the order of the deal: player 0's whole hand first."""
    num_known: int
    """Cards of `deck` that the producer gave; cards after them were never dealt."""
    actions: tuple[LiveAction, ...]
    id: int = 0
    """Number of the game at hanab.live; 0: none."""


def live_game_to_json(game: LiveGame) -> dict[str, Any]:
    """Return the object that hanab.live reads."""
    return {
        "players": list(game.players),
        "deck": [{"suitIndex": card.color, "rank": card.rank + 1} for card in game.deck],
        "actions": [action.model_dump(exclude_none=True) for action in game.actions],
        "options": {"variant": VARIANT},
    }


def live_games_from_text(text: str, where: str) -> list[LiveGame]:
    """Return the games of a file: one object, a list of them, or one in each line.

    Raises:
        SettingsError: No JSON, or a game that is malformed or has other rules.
    """
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip()
    try:
        data = json.loads(text)
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            data = [json.loads(line) for line in lines]
        except ValueError:
            raise SettingsError(f"{where}: no JSON ({error}); export a game as JSON.") from error
    rows = data if isinstance(data, list) else [data]
    if not rows:
        raise SettingsError(f"{where}: holds no game.")
    return [
        live_game_from_json(row, where if len(rows) == 1 else f"{where}, game {number}")
        for number, row in enumerate(rows)
    ]


def live_game_from_json(row: Any, where: str) -> LiveGame:
    """Return a game of anybody's making; keys that say nothing about the play are left alone.

    Raises:
        SettingsError: Malformed, or of other rules than the board `full`; names what.
    """
    if isinstance(row, Mapping) and "deck" not in row:
        seed = f"seed {str(row['seed'])[:40]!r}" if row.get("seed") else "nothing"
        raise SettingsError(
            f"{where}: no `deck`, the game names its cards by {seed}; take the JSON of https://hanab.live/export/<id>, "
            "which lists them."
        )
    try:
        checked = _Row.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the whole object"
        value = "" if first["type"] == "missing" else f"={first['input']!r:.60}"
        raise SettingsError(f"{where}: {name}{value}: {first['msg']}; hanab.live writes no such game.") from error
    _check_rules({key: row[key] for key in _RULES if key in row}, checked, where)
    _check_rules(checked.options or {}, checked, where)
    if any(_has_character(character) for character in checked.characters or ()):
        raise SettingsError(f"{where}: characters: detrimental characters change the rules; only games without them.")
    cards = tuple(Card(card.suitIndex, card.rank - 1) for card in checked.deck)
    left = Counter(sorted_deck(NUM_COLORS, NUM_RANKS))
    left.subtract(cards)
    for card, number in left.items():
        if number < 0:
            raise SettingsError(
                f"{where}: deck has too many {card}; other decks are other variants, which are not replayed here."
            )
    return LiveGame(
        players=tuple(checked.players),
        deck=(*cards, *left.elements()),
        num_known=len(cards),
        actions=tuple(checked.actions),
        id=checked.id if type(checked.id) is int and 0 <= checked.id < 2**63 else 0,
    )


def _check_rules(options: Mapping[str, Any], row: _Row, where: str) -> None:
    """Refuse every option that changes the rules of the cards; one that is 0, false or empty changes nothing."""
    number = len(row.players)
    for name, value in options.items():
        same = value == VARIANT if name in ("variant", "variantName") else name == "numPlayers" and value == number
        if value and not same and name not in _NEUTRAL_OPTIONS:
            raise SettingsError(
                f"{where}: {name}={str(value)[:60]}: the game has other rules than the board `full`; only games of "
                f"{VARIANT!r} without such options, in which player 0 starts, are replayed here."
            )


def _has_character(character: Any) -> bool:
    name = character.get("name") if isinstance(character, Mapping) else character
    return bool(name) and name != "n/a"
