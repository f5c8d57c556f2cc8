"""The word-level observation: a line of words from a vocabulary that a tiny tokenizer can list.

Example (board `laptop`; one line):
    life1 info3 deck2 nextR1 nextY1 me slot0 cRY r12 slot1 cRY r12 slot2 cRY r12 mate R1 cRY r12
    Y2 cRY r12 Y1 cRY r12 disc

`c` and `r` words name the colours and ranks that hints leave possible for the card before them,
`next` words the rank that fits; a finished colour has one more than the last rank.

With counted cards (HANABI_DEDUCTIONS=counted), a card's word includes the deduction about it, as in
`slot0fit2` and `R3later`. The discards are omitted, since they are already counted:
    life3 info1 deck25 nextR4 nextY1 me slot0fit2 cRY r1 slot1sure cR r4 mate Y4later cYGWB r1345
    B2fits cYGWB r2 last Hint 4 2 3
A tiny model learns these words much faster than separate ones: after 150 s of imitating IGGI on
Full, it agrees with .96 of IGGI's moves and reaches IGGI's score; with separate words, it agreed
with .71 and scored 3.

With joined cards (HANABI_DEDUCTIONS=joined), a card and all that is known of it is one word, and so
is a move:
    life3 info1 deck25 nextR4 nextY1 me slot0 fit2.cRY.r1 slot1 sure.cR.r4 mate
    Y4later.cYGWB.r1345 B2fits.cYGWB.r2 last Hint.4.2.3
The vocabulary then has 33,000 words on Full (335 otherwise), and lines are a third shorter.

With HANABI_DEDUCTIONS=recalled, every card has its slot: another player's card is a word for slot,
card and use, and a word for what its holder knows of it. With three or more players, the line
continues with the hands at the time of the last hint, without those of its giver and its reader:
    … mate1 player_1 R1fits.0 cYRG.r1 B4later.1 cB.r12345 … last player_0 Hint.player_1.1.0
    then player_2 0.Y1.dead 1.G5.only …
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from hanabi_grpo.envs.hanabi.prompts.deductions import (
    CARD_WORDS,
    COUNTED_LEVELS,
    JOINED_LEVELS,
    OWN_CARD_WORDS,
    RECALLED,
    Counted,
    Deductions,
    Recalled,
    others_moves,
    own_card_word,
)
from hanabi_grpo.envs.hanabi.rules.actions import discard, format_action, play
from hanabi_grpo.envs.hanabi.rules.presets import GameSpec
from hanabi_grpo.envs.hanabi.rules.view import (
    COLOR_LETTERS,
    Action,
    Card,
    Event,
    Knowledge,
    PlayerView,
    other_seats,
)
from hanabi_grpo.types import player_names

_LAST_MOVE = "last"
"""Comes before a move of another player."""
WILL_HINT = "say"
"""In a thought: comes before what a player would say with a hint, see `policies.hat_aloud`."""
TOLD = "told"
"""In a thought: the player before it has been told already."""
MAY_BE_OWN = "maybe"
"""In a thought: the own card that a hint says to play may be a copy of the one just named."""
_THEN = "then"
"""Comes before the hands at the time of the last hint."""
_GOOD_PLAY = "good"
_BAD_PLAY = "bad"
_JOINT = "."
"""Between the parts of a joined word."""


def compact_vocabulary(spec: GameSpec, deductions: Deductions = "possible") -> tuple[str, ...]:
    """Return every word that a compact observation or a compact reply can hold on this board.

    The order is fixed: a tokenizer may number the words by position.

    Args:
        spec: The board.
        deductions: What the prompts work out; "counted" appends words to the vocabulary, and
            "joined" has its own, to which "recalled" appends words.
    """
    if deductions == RECALLED:
        return tuple(_recalled_vocabulary(spec))
    if deductions == "joined":
        return tuple(_joined_vocabulary(spec))
    slots = _slot_words(spec)
    cards = _card_words(spec)
    words = [
        *_counter_words(spec),
        "me",
        "disc",
        "moves",
        *slots,
        *mate_words(spec.num_players),
        *cards,
        *_knowledge_vocabulary(spec),
        *_move_vocabulary(spec),
    ]
    if deductions == "counted":
        words += _counted_vocabulary(slots, cards)
        words += _thought_vocabulary(spec)
    return tuple(words)


def _slot_words(spec: GameSpec) -> list[str]:
    return [f"slot{slot}" for slot in range(spec.hand_size)]


def _card_words(spec: GameSpec) -> list[str]:
    """Return every card's name, colour by colour."""
    cards = []
    for color in range(spec.num_colors):
        for rank in range(spec.num_ranks):
            cards.append(str(Card(color, rank)))
    return cards


