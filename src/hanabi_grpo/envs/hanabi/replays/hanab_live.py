"""Recorded games to hanab.live's form and back.

hanab.live ends a game as soon as no card is left that could score; OpenSpiel, and so this package, plays on. What was
played after that moment is left out on both ways, and said in a note.
"""

from dataclasses import dataclass

from hanabi_grpo.envs.hanabi.replays.live_game import (
    COLOR_HINT,
    DISCARD,
    END_BY_VOTE,
    END_GAME,
    PLAY,
    RANK_HINT,
    LiveAction,
    LiveGame,
)
from hanabi_grpo.envs.hanabi.replays.recording import IMPORTED_SUITE, Recording
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rewards import RewardWeights, move_rewards
from hanabi_grpo.envs.hanabi.rules import COLOR_NAMES, Action, Event, Game, format_action, make_spec
from hanabi_grpo.envs.hanabi.rules.presets import num_copies
from hanabi_grpo.errors import IllegalActionError, SettingsError
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

PRESET = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A game for hanab.live, and what it does not say."""

    game: LiveGame
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A game of hanab.live as a recording, and what was left out."""

    recording: Recording
    notes: tuple[str, ...] = ()


def export_game(recording: Recording) -> Exported:
    """Return a recorded game as hanab.live has it.

    Raises:
        SettingsError: Another board than `full`, or a record that does not fit its deal.
    """
    if recording.spec() != make_spec(PRESET, recording.episode.num_players):
        raise SettingsError(
            f"{recording.where}: board {recording.episode.preset}; hanab.live has only the real game, preset {PRESET}."
        )
    timeline = make_timeline(recording)
    game = Game(timeline.spec, recording.cards())
    actions: list[LiveAction] = []
    for move in timeline.moves:
        if nothing_can_score(game):
            break
        actions.append(_live_action(move.event, game))
        game.apply(move.event.action)
    notes = []
    if left_out := len(timeline.moves) - len(actions):
        notes.append(f"{recording.where}: hanab.live ends where no card can score; {left_out} moves are left out.")
        if recording.episode.score != game.score:
            notes.append(f"{recording.where}: it has {recording.episode.score} points here and {game.score} there.")
    players, deck = recording.players, game.deck
    return Exported(
        game=LiveGame(players=players, deck=deck, num_known=len(deck), actions=tuple(actions)), notes=tuple(notes)
    )


def import_game(live: LiveGame, where: str) -> Imported:
    """Play a game of hanab.live in our engine and return its record, without tokens and versions.

    A game that was ended, or that stops, before its end has the status `truncated_turns`.

    Raises:
        SettingsError: An action that the rules forbid, or one of an unknown type.
    """
    spec = make_spec(PRESET, len(live.players))
    num_dealt = spec.num_players * spec.hand_size
    if live.num_known < num_dealt:
        raise SettingsError(
            f"{where}: deck has {live.num_known} cards; {spec.num_players} players are dealt {num_dealt}. Give all "
            "cards that were drawn."
        )
    game = Game(spec, live.deck)
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
        turns.append(_turn(game, action, f"{where}, action {number}", live))
    is_over = game.is_over or nothing_can_score(game)
    if not is_over and len(turns) == len(live.actions):
        notes.append(f"{where}: stops after {len(turns)} moves, before its end.")
    episode = Episode(
        env="hanabi",
        preset=spec.preset,
        spec_hash=spec.hash,
        num_players=spec.num_players,
        suite=IMPORTED_SUITE,
        seed=live.id,
        status=EpisodeStatus.FINISHED if is_over else EpisodeStatus.TRUNCATED_TURNS,
        result={"score": game.score, "score_kept": game.score_kept, "bombed": int(game.is_bombed)},
        turns=tuple(turns),
    )
    return Imported(recording=Recording(episode=episode, deck=live.deck, names=live.players), notes=tuple(notes))


def nothing_can_score(game: Game) -> bool:
    """Return True when every copy of every card that would fit a stack is discarded; hanab.live ends there.

    Moves that are left play no part: a card in the hand of a player who has moved for the last time still counts.
    """
    spec = game.spec
    gone = [event.card for event in game.events if event.card is not None and not event.scored]
    heights = [0] * spec.num_colors
    for event in game.events:
        if event.scored and event.card is not None:
            heights[event.card.color] += 1
    return all(
        height == spec.num_ranks
        or sum(card.color == color and card.rank == height for card in gone) == num_copies(height, spec.num_ranks)
        for color, height in enumerate(heights)
    )


def _live_action(event: Event, game: Game) -> LiveAction:
    action = event.action
    if action.kind == "hint_color":
        return LiveAction(type=COLOR_HINT, target=action.target, value=action.value)
    if action.kind == "hint_rank":
        return LiveAction(type=RANK_HINT, target=action.target, value=action.value + 1)
    position = game.hand_positions[event.player][action.slot]
    return LiveAction(type=PLAY if action.kind == "play" else DISCARD, target=position)


def _turn(game: Game, live: LiveAction, where: str, source: LiveGame) -> Turn:
    """Make one move and return its record."""
    player = game.current_player
    action = _action(game, live, where)
    text = format_action(action, style="full", num_players=game.spec.num_players)
    try:
        event = game.apply(action)
    except IllegalActionError as error:
        raise SettingsError(f"{where}: {error}") from error
    last_card = max(map(max, filter(None, game.hand_positions)), default=0)
    if last_card >= source.num_known:
        raise SettingsError(
            f"{where}: draws card {last_card} (from 0), but `deck` has {source.num_known} cards; give all cards that "
            "were drawn."
        )
    rewards = move_rewards(
        RewardWeights(),
        kind=ReplyKind.LEGAL,
        scored=event.scored,
        bombed=game.is_bombed,
        score_kept=game.score_kept,
    )
    return Turn(
        player=player,
        step=game.num_turns - 1,
        prompt="",
        reply=text,
        action=text,
        kind=ReplyKind.LEGAL,
        rewards=(rewards,) * game.spec.num_players,
    )


def _action(game: Game, live: LiveAction, where: str) -> Action:
    spec = game.spec
    if live.type in (PLAY, DISCARD):
        kind = "play" if live.type == PLAY else "discard"
        hand = game.hand_positions[game.current_player]
        if live.target not in hand:
            raise SettingsError(
                f"{where}: {kind}s card {live.target} of the deck, but player {game.current_player} holds "
                f"{', '.join(map(str, hand))}."
            )
        return Action(kind, slot=hand.index(live.target))
    if live.type not in (COLOR_HINT, RANK_HINT):
        raise SettingsError(f"{where}: type={live.type}; allowed are 0 (play) to 5 (ended by vote).")
    if not 0 <= live.target < spec.num_players or live.target == game.current_player:
        raise SettingsError(f"{where}: a hint of player {game.current_player} for player {live.target}.")
    if live.type == COLOR_HINT:
        if live.value is None or live.value not in range(spec.num_colors):
            raise SettingsError(f"{where}: colour {live.value}; allowed are 0 ({COLOR_NAMES[0]}) to 4.")
        return Action("hint_color", target=live.target, value=live.value)
    if live.value is None or live.value not in range(1, spec.num_ranks + 1):
        raise SettingsError(f"{where}: rank {live.value}; allowed are 1 to {spec.num_ranks}.")
    return Action("hint_rank", target=live.target, value=live.value - 1)
