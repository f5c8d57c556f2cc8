"""What a person at the table is shown; every screen is a function of what that player may see."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from hanabi_grpo.envs.hanabi.human.moves import short_form
from hanabi_grpo.envs.hanabi.policies.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.rules.presets import MAX_RANKS
from hanabi_grpo.envs.hanabi.rules.view import COLOR_LETTERS, COLOR_NAMES, Action, Card, Event, Knowledge, PlayerView

CARD_STYLES = ("red", "yellow", "green", "bold", "blue")
"""Of the colours of cards; their letters are always printed too."""
HELP = (
    "Slot 0 is the oldest card; when one leaves, the younger ones move down.",
    "What is told of a move names the slots as they were then.",
    "R? is a red card, ?1 a one, RY12 red or yellow and 1 or 2; bold: hinted.",
)


def table_screen(view: PlayerView, labels: Sequence[str], told: Sequence[str]) -> Group:
    """Return the table on this player's turn.

    Args:
        view: What the player sees.
        labels: Per seat, what the screen calls it.
        told: Every past move as a sentence, see `sentences`.
    """
    parts: list[RenderableType] = [Rule(f"turn {len(view.events) + 1}", align="left", characters="─")]
    parts += [*news(view, told), Text(), *counters(view), Text(), hands_table(view, labels)]
    if view.turns_left is not None:
        after = view.turns_left - 1
        others = f"{after} of the others still move" if after > 1 else "one other player still moves"
        last = f"The deck is empty and this is your last move; {others if after else 'the game ends with it'}."
        parts.append(Text(last, style="bold"))
    elif view.deck_size == 1:
        parts.append(Text("One card is left in the deck; after it is drawn, everybody has one more move."))
    return Group(*parts)


def news(view: PlayerView, told: Sequence[str]) -> list[Text]:
    """Return what happened from the player's own last move on."""
    own = [number for number, event in enumerate(view.events) if event.player == view.player]
    first = own[-1] if own else 0
    return [Text(f"  {line}") for line in told[first:]] or [Text("  The game begins.")]


def counters(view: PlayerView) -> list[Text]:
    """Return fireworks, tokens and discards, a line each."""
    stacks = Text("Fireworks  ")
    for color, height in enumerate(view.fireworks):
        stacks.append(f"{COLOR_LETTERS[color]}{height}", style=CARD_STYLES[color]).append("  ")
    points = sum(view.fireworks)
    stacks.append(f" {points} point{'s' * (points != 1)} of {view.num_colors * view.num_ranks}")
    tokens = Text("Lives ").append(f"{view.lives} of {view.max_lives}", style="bold red" if view.lives == 1 else "")
    tokens.append("   Hints ").append(f"{view.hints} of {view.max_hints}", style="" if view.hints else "bold red")
    tokens.append(f"   Deck {view.deck_size}")
    gone = Text("Discarded  ")
    for color, cards in groupby(sorted(view.discards, key=lambda card: (card.color, card.rank)), lambda c: c.color):
        gone.append(" ".join(map(str, cards)), style=CARD_STYLES[color]).append("   ")
    if not view.discards:
        gone.append("nothing")
    gone.rstrip()
    return [stacks, tokens, gone]


def hands_table(view: PlayerView, labels: Sequence[str]) -> Table:
    """Return the partners' hands with what they know of them, and what the player knows of its own."""
    num_slots = max(map(len, view.knowledge))
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    for _ in range(num_slots):
        grid.add_column(min_width=4, no_wrap=True)
    grid.add_row("", *(Text(str(slot), style="dim") for slot in range(num_slots)))
    for step in range(1, view.num_players):
        seat = (view.player + step) % view.num_players
        grid.add_row(labels[seat], *(card_text(card) for card in view.hands[seat]))
        knows = (knowledge_text(known, view) for known in view.knowledge[seat])
        grid.add_row(Text("  knows", style="dim"), *knows)
    grid.add_row(Text(labels[view.player], style="bold"), *(knowledge_text(known, view) for known in view.own_hand))
    return grid


def card_text(card: Card) -> Text:
    """Return e.g. "R1", in its colour."""
    return Text(str(card), style=CARD_STYLES[card.color])


def knowledge_text(known: Knowledge, view: PlayerView) -> Text:
    """Return what hints leave for a card, e.g. "R?", "?1" or "RY12"; bold where a hint touched it."""
    colors = "".join(COLOR_LETTERS[color] for color in known.colors)
    ranks = "".join(str(rank + 1) for rank in known.ranks)
    any_color, any_rank = len(colors) == view.num_colors > 1, len(ranks) == view.num_ranks > 1
    text = ("?" if any_color else colors) + ("?" if any_rank else ranks)
    if known.color_hinted or known.rank_hinted:
        return Text(text, style="bold")
    return Text(text, style="dim" if any_color and any_rank else "")