def _counter_words(spec: GameSpec) -> Iterator[str]:
    """Yield the words for lives, hints, cards and turns left, and stacks."""
    num_undealt = spec.deck_size - spec.num_players * spec.hand_size
    for lives in range(spec.max_lives + 1):
        yield f"life{lives}"
    for hints in range(spec.max_hints + 1):
        yield f"info{hints}"
    for cards in range(num_undealt + 1):
        yield f"deck{cards}"
    for turns in range(spec.num_players + 1):
        yield f"left{turns}"
    for color in range(spec.num_colors):
        for height in range(spec.num_ranks + 1):
            yield _next_word(color, height)


def mate_words(num_players: int) -> list[str]:
    """Return the words that begin another player's hand, in the order of turns."""
    if num_players == 2:
        return ["mate"]
    return [f"mate{offset}" for offset in range(1, num_players)]


def _knowledge_vocabulary(spec: GameSpec) -> Iterator[str]:
    """Yield the words for what hints leave possible: every set of colours, then of ranks."""
    yield from map(_colors_word, _subsets(spec.num_colors))
    yield from map(_ranks_word, _subsets(spec.num_ranks))


def _move_vocabulary(spec: GameSpec) -> Iterator[str]:
    """Yield the words of moves."""
    yield from ("Play", "Discard", "Hint")
    # Slots count from 0, printed ranks from 1.
    for number in range(max(spec.hand_size, spec.num_ranks + 1)):
        yield str(number)
    yield from COLOR_LETTERS[: spec.num_colors]
    if spec.num_players > 2:
        yield from player_names(spec.num_players)


def _counted_vocabulary(slots: Sequence[str], cards: Sequence[str]) -> Iterator[str]:
    """Yield the words that only counted cards need."""
    for slot in slots:
        for word in OWN_CARD_WORDS:
            yield slot + word
    for card in cards:
        for word in CARD_WORDS:
            yield card + word
    yield from (_LAST_MOVE, _GOOD_PLAY, _BAD_PLAY)


def _thought_vocabulary(spec: GameSpec) -> Iterator[str]:
    """Yield the words that only thoughts need; with two players, no bot thinks in these words."""
    if spec.num_players == 2:
        return
    yield from (WILL_HINT, TOLD)
    for slot in range(spec.hand_size):
        yield advice_word(play(slot))
        yield advice_word(discard(slot))
    yield MAY_BE_OWN


def advice_word(action: Action) -> str:
    """Return the word for a play or a discard in a thought, e.g. "play0"."""
    return f"{action.kind}{action.slot}"


def _joined_vocabulary(spec: GameSpec) -> Iterator[str]:
    """Yield the words of joined observations and of replies."""
    yield from _table_vocabulary(spec)
    for colors in _subsets(spec.num_colors):
        for ranks in _subsets(spec.num_ranks):
            yield from _own_joined_words(colors, ranks)
            # What a player knows about its card is always true of the card.
            for card in (Card(color, rank) for color in colors for rank in ranks):
                for word in CARD_WORDS:
                    yield _joined(f"{card}{word}", _colors_word(colors), _ranks_word(ranks))
    yield from _joined_moves(spec)
    yield from _thought_vocabulary(spec)


def _table_vocabulary(spec: GameSpec) -> Iterator[str]:
    """Yield the words of joined observations and replies that describe no card."""
    yield from _counter_words(spec)
    yield from ("me", "moves", _LAST_MOVE)
    yield from mate_words(spec.num_players)
    yield from _slot_words(spec)
    yield from _move_vocabulary(spec)


