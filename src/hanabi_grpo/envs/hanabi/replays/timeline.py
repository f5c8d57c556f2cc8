"""A recorded game played again: every board that the players faced, every move and what it was worth."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hanabi_grpo.envs.hanabi.prompts import turn_prompt
from hanabi_grpo.envs.hanabi.replays.recording import recorded_board, recorded_deck
from hanabi_grpo.envs.hanabi.rules import Action, Card, Event, Game, GameSpec, Knowledge, parse_action
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import split_reply
from hanabi_grpo.errors import GameParameterError, SettingsError
from hanabi_grpo.types import Turn, player_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Everything on the table between two moves, the hidden cards too."""

    hands: tuple[tuple[Card, ...], ...]
    """Per seat, oldest card first."""
    knowledge: tuple[tuple[Knowledge, ...], ...]
    """Per seat and card, what hints have told, negative hints included."""
    fireworks: tuple[int, ...]
    """Per colour: cards on the stack."""
    discards: tuple[Card, ...]
    lives: int
    hints: int
    deck_size: int
    """Cards still to be drawn."""
    turns_left: int | None
    """Moves left in the game once the deck is empty, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One turn as it was recorded, and what it did on the table."""

    turn: Turn
    event: Event
    thought: str
    said: str
    """The reply without its thoughts."""
    prompt: str
    """What the player was shown; rebuilt in sentences where nothing was recorded (scripted players)."""
    advantage: float | None
    """Within the games of its deal; None when there is no second one to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole game: move i leads from `boards[i]` to `boards[i + 1]`."""

    recording: Recording
    spec: GameSpec
    boards: tuple[Board, ...]
    moves: tuple[Move, ...]


def make_timeline(recording: Recording, advantages: Sequence[float] | None = None) -> Timeline:
    """Play a recorded game again; where a reply was bad, the move that took its place is played.

    Args:
        recording: The game.
        advantages: One per turn, see `turn_advantages`.

    Raises:
        SettingsError: The record does not fit the deal: a move of the wrong player or one that the rules forbid, or
            another score at the end.
    """
    game = _dealt(recording)
    boards = [_board(game)]
    moves = []
    for number, (turn, action) in enumerate(replayed_turns(game, recording.episode.turns, recording.where)):
        prompt = turn.prompt or turn_prompt(game.view(turn.player), style="full", legal_moves=False)
        event = game.apply(action)
        thought, said = split_reply(turn.reply)
        advantage = None if advantages is None else advantages[number]
        moves.append(Move(turn=turn, event=event, thought=thought, said=said, prompt=prompt, advantage=advantage))
        boards.append(_board(game))
    _check_score(recording, game)
    return Timeline(recording=recording, spec=game.spec, boards=tuple(boards), moves=tuple(moves))


def replayed_game(recording: Recording) -> Game:
    """Return the table at the end of a recorded game; raises as `make_timeline`."""
    game = _dealt(recording)
    for _, action in replayed_turns(game, recording.episode.turns, recording.where):
        game.apply(action)
    _check_score(recording, game)
    return game


def replayed_turns(game: Game, turns: Iterable[Turn], where: str) -> Iterator[tuple[Turn, Action]]:
    """Yield each turn with its move, which is legal now; the caller makes it before it asks for the next.

    Raises:
        SettingsError: A move after the end, of the wrong player, or one that the rules forbid.
    """
    for number, turn in enumerate(turns, 1):
        mover, at = game.current_player, f"{where}, turn {number}"
        if game.is_over:
            raise SettingsError(f"{at}: {turn.action!r} after the end of the game; the record does not fit its deal.")
        if turn.player != mover:
            raise SettingsError(f"{at}: a move of {player_name(turn.player)}, but it is {player_name(mover)}'s turn.")
        action = parse_action(turn.action, num_players=game.spec.num_players, player=mover)
        if action is None:
            raise SettingsError(f"{at}: action={turn.action[:80]!r} is no move; a move is e.g. 'Play 0'.")
        if action not in game.legal_actions():
            raise SettingsError(f"{at}: the record does not fit its deal: {turn.action} is not legal there.")
        yield turn, action


def _dealt(recording: Recording) -> Game:
    try:
        return Game(recorded_board(recording), recorded_deck(recording))
    except GameParameterError as error:
        raise SettingsError(f"{recording.where}: {error}") from error


def _check_score(recording: Recording, game: Game) -> None:
    episode = recording.episode
    recorded = episode.result["score_kept"]
    if game.score_kept != recorded:
        raise SettingsError(
            f"{recording.where}: recorded with {recorded:g} points on the table, played again it has "
            f"{game.score_kept}; its deal is not the one that ({episode.suite}, {episode.seed}) deals here."
        )


def _board(game: Game) -> Board:
    view = game.view(0)
    return Board(
        hands=game.hands,
        knowledge=view.knowledge,
        fireworks=view.fireworks,
        discards=view.discards,
        lives=view.lives,
        hints=view.hints,
        deck_size=view.deck_size,
        turns_left=view.turns_left,
    )
