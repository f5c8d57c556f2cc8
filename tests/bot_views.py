"""Hand-made views for the rules of bots: a 5x5 board, seen from seat 0, in which only what a test names is special."""

from collections.abc import Sequence

from hanabi_grpo.envs.hanabi.rules import Card, Game, Knowledge, PlayerView, make_spec, shuffled_deck

FULL = make_spec("full", 3)
ALL = (0, 1, 2, 3, 4)


def know(colors: Sequence[int] = ALL, ranks: Sequence[int] = ALL) -> Knowledge:
    """Return what hints have told about a card; colours and ranks from 0."""
    return Knowledge(tuple(colors), tuple(ranks), len(colors) == 1, len(ranks) == 1)


def view(
    *,
    own: Sequence[Knowledge] = (know(),) * 5,
    hands: Sequence[Sequence[tuple[Card, Knowledge]]] = ((), ()),
    fireworks: tuple[int, ...] = (0, 0, 0, 0, 0),
    discards: tuple[Card, ...] = (),
    hints: int = 4,
    lives: int = 3,
) -> PlayerView:
    """Return the view of seat 0 of three; `hands` are those of seats 1 and 2 with what their holders know."""
    return (
        Game(FULL, shuffled_deck(FULL, "train", 0))
        .view(0)
        ._replace(
            own_hand=tuple(own),
            hands=((), *(tuple(card for card, _ in hand) for hand in hands)),
            knowledge=(tuple(own), *(tuple(known for _, known in hand) for hand in hands)),
            fireworks=fireworks,
            discards=discards,
            hints=hints,
            lives=lives,
        )
    )