def _own_joined_words(colors: Sequence[int], ranks: Sequence[int]) -> Iterator[str]:
    """Yield the words for an own card that is known to have one of these colours and ranks."""
    for word in OWN_CARD_WORDS:
        yield _joined(word, _colors_word(tuple(colors)), _ranks_word(tuple(ranks)))


def _recalled_vocabulary(spec: GameSpec) -> Iterator[str]:
    """Yield the words of observations with hands at the time of a hint, and of replies."""
    yield from _table_vocabulary(spec)
    for colors in _subsets(spec.num_colors):
        for ranks in _subsets(spec.num_ranks):
            yield from _own_joined_words(colors, ranks)
            yield _joined(_colors_word(colors), _ranks_word(ranks))
    for slot in range(spec.hand_size):
        for card in _card_words(spec):
            for word in CARD_WORDS:
                yield _present_word(slot, card, word)
                yield _past_word(slot, card, word)
    yield _THEN
    yield from _joined_moves(spec)
    yield from _thought_vocabulary(spec)


def _present_word(slot: int, card: str, use: str) -> str:
    """Return the word for another player's card that shows its slot."""
    return _joined(f"{card}{use}", str(slot))


def _past_word(slot: int, card: str, use: str) -> str:
    """Return the word for another player's card at the time of the last hint."""
    return _joined(str(slot), card, use)


def _joined_moves(spec: GameSpec) -> Iterator[str]:
    """Yield the words for what another player has done."""
    cards = _card_words(spec)
    for slot in range(spec.hand_size):
        for card in cards:
            yield _joined("Discard", str(slot), card)
            yield _joined("Play", str(slot), card, _GOOD_PLAY)
            yield _joined("Play", str(slot), card, _BAD_PLAY)
    values = [*COLOR_LETTERS[: spec.num_colors], *(str(rank + 1) for rank in range(spec.num_ranks))]
    targets: list[list[str]] = [[]]
    if spec.num_players > 2:
        targets = [[name] for name in player_names(spec.num_players)]
    for target in targets:
        for value in values:
            for touched in _subsets(spec.hand_size):
                yield _joined("Hint", *target, value, *map(str, touched))


def joined_word_parts(
    spec: GameSpec, deductions: Deductions = "joined"
) -> dict[str, tuple[str, ...]]:
    """Return, for each joined word of this board, the parts that it shares with other words.

    Args:
        spec: The board.
        deductions: "joined" or "recalled".

    Example:
        parts = joined_word_parts(make_spec("full"))
        parts["fit2.cRY.r1"] == ("own fit2", "colours 2", "cR", "cY", "ranks 1", "r1")
        parts["Y4later.cY.r4"][:5] == ("later", "Y4", "of Y", "of 4", "colours 1")
        parts["Hint.4.2.3"] == ("Hint", "Hint 4", "touched 2", "touched 3")
    """
    parts = {}
    for word in compact_vocabulary(spec, deductions):
        if _JOINT in word:
            parts[word] = _parts_of(word)
    return parts


def _parts_of(word: str) -> tuple[str, ...]:
    """Return the parts of a joined word."""
    first, *others = word.split(_JOINT)
    if first == "Hint":
        return ("Hint", *_hint_parts(others))
    if first in ("Play", "Discard"):
        slot, card, *outcome = others
        return (first, f"{first} {slot}", card, *_of_card(card), *outcome)
    if first.isdigit():
        card, use = others
        return (f"then {first}", f"then {use}", card, *_of_card(card))
    if first in OWN_CARD_WORDS:
        return (f"own {first}", *_known_parts(*others))
    if first.startswith("c"):
        return ("known", *_known_parts(first, *others))
    card, deduction = first[:2], first[2:]
    if len(others) == 1:
        return (deduction, card, *_of_card(card), f"in {others[0]}")
    return (deduction, card, *_of_card(card), *_known_parts(*others))


def _known_parts(colors: str, ranks: str) -> tuple[str, ...]:
    """Return the parts of what is known of a card."""
    return (*_set_parts("colours", "c", colors), *_set_parts("ranks", "r", ranks))