def sentence(event: Event, player: int) -> str:
    """Return one past move as `player` tells it, e.g. "player_1 hinted you red: slots 0 2."."""
    action = event.action
    who = "You" if event.player == player else f"player_{event.player}"
    if action.kind == "play":
        outcome = "it fits" if event.scored else "it does not fit and costs a life"
        return f"{who} played slot {action.slot}: {event.card}, {outcome}."
    if action.kind == "discard":
        return f"{who} discarded slot {action.slot}: {event.card}."
    whom = "you" if action.target == player else f"player_{action.target}"
    return f"{who} hinted {whom} {_value(action)}: {_slots(event.touched)}."


def sentences(view: PlayerView) -> list[str]:
    """Return every past move as this player tells it."""
    return [sentence(event, view.player) for event in view.events]


def log_screen(told: Sequence[str]) -> RenderableType:
    """Return all moves so far, numbered."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(justify="right")
    grid.add_column()
    for number, line in enumerate(told):
        grid.add_row(str(number + 1), Text(line))
    return grid if told else Text("Nothing happened yet.")


def help_screen(view: PlayerView) -> Group:
    """Return every legal move in words, the commands, and how to read the table."""
    grid = Table.grid(padding=(0, 2))
    for kind, effect in (("play", ""), ("discard", "; gives back a hint token")):
        slots = [action for action in view.legal_actions if action.kind == kind]
        if slots:
            forms = " ".join(short_form(action, view) for action in slots)
            numbers = f"slot{'s' * (len(slots) > 1)} {' '.join(str(action.slot) for action in slots)}"
            grid.add_row(Text(forms, style="bold"), f"{kind} your card of {numbers}{effect}")
    for action in view.legal_actions:
        if action.target >= 0:
            grid.add_row(Text(short_form(action, view), style="bold"), f"hint {_hint(action, view)}")
    for key, words in (
        ("k", "what your cards may be, with the cards counted that you can see"),
        ("l", "every move so far"),
        ("t", "the table again"),
        ("q", "leave; the game is not kept"),
    ):
        grid.add_row(Text(key, style="bold"), words)
    partner = (view.player + 1) % view.num_players
    hint = f"hint {'' if view.num_players == 2 else f'{partner} '}red, Hint player_{partner} 1"
    notes = [Text(f"Words do too: play 0, discard 2, {hint}."), *map(Text, HELP)]
    missing = []
    if not view.hints:
        missing.append(Text("No hint token is left, so no hint can be given."))
    if view.hints == view.max_hints:
        missing.append(Text("All hint tokens are there, so nothing can be discarded."))
    return Group(grid, *missing, *notes)


def beliefs_screen(view: PlayerView) -> Group:
    """Return for each own card what it may be and which of that fits, counting all cards that the player sees."""
    beliefs, reachable = Beliefs(view), reachable_heights(view)
    parts: list[RenderableType] = [
        Text("Counted are the cards that you cannot see: the deck's and yours. x2: two left.")
    ]
    for known, group in groupby(enumerate(view.own_hand), key=lambda pair: pair[1]):
        slots = [str(slot) for slot, _ in group]
        head = Text(f"slot{'s' * (len(slots) > 1)} {' '.join(slots)}  ", style="bold")
        parts.append(head.append_text(knowledge_text(known, view)))
        grid = Table.grid(padding=(0, 2))
        kinds: dict[str, Text] = {"fits now": Text(), "later": Text(), "no use": Text()}
        for color in known.colors:
            for rank in known.ranks:
                count = beliefs.unseen >> 2 * (MAX_RANKS * color + rank) & 3
                if count:
                    height = view.fireworks[color]
                    use = "fits now" if rank == height else "later" if height < rank < reachable[color] else "no use"
                    kinds[use].append(str(Card(color, rank)), style=CARD_STYLES[color])
                    kinds[use].append(f"x{count} " if count > 1 else " ")
        for use, cards in kinds.items():
            if cards:
                share = f" {beliefs.chance_to_fit(known):.0%}" if use == "fits now" else ""
                cards.rstrip()
                grid.add_row(Text(f"  {use}{share}"), cards)
        parts.append(grid)
    return Group(*parts)


def show(console: Console, screen: RenderableType) -> None:
    """Print a screen between empty lines."""
    console.print()
    console.print(screen)
    console.print()


def _hint(action: Action, view: PlayerView) -> str:
    hand = view.hands[action.target]
    values = [card.color if action.kind == "hint_color" else card.rank for card in hand]
    touched = tuple(slot for slot, value in enumerate(values) if value == action.value)
    return f"player_{action.target} {_value(action)}: {_slots(touched)}"


def _value(action: Action) -> str:
    return COLOR_NAMES[action.value] if action.kind == "hint_color" else f"rank {action.value + 1}"


def _slots(slots: Sequence[int]) -> str:
    return f"slot{'s' * (len(slots) > 1)} {' '.join(map(str, slots))}"
