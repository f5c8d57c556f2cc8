"""Recorded games to hanab.live's form and back.

hanab.live ends a game as soon as no card is left that could score; OpenSpiel, and so this package, plays on. What was
played after that moment is left out on both ways, and said in a note.
"""

from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.envs.hanabi.deal import HanabiGame
from hanabi_grpo.envs.hanabi.policies.beliefs import reachable_heights
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
from hanabi_grpo.envs.hanabi.replays.recording import IMPORTED_SUITE, recorded_board, recorded_deck
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rules import Action, Game, format_action, make_spec
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.types import Episode, EpisodeStatus, ReplyKind, Turn

PRESET = "full"


def export_game(recording: Recording) -> tuple[LiveGame, list[str]]:
    """Return a recorded game as hanab.live has it, and notes on what that does not say.

    Raises:
        SettingsError: Another board than `full`, or a record that does not fit its deal.
    """
    if recorded_board(recording) != make_spec(PRESET, recording.episode.num_players):
        raise SettingsError(
            f"{recording.where}: board {recording.episode.preset}; hanab.live has only the real game, preset {PRESET}."
        )
    timeline = make_timeline(recording)
    game = Game(timeline.spec, recorded_deck(recording))
    actions: list[LiveAction] = []
    for move in timeline.moves:
        if nothing_can_score(game):
            break
        actions.append(_live_action(move.event.action, game))
        game.apply(move.event.action)
    notes = []
    if left_out := len(timeline.moves) - len(actions):
        notes.append(f"{recording.where}: hanab.live ends where no card can score; {left_out} moves are left out.")
        score = recording.episode.result["score"]
        if score != game.score:
            notes.append(f"{recording.where}: it has {score:g} points here and {game.score} there.")
    players, deck = recording.players, game.deck
    return LiveGame(players=players, deck=deck, num_known=len(deck), actions=tuple(actions)), notes


def import_game(live: LiveGame, where: str) -> tuple[Recording, list[str]]:
    """Play a game of hanab.live in our engine and return its record, without tokens and versions, and notes.

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
    playing = HanabiGame(EnvConfig(preset=PRESET, players=spec.num_players), Game(spec, live.deck))
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
        turns.append(_turn(playing, action, f"{where}, action {number}", live))
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
        result=playing.result(),
        turns=tuple(turns),
    )
    return Recording(episode=episode, start=" ".join(map(str, live.deck)), names=live.players), notes


def nothing_can_score(game: Game) -> bool:
    """Return True when every copy of every card that would fit a stack is discarded; hanab.live ends there.

    Moves that are left play no part: a card in the hand of a player who has moved for the last time still counts.
    """
    view = game.view(0)
    return reachable_heights(view) == view.fireworks


def _live_action(action: Action, game: Game) -> LiveAction:
    if action.kind == "hint_color":
        return LiveAction(type=COLOR_HINT, target=action.target, value=action.value)
    if action.kind == "hint_rank":
        return LiveAction(type=RANK_HINT, target=action.target, value=action.value + 1)
    position = game.hand_positions[game.current_player][action.slot]
    return LiveAction(type=PLAY if action.kind == "play" else DISCARD, target=position)


def _turn(playing: HanabiGame, live: LiveAction, where: str, source: LiveGame) -> Turn:
    """Make one move and return its record."""
    game = playing.table
    player, step = game.current_player, game.num_turns
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
    if last_card >= source.num_known:
        raise SettingsError(
            f"{where}: draws card {last_card} (from 0), but `deck` has {source.num_known} cards; give all cards that "
            "were drawn."
        )
    return Turn(
        player=player, step=step, prompt="", reply=text, action=text, kind=ReplyKind.LEGAL, rewards=tuple(rewards)
    )
