"""The readable style: a board's rules as system prompt, and each turn's observation, in sentences.

Trained adapters depend on this text: not one character of it may change.
"""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.prompts.deductions import (
    DEAD,
    FITS,
    LATER,
    ONLY,
    Counted,
    Recalled,
)
from hanabi_grpo.envs.hanabi.rules.actions import (
    discard,
    format_action,
    hint_color,
    hint_rank,
    play,
)
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import (
    COLOR_NAMES,
    Card,
    Event,
    Knowledge,
    PlayerView,
    other_seats,
)
from hanabi_grpo.types import player_name

_CARD_TEXTS = {
    FITS: "can be played now",
    LATER: "can be played later",
    ONLY: "can be played later, the only one left",
    DEAD: "can never be played",
}
"""What `Counted.card_word` means, in words."""
_THEN_TEXTS = {
    FITS: "could be played",
    LATER: "could be played later",
    ONLY: "could be played later, the only one left",
    DEAD: "could never be played",
}
"""The same of an earlier time."""


def full_system(spec: GameSpec, player: int, bomb_rule: str) -> str:
    """Return the rules for one player.

    Args:
        spec: The board.
        player: The seat that reads them.
        bomb_rule: "zero" or "keep": what losing the last life does to the points scored so far.
    """
    sections = (
        _goal_section(spec, player),
        _cards_section(spec),
        _moves_section(spec),
        _end_section(spec, bomb_rule),
        _format_section(spec, player),
    )
    return "\n\n".join(sections)


def _goal_section(spec: GameSpec, player: int) -> str:
    last_player = player_name(spec.num_players - 1)
    return (
        f"You are {player_name(player)} in a game of Hanabi for {spec.num_players} players, "
        f"{player_name(0)} to {last_player}, who move in this order. All of you are one team. "
        "You see the cards of everybody else but never your own; hints are the only way to tell "
        "each other what one holds.\n"
        f"Together you build one firework per colour, rank by rank from 1 to {spec.num_ranks}. "
        f"Every card that is added scores 1 point; the maximum is {spec.max_score}."
    )


def _cards_section(spec: GameSpec) -> str:
    colors = ", ".join(COLOR_NAMES[: spec.num_colors])
    copies = []
    for rank in range(spec.num_ranks):
        copies.append(f"rank {rank + 1} x{num_copies(rank, spec.num_ranks)}")
    return (
        f"Cards: {spec.deck_size}. Colours: {colors}. "
        f"Copies in each colour: {', '.join(copies)}.\n"
        f"Everybody holds {spec.hand_size} cards in slots counted from 0, the oldest card. When a "
        "card leaves a hand, the younger ones move down by one slot and the new card takes the "
        "last slot."
    )


def _moves_section(spec: GameSpec) -> str:
    return (
        "On your turn you make one move:\n"
        "- Play a card. If its rank is the next one of its colour, it is added to the firework "
        "and the team scores; finishing a colour gives back a hint token, if one is spent. If "
        "not, the card is discarded and the team loses a life.\n"
        "- Discard a card. This gives back one hint token, and is not allowed while "
        f"all {spec.max_hints} hint tokens are there.\n"
        "- Hint: name one colour or one rank to one other player, who learns which of their cards "
        "have it and which do not. It costs a hint token and must touch at least one card."
    )


def _end_section(spec: GameSpec, bomb_rule: str) -> str:
    lives = "1 life" if spec.max_lives == 1 else f"{spec.max_lives} lives"
    tokens = "1 hint token" if spec.max_hints == 1 else f"{spec.max_hints} hint tokens"
    if bomb_rule == "zero":
        cost = "every point scored so far is lost: the score is 0"
    else:
        cost = "the points scored so far are kept"
    return (
        f"The team starts with {lives} and {tokens}. When the last life is lost, the game ends at "
        f"once and {cost}. The game also ends when every firework is complete, or after each "
        "player has had one more turn once the last card has been drawn."
    )


def _format_section(spec: GameSpec, player: int) -> str:
    partner = (player + 1) % spec.num_players
    examples = (
        play(0),
        discard(spec.hand_size - 1),
        hint_color(partner, 0),
        hint_rank(partner, 0),
    )
    texts = [
        format_action(action, style="full", num_players=spec.num_players) for action in examples
    ]
    return (
        "End your reply with your move on a line of its own, written like one of these:\n"
        + "\n".join(texts)
    )


def full_turn(
    view: PlayerView,
    *,
    legal_moves: bool,
    counted: Counted | None = None,
    recalled: Recalled | None = None,
) -> str:
    """Return the observation: recent moves, the table, the hands, and the moves that are legal.

    Args:
        view: What the player may know.
        legal_moves: Whether to list the legal moves.
        counted: Deductions from the visible cards, or None to omit them.
        recalled: Hands at the time of the last hint, or None to omit them.

    Returns:
        Printable ASCII.
    """
    parts = [_recent_moves(view)]
    if recalled and recalled.hands:
        parts.append(_recalled_hands(recalled))
    parts.append(_table(view))
    for seat in other_seats(view):
        parts.append(_partners_hand(view, seat, counted))
    parts.append(_own_hand(view, counted))
    if legal_moves and view.legal_actions:
        moves = [
            format_action(action, style="full", num_players=view.num_players)
            for action in view.legal_actions
        ]
        parts.append("Legal moves: " + ", ".join(moves))
    parts.append(f"You are {player_name(view.player)}. Your move?")
    return "\n".join(parts)