def _hint_parts(fields: Sequence[str]) -> Iterator[str]:
    """Yield the parts of a hint: who is told, what, and each slot that it touches."""
    told_fields = list(fields)
    if told_fields[0].startswith("player"):
        yield f"Hint {told_fields.pop(0)}"
    value, *touched = told_fields
    yield f"Hint {value}"
    for slot in touched:
        yield f"touched {slot}"


def _of_card(card: str) -> tuple[str, str]:
    """Return the parts that a card shares with those of its colour and of its rank."""
    return f"of {card[0]}", f"of {card[1]}"


def _set_parts(name: str, prefix: str, word: str) -> Iterator[str]:
    """Yield the size of a set of colours or ranks, and its elements."""
    elements = word.removeprefix(prefix)
    yield f"{name} {len(elements)}"
    for element in elements:
        yield prefix + element


def _subsets(size: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of the numbers below `size` that is not empty, small ones first."""
    for length in range(1, size + 1):
        yield from combinations(range(size), length)


def _joined(*words: str) -> str:
    return _JOINT.join(words)


def compact_turn(
    view: PlayerView,
    *,
    legal_moves: bool,
    deductions: Deductions = "possible",
    counted: Counted | None = None,
    recalled: Recalled | None = None,
) -> str:
    """Return the observation as words separated by single spaces.

    Args:
        view: What the player may know.
        legal_moves: Whether to list the legal moves.
        deductions: The level, which decides how the words are joined.
        counted: Deductions from the visible cards, at the levels that include them.
        recalled: Hands at the time of the last hint, or None to omit them.
    """
    return " ".join(_turn_words(view, legal_moves, deductions, counted, recalled))


def _turn_words(
    view: PlayerView,
    legal_moves: bool,
    deductions: Deductions,
    counted: Counted | None,
    recalled: Recalled | None,
) -> Iterator[str]:
    is_joined = deductions in JOINED_LEVELS
    yield from _table_words(view)
    yield from _own_hand_words(view, counted, deductions)
    for mate, seat in zip(mate_words(view.num_players), other_seats(view), strict=True):
        yield mate
        if view.num_players > 2:
            yield player_names(view.num_players)[seat]
        if deductions == RECALLED and counted:
            yield from _mates_slot_words(view, seat, counted)
        else:
            yield from _mates_hand_words(view, seat, counted, is_joined)
    if counted:
        for event in others_moves(view):
            yield _LAST_MOVE
            if view.num_players > 2:
                yield player_names(view.num_players)[event.player]
            yield from move_words(event, view, deductions)
    else:
        yield "disc"
        yield from map(str, view.discards)
    if recalled and recalled.hands:
        yield from _recalled_words(recalled, view.num_players)
    if legal_moves and view.legal_actions:
        yield "moves"
        for action in view.legal_actions:
            yield _move_text(action, view)


def _recalled_words(recalled: Recalled, num_players: int) -> Iterator[str]:
    """Yield the hands at the time of the last hint."""
    names = player_names(num_players)
    yield _THEN
    for hand in recalled.hands:
        yield names[hand.seat]
        for slot, (card, word) in enumerate(hand.cards):
            yield _past_word(slot, str(card), word)


def _table_words(view: PlayerView) -> Iterator[str]:
    """Yield lives, hints, cards and turns left, and stacks."""
    yield f"life{view.lives}"
    yield f"info{view.hints}"
    yield f"deck{view.deck_size}"
    if view.turns_left is not None:
        yield f"left{view.turns_left}"
    for color, height in enumerate(view.fireworks):
        yield _next_word(color, height)


def _own_hand_words(
    view: PlayerView, counted: Counted | None, deductions: Deductions
) -> Iterator[str]:
    yield "me"
    if view.num_players > 2:
        # Hints name absolute seats, so a policy shared by several seats must read which one it
        # holds.
        yield player_names(view.num_players)[view.player]
    for slot in range(len(view.own_hand)):
        yield from _own_card_words(view, slot, counted, deductions)


def own_card_words(view: PlayerView, slot: int, deductions: Deductions) -> list[str]:
    """Return the words for a card of the player's own hand, as they stand in its prompt.

    Args:
        view: What the player may know.
        slot: The card.
        deductions: The level of the prompt.
    """
    counted = Counted(view) if deductions in COUNTED_LEVELS else None
    return _own_card_words(view, slot, counted, deductions)


def _own_card_words(
    view: PlayerView, slot: int, counted: Counted | None, deductions: Deductions
) -> list[str]:
    known = view.own_hand[slot]
    deduction = own_card_word(counted, known) if counted else ""
    if deductions in JOINED_LEVELS:
        return [f"slot{slot}", _joined(deduction, *_knowledge_words(known))]
    return [f"slot{slot}{deduction}", *_knowledge_words(known)]


def _mates_hand_words(
    view: PlayerView, seat: int, counted: Counted | None, is_joined: bool
) -> Iterator[str]:
    for card, known in zip(view.hands[seat], view.knowledge[seat], strict=True):
        deduction = counted.card_word(card) if counted else ""
        yield from _together((f"{card}{deduction}", *_knowledge_words(known)), is_joined)


def _mates_slot_words(view: PlayerView, seat: int, counted: Counted) -> Iterator[str]:
    """Yield another player's hand with the slot of each card."""
    hand = zip(view.hands[seat], view.knowledge[seat], strict=True)
    for slot, (card, known) in enumerate(hand):
        yield _present_word(slot, str(card), counted.card_word(card))
        yield _joined(*_knowledge_words(known))


def mates_card_words(
    view: PlayerView, seat: int, slot: int, deductions: Deductions
) -> Sequence[str]:
    """Return the words for a card of another player's hand, as they stand in a prompt.

    With HANABI_DEDUCTIONS=recalled, without what its holder knows of it.

    Args:
        view: What the player who reads the prompt may know.
        seat: The holder of the card.
        slot: The card.
        deductions: The level of the prompt.
    """
    card = view.hands[seat][slot]
    use = Counted(view).card_word(card) if deductions in COUNTED_LEVELS else ""
    if deductions == RECALLED:
        return (_present_word(slot, str(card), use),)
    known = view.knowledge[seat][slot]
    words = (f"{card}{use}", *_knowledge_words(known))
    return _together(words, deductions in JOINED_LEVELS)


def kind_word(kind: str) -> str:
    """Return the first word of a move of this kind, e.g. "Hint" for "hint_rank"."""
    return "Hint" if kind.startswith("hint") else kind.capitalize()


def move_words(event: Event, view: PlayerView, deductions: Deductions) -> Sequence[str]:
    """Return the words for another player's move, as they stand in a prompt.

    Args:
        event: The move.
        view: What the player who reads the prompt may know.
        deductions: The level of the prompt.
    """
    words = [*_move_text(event.action, view).split(), *map(str, event.touched)]
    if event.card:
        words.append(str(event.card))
    if event.action.kind == "play":
        words.append(_GOOD_PLAY if event.scored else _BAD_PLAY)
    return _together(words, deductions in JOINED_LEVELS)


def _together(words: Sequence[str], is_joined: bool) -> Sequence[str]:
    """Return words that belong together, as one word if they are joined."""
    return (_joined(*words),) if is_joined else words


def _move_text(action: Action, view: PlayerView) -> str:
    return format_action(action, style="compact", num_players=view.num_players)


def _next_word(color: int, height: int) -> str:
    """Return the word for the rank that fits on a stack of this height, e.g. "nextR1" for 0."""
    return f"next{COLOR_LETTERS[color]}{height + 1}"


def _knowledge_words(known: Knowledge) -> tuple[str, str]:
    return _colors_word(known.colors), _ranks_word(known.ranks)


def _colors_word(colors: tuple[int, ...]) -> str:
    """Return e.g. "cRY" for colours 0 and 1."""
    return "c" + "".join(COLOR_LETTERS[color] for color in colors)


def _ranks_word(ranks: tuple[int, ...]) -> str:
    """Return e.g. "r12" for ranks 0 and 1."""
    return "r" + "".join(str(rank + 1) for rank in ranks)
