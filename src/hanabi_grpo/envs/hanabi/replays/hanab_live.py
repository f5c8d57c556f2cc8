"""Games of hanab.live, replayed in our engine and turned into our recorded games.

The format is that of https://hanab.live/export/ID, version 3.0.0, as documented in
https://github.com/Hanabi-Live/hanabi-live/blob/main/misc/example_game_with_comments.jsonc:

- `deck` has all cards, first dealt first: the whole hand of player 0, then that of player 1, and so
  on, then the draws. `Game.deck` has the same order. `suitIndex` counts from 0 in the order red,
  yellow, green, blue, purple, which are our colours R, Y, G, W, B in this order; `rank` is the
  printed rank.
- An action of type 0 (play) or 1 (discard) names a card by its position in the deck, not by its
  slot. 2 is a colour hint and 3 a rank hint to the player `target`; `value` is a suit index or a
  printed rank. 4 ends a game early (5: by a vote).
- Player 0 moves first, except in games before April 2020 with the option `startingPlayer`
  (server/src/options.go). The first player's seat becomes our seat 0.

hanab.live ends a game as soon as no card is left that could score (server/src/game.go,
`CheckEnd`); OpenSpiel, and therefore this package, continues. Such a game counts as finished here.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HANABI, HanabiGame, deck_id
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.beliefs import reachable_heights
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.hanabi.rules.game import Game
from hanabi_grpo.envs.hanabi.rules.presets import MAX_PLAYERS, GameSpec, is_board, make_spec
from hanabi_grpo.envs.hanabi.rules.view import Action, Card
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import GameParameterError, SettingsError, shown
from hanabi_grpo.texts import encodable
from hanabi_grpo.types import HUMAN, Episode, EpisodeStatus, ReplyKind, Turn

SUITE = "hanab.live"
"""Suite of imported games; their decks are stored in the records, not dealt by a seed."""
VARIANT = "No Variant"
"""hanab.live's name for the game with the official rules."""
_COLORS_OF_VARIANT = {VARIANT: 5, "4 Suits": 4, "3 Suits": 3}
"""Variants that differ from the official rules only in the number of suits."""
_BOARD = "full"
_EXPORT = "https://hanab.live/export/ID"
_NEUTRAL_OPTIONS = frozenset(
    {
        "timed",
        "timeBase",
        "timePerTurn",
        "speedrun",
        "tableName",
        "maxPlayers",
        "password",
    }
)
"""Options about clocks and tables, and speedruns, which only end early."""
_OUTER_OPTIONS = ("variant", "variantName", "startingPlayer", "firstPlayer", "numPlayers")
"""Options that older files have outside `options`."""
_PLAY, _DISCARD, _COLOR_HINT, _RANK_HINT, _END, _END_BY_VOTE = range(6)
"""Types of actions."""
_NO_CHARACTER = "n/a"
_MAX_ID = 2**63
_NO_JSON = (ValueError, RecursionError)
"""What `json.loads` raises for invalid JSON and for JSON that is nested too deeply."""
_SEED_DIGITS = 15
"""Hex digits of the deck's ID that become the seed of a game without an ID: below 2**60."""

_Int = Annotated[int, Field(strict=True)]
_Text = Annotated[str, Field(strict=True)]


class OtherRulesError(SettingsError):
    """A game with rules that our engine does not support: a variant, or an option."""


class _LiveAction(BaseModel, frozen=True):
    type: _Int
    target: _Int
    """Position in the deck of the card that is played or discarded; for hints, the target seat."""
    value: _Int | None = None
    """Colour from 0, or printed rank; unused for plays and discards."""

    def __str__(self) -> str:
        return json.dumps(self.model_dump(exclude_none=True))


class _LiveCard(BaseModel):
    suitIndex: Annotated[int, Field(strict=True, ge=0)]
    rank: Annotated[int, Field(strict=True, ge=1)]


