"""The classes of moves and the kinds of hints, numbered and named.

Kinds of hints: colours, then ranks. Classes of moves: play and discard of each slot, then the kinds of hints to each
following seat.
"""

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, COLOR_NAMES, Action, GameSpec


def hint_kind(spec: GameSpec, hint: Action) -> int:
    """Return the number of a hint's kind."""
    return hint.value + (spec.num_colors if hint.kind == "hint_rank" else 0)


def move_class(spec: GameSpec, player: int, action: Action) -> int:
    """Return the number of the class of a player's move."""
    if action.slot >= 0:
        return action.slot + (0 if action.kind == "play" else spec.hand_size)
    step = (action.target - player) % spec.num_players - 1
    return 2 * spec.hand_size + step * (spec.num_colors + spec.num_ranks) + hint_kind(spec, action)


def hint_labels(spec: GameSpec) -> tuple[tuple[str, str], ...]:
    """Return a short and a long name of each kind of hint."""
    colors = zip(COLOR_LETTERS, COLOR_NAMES, strict=True)
    return (*list(colors)[: spec.num_colors], *((str(rank), f"rank {rank}") for rank in range(1, spec.num_ranks + 1)))


def move_labels(spec: GameSpec) -> tuple[tuple[str, str], ...]:
    """Return a short and a long name of each class of moves; `+1` is the seat after the mover, with two players ""."""
    slots = range(spec.hand_size)
    labels = [(f"P{slot}", f"play card {slot}") for slot in slots]
    labels += [(f"D{slot}", f"discard card {slot}") for slot in slots]
    for step in range(1, spec.num_players):
        short, long = ("", "hint") if spec.num_players == 2 else (f"+{step} ", f"hint to seat +{step}:")
        labels += [(f"{short}{value}", f"{long} {name}") for value, name in hint_labels(spec)]
    return tuple(labels)
