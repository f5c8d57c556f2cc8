"""The page of recorded games. Every text is in its list of turns; the script only adds the board."""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.texts import visible
from hanabi_grpo.envs.hanabi.replays.timeline import Move, Timeline, make_timeline
from hanabi_grpo.envs.hanabi.replays.wording import deed, earned, outcome, signed
from hanabi_grpo.envs.hanabi.rules import COLOR_NAMES
from hanabi_grpo.report.page import render
from hanabi_grpo.training.advantages import Estimator
from hanabi_grpo.training.advantages.recorded import turn_advantages
from hanabi_grpo.types import ReplyKind

_KINDS = {"play": "p", "discard": "d", "hint_color": "c", "hint_rank": "r"}


def timelines_of(recordings: Sequence[Recording], chosen: Sequence[Recording], estimator: Estimator) -> list[Timeline]:
    """Return the chosen ones of some games played again, with the advantages that they have among all of them.

    Raises:
        SettingsError: A record does not fit its deal.
    """
    advantages = dict(zip((one.number for one in recordings), turn_advantages(recordings, estimator), strict=True))
    return [make_timeline(one, advantages[one.number]) for one in chosen]


def render_games(timelines: Sequence[Timeline], *, title: str, prompts: bool = False, estimator: str = "") -> str:
    """Return the page.

    `#game=3&turn=5` behind its address opens that position; `turn` counts from 1.

    Args:
        timelines: The games, in the order in which they are listed.
        title: What the page is of.
        prompts: Also what the players were shown; the page becomes several times larger.
        estimator: Name of the advantage estimator, and what it compares with; "" when no advantages were computed.
    """
    return render(
        "replay.html.j2",
        script="replay.js",
        title=visible(title),
        has_versions=any(move.turn.version is not None for timeline in timelines for move in timeline.moves),
        games=[_game(timeline, prompts) for timeline in timelines],
        data={"names": COLOR_NAMES, "games": [board_data(timeline) for timeline in timelines]},
        estimator=estimator,
    )


def board_data(timeline: Timeline) -> dict[str, Any]:
    """Return what the script needs to draw every board of a game.

    A move is [seat, kind, slot or hinted seat, 1 if a play scored or the hinted value, hints and lives after it, 1 if a
    card was drawn]. The rules stay here: the script only takes cards away, appends them and narrows knowledge.
    """
    spec, first = timeline.spec, timeline.boards[0]
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
        "deck": "".join(map(str, timeline.recording.cards())),
        "board": [spec.num_colors, spec.num_ranks, spec.hand_size, first.hints, first.lives],
        "moves": moves,
    }


def _game(timeline: Timeline, prompts: bool) -> dict[str, Any]:
    recording, episode = timeline.recording, timeline.recording.episode
    return {
        "number": recording.number,
        "deal": visible(f"{episode.suite}/{episode.seed}"),
        "group_game": episode.game,
        "board": visible(f"{episode.preset}, {episode.num_players} players"),
        "source": visible(recording.source),
        "score": episode.score,
        "maximum": timeline.spec.reachable_max,
        "outcome": outcome(recording, timeline.spec.reachable_max),
        "status": episode.status.value,
        "num_bad": sum(move.turn.kind is not ReplyKind.LEGAL for move in timeline.moves),
        "returns": [(visible(name), signed(episode.reward(seat))) for seat, name in enumerate(recording.players)],
        "moves": [_move(timeline, move, prompts) for move in timeline.moves],
    }


def _move(timeline: Timeline, move: Move, prompts: bool) -> dict[str, Any]:
    turn = move.turn
    facts = [earned(turn.rewards[turn.player])]
    if move.advantage is not None:
        facts.append(f"adv {move.advantage:+.2f}")
    if turn.version is not None:
        facts.append(f"v{turn.version}")
    said = visible(move.said)
    return {
        "player": visible(timeline.recording.players[turn.player]),
        "did": deed(move.event, timeline.recording.players),
        "bad": "" if turn.kind is ReplyKind.LEGAL else turn.kind.value,
        "facts": " · ".join(filter(None, facts)),
        "thought": visible(move.thought),
        # A reply that is nothing but the move says it a second time.
        "said": "" if turn.kind is ReplyKind.LEGAL and said == turn.action else said or "(nothing)",
        "prompt": visible(move.prompt) if prompts else "",
    }
