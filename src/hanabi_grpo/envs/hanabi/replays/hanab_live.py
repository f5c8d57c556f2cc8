"""Recorded games to hanab.live's JSON and back.

hanab.live ends a game as soon as no card is left that could score; OpenSpiel, and so this package, plays on. What was
played after that moment is left out on both ways, and said in a note. Format:
https://github.com/Hanabi-Live/hanabi-live/blob/main/misc/example_game_with_comments.jsonc
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.environment import HanabiGame
from hanabi_grpo.envs.hanabi.replays.timeline import IMPORTED_SUITE, make_timeline, recorded_table
from hanabi_grpo.envs.hanabi.rules import Action, Card, Game, format_action, make_spec
from hanabi_grpo.envs.hanabi.rules.beliefs import reachable_heights
from hanabi_grpo.envs.hanabi.rules.deals import sorted_deck
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

PRESET = "full"
VARIANT = "No Variant"
PLAY, DISCARD, COLOR_HINT, RANK_HINT, END_GAME, END_BY_VOTE = range(6)
"""Types of actions; the last two stop a game before its end."""
_NEUTRAL_OPTIONS = frozenset({"timed", "timeBase", "timePerTurn", "speedrun", "tableName", "maxPlayers", "password"})
"""Options about clocks and tables; no rule of the cards depends on them."""
_RULES = ("variant", "variantName", "startingPlayer", "firstPlayer")
"""Options that may stand beside `options` too."""
_Int = Annotated[int, Field(strict=True)]


class _LiveAction(BaseModel, frozen=True):
    type: _Int
    target: _Int
    """Position in the deck of the card that is played or discarded, else the seat that is hinted."""
    value: _Int | None = None
    """Colour from 0, or printed rank; of no meaning for a card."""


class _LiveCard(BaseModel):
    suitIndex: Annotated[int, Field(strict=True, ge=0, lt=5)]
    rank: Annotated[int, Field(strict=True, ge=1, le=5)]


class _LiveGame(BaseModel):
    players: Annotated[list[Annotated[str, Field(strict=True)]], Field(min_length=2, max_length=5)]
    deck: list[_LiveCard]
    actions: list[_LiveAction] = []
    options: dict[str, Any] | None = None
    characters: list[Any] | None = None
    id: Any = None


def export_game(recording: Recording) -> tuple[dict[str, Any], list[str]]:
    """Return a recorded game as the object that hanab.live reads, and notes on what that does not say.

    Raises:
        SettingsError: Another board than `full`, or a record that does not fit its deal.
    """
    game, episode = recorded_table(recording), recording.episode
    if game.spec != make_spec(PRESET, episode.num_players):
        raise SettingsError(
            f"{recording.where}: board {episode.preset}; hanab.live has only the real game, preset {PRESET}."
        )
    moves = [move.event.action for move in make_timeline(recording).moves]
    actions: list[_LiveAction] = []
    for action in moves:
        if nothing_can_score(game):
            break
        actions.append(_live_action(action, game))
        game.apply(action)
    notes = []
    if left_out := len(moves) - len(actions):
        notes.append(f"{recording.where}: hanab.live ends where no card can score; {left_out} moves are left out.")
        score = episode.result["score"]
        if score != game.score:
            notes.append(f"{recording.where}: it has {score:g} points here and {game.score} there.")
    return {
        "players": list(recording.players),
        "deck": [{"suitIndex": card.color, "rank": card.rank + 1} for card in game.deck],
        "actions": [action.model_dump(exclude_none=True) for action in actions],
        "options": {"variant": VARIANT},
    }, notes


def import_games(text: str, where: str) -> list[tuple[Recording, list[str]]]:
    """Return the games of a file, each as `import_game`: one object, a list of them, or one in each line.

    Raises:
        SettingsError: No JSON, or a game that cannot be imported.
    """
    text = text.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip()
    try:
        data = json.loads(text)
    except ValueError as error:
        try:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise SettingsError(f"{where}: no JSON ({error}); export a game as JSON.") from error
    rows = data if isinstance(data, list) else [data]
    if not rows:
        raise SettingsError(f"{where}: holds no game.")
    return [import_game(row, f"{where}, game {number}" if rows[1:] else where) for number, row in enumerate(rows)]


def import_game(row: Any, where: str) -> tuple[Recording, list[str]]:
    """Play a game of hanab.live in our engine and return its record, without tokens and versions, and notes.

    A game that was ended, or that stops, before its end has the status `truncated_turns`. Keys that say nothing about
    the play are left alone.

    Raises:
        SettingsError: Malformed, of other rules than the board `full`, or with an action that the rules forbid.
    """
    live = _checked(row, where)
    known = [Card(card.suitIndex, card.rank - 1) for card in live.deck]
    left = Counter(sorted_deck(5, 5))
    left.subtract(known)
    for card, number in left.items():
        if number < 0:
            raise SettingsError(
                f"{where}: deck has too many {card}; other decks are other variants, which are not replayed here."
            )
    spec = make_spec(PRESET, len(live.players))
    num_dealt = spec.num_players * spec.hand_size
    if len(known) < num_dealt:
        raise SettingsError(
            f"{where}: deck has {len(known)} cards; {spec.num_players} players are dealt {num_dealt}. Give all cards "
            "that were drawn."
        )
    config = EnvConfig(preset=PRESET, players=spec.num_players)
    playing = HanabiGame(config, Game(spec, [*known, *left.elements()]))
    game = playing.table
    turns: list[Turn] = []
    notes: list[str] = []
    for number, action in enumerate(live.actions):
        is_over = game.is_over or nothing_can_score(game)
        if action.type in (END_GAME, END_BY_VOTE):
            # A game that ends by the rules may say so too.
            notes += [] if is_over else [f"{where}: ended by its players, or by the clock, after {number} moves."]
            break
        if is_over:
            notes.append(f"{where}: {len(live.actions) - number} actions after the end are left out.")
            break
        turns.append(_turn(playing, action, f"{where}, action {number}", len(known)))
    is_over = game.is_over or nothing_can_score(game)
    if not is_over and len(turns) == len(live.actions):
        notes.append(f"{where}: stops after {len(turns)} moves, before its end.")
    episode = Episode(
        env="hanabi",
        preset=spec.preset,
        spec_hash=spec.hash,
        num_players=spec.num_players,
        suite=IMPORTED_SUITE,
        seed=live.id if type(live.id) is int and 0 <= live.id < 2**63 else 0,
        status=EpisodeStatus.FINISHED if is_over else EpisodeStatus.TRUNCATED_TURNS,
        result=playing.result(),
        turns=tuple(turns),
    )
    return Recording(episode=episode, start=" ".join(map(str, game.deck)), names=tuple(live.players)), notes


def nothing_can_score(game: Game) -> bool:
    """Return True when every copy of every card that would fit a stack is discarded; hanab.live ends there.

    Moves that are left play no part: a card in the hand of a player who has moved for the last time still counts.
    """
    view = game.view(0)
    return reachable_heights(view) == view.fireworks


def _checked(row: Any, where: str) -> _LiveGame:
    if isinstance(row, Mapping) and "deck" not in row:
        seed = f"seed {str(row['seed'])[:40]!r}" if row.get("seed") else "nothing"
        raise SettingsError(
            f"{where}: no `deck`, the game names its cards by {seed}; take the JSON of https://hanab.live/export/<id>, "
            "which lists them."
        )
    try:
        live = _LiveGame.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the whole object"
        value = "" if first["type"] == "missing" else f"={first['input']!r:.60}"
        raise SettingsError(f"{where}: {name}{value}: {first['msg']}; hanab.live writes no such game.") from error
    # An option that is 0, false or empty changes nothing.
    for name, value in [*((name, row.get(name)) for name in _RULES), *(live.options or {}).items()]:
        is_same = value == {"variant": VARIANT, "variantName": VARIANT, "numPlayers": len(live.players)}.get(name)
        if value and not is_same and name not in _NEUTRAL_OPTIONS:
            raise SettingsError(
                f"{where}: {name}={str(value)[:60]}: the game has other rules than the board `full`; only games of "
                f"{VARIANT!r} without such options, in which player 0 starts, are replayed here."
            )
    for character in live.characters or ():
        character_name = character.get("name") if isinstance(character, Mapping) else character
        if character_name and character_name != "n/a":
            raise SettingsError(
                f"{where}: characters: detrimental characters change the rules; only games without them."
            )
    return live


def _live_action(action: Action, game: Game) -> _LiveAction:
    if action.kind == "hint_color":
        return _LiveAction(type=COLOR_HINT, target=action.target, value=action.value)
    if action.kind == "hint_rank":
        return _LiveAction(type=RANK_HINT, target=action.target, value=action.value + 1)
    position = game.hand_positions[game.current_player][action.slot]
    return _LiveAction(type=PLAY if action.kind == "play" else DISCARD, target=position)


def _turn(playing: HanabiGame, live: _LiveAction, where: str, num_known: int) -> Turn:
    """Make one move and return its record."""
    game = playing.table
    player, step = game.current_player, len(game.events)
    if live.type in (PLAY, DISCARD):
        live = live.model_copy(update={"value": None})
    choices = {_live_action(action, game): action for action in game.legal_actions()}
    action = choices.get(live)
    if action is None:
        allowed = ", ".join(f"{one.model_dump(exclude_none=True)}" for one in choices)
        raise SettingsError(f"{where}: {live.model_dump(exclude_none=True)} is not allowed there; allowed: {allowed}.")
    text = format_action(action, style="full", num_players=game.spec.num_players)
    rewards = playing.step({player: text})
    last_card = max(map(max, filter(None, game.hand_positions)), default=0)
    if last_card >= num_known:
        raise SettingsError(
            f"{where}: draws card {last_card} (from 0), but `deck` has {num_known} cards; give all cards that were "
            "drawn."
        )
    return Turn(
        player=player, step=step, prompt="", reply=text, action=text, kind=ReplyKind.LEGAL, rewards=tuple(rewards)
    )
