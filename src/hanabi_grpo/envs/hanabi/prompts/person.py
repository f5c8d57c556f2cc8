"""The table as a person in a seat sees it: drawn as text, and as data for a page.

Like the prompts, all of it is a pure function of a `PlayerView`.
"""

from collections.abc import Sequence
from typing import Any

from hanabi_grpo.envs.hanabi.prompts.full import card_name
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec, num_copies
from hanabi_grpo.envs.hanabi.rules.view import (
    COLOR_LETTERS,
    COLOR_NAMES,
    Action,
    Card,
    Event,
    Knowledge,
    PlayerView,
)
from hanabi_grpo.envs.people import Choice, Scene
from hanabi_grpo.types import player_name

_NAME_WIDTH = 12
"""Width of the name column in the text table, in characters."""
_DISCARDS_A_LINE = 20
"""Discarded cards per line of the text table."""
_LOST = (
    "The last life is lost. On this board, that costs every point scored so far.",
    "The last life is lost. The team keeps the reward for its points, but the score is 0.",
)
"""Indexed by whether points are kept, which changes the reward but never the score."""


def person_rules(spec: GameSpec, player: int, bomb_rule: str) -> str:
    """Return the rules for a person who starts to play.

    Args:
        spec: The board.
        player: The person's seat.
        bomb_rule: "zero" or "keep": what losing the last life does to the points scored so far.
    """
    colors = ", ".join(COLOR_NAMES[: spec.num_colors])
    copies = ", ".join(
        f"{num_copies(rank, spec.num_ranks)} x {rank + 1}" for rank in range(spec.num_ranks)
    )
    loss = "every point is lost"
    if bomb_rule == "keep":
        loss = "the score is 0, but the team keeps the reward for its points"
    return (
        f"Hanabi: you are {player_name(player)} of {spec.num_players} players, one team. You see "
        "everybody's cards except your own.\n"
        f"Build a firework of each colour ({colors}), in order from 1 to {spec.num_ranks}; each "
        f"card that fits scores 1, at most {spec.max_score}. In each colour: {copies}.\n"
        "Play a card: it fits, or the team loses a life. Discard a card: the team gets a hint "
        "token back. Hint a colour or a rank to a player: this costs a token and points out all of "
        "that player's cards that have it.\n"
        "Slot 0 is the oldest card; new cards come last. When no lives are left, the game ends and "
        f"{loss}. After the last card is drawn, each player has one more turn."
    )


def person_scene(view: PlayerView, *, bomb_rule: str, texts: Sequence[str]) -> Scene:
    """Return what the person in a seat is shown.

    Args:
        view: What that seat may know.
        bomb_rule: See `person_rules`.
        texts: The texts of `view.legal_actions`, in the same order.
    """
    news = [_event_sentence(event, view) for event in _news_events(view)]
    if view.lives == 0:
        news.append(_LOST[bomb_rule == "keep"])
    moves = sorted(zip(view.legal_actions, texts, strict=True), key=_menu_order)
    choices = [_choice(action, text) for action, text in moves]
    return Scene(
        table=_table_text(view),
        news=tuple(news),
        legend=_legend(view),
        choices=tuple(choices),
        drawn=_drawn(view),
    )


def _news_events(view: PlayerView) -> Sequence[Event]:
    """Return the moves from the person's last one on, or all moves if it has made none.

    Its own move is repeated, because its card is revealed only afterwards.
    """
    own = [number for number, event in enumerate(view.events) if event.player == view.player]
    return view.events[own[-1] :] if own else view.events


def _event_sentence(event: Event, view: PlayerView) -> str:
    """Return e.g. "player_1 hinted red to you: slots 0 and 2."."""
    action = event.action
    who = "You" if event.player == view.player else player_name(event.player)
    if action.kind == "play":
        end = "it fits" if event.scored else "it does not fit and costs a life"
        return f"{who} played slot {action.slot}, {card_name(event.card)}: {end}."
    if action.kind == "discard":
        return f"{who} discarded slot {action.slot}, {card_name(event.card)}."
    target = "you" if action.target == view.player else player_name(action.target)
    noun = "slot" if len(event.touched) == 1 else "slots"
    slots = _joined([str(slot) for slot in event.touched])
    return f"{who} hinted {_hint_word(action)} to {target}: {noun} {slots}."


def _menu_order(move: tuple[Action, str]) -> tuple[int, int, int, int]:
    """Return the sort key of a menu: plays, discards, then each player's colours and ranks."""
    action, _ = move
    kinds = ("play", "discard", "hint_color", "hint_rank")
    is_card_move = action.slot >= 0
    kind = kinds.index(action.kind)
    if is_card_move:
        return kind, action.slot, 0, 0
    return len(kinds), action.target, kind, action.value


def _choice(action: Action, text: str) -> Choice:
    if action.slot >= 0:
        return Choice(reply=text, label=f"slot {action.slot}", group=action.kind.capitalize())
    group = f"Hint {player_name(action.target)}"
    return Choice(reply=text, label=_hint_word(action), group=group)


def _hint_word(action: Action) -> str:
    if action.kind == "hint_color":
        return COLOR_NAMES[action.value]
    return f"rank {action.value + 1}"


