"""Moves, cards and figures in the words that the terminal and the page share."""

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, COLOR_NAMES, Event, Knowledge
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.envs.texts import visible
from hanabi_grpo.types import EpisodeStatus

_ENDINGS = {
    EpisodeStatus.FINISHED: "played to its end",
    EpisodeStatus.TRUNCATED_TURNS: "cut off",
    EpisodeStatus.TRUNCATED_TOKENS: "cut off: out of tokens",
}


def deed(event: Event, players: tuple[str, ...]) -> str:
    """Return what a move did, e.g. "plays slot 0: R1, scores" or "hints player_1 red: slots 0 2"."""
    action = event.action
    if action.kind == "play":
        return f"plays slot {action.slot}: {event.card}, {'scores' if event.scored else 'does not fit'}"
    if action.kind == "discard":
        return f"discards slot {action.slot}: {event.card}"
    value = COLOR_NAMES[action.value] if action.kind == "hint_color" else f"rank {action.value + 1}"
    slots = f"slot{'s' * (len(event.touched) > 1)} {' '.join(map(str, event.touched))}"
    return f"hints {visible(players[action.target])} {value}: {slots}"


def possible(known: Knowledge) -> str:
    """Return the colours and ranks that hints leave for a card, e.g. "RY 12"."""
    colors = "".join(COLOR_LETTERS[color] for color in known.colors)
    return f"{colors} {''.join(str(rank + 1) for rank in known.ranks)}"


def outcome(recording: Recording, reachable_max: int) -> str:
    """Return score and ending, e.g. "3 of 4, played to its end" or "0 of 4, bombed (2 on the table)"."""
    episode = recording.episode
    score, on_table = episode.result["score"], episode.result["score_kept"]
    kept = f" ({on_table:g} on the table)" if on_table != score else ""
    ending = "bombed" if episode.result["bombed"] else _ENDINGS[episode.status]
    return f"{score:g} of {reachable_max}, {ending}{kept}"