class _LiveGame(BaseModel):
    players: Annotated[list[_Text], Field(min_length=2)]
    deck: list[_LiveCard]
    actions: list[_LiveAction] = []
    options: dict[str, Any] | None = None
    characters: list[Any] | None = None
    id: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedGame:
    """A game of hanab.live as a recorded game."""

    recording: Recording
    """The record: no prompts, no tokens; `start` is the deck, `names` are the players."""
    notes: tuple[str, ...] = ()
    """What the record does not show: the game was ended early, or continued after its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRow:
    """One game of a file, not yet checked."""

    where: str
    """File and number, for messages."""
    data: Any
    """The game as parsed JSON, or the error from parsing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The rules of a game."""

    spec: GameSpec
    first_player: int
    """The player who moves first, in hanab.live's numbering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A game in our engine, with hanab.live's numbers for its cards and seats."""

    playing: HanabiGame
    cards: tuple[int, ...]
    """For each position in our deck, the position in hanab.live's."""
    seats: tuple[int, ...]
    """For each of our seats, hanab.live's seat."""

    def choices(self) -> dict[_LiveAction, Action]:
        """Return the legal moves, keyed by hanab.live's actions."""
        game = self.playing.table
        positions = game.hand_positions[game.current_player] if not game.is_over else ()
        choices = {}
        for action in game.legal_actions():
            if action.kind == "hint_color":
                seat = self.seats[action.target]
                live = _LiveAction(type=_COLOR_HINT, target=seat, value=action.value)
            elif action.kind == "hint_rank":
                seat = self.seats[action.target]
                live = _LiveAction(type=_RANK_HINT, target=seat, value=action.value + 1)
            else:
                kind = _PLAY if action.kind == "play" else _DISCARD
                live = _LiveAction(type=kind, target=self.cards[positions[action.slot]])
            choices[live] = action
        return choices


def live_rows(text: str, where: str) -> Iterator[LiveRow]:
    """Yield the games of a file: one object, a list of them, or one in each line.

    Args:
        text: The file's content.
        where: The file's name in messages.

    Raises:
        SettingsError: It is empty.
    """
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip()
    if not text:
        raise SettingsError(f"{where}: contains no games; export some as JSON from {_EXPORT}.")
    try:
        data = json.loads(text)
    except _NO_JSON:
        # A note may contain a raw U+2028 or similar, at which `splitlines` would split.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield LiveRow(where=f"{where}, line {number}", data=_parsed(line))
        return
    rows = data if isinstance(data, list) else [data]
    if not rows:
        raise SettingsError(f"{where}: contains no games; export some as JSON from {_EXPORT}.")
    for number, row in enumerate(rows):
        name = f"{where}, game {number}" if len(rows) > 1 else where
        yield LiveRow(where=name, data=row)


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except _NO_JSON as error:
        return error


def import_game(row: LiveRow) -> ImportedGame:
    """Replay a game in our engine, and return its record.

    A game that its players or the clock ended, or that stops before its end, has the status
    `truncated_turns` and the points that were on the table. Keys that do not affect the moves
    (notes, seed, …) are ignored.

    Args:
        row: The game.

    Raises:
        OtherRulesError: A variant, an option or characters that our engine does not support.
        SettingsError: Malformed, without its deck, or with an action that the rules forbid.
    """
    where = row.where
    live = _checked(row)
    rules = _rules(live, row.data, where)
    table = _dealt(live, rules, where)
    game = table.playing.table
    turns: list[Turn] = []
    notes: list[str] = []
    is_over = _is_over(game)
    is_ended = False
    for number, action in enumerate(live.actions):
        if action.type in (_END, _END_BY_VOTE):
            # A game that ended by the rules may also have an action that ends it.
            is_ended = not is_over
            break
        if is_over:
            num_late = len(live.actions) - number
            notes.append(f"{where}: {num_late} actions after the end are left out.")
            break
        turns.append(_turn(table, action, f"{where}, action {number}", len(live.deck)))
        is_over = _is_over(game)
    if is_ended:
        notes.append(f"{where}: ended by its players or by the clock after {len(turns)} moves.")
    elif not is_over:
        notes.append(f"{where}: stops after {len(turns)} moves, before its end.")
    spec = rules.spec
    has_id = type(live.id) is int and 0 <= live.id < _MAX_ID
    episode = Episode(
        env=HANABI.name,
        preset=spec.preset,
        spec_hash=spec.hash,
        num_players=spec.num_players,
        suite=SUITE,
        seed=live.id if has_id else int(deck_id(game.deck)[:_SEED_DIGITS], 16),
        status=EpisodeStatus.FINISHED if is_over else EpisodeStatus.TRUNCATED_TURNS,
        result=table.playing.result(),
        turns=tuple(turns),
        seats=(HUMAN,) * spec.num_players,
    )
    recording = Recording(
        episode=episode,
        start=" ".join(map(str, game.deck)),
        names=tuple(encodable(live.players[seat]) for seat in table.seats),
    )
    return ImportedGame(recording=recording, notes=tuple(notes))


