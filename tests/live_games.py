"""Our games in the form of hanab.live, written independently of the importer.

Cards are counted by hand here: the importer's look-up of positions is what the tests are about.
"""

from typing import Any

from hanabi_grpo.envs.hanabi.replays.timeline import make_timeline
from hanabi_grpo.envs.hanabi.rules import Card, Game
from hanabi_grpo.envs.recording import Recording
from hanabi_grpo.types import Episode

NO_VARIANT = "No Variant"


def live_game(episode: Episode, *, variant: str | None = None, **other: Any) -> dict[str, Any]:
    """Return a game as hanab.live would export it.

    Actions stop where hanab.live ends a game: when no card is left that could score.

    Args:
        episode: The game; any board, though hanab.live has only `full`.
        variant: Name of the variant; None: "No Variant" for the board `full`, else the board's.
        other: Further keys.
    """
    timeline = make_timeline(Recording(episode=episode))
    game = timeline.game
    spec = game.spec
    # Hands as positions in the deck, oldest card first.
    hands = []
    for seat in range(spec.num_players):
        hands.append(list(range(seat * spec.hand_size, (seat + 1) * spec.hand_size)))
    num_drawn = spec.num_players * spec.hand_size
    out_of_play: list[Card] = []
    stacks = [0] * spec.num_colors
    num_misplays = 0
    actions = []
    for move in timeline.moves:
        if num_misplays == spec.max_lives or _nothing_can_score(game, stacks, out_of_play):
            break
        action = move.event.action
        if action.kind.startswith("hint"):
            is_rank = action.kind == "hint_rank"
            value = action.value + 1 if is_rank else action.value
            actions.append({"type": 3 if is_rank else 2, "target": action.target, "value": value})
            continue
        hand = hands[move.event.player]
        position = hand.pop(action.slot)
        actions.append({"type": 0 if action.kind == "play" else 1, "target": position})
        card = game.deck[position]
        if action.kind == "play" and stacks[card.color] == card.rank:
            stacks[card.color] += 1
        else:
            num_misplays += action.kind == "play"
            out_of_play.append(card)
        if num_drawn < len(game.deck):
            hand.append(num_drawn)
            num_drawn += 1
    if variant is None:
        variant = NO_VARIANT if episode.preset == "full" else episode.preset
    return {
        "players": [f"Bot{seat}" for seat in range(spec.num_players)],
        "deck": [{"suitIndex": card.color, "rank": card.rank + 1} for card in game.deck],
        "actions": actions,
        "options": {"variant": variant},
        **other,
    }


def _nothing_can_score(game: Game, stacks: list[int], out_of_play: list[Card]) -> bool:
    """Return whether every copy of each card that fits next is discarded, or all are played."""
    for color, height in enumerate(stacks):
        wanted = Card(color, height)
        if game.deck.count(wanted) > out_of_play.count(wanted):
            return False
    return True
