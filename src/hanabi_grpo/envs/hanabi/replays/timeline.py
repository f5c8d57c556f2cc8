"""A recorded game played again: every board that the players faced, every move, and both in
words.
"""

import re
from collections.abc import Iterable, Iterator
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
    PlayerView,
    make_spec,
    parse_action,
    recorded_spec,
    shuffled_deck,
)
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.types import Turn, player_name

_CARD = re.compile(rf"([{COLOR_LETTERS}])([1-5])", re.ASCII)


@dataclass(frozen=True, slots=True)
class Move:
    """One turn as it was recorded, and what it did on the table."""

    turn: Turn
    event: Event
    prompt: str
    """What the player was shown; rebuilt in sentences where nothing was recorded (scripted
    players).
    """


@dataclass(frozen=True, slots=True)
class Timeline:
    """A whole game: move i leads from `boards[i]` to `boards[i + 1]`."""

    recording: Recording
    game: Game
    """The table at the end."""
    boards: tuple[PlayerView, ...]
    """Views with every hand, so for replays, never for a player's eyes."""
    moves: tuple[Move, ...]


def make_timeline(recording: Recording) -> Timeline:
    """Play a recorded game again; where a reply was bad, the move that took its place is played.

    Raises: SettingsError: The record does not fit the deal: a move of the wrong player or one that
        the rules forbid, or another score at the end.
    """
    episode, game = recording.episode, recorded_table(recording)
    boards, moves = [_board(game)], []
    for turn, action in replayed_turns(game, episode.turns, recording.where):
        prompt = turn.prompt or turn_prompt(game.view(turn.player), style="full", legal_moves=False)
        moves.append(Move(turn, game.apply(action), prompt))
        boards.append(_board(game))
    recorded = episode.result["score_kept"]
    if game.score_kept != recorded:
        raise SettingsError(
            f"{recording.where}: recorded with {recorded:g} points on the table, played again it "
            "has "
            f"{game.score_kept}; its deal is not the one that ({episode.suite}, {episode.seed}) "
            "deals here."
        )
    return Timeline(recording, game, tuple(boards), tuple(moves))


def recorded_table(recording: Recording) -> Game:
    """Return the table of a recorded game as it was dealt.

    A SettingsError: no such board in this version, or another one of that name, or the deck is
    missing or none."""
    episode, where = recording.episode, recording.where
    try:
        spec = recorded_spec(episode.preset, episode.num_players, episode.spec_hash)
        if spec is None:
            here = make_spec(episode.preset, episode.num_players).hash
            raise SettingsError(
                f"{where}: recorded on a board {episode.preset} with hash {episode.spec_hash}; "
                "here that board is "
                f"{here}. Watch it with the version of hanabi_grpo that recorded it."
            )
        if recording.start is not None:
            return Game(spec, [_card(word, where) for word in recording.start.split()])
        return Game(spec, shuffled_deck(spec, episode.suite, episode.seed))
    except GameParameterError as error:
        raise SettingsError(f"{where}: {error}") from error


def replayed_turns(game: Game, turns: Iterable[Turn], where: str) -> Iterator[tuple[Turn, Action]]:
    """Yield each turn with its move, which is legal now; the caller makes it before it asks for the
    next.

    A SettingsError: a move after the end, of the wrong player, or one that the rules forbid.
    """
    for number, turn in enumerate(turns, 1):
        mover, at = game.current_player, f"{where}, turn {number}"
        if game.is_over:
            raise SettingsError(
                f"{at}: {turn.action!r} after the end of the game; the record does not fit its "
                "deal."
            )
        if turn.player != mover:
            raise SettingsError(
                f"{at}: a move of {player_name(turn.player)}, but it is {player_name(mover)}'s "
                "turn."
            )
        action = parse_action(turn.action, num_players=game.spec.num_players, player=mover)
        if action is None:
            raise SettingsError(
                f"{at}: action={turn.action[:80]!r} is no move; a move is e.g. 'Play 0'."
            )
        if action not in game.legal_actions():
            raise SettingsError(
                f"{at}: the record does not fit its deal: {turn.action} is not legal there."
            )
        yield turn, action


def frames(recording: Recording) -> Iterator[Frame]:
    """Yield the table with every hand before each move, and at the end; raises as
    `make_timeline`.
    """
    timeline, players = make_timeline(recording), recording.players
    names = [
        name if name == player_name(seat) else f"{name} ({player_name(seat)})"
        for seat, name in enumerate(players)
    ]
    for number, (board, move) in enumerate(zip(timeline.boards, timeline.moves, strict=False), 1):
        did = f"{players[move.turn.player]} {deed(move.event, players)}"
        yield Frame(title=f"turn {number}", text=visible(f"{_table(board, names)}\n{did}"))
    last = timeline.boards[-1]
    yield Frame(
        title=f"end, {sum(last.fireworks)} points on the table", text=visible(_table(last, names))
    )


def deed(event: Event, players: tuple[str, ...]) -> str:
    """Return what a move did, e.g. "plays slot 0: R1, scores" or "hints player_1 red: slots 0
    2".
    """
    action = event.action
    if action.kind == "play":
        return (
            f"plays slot {action.slot}: {event.card}, "
            f"{'scores' if event.scored else 'does not fit'}"
        )
    if action.kind == "discard":
        return f"discards slot {action.slot}: {event.card}"
    value = COLOR_NAMES[action.value] if action.kind == "hint_color" else f"rank {action.value + 1}"
    slots = f"slot{'s' * (len(event.touched) > 1)} {' '.join(map(str, event.touched))}"
    return f"hints {visible(players[action.target])} {value}: {slots}"


def _board(game: Game) -> PlayerView:
    return game.view(0)._replace(hands=game.hands)


def _table(board: PlayerView, names: list[str]) -> str:
    stacks = " ".join(
        f"{COLOR_LETTERS[color]}{height}" for color, height in enumerate(board.fireworks)
    )
    left = (
        f"deck {board.deck_size}" if board.turns_left is None else f"moves left {board.turns_left}"
    )
    gone = f"  discarded {' '.join(map(str, board.discards))}" if board.discards else ""
    lines = [f"lives {board.lives}  hints {board.hints}  {left}  {stacks}{gone}"]
    for name, hand, knowledge in zip(names, board.hands, board.knowledge, strict=True):
        cards = []
        for card, known in zip(hand, knowledge, strict=True):
            colors = "".join(COLOR_LETTERS[color] for color in known.colors)
            cards.append(f"{card}({colors} {''.join(str(rank + 1) for rank in known.ranks)})")
        lines.append(f"  {name}  {' '.join(cards)}")
    return "\n".join(lines)


def _card(word: str, where: str) -> Card:
    match = _CARD.fullmatch(word)
    if match is None:
        raise SettingsError(
            f"{where}: deck: {word[:20]!r} is no card; a card is one of {COLOR_LETTERS} and 1 to 5."
        )
    return Card(COLOR_LETTERS.index(match[1]), int(match[2]) - 1)