def _checked(row: LiveRow) -> _LiveGame:
    """Return the game if it has the expected form."""
    where = row.where
    if isinstance(row.data, _NO_JSON):
        raise SettingsError(
            f"{where}: not valid JSON ({row.data}); use the JSON from {_EXPORT}, one game per line."
        )
    if not isinstance(row.data, Mapping):
        raise SettingsError(
            f"{where}: {shown(row.data)} is not a game; a game is an object with players, deck "
            f"and actions. Use the JSON from {_EXPORT}."
        )
    if "deck" not in row.data:
        raise SettingsError(
            f"{where}: deck is missing, so the cards that the players saw are unknown. Use the "
            f"JSON from {_EXPORT}, which lists all cards."
        )
    try:
        return _LiveGame.model_validate(row.data)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        value = "" if first["type"] == "missing" else f"={shown(first['input'])}"
        raise SettingsError(
            f"{where}: {name}{value}: {first['msg']}; hanab.live does not write such a game. Use "
            f"the JSON from {_EXPORT}."
        ) from error


def _rules(live: _LiveGame, row: Mapping[str, Any], where: str) -> _Rules:
    """Return the rules of a game if our engine supports them."""
    num_players = len(live.players)
    if num_players > MAX_PLAYERS:
        raise OtherRulesError(
            f"{where}: {num_players} players: our engine supports 2 to {MAX_PLAYERS}. Leave the "
            "game out."
        )
    for character in live.characters or ():
        name = character.get("name") if isinstance(character, Mapping) else character
        if name and name != _NO_CHARACTER:
            raise OtherRulesError(
                f"{where}: character {shown(name)}: detrimental characters change the rules; only "
                "games without them can be replayed. Leave the game out."
            )
    given = {name: row[name] for name in _OUTER_OPTIONS if name in row}
    # Options that are 0, false or empty change nothing.
    options = {name: value for name, value in (given | (live.options or {})).items() if value}
    variants = [options.pop(name, VARIANT) for name in ("variant", "variantName")]
    variant = next((name for name in variants if name != VARIANT), VARIANT)
    first_players = [options.pop(name, 0) for name in ("startingPlayer", "firstPlayer")]
    first_player = next((seat for seat in first_players if seat), 0)
    # 1.0 is in the range, but is not the number of a seat.
    if type(first_player) is not int or first_player not in range(num_players):
        raise SettingsError(
            f"{where}: startingPlayer={shown(first_player)}: must be a player from 0 to "
            f"{num_players - 1}. Use the JSON from {_EXPORT}."
        )
    extra_cards = bool(options.pop("oneExtraCard", False)) - bool(options.pop("oneLessCard", False))
    if options.get("numPlayers") == num_players:
        del options["numPlayers"]
    for name, value in options.items():
        if name not in _NEUTRAL_OPTIONS:
            raise OtherRulesError(
                f"{where}: option {name}={shown(value)}: our engine does not support it; allowed "
                f"are oneExtraCard, oneLessCard, startingPlayer and "
                f"{', '.join(sorted(_NEUTRAL_OPTIONS))}. Leave the game out."
            )
    return _Rules(spec=_spec(variant, num_players, extra_cards, where), first_player=first_player)


