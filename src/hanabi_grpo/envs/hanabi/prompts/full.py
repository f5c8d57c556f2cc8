"""The readable style: the rules of a board as system prompt, and the observation of one turn, in
sentences.
"""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.prompts.deductions import DEAD, FITS, LATER, ONLY, Counted
from hanabi_grpo.envs.hanabi.rules.actions import (
    discard,
    format_action,
    hint_color,
    hint_rank,
    play,
)
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import COLOR_NAMES, Card, Event, Knowledge, PlayerView
from hanabi_grpo.types import player_name

_WORTH = {
    FITS: "can be played now",
    LATER: "can be played later",
    ONLY: "can be played later, the only one left",
    DEAD: "can never be played",
}


def full_system(spec: GameSpec, player: int, bomb_rule: str) -> str:
    """Return the rules as told to one player."""
    return "\n\n".join(
        (
            _goal(spec, player),
            _cards(spec),
            _moves(spec),
            _end(spec, bomb_rule),
            _format(spec, player),
        )
    )


def _goal(spec: GameSpec, player: int) -> str:
    return (
        f"You are {player_name(player)} in a game of Hanabi for {spec.num_players} players, "
        f"{player_name(0)} to {player_name(spec.num_players - 1)}, who move in this order. All of "
        "you are one team. "
        "You see the cards of everybody else but never your own; hints are the only way to tell "
        "each other "
        "what one holds.\n"
        f"Together you build one firework per colour, rank by rank from 1 to {spec.num_ranks}. "
        f"Every card that is added scores 1 point; the maximum is {spec.max_score}."
    )


def _cards(spec: GameSpec) -> str:
    colors = ", ".join(COLOR_NAMES[: spec.num_colors])
    copies = ", ".join(
        f"rank {rank + 1} x{num_copies(rank, spec.num_ranks)}" for rank in range(spec.num_ranks)
    )
    return (
        f"Cards: {spec.deck_size}. Colours: {colors}. Copies in each colour: {copies}.\n"
        f"Everybody holds {spec.hand_size} cards in slots counted from 0, the oldest card. When a "
        "card leaves a hand, "
        "the younger ones move down by one slot and the new card takes the last slot."
    )


def _moves(spec: GameSpec) -> str:
    return (
        "On your turn you make one move:\n"
        "- Play a card. If its rank is the next one of its colour, it is added to the firework "
        "and the team scores; "
        "finishing a colour gives back a hint token, if one is spent. If not, the card is "
        "discarded and the team "
        "loses a life.\n"
        "- Discard a card. This gives back one hint token, and is not allowed while "
        f"all {spec.max_hints} hint tokens are there.\n"
        "- Hint: name one colour or one rank to one other player, who learns which of their cards "
        "have it and which do "
        "not. It costs a hint token and must touch at least one card."
    )


def _end(spec: GameSpec, bomb_rule: str) -> str:
    lives = "1 life" if spec.max_lives == 1 else f"{spec.max_lives} lives"
    tokens = "1 hint token" if spec.max_hints == 1 else f"{spec.max_hints} hint tokens"
    lost, kept = (
        "every point scored so far is lost: the score is 0",
        "the points scored so far are kept",
    )
    cost = lost if bomb_rule == "zero" else kept
    return (
        f"The team starts with {lives} and {tokens}. When the last life is lost, the game ends at "
        f"once and {cost}. "
        "The game also ends when every firework is complete, or after each player has had one "
        "more turn "
        "once the last card has been drawn."
    )


def _format(spec: GameSpec, player: int) -> str:
    partner = (player + 1) % spec.num_players
    examples = (play(0), discard(spec.hand_size - 1), hint_color(partner, 0), hint_rank(partner, 0))
    texts = "\n".join(
        format_action(action, style="full", num_players=spec.num_players) for action in examples
    )
    return (
        f"End your reply with your move on a line of its own, written like one of these:\n{texts}"
    )


def full_turn(view: PlayerView, *, legal_moves: bool, counted: Counted | None = None) -> str:
    """Return the observation: what happened, the table, the hands, and the moves, in printable
    ASCII.
    """
    parts = [_happened(view), _table(view)]
    seats = ((view.player + step) % view.num_players for step in range(1, view.num_players))
    parts.extend(_partner(view, seat, counted) for seat in seats)
    parts.append(_own_hand(view, counted))
    if legal_moves and view.legal_actions:
        moves = (
            format_action(one, style="full", num_players=view.num_players)
            for one in view.legal_actions
        )
        parts.append("Legal moves: " + ", ".join(moves))
    parts.append(f"You are {player_name(view.player)}. Your move?")
    return "\n".join(parts)


def _happened(view: PlayerView) -> str:
    # The player's own last move is told again: a fallback may have taken the place of its reply,
    # and the card that it played or discarded was seen only afterwards.
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
        outcome = (
            "it was added to the firework" if event.scored else "it did not fit and cost a life"
        )
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


def _partner(view: PlayerView, seat: int, counted: Counted | None) -> str:
    lines = [f"Hand of {player_name(seat)}:"]
    for slot, (card, known) in enumerate(zip(view.hands[seat], view.knowledge[seat], strict=True)):
        worth = f", {_WORTH[counted.card(card)]}" if counted else ""
        lines.append(f"- slot {slot}: {_card(card)}{worth} (knows: {_known(known, view)})")
    return "\n".join(lines)


def _own_hand(view: PlayerView, counted: Counted | None) -> str:
    lines = [
        "Your hand, as far as hints have told"
        + (", and what the cards you see leave of it:" if counted else ":")
    ]
    for slot, known in enumerate(view.own_hand):
        lines.append(
            f"- slot {slot}: {_known(known, view)}"
            + (f"; {_chance(counted, known)}" if counted else "")
        )
    return "\n".join(lines)


def _chance(counted: Counted, known: Knowledge) -> str:
    if counted.is_dead(known):
        return "can never be played"
    chance = counted.beliefs.chance_to_fit(known)
    if chance in (0, 1):
        return "can be played for sure" if chance else "cannot be played now"
    return f"can be played now with a chance of {chance:.0%}"


def _known(known: Knowledge, view: PlayerView) -> str:
    colors = [COLOR_NAMES[color] for color in known.colors]
    ranks = [str(rank + 1) for rank in known.ranks]
    color = "any" if len(colors) == view.num_colors > 1 else _listed(colors, "or")
    rank = "any" if len(ranks) == view.num_ranks > 1 else _listed(ranks, "or")
    hinted = " (hinted)"
    return f"colour {color}{hinted * known.color_hinted}, rank {rank}{hinted * known.rank_hinted}"


def _card(card: Card | None) -> str:
    return "a card" if card is None else f"{COLOR_NAMES[card.color]} {card.rank + 1}"


def _listed(words: Sequence[str], conjunction: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
