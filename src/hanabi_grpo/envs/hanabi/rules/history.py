"""Earlier times of a game, as a player can reconstruct them from what it sees now."""

from typing import NamedTuple

from hanabi_grpo.envs.hanabi.rules.view import PlayerView


class Moment(NamedTuple):
    """The table when a move was made, as one player sees it."""

    view: PlayerView
    """With the stacks, discards and hands of that time; everything else is current."""
    sizes: tuple[int, ...]
    """Number of cards in each seat's hand."""


def last_hint_since(view: PlayerView, seat: int) -> int | None:
    """Return the number of the last hint since a player's last move.

    Args:
        view: What a player may know.
        seat: The player whose last move counts; it need not be the player of the view.

    Returns:
        The number of the hint among the moves of the game, from 0, or None.
    """
    for index in reversed(range(len(view.events))):
        event = view.events[index]
        if event.player == seat:
            return None
        if event.card is None:
            return index
    return None


def table_before(view: PlayerView, index: int) -> Moment:
    """Return the table before a move, by undoing that move and all later ones.

    Args:
        view: What a player may know in an ongoing game; its own entry of `hands` stays empty.
        index: Number of the move, from 0.
    """
    hands = [list(hand) for hand in view.hands]
    sizes = [len(hand) for hand in view.knowledge]
    fireworks = list(view.fireworks)
    num_discards = len(view.discards)
    # Moves since the last card was drawn, in which cards that left a hand were not replaced.
    num_last = 0 if view.turns_left is None else view.num_players - view.turns_left
    for number in reversed(range(index, len(view.events))):
        event = view.events[number]
        if event.card is None:
            continue
        is_replaced = number < len(view.events) - num_last
        if not is_replaced:
            sizes[event.player] += 1
        if event.player != view.player:
            hand = hands[event.player]
            if is_replaced:
                hand.pop()
            hand.insert(event.action.slot, event.card)
        if event.scored:
            fireworks[event.card.color] -= 1
        else:
            num_discards -= 1
    then = view._replace(
        fireworks=tuple(fireworks),
        discards=view.discards[:num_discards],
        hands=tuple(map(tuple, hands)),
    )
    return Moment(then, tuple(sizes))