def _spec(variant: Any, num_players: int, extra_cards: int, where: str) -> GameSpec:
    """Return the board of a variant.

    Args:
        variant: The name of a hanab.live variant, or of one of our boards, which other programs
            that write this format may use.
        num_players: Players of the game.
        extra_cards: Cards that a hand has beyond the official number; -1: one less.
        where: For messages.
    """
    num_colors = _COLORS_OF_VARIANT.get(variant) if isinstance(variant, str) else None
    try:
        if num_colors is not None:
            board = make_spec(_BOARD, num_players)
            return make_spec(
                _BOARD,
                num_players,
                num_colors=num_colors,
                hand_size=board.hand_size + extra_cards,
            )
        if isinstance(variant, str) and is_board(variant) and not extra_cards:
            return make_spec(variant, num_players)
    except GameParameterError as error:
        raise OtherRulesError(f"{where}: variant {shown(variant)}: {error}") from error
    known = ", ".join(map(repr, _COLORS_OF_VARIANT))
    raise OtherRulesError(
        f"{where}: variant {shown(variant)}: our engine supports {known} and the boards in "
        "docs/games.md. Leave the game out."
    )


def _dealt(live: _LiveGame, rules: _Rules, where: str) -> _Table:
    """Return the table as it was dealt; cards that were not drawn may be missing in `live`."""
    spec = rules.spec
    num_dealt = spec.num_players * spec.hand_size
    if len(live.deck) < num_dealt:
        raise SettingsError(
            f"{where}: deck has {len(live.deck)} cards, but {spec.num_players} players are dealt "
            f"{num_dealt}. Use the JSON from {_EXPORT}, which lists all cards."
        )
    known = [Card(card.suitIndex, card.rank - 1) for card in live.deck]
    missing = Counter(sorted_deck(spec.num_colors, spec.num_ranks))
    missing.subtract(known)
    for card, number in missing.items():
        if number < 0:
            raise SettingsError(
                f"{where}: deck has {-number} too many of suitIndex {card.color}, rank "
                f"{card.rank + 1}; it must be the deck of {spec.num_colors} suits with "
                f"{spec.num_ranks} ranks. Use the JSON from {_EXPORT}."
            )
    theirs = [*known, *missing.elements()]
    seats = []
    cards: list[int] = []
    for offset in range(spec.num_players):
        seat = (rules.first_player + offset) % spec.num_players
        seats.append(seat)
        cards += range(seat * spec.hand_size, (seat + 1) * spec.hand_size)
    cards += range(num_dealt, len(theirs))
    game = Game(spec, [theirs[position] for position in cards])
    config = EnvConfig(preset=spec.preset, players=spec.num_players)
    return _Table(playing=HanabiGame(config, game), cards=tuple(cards), seats=tuple(seats))


def _is_over(game: Game) -> bool:
    """Tell whether hanab.live has ended the game.

    It ends a game when all copies of each card that would fit next are discarded. The remaining
    moves do not matter: a card held by a player who has made its last move still counts.
    """
    if game.is_over:
        return True
    view = game.view(0)
    return reachable_heights(view) == view.fireworks


def _turn(table: _Table, live: _LiveAction, where: str, num_known: int) -> Turn:
    """Make one move and return its record.

    Args:
        table: The table, on which the move is made.
        live: The move.
        where: For messages.
        num_known: Cards that the file lists.
    """
    playing = table.playing
    game = playing.table
    player = game.current_player
    step = len(game.events)
    if live.type in (_PLAY, _DISCARD):
        live = live.model_copy(update={"value": None})
    choices = table.choices()
    action = choices.get(live)
    if action is None:
        allowed = ", ".join(map(str, choices))
        raise SettingsError(
            f"{where}: {live} is not legal at this point; allowed: {allowed}. The file is damaged, "
            "or its rules are not the ones it states; leave the game out."
        )
    text = format_action(action, style="full", num_players=game.spec.num_players)
    rewards = playing.step({player: text})
    last_card = max(map(max, filter(None, game.hand_positions)), default=0)
    if last_card >= num_known:
        raise SettingsError(
            f"{where}: draws card {last_card} (from 0), but deck has {num_known} cards. Use the "
            f"JSON from {_EXPORT}, which lists all cards."
        )
    return Turn(
        player=player,
        step=step,
        prompt="",
        reply=text,
        action=text,
        kind=ReplyKind.LEGAL,
        rewards=tuple(rewards),
    )
