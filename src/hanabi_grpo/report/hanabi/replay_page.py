"""Hanabi games on the page of recorded games: their texts, and the data that its script draws."""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, deed, make_timeline
from hanabi_grpo.envs.hanabi.replays.timeline import frames as frames  # see `played.own_page`
from hanabi_grpo.envs.hanabi.rules import COLOR_NAMES
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.texts import visible

SCRIPT = "replay.js"
"""Name of the page's script in templates/."""
_KIND_LETTERS = {"play": "p", "discard": "d", "hint_color": "c", "hint_rank": "r"}


def draw_games(
    recordings: Sequence[Recording], games: Sequence[dict[str, Any]], *, prompts: bool
) -> dict[str, Any]:
    """Put Hanabi's texts into the games of a page, and return what its script needs.

    Args:
        recordings: The games.
        games: Their texts, see `game_texts`; changed in place.
        prompts: Whether to include the players' prompts.

    Raises:
        SettingsError: A record does not fit its deal.
    """
    boards = []
    for recording, game in zip(recordings, games, strict=True):
        timeline = make_timeline(recording)
        boards.append(board_data(timeline))
        _set_result_texts(timeline, game)
        game["moves"] = _with_calls(game["moves"])
        for move, texts in zip(timeline.moves, game["moves"], strict=True):
            texts["did"] = deed(move.event, timeline.recording.players)
            texts["prompt"] = visible(move.prompt) if prompts else ""
    return {"names": COLOR_NAMES, "games": boards}


def _with_calls(moves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a game's moves only, with the tool calls before each move added to what was said.

    The board has a picture for each move.
    """
    with_calls = []
    calls: list[str] = []
    for move in moves:
        if move["is_call"]:
            calls.append(f"{move['did']} -> {move['result']}")
            continue
        if calls:
            move["said"] = "\n".join(filter(None, (*calls, move["said"])))
            calls = []
        with_calls.append(move)
    return with_calls


def _set_result_texts(timeline: Timeline, game: dict[str, Any]) -> None:
    """Write the score as "3/4", or as "0/4 bomb" where the last life was lost."""
    result = timeline.recording.episode.result
    most = timeline.game.spec.reachable_max
    score = f"{result['score']:g}"
    game["score"] = result["score"]
    if result["bombed"]:
        game["shown"] = f"{score}/{most} bomb"
        game["outcome"] = f"{score} of {most}, bombed with {result['score_kept']:g}"
    else:
        ending = game["outcome"].rpartition("; ")[2]
        game["shown"] = f"{score}/{most}"
        game["outcome"] = f"{score} of {most}; {ending}"


def board_data(timeline: Timeline) -> dict[str, Any]:
    """Return what the script needs to draw every board of a game.

    A move is [seat, kind, slot or hinted seat, 1 if a play scored or the hinted value, hints and
    lives after it, 1 if a card was drawn]. The rules are applied here: the script only takes cards
    away, appends them and narrows knowledge.
    """
    spec = timeline.game.spec
    first_board = timeline.boards[0]
    moves = []
    for number, move in enumerate(timeline.moves):
        before = timeline.boards[number]
        after = timeline.boards[number + 1]
        event = move.event
        action = event.action
        is_hint = action.target >= 0
        moves.append(
            [
                event.player,
                _KIND_LETTERS[action.kind],
                action.target if is_hint else action.slot,
                action.value if is_hint else int(event.scored),
                after.hints,
                after.lives,
                before.deck_size - after.deck_size,
            ]
        )
    return {
        "number": timeline.recording.number,
        "players": [visible(name) for name in timeline.recording.players],
        "deck": "".join(map(str, timeline.game.deck)),
        "board": [
            spec.num_colors,
            spec.num_ranks,
            spec.hand_size,
            first_board.hints,
            first_board.lives,
        ],
        "moves": moves,
    }
