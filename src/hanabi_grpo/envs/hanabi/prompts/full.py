"""The readable observation: what happened, the table, the hands, and the moves."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.prompts.style import ObservationStyle
from hanabi_grpo.envs.hanabi.rules.actions import format_action
from hanabi_grpo.envs.hanabi.rules.view import COLOR_NAMES, Card, Event, Knowledge, PlayerView
from hanabi_grpo.types import player_name


def full_turn(view: PlayerView, *, legal_moves: bool) -> str:
    """Return the observation in sentences, in printable ASCII.

    The player's own cards appear only through their `Knowledge` and, once they have left the hand,
    through the public event.
    """
    parts = [_happened(view), _table(view)]
    parts.extend(_partner(view, (view.player + step) % view.num_players) for step in range(1, view.num_players))
    parts.append(_own_hand(view))
    if legal_moves and view.legal_actions:
        texts = (
            format_action(action, style=ObservationStyle.FULL, num_players=view.num_players)
            for action in view.legal_actions
        )
        parts.append("Legal moves: " + ", ".join(texts))
    parts.append(f"You are {player_name(view.player)}. Your move?")
    return "\n".join(parts)


def _happened(view: PlayerView) -> str:
    # The player's own last move is told again: a fallback may have taken the place of its reply, and the card
    # that it played or discarded was seen only afterwards.
    own = [number for number, event in enumerate(view.events) if event.player == view.player]
    recent = view.events[own[-1] :] if own else view.events
    if not recent:
        return "The game begins."
    lines = "\n".join(f"- {_event(event, view)}" for event in recent)
    return f"{'From your last move on' if own else 'So far'}:\n{lines}"


def _event(event: Event, view: PlayerView) -> str:
    action = event.action
    who = "You" if event.player == view.player else player_name(event.player)
    if action.kind == "play":
        outcome = "it was added to the firework" if event.scored else "it did not fit and cost a life"
        return f"{who} played slot {action.slot}, {_card(event.card)}: {outcome}."
    if action.kind == "discard":
        return f"{who} discarded slot {action.slot}, {_card(event.card)}."
    whom = "you" if action.target == view.player else player_name(action.target)
    value = COLOR_NAMES[action.value] if action.kind == "hint_color" else f"rank {action.value + 1}"
    slots = [str(slot) for slot in event.touched]
    touched = f"slot {slots[0]}" if len(slots) == 1 else f"slots {_listed(slots, 'and')}"
    return f"{who} hinted {value} to {whom}, touching {touched} of the hand at that time."


def _table(view: PlayerView) -> str:
    fireworks = ", ".join(
        f"{COLOR_NAMES[color]} {height}{' (complete)' if height == view.num_ranks else ''}"
        for color, height in enumerate(view.fireworks)
    )
    deck = f"{view.deck_size} cards" if view.deck_size != 1 else "1 card"
    if view.turns_left is not None:
        deck = f"empty; moves left in the game, all players together: {view.turns_left}"
    return "\n".join(
        (
            f"Lives: {view.lives} of {view.max_lives}",
            f"Hint tokens: {view.hints} of {view.max_hints}",
            f"Deck: {deck}",
            f"Fireworks: {fireworks}",
            "Discarded: " + (", ".join(_card(card) for card in view.discards) or "nothing"),
        )
    )


def _partner(view: PlayerView, seat: int) -> str:
    lines = [f"Hand of {player_name(seat)}:"]
    for slot, (card, known) in enumerate(zip(view.hands[seat], view.knowledge[seat], strict=True)):
        lines.append(f"- slot {slot}: {_card(card)} (knows: {_known(known, view)})")
    return "\n".join(lines)


def _own_hand(view: PlayerView) -> str:
    lines = ["Your hand, as far as hints have told:"]
    lines.extend(f"- slot {slot}: {_known(known, view)}" for slot, known in enumerate(view.own_hand))
    return "\n".join(lines)


def _known(known: Knowledge, view: PlayerView) -> str:
    colors = [COLOR_NAMES[color] for color in known.colors]
    ranks = [str(rank + 1) for rank in known.ranks]
    color = "any" if len(colors) == view.num_colors > 1 else _listed(colors, "or")
    rank = "any" if len(ranks) == view.num_ranks > 1 else _listed(ranks, "or")
    return f"colour {color}{_hinted(known.color_hinted)}, rank {rank}{_hinted(known.rank_hinted)}"


def _hinted(hinted: bool) -> str:
    return " (hinted)" if hinted else ""


def _card(card: Card | None) -> str:
    return "a card" if card is None else f"{COLOR_NAMES[card.color]} {card.rank + 1}"


def _listed(words: Sequence[str], conjunction: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
