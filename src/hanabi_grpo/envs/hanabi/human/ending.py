"""What a person is shown when the game is over: the score in words, and at last the own cards."""

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from hanabi_grpo.envs.hanabi.human.screens import card_text, sentence
from hanabi_grpo.envs.hanabi.replays.recording import Recording
from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.replays.wording import outcome
from hanabi_grpo.types import ReplyKind


def end_screen(recording: Recording, player: int) -> Group:
    """Return the last moves, the score and the player's hand.

    Args:
        recording: The game.
        player: The person's seat.

    Raises:
        SettingsError: The record does not fit its deal.
    """
    timeline = make_timeline(recording)
    events = [move.event for move in timeline.moves]
    own = [number for number, event in enumerate(events) if event.player == player]
    told = [sentence(move.event, player) + _note(move.turn.kind) for move in timeline.moves]
    board, spec, episode = timeline.boards[-1], timeline.spec, recording.episode
    parts: list[RenderableType] = [Rule("the game is over", align="left", characters="─")]
    parts += [Text(f"  {line}") for line in told[own[-1] if own else 0 :]]
    parts += [Text(), Text(f"Score: {outcome(recording, spec.reachable_max)}.", style="bold")]
    if episode.score != episode.score_kept:
        parts.append(
            Text(
                f"A lost last life takes every point: {episode.score}. Where points are kept it would be "
                f"{episode.score_kept} of {spec.reachable_max}."
            )
        )
    cards = Text(" ").join(card_text(card) for card in board.hands[player]) or Text("none")
    parts.append(Text("Your last cards: ").append_text(cards))
    return Group(*parts)


def _note(kind: ReplyKind) -> str:
    return "" if kind is ReplyKind.LEGAL else " (Its reply was no legal move; this one was drawn in its place.)"
