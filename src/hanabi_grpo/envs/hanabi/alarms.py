"""Alarms about Hanabi play: no hints, no plays, blind play, or always the same move."""

from hanabi_grpo.envs.alarms import LESS_STEEP, Alarm

_BELOW_BLIND = Alarm(
    name="below_blind",
    figure="over_blind/{board}",
    title="score above blind play, same deals",
    below=True,
    raise_at=0.02,
    clear_at=0.1,
    after=50,
    means=(
        "always playing the oldest card scores as much on these deals, so the score says nothing "
        "about cooperation yet."
    ),
    do=(
        "Compare with the blind row of hanabi-grpo evaluate. Train longer, start from a better "
        "model, or choose a board without this trap (laptop)."
    ),
)

_BLIND_PLAY = Alarm(
    name="blind_play",
    figure="{player}/blind_share",
    title="share of moves: play the oldest card",
    raise_at=0.8,
    clear_at=0.7,
    means=(
        "it plays its oldest card regardless of what it sees. Boards with several lives reward "
        "this policy, which needs no communication."
    ),
    do=(
        f"{LESS_STEEP} or a higher TEMPERATURE, or train on a board where this does not score "
        "(laptop)."
    ),
)

_NO_PLAYS = Alarm(
    name="no_plays",
    figure="share/play",
    title="share of the team's turns: play",
    below=True,
    raise_at=0.02,
    clear_at=0.04,
    means="the team has stopped playing cards, and only plays score points.",
    do=(
        "Inspect games with hanabi-grpo view RUN. On a board with one life, a bomb may cost too "
        "much: use a warm start or more lives."
    ),
)

_NO_HINTS = Alarm(
    name="no_hints",
    figure="share/hint",
    title="share of the team's turns: hint, where legal",
    below=True,
    raise_at=0.02,
    clear_at=0.04,
    means=(
        "the team has stopped communicating: nobody gives hints, so everybody plays without "
        "knowledge."
    ),
    do=(
        f"{LESS_STEEP} or a higher TEMPERATURE. A larger NUM_GENERATIONS makes rare good hints "
        "visible."
    ),
)

_ONE_MOVE = Alarm(
    name="one_move",
    figure="{player}/top_move_share",
    title="share of the most frequent move",
    raise_at=0.9,
    clear_at=0.8,
    means="it almost always makes the same move, regardless of what it sees.",
    do=f"{LESS_STEEP} or a higher TEMPERATURE.",
)

_HINTS_SILENT = Alarm(
    name="hints_silent",
    figure="hint_bits",
    title="bits that a hint conveys to the next player",
    below=True,
    raise_at=0.01,
    clear_at=0.02,
    after=50,
    means="hints carry no information: the next player acts the same after each of them.",
    do=(
        "Hints only pass the turn. A warm start on a bot's games (hanabi-grpo warm-start) gives "
        "hints an initial meaning."
    ),
)

ALARMS: tuple[Alarm, ...] = (
    _BELOW_BLIND,
    _BLIND_PLAY,
    _NO_PLAYS,
    _NO_HINTS,
    _ONE_MOVE,
    _HINTS_SILENT,
)
"""In order of importance."""
