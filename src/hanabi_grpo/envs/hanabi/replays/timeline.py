"""A recorded game replayed: every board that the players faced, every move, and both in words."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hanabi_grpo.envs.base import Frame
from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.rules import (
    COLOR_LETTERS,
    COLOR_NAMES,
    Action,
    Card,
    Event,
    Game,
    GameSpec,
    Knowledge,
    PlayerView,
    make_spec,
    parse_action,
    recorded_spec,
    shuffled_deck,
)
from hanabi_grpo.envs.hanabi.rules.symmetries import (
    OTHER_PLAY_SUFFIX,
    Relabeling,
    task_relabelings,
)
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.texts import visible
from hanabi_grpo.types import Episode, Turn, player_name

_CARD = re.compile(rf"([{COLOR_LETTERS}])([1-5])", re.ASCII)
_MAX_SHOWN_ACTION = 80
"""Characters of an unreadable move that an error message quotes."""
_MAX_SHOWN_CARD = 20
"""Characters of an unreadable card that an error message quotes."""


@dataclass(frozen=True, slots=True)
class Move:
    """One recorded turn, and what it did on the table."""

    turn: Turn
    """The record."""
    event: Event
    """What it did."""
    prompt: str
    """What the player was shown, in the player's own colours.

    Rebuilt in sentences if nothing was recorded (scripted players)."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """A whole game: move i leads from `boards[i]` to `boards[i + 1]`."""

    recording: Recording
    """The record."""
    game: Game
    """The table at the end."""
    boards: tuple[PlayerView, ...]
    """Views that show every hand: for replays only, never for players."""
    moves: tuple[Move, ...]
    """Every move, oldest first."""


def make_timeline(recording: Recording) -> Timeline:
    """Replay a recorded game; a bad reply is replayed as the move that replaced it.

    Raises:
        SettingsError: The record does not fit the deal: a move by the wrong player or one that the
            rules forbid, or a different score at the end.
    """
    episode = recording.episode
    game = recorded_table(recording)
    relabelings = recorded_relabelings(game.spec, episode)
    boards = [_open_view(game)]
    moves = []
    for turn, action in replayed_turns(game, episode, recording.where):
        prompt = turn.prompt
        if not prompt:
            view = game.view(turn.player)
            if relabelings:
                view = relabelings[turn.player].view(view)
            prompt = turn_prompt(view, style="full", legal_moves=False)
        event = game.apply(action)
        moves.append(Move(turn, event, prompt))
        boards.append(_open_view(game))
    recorded_score = episode.result["score_kept"]
    if game.score_kept != recorded_score:
        raise SettingsError(
            f"{recording.where}: recorded with {recorded_score:g} points on the table, but its "
            f"replay has {game.score_kept}; its deck is not the one that ({episode.suite}, "
            f"{episode.seed}) deals here."
        )
    return Timeline(recording, game, tuple(boards), tuple(moves))


def recorded_table(recording: Recording) -> Game:
    """Return the table of a recorded game as it was dealt.

    Raises:
        SettingsError: This version has no such board, or a different board of that name, or the
            deck is missing or malformed.
    """
    episode = recording.episode
    where = recording.where
    try:
        spec = _recorded_board(episode, where)
        if recording.start is None:
            return Game(spec, shuffled_deck(spec, episode.suite, episode.seed))
        deck = [_parse_card(text, where) for text in recording.start.split()]
        return Game(spec, deck)
    except GameParameterError as error:
        raise SettingsError(f"{where}: {error}") from error


def recorded_relabelings(spec: GameSpec, episode: Episode) -> list[Relabeling]:
    """Return how each player of a recorded game saw the colours; empty without Other-Play."""
    if OTHER_PLAY_SUFFIX not in episode.spec_hash:
        return []
    return task_relabelings(spec, episode.suite, episode.seed)


def replayed_turns(game: Game, episode: Episode, where: str) -> Iterator[tuple[Turn, Action]]:
    """Yield each turn with its move on the table, which is legal at that time.

    The caller must make the move in `game` before requesting the next one.

    Args:
        game: The game at its start.
        episode: The record.
        where: Where the record comes from, for error messages.

    Raises:
        SettingsError: A move after the end, by the wrong player, or one that the rules forbid.
    """
    relabelings = recorded_relabelings(game.spec, episode)
    for number, turn in enumerate(episode.moves, 1):
        on_table = relabelings[turn.player].inverse if relabelings else None
        yield turn, _replayed_action(game, turn, on_table, f"{where}, turn {number}")


def frames(recording: Recording) -> Iterator[Frame]:
    """Yield the table with every hand before each move, and at the end.

    Raises:
        SettingsError: See `make_timeline`.
    """
    timeline = make_timeline(recording)
    players = recording.players
    names = [_name_with_seat(name, seat) for seat, name in enumerate(players)]
    *boards, last_board = timeline.boards
    for number, (board, move) in enumerate(zip(boards, timeline.moves, strict=True), 1):
        move_line = f"{players[move.turn.player]} {deed(move.event, players)}"
        text = f"{_table_text(board, names)}\n{move_line}"
        yield Frame(title=f"turn {number}", text=visible(text))
    yield Frame(
        title=f"end, {sum(last_board.fireworks)} points on the table",
        text=visible(_table_text(last_board, names)),
    )


def deed(event: Event, players: tuple[str, ...]) -> str:
    """Return what a move did.

    For example "plays slot 0: R1, scores" or "hints player_1 red: slots 0 2".

    Args:
        event: The move.
        players: Display names by seat.
    """
    action = event.action
    if action.kind == "play":
        outcome = "scores" if event.scored else "does not fit"
        return f"plays slot {action.slot}: {event.card}, {outcome}"
    if action.kind == "discard":
        return f"discards slot {action.slot}: {event.card}"
    is_color = action.kind == "hint_color"
    value = COLOR_NAMES[action.value] if is_color else f"rank {action.value + 1}"
    noun = "slot" if len(event.touched) == 1 else "slots"
    slots = " ".join(str(slot) for slot in event.touched)
    return f"hints {visible(players[action.target])} {value}: {noun} {slots}"


def _recorded_board(episode: Episode, where: str) -> GameSpec:
    spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
    if spec is None:
        hash_here = make_spec(episode.preset, episode.num_players).hash
        raise SettingsError(
            f"{where}: recorded on board {episode.preset} with hash {episode.spec_hash}; here that "
            f"board has hash {hash_here}. View it with the version of hanabi_grpo that recorded it."
        )
    return spec


def _replayed_action(game: Game, turn: Turn, on_table: Relabeling | None, where: str) -> Action:
    """Return the move of a turn, which is legal now; raises as `replayed_turns`.

    Args:
        game: The table.
        turn: The record.
        on_table: Maps the player's colours to those of the table; None: they are the same.
        where: For error messages.
    """
    mover = game.current_player
    if game.is_over:
        raise SettingsError(
            f"{where}: {turn.action!r} after the end of the game; the record does not fit its deal."
        )
    if turn.player != mover:
        raise SettingsError(
            f"{where}: a move by {player_name(turn.player)}, but it is {player_name(mover)}'s turn."
        )
    action = parse_action(turn.action, num_players=game.spec.num_players, player=mover)
    if action is None:
        raise SettingsError(
            f"{where}: action={turn.action[:_MAX_SHOWN_ACTION]!r} is not a move; an example of a "
            "move is 'Play 0'."
        )
    if on_table:
        action = on_table.action(action)
    if action not in game.legal_actions():
        raise SettingsError(
            f"{where}: the record does not fit its deal: {turn.action} is not legal there."
        )
    return action


def _open_view(game: Game) -> PlayerView:
    """Return a view of the whole table, with every hand."""
    return game.view(0)._replace(hands=game.hands)


def _name_with_seat(name: str, seat: int) -> str:
    """Return e.g. "Ann (player_0)", or "player_0" for a player without another name."""
    if name == player_name(seat):
        return name
    return f"{name} ({player_name(seat)})"


def _table_text(board: PlayerView, names: Sequence[str]) -> str:
    """Return the table in lines: lives, hints, stacks and discards, then one line per hand.

    For example:
        lives 1  hints 2  deck 2  R1 Y0  discarded Y1
          player_0  R1(RY 12) Y2(Y 2) R1(RY 1)
    """
    lines = [_counters_text(board)]
    for name, hand, knowledge in zip(names, board.hands, board.knowledge, strict=True):
        cards = []
        for card, known in zip(hand, knowledge, strict=True):
            cards.append(f"{card}({_knowledge_text(known)})")
        lines.append(f"  {name}  {' '.join(cards)}")
    return "\n".join(lines)


def _counters_text(board: PlayerView) -> str:
    stacks = []
    for color, height in enumerate(board.fireworks):
        stacks.append(f"{COLOR_LETTERS[color]}{height}")
    if board.turns_left is None:
        remaining = f"deck {board.deck_size}"
    else:
        remaining = f"moves left {board.turns_left}"
    text = f"lives {board.lives}  hints {board.hints}  {remaining}  {' '.join(stacks)}"
    if board.discards:
        text += f"  discarded {' '.join(map(str, board.discards))}"
    return text


def _knowledge_text(known: Knowledge) -> str:
    """Return e.g. "RY 12": the colours and ranks that a card may have."""
    colors = "".join(COLOR_LETTERS[color] for color in known.colors)
    ranks = "".join(str(rank + 1) for rank in known.ranks)
    return f"{colors} {ranks}"


def _parse_card(text: str, where: str) -> Card:
    match = _CARD.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{where}: deck: {text[:_MAX_SHOWN_CARD]!r} is not a card; a card is one of "
            f"{COLOR_LETTERS} followed by 1 to 5."
        )
    return Card(COLOR_LETTERS.index(match[1]), int(match[2]) - 1)