def _table_text(view: PlayerView) -> str:
    """Return the table in lines.

    For example:
        Points 1 of 4    Lives 1 of 1    Hints 2 of 3    Deck 2 cards
        Fireworks   red 1  yellow -
        Discarded   Y1

                    slot 0 slot 1 slot 2
        player_1    R1     Y2     R1
          knows     RY 12  Y* 2   RY 1
        you         ?      ?      ?
          know      RY 12  RY 2*  RY 1
    """
    fireworks = []
    for color, height in enumerate(view.fireworks):
        fireworks.append(f"{COLOR_NAMES[color]} {height or '-'}")
    facts = (
        f"Points {sum(view.fireworks)} of {view.num_colors * view.num_ranks}",
        f"Lives {view.lives} of {view.max_lives}",
        f"Hints {view.hints} of {view.max_hints}",
        _deck_words(view),
    )
    lines = ["    ".join(facts), _row("Fireworks", ["  ".join(fireworks)], 0)]
    discards = [str(card) for card in sorted(view.discards, key=_card_order)]
    for start in range(0, max(1, len(discards)), _DISCARDS_A_LINE):
        name = "" if start else "Discarded"
        part = discards[start : start + _DISCARDS_A_LINE]
        lines.append(_row(name, [" ".join(part) or "none"], 0))
    # A card of unknown colour and rank, e.g. "RY 12", and a space; hinted cards are shorter.
    width = max(len("slot 0"), view.num_colors + view.num_ranks + 1) + 1
    num_slots = max(len(hand) for hand in view.knowledge)
    lines += ["", _row("", [f"slot {slot}" for slot in range(num_slots)], width)]
    for offset in range(1, view.num_players + 1):
        seat = (view.player + offset) % view.num_players
        known = [_knowledge_text(card) for card in view.knowledge[seat]]
        is_own = seat == view.player
        cards = ["?"] * len(known) if is_own else [str(card) for card in view.hands[seat]]
        lines.append(_row("you" if is_own else player_name(seat), cards, width))
        lines.append(_row("  know" if is_own else "  knows", known, width))
    return "\n".join(lines)


def _row(name: str, cells: Sequence[str], width: int) -> str:
    return (name.ljust(_NAME_WIDTH) + "".join(cell.ljust(width) for cell in cells)).rstrip()


def _deck_words(view: PlayerView) -> str:
    if view.turns_left is not None:
        return f"Deck empty, {view.turns_left} {_plural('move', view.turns_left)} left"
    return f"Deck {view.deck_size} {_plural('card', view.deck_size)}"


def _knowledge_text(known: Knowledge) -> str:
    """Return e.g. "RY* 12": what a card may be, with a star after what a hint has named."""
    colors = "".join(COLOR_LETTERS[color] for color in known.colors)
    ranks = "".join(str(rank + 1) for rank in known.ranks)
    color_star = "*" if known.color_hinted else ""
    rank_star = "*" if known.rank_hinted else ""
    return f"{colors}{color_star} {ranks}{rank_star}"


def _legend(view: PlayerView) -> str:
    letters = ", ".join(
        f"{letter} {name}"
        for letter, name in zip(
            COLOR_LETTERS[: view.num_colors], COLOR_NAMES[: view.num_colors], strict=True
        )
    )
    return (
        f"{letters}; R1 is the red 1. Under a card: the colours and ranks that hints leave "
        "possible; * a hint named it."
    )


def _drawn(view: PlayerView) -> dict[str, Any]:
    """Return the table as JSON; a card is None where the person must not see it."""
    hands = []
    for offset in range(1, view.num_players + 1):
        seat = (view.player + offset) % view.num_players
        is_own = seat == view.player
        cards = []
        for slot, known in enumerate(view.knowledge[seat]):
            cards.append(
                {
                    "card": None if is_own else str(view.hands[seat][slot]),
                    "colors": list(known.colors),
                    "ranks": list(known.ranks),
                    "color_hinted": known.color_hinted,
                    "rank_hinted": known.rank_hinted,
                }
            )
        hands.append({"player": player_name(seat), "is_you": is_own, "cards": cards})
    return {
        "kind": "hanabi",
        "colors": list(COLOR_NAMES[: view.num_colors]),
        "letters": COLOR_LETTERS[: view.num_colors],
        "num_ranks": view.num_ranks,
        "points": sum(view.fireworks),
        "max_points": view.num_colors * view.num_ranks,
        "lives": view.lives,
        "max_lives": view.max_lives,
        "hints": view.hints,
        "max_hints": view.max_hints,
        "deck": _deck_words(view),
        "fireworks": list(view.fireworks),
        "discards": [str(card) for card in sorted(view.discards, key=_card_order)],
        "hands": hands,
        "touched": _touched(view),
    }


def _touched(view: PlayerView) -> list[int]:
    """Return the person's slots that the newest hint to it touched, until its next move."""
    for event in reversed(_news_events(view)):
        if event.action.target == view.player:
            return list(event.touched)
        if event.player == view.player:
            break
    return []


def _card_order(card: Card) -> tuple[int, int]:
    return card.color, card.rank


def _joined(words: Sequence[str]) -> str:
    if len(words) <= 1:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
