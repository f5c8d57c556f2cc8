"""The table of Hanabi games for the page of recorded games, which its script draws, and as text."""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.hanabi.replays.timeline import Timeline, deed, make_timeline
from hanabi_grpo.envs.hanabi.replays.timeline import frames as frames  # see `played.own_page`
from hanabi_grpo.envs.hanabi.rules import COLOR_NAMES
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible

SCRIPT = "replay.js"
_KINDS = {"play": "p", "discard": "d", "hint_color": "c", "hint_rank": "r"}


def draw_games(
    recordings: Sequence[Recording], games: Sequence[dict[str, Any]], *, prompts: bool
) -> dict[str, Any]:
    """Put Hanabi's words into the games of a page, and return what its script needs; raises as
    `make_timeline`.
    """
    timelines = [make_timeline(one) for one in recordings]
    for timeline, game in zip(timelines, games, strict=True):
        result, most = timeline.recording.episode.result, timeline.game.spec.reachable_max
        bomb = f", bombed with {result['score_kept']:g}" if result["bombed"] else ""
        game |= {
            "score": result["score"],
            "shown": f"{result['score']:g}/{most}{' bomb' if bomb else ''}",
        }
        game["outcome"] = (
            f"{result['score']:g} of {most}{bomb or '; ' + game['outcome'].rpartition('; ')[2]}"
        )
        for move, row in zip(timeline.moves, game["moves"], strict=True):
            row["did"] = deed(move.event, timeline.recording.players)
            row["prompt"] = visible(move.prompt) if prompts else ""
    return {"names": COLOR_NAMES, "games": [board_data(timeline) for timeline in timelines]}


def board_data(timeline: Timeline) -> dict[str, Any]:
    """Return what the script needs to draw every board of a game.

    A move is [seat, kind, slot or hinted seat, 1 if a play scored or the hinted value, hints and
    lives after it, 1 if a card was drawn]. The rules stay here: the script only takes cards away,
    appends them and narrows knowledge."""
    spec, first = timeline.game.spec, timeline.boards[0]
    moves = []
    for number, move in enumerate(timeline.moves):
        before, after = timeline.boards[number], timeline.boards[number + 1]
        event, action = move.event, move.event.action
        is_hint = action.target >= 0
        moves.append(
            [
                event.player,
                _KINDS[action.kind],
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
        "board": [spec.num_colors, spec.num_ranks, spec.hand_size, first.hints, first.lives],
        "moves": moves,
    }
