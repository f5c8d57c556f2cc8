"""The kinds of hints, colours then ranks, and the counters of one line-up, into which games go one by one."""

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hanabi_grpo.envs.hanabi.rules import COLOR_LETTERS, Action, Card, Game, GameSpec, PlayerView
from hanabi_grpo.envs.hanabi.rules.beliefs import Beliefs, reachable_heights
from hanabi_grpo.envs.hanabi.rules.presets import num_copies

NUM_GROUPS = 32
"""Groups of deals. Leaving out one at a time gives the standard errors, which are then good to about one eighth."""
_Hint = tuple[int, tuple[int, ...]]
"""Its kind and the slots that it touched."""
Row = defaultdict[Any, float]
"""Counters by their keys, see `count_game`."""


def hint_kind(spec: GameSpec, hint: Action) -> int:
    """Return the number of a hint's kind."""
    return hint.value + (spec.num_colors if hint.kind == "hint_rank" else 0)


def hint_names(spec: GameSpec) -> tuple[str, ...]:
    """Return a colour's letter or a printed rank for each kind of hint."""
    return (*COLOR_LETTERS[: spec.num_colors], *(str(rank + 1) for rank in range(spec.num_ranks)))


def count_games(games: Iterable[Game]) -> list[Row]:
    """Return the counters of groups of deals of one board; see `count_game`.

    A hash of the deck puts a game into one of `NUM_GROUPS` groups, so all games of one deal count as one draw in the
    standard errors. A game that was cut off before its end counts as far as it went.
    """
    groups: dict[int, Row] = {}
    for game in games:
        deck = bytes([8 * card.color + card.rank for card in game.deck])
        count_game(game, groups.setdefault(zlib.crc32(deck) % NUM_GROUPS, Row(float)))
    return [groups[number] for number in sorted(groups)]


def count_game(game: Game, row: Row) -> None:
    """Add one game to a row of counters.

    - `games`.
    - `(seat, name)`, of a seat's own moves. A hint is wasted when it makes no card's possible colours or ranks fewer. A
      discard is critical when the card could still score and no other copy of it was left. The `bits` that hints gave
      about a played card are log2(U / H): U cards are unseen by the player (its own hand and the deck), H of them are
      what hints allow; `chance` is the share of those H that fit.
    - `(receiver, kind of hint, name)`. A hint is answered by the receiver's next turn, whatever happens in between: its
      hand, and so the touched slots, are still the same then. Several hints before one turn are each answered by it. A
      choice is a play of a touched card after a hint that touched at least two.
    """
    spec, table = game.spec, Game(game.spec, game.deck)
    pending: list[list[_Hint]] = [[] for _ in range(spec.num_players)]
    for player, action, card, scored, touched in game.events:
        view = table.view(player)
        table.apply(action)
        row[player, "turns"] += 1
        _count_answer(row, player, pending[player], action, scored)
        pending[player] = []
        if action.slot >= 0:
            _count_card(row, view, action, card, scored)
            continue
        target, kind = action.target, hint_kind(spec, action)
        pending[target].append((kind, touched))
        row[player, "hints"] += 1
        row[target, kind, "touched"] += len(touched)
        cards = view.hands[target]
        row[target, kind, "playable"] += sum(view.fireworks[cards[slot].color] == cards[slot].rank for slot in touched)
        told = [(one.colors, one.ranks) for one in table.view(player).knowledge[target]]
        row[player, "wasted_hints"] += told == [(one.colors, one.ranks) for one in view.knowledge[target]]
    row["games"] += 1


def _count_answer(row: Row, player: int, hints: list[_Hint], action: Action, scored: bool) -> None:
    """Count a turn as the answer to the hints since the seat's turn before, or as one without a hint."""
    plays = action.kind == "play"
    if not hints:
        row[player, "unhinted_turns"] += 1
        row[player, "unhinted_plays"] += plays
    for kind, touched in hints:
        row[player, kind, "answered"] += 1
        row[player, kind, "plays" if plays else "discards" if action.slot >= 0 else "hints_back"] += 1
        if plays and action.slot in touched:
            row[player, kind, "plays_touched"] += 1
            row[player, kind, "touched_scored"] += scored
            if len(touched) > 1:
                row[player, kind, "choices"] += 1
                row[player, kind, "oldest"] += action.slot == touched[0]
                row[player, kind, "newest"] += action.slot == touched[-1]


def _count_card(row: Row, view: PlayerView, action: Action, card: Card | None, scored: bool) -> None:
    """Count a play or a discard, and what its player could know of the card."""
    player = view.player
    assert card is not None  # every play and discard shows its card
    if action.kind == "discard":
        can_score = view.fireworks[card.color] <= card.rank < reachable_heights(view)[card.color]
        is_last = view.discards.count(card) + 1 == num_copies(card.rank, view.num_ranks)
        row[player, "discards"] += 1
        row[player, "critical_discards"] += can_score and is_last
        return
    beliefs, known = Beliefs(view), view.own_hand[action.slot]
    row[player, "plays"] += 1
    row[player, "bits"] += math.log2(beliefs.num_unseen() / beliefs.num_unseen(known))
    row[player, "chance"] += beliefs.chance_to_fit(known)
    row[player, "certain_plays"] += beliefs.surely_fits(known)
    row[player, "misplays"] += not scored