def full_thought(view: PlayerView) -> str:
    """Return what a view implies for the next move, line by line.

    For each own card, whether it can be played; of the others' cards, those that can be played now
    and those that are the last of their kind.

    Args:
        view: What the player may know, as `view_with` leaves it.
    """
    counted = Counted(view)
    lines = []
    for slot, known in enumerate(view.own_hand):
        lines.append(f"My slot {slot} {_chance(counted, known)}.")
    for seat in other_seats(view):
        for slot, card in enumerate(view.hands[seat]):
            use = counted.card_word(card)
            if use in (FITS, ONLY):
                lines.append(
                    f"{player_name(seat)} slot {slot}, {card_name(card)}, {_CARD_TEXTS[use]}."
                )
    return "\n".join(lines)


def _recent_moves(view: PlayerView) -> str:
    # The player's own last move is repeated: a fallback may have replaced its reply, and it saw
    # the card that it played or discarded only afterwards.
    own_moves = [i for i, event in enumerate(view.events) if event.player == view.player]
    if own_moves:
        heading = "From your last move on"
        events = view.events[own_moves[-1] :]
    else:
        heading = "So far"
        events = view.events
    if not events:
        return "The game begins."
    lines = [f"- {_event(event, view)}" for event in events]
    return f"{heading}:\n" + "\n".join(lines)


def _event(event: Event, view: PlayerView) -> str:
    action = event.action
    mover = "You" if event.player == view.player else player_name(event.player)
    if action.kind == "play":
        outcome = (
            "it was added to the firework" if event.scored else "it did not fit and cost a life"
        )
        return f"{mover} played slot {action.slot}, {card_name(event.card)}: {outcome}."
    if action.kind == "discard":
        return f"{mover} discarded slot {action.slot}, {card_name(event.card)}."
    target = "you" if action.target == view.player else player_name(action.target)
    is_color = action.kind == "hint_color"
    value = COLOR_NAMES[action.value] if is_color else f"rank {action.value + 1}"
    slots = [str(slot) for slot in event.touched]
    touched = f"slot {slots[0]}" if len(slots) == 1 else f"slots {_listed(slots, 'and')}"
    return f"{mover} hinted {value} to {target}, touching {touched} of the hand at that time."


def _recalled_hands(recalled: Recalled) -> str:
    lines = [f"When {player_name(recalled.giver)} gave the last hint, you both saw:"]
    for hand in recalled.hands:
        lines.append(f"Hand of {player_name(hand.seat)} at that time:")
        for slot, (card, use) in enumerate(hand.cards):
            lines.append(f"- slot {slot}: {card_name(card)}, {_THEN_TEXTS[use]}")
    return "\n".join(lines)


def _table(view: PlayerView) -> str:
    fireworks = []
    for color, height in enumerate(view.fireworks):
        complete = " (complete)" if height == view.num_ranks else ""
        fireworks.append(f"{COLOR_NAMES[color]} {height}{complete}")
    if view.turns_left is not None:
        deck = f"empty; moves left in the game, all players together: {view.turns_left}"
    elif view.deck_size == 1:
        deck = "1 card"
    else:
        deck = f"{view.deck_size} cards"
    discards = ", ".join(card_name(card) for card in view.discards)
    lines = (
        f"Lives: {view.lives} of {view.max_lives}",
        f"Hint tokens: {view.hints} of {view.max_hints}",
        f"Deck: {deck}",
        f"Fireworks: {', '.join(fireworks)}",
        f"Discarded: {discards or 'nothing'}",
    )
    return "\n".join(lines)


def _partners_hand(view: PlayerView, seat: int, counted: Counted | None) -> str:
    lines = [f"Hand of {player_name(seat)}:"]
    hand = zip(view.hands[seat], view.knowledge[seat], strict=True)
    for slot, (card, known) in enumerate(hand):
        use = f", {_CARD_TEXTS[counted.card_word(card)]}" if counted else ""
        lines.append(f"- slot {slot}: {card_name(card)}{use} (knows: {known_text(known, view)})")
    return "\n".join(lines)


def _own_hand(view: PlayerView, counted: Counted | None) -> str:
    heading = "Your hand, as far as hints have told"
    if counted:
        heading += ", and what the cards you see leave of it"
    lines = [f"{heading}:"]
    for slot, known in enumerate(view.own_hand):
        chance = f"; {_chance(counted, known)}" if counted else ""
        lines.append(f"- slot {slot}: {known_text(known, view)}{chance}")
    return "\n".join(lines)


def _chance(counted: Counted, known: Knowledge) -> str:
    if counted.is_dead(known):
        return "can never be played"
    chance = counted.beliefs.chance_to_fit(known)
    if chance == 0:
        return "cannot be played now"
    if chance == 1:
        return "can be played for sure"
    return f"can be played now with a chance of {chance:.0%}"


def known_text(known: Knowledge, view: PlayerView) -> str:
    """Return what hints tell of a card, e.g. "colour red (hinted), rank 1 or 2"."""
    colors = [COLOR_NAMES[color] for color in known.colors]
    ranks = [str(rank + 1) for rank in known.ranks]
    color = _one_of(colors, view.num_colors)
    rank = _one_of(ranks, view.num_ranks)
    color_hinted = " (hinted)" if known.color_hinted else ""
    rank_hinted = " (hinted)" if known.rank_hinted else ""
    return f"colour {color}{color_hinted}, rank {rank}{rank_hinted}"


def _one_of(values: Sequence[str], num_values: int) -> str:
    """Return the values joined by "or", or "any" if there is a choice and nothing is known."""
    if len(values) == num_values > 1:
        return "any"
    return _listed(values, "or")


def card_name(card: Card | None) -> str:
    """Return a card's name in a sentence, e.g. "red 1", or "a card" for an unknown one."""
    if card is None:
        return "a card"
    return f"{COLOR_NAMES[card.color]} {card.rank + 1}"


def _listed(words: Sequence[str], conjunction: str) -> str:
    """Return e.g. "1, 2 or 3"."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"
