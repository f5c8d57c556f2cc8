import json
import math
import random
from collections import Counter

import pytest

from boards import ALL_BOARDS, random_game
from convention_games import LAPTOP, golden_game, played, some_counts
from hanabi_grpo.envs.hanabi.conventions.counts import NUM_GROUPS, ConventionCounts
from hanabi_grpo.envs.hanabi.conventions.layout import MICRO, GameCount, HintCount, Layout, SeatCount, layout_of
from hanabi_grpo.envs.hanabi.conventions.report import convention_report
from hanabi_grpo.envs.hanabi.conventions.walk import count_game
from hanabi_grpo.envs.hanabi.policies import make_policy, play_scripted
from hanabi_grpo.envs.hanabi.rules import Card, Game, GameSpec, PlayerView, make_spec
from hanabi_grpo.errors import GameParameterError, HanabiGrpoError


def counted(game: Game) -> tuple[Layout, list[int]]:
    layout = layout_of(game.spec)
    row = [0] * layout.size
    count_game(game, layout, row)
    return layout, row


def seat_counts(game: Game, seat: int) -> dict[str, int]:
    layout, row = counted(game)
    start = layout.seats_start + seat * len(SeatCount)
    return {counter.name: row[start + counter] for counter in SeatCount if row[start + counter]}


def hint_counts(game: Game, receiver: int, kind: int) -> dict[str, int]:
    layout, row = counted(game)
    start = layout.hints_start + (receiver * layout.num_values + kind) * len(HintCount)
    return {counter.name: row[start + counter] for counter in HintCount if row[start + counter]}


def test_a_game_made_by_hand_is_counted_as_by_hand() -> None:
    game = golden_game()
    assert game.is_bombed
    _, row = counted(game)
    assert row[: len(GameCount)] == [1, 0, 1, 0, 2]
    assert seat_counts(game, 0) == {"TURNS": 3, "HINTS": 2, "DISCARDS": 1, "UNHINTED_TURNS": 3}
    bits = [math.log2(5 / 3), math.log2(4 / 1), math.log2(3 / 1)]
    found = seat_counts(game, 1)
    assert found.pop("MICROBITS") == pytest.approx(MICRO * sum(bits), abs=3)
    assert found.pop("MICROCHANCE") == pytest.approx(MICRO * (2 / 3 + 1 + 0), abs=3)
    assert found == {
        "TURNS": 3, "PLAYS": 3, "MISPLAYS": 1, "CERTAIN_PLAYS": 1, "UNHINTED_TURNS": 1, "UNHINTED_PLAYS": 1,
        "PLAYS_COLOR": 1, "PLAYS_BOTH": 2, "MISPLAYS_BOTH": 1,
    }  # fmt: skip


def test_the_hints_of_that_game_and_their_answers() -> None:
    both = {"HINTS": 1, "TOUCHED": 2, "TOUCHED_PLAYABLE": 1, "ANSWERED": 1, "PLAYS": 1, "PLAYS_TOUCHED": 1,
            "PLAYS_TOUCHED_SCORED": 1, "CHOICES": 1}  # fmt: skip
    assert hint_counts(golden_game(), 1, 0) == both | {"NEWEST": 1}
    assert hint_counts(golden_game(), 1, 3) == both | {"OLDEST": 1}
    assert hint_counts(golden_game(), 1, 1) == hint_counts(golden_game(), 1, 2) == {}
    assert hint_counts(golden_game(), 0, 0) == {}


def test_the_pairs_of_moves_of_that_game() -> None:
    layout, row = counted(golden_game())
    size = layout.num_actions
    assert size == 10
    pairs = row[layout.pairs_start : layout.hints_start]
    found = {(*divmod(index % size**2, size), index // size**2): n for index, n in enumerate(pairs) if n}
    # Play 0 to 2, discard 0 to 2, then R, Y, 1, 2.
    assert found == {(6, 1, 0): 1, (9, 0, 0): 1, (3, 0, 0): 1, (1, 9, 1): 1, (0, 3, 1): 1}


def test_wasted_hints_and_critical_discards() -> None:
    spec = make_spec("laptop", hand_size=1)
    game = played(
        spec,
        "R1 Y2  R1 R1 R2 Y1 Y1 Y1",
        "Hint Y, Hint R, Hint Y, Discard 0, Discard 0, Discard 0, Hint R, Hint 1, Discard 0, Discard 0",
    )
    # Seat 0 says Y twice and throws the last R1; seat 1 throws the only Y2, and R2 when it is out of reach.
    mine, its = seat_counts(game, 0), seat_counts(game, 1)
    assert (mine["WASTED_HINTS"], mine["CRITICAL_DISCARDS"], mine["DISCARDS"]) == (1, 1, 2)
    assert (its.get("WASTED_HINTS", 0), its["CRITICAL_DISCARDS"], its["DISCARDS"]) == (0, 1, 3)
    assert _one_report(game)["num_unfinished"] == (not game.is_over)


def _one_report(game: Game) -> dict[str, int]:
    counts = ConventionCounts(game.spec)
    counts.add(game)
    return {"num_unfinished": convention_report("one", counts).num_unfinished}


def test_with_three_players_each_hint_waits_for_its_receiver() -> None:
    spec = make_spec("mini", 3)
    game = played(
        spec, "R1 Y1  R1 Y1  R1 R2  Y1 Y2", "Hint player_2 1, Hint player_2 R, Play 0, Hint player_1 R, Discard 1"
    )
    assert hint_counts(game, 2, 2) == {
        "HINTS": 1, "TOUCHED": 1, "TOUCHED_PLAYABLE": 1, "ANSWERED": 1, "PLAYS": 1, "PLAYS_TOUCHED": 1,
        "PLAYS_TOUCHED_SCORED": 1,
    }  # fmt: skip
    answered = hint_counts(game, 2, 0)
    assert (answered["ANSWERED"], answered["CHOICES"], answered["OLDEST"]) == (1, 1, 1)
    assert hint_counts(game, 1, 0) == {"HINTS": 1, "TOUCHED": 1, "ANSWERED": 1, "DISCARDS": 1}
    layout, row = counted(game)
    # A hint two seats on is another class of moves than the same hint to the next seat.
    two_on, next_seat = 2 * spec.hand_size + 4 + 2, 2 * spec.hand_size
    assert row[layout.pairs_start + two_on * layout.num_actions + next_seat] == 1


def by_views(spec: GameSpec, game: Game) -> dict[str, float]:
    """Work the same figures out from what `Game.view` shows, card by card."""
    table = Game(spec, game.deck)
    sums: Counter[str] = Counter()
    for event in game.events:
        view = table.view(event.player)
        before = view.knowledge
        if event.action.kind == "play":
            unseen = _unseen(view, game.deck)
            known = view.own_hand[event.action.slot]
            possible = [card for card in unseen if card.color in known.colors and card.rank in known.ranks]
            fits = [card for card in possible if view.fireworks[card.color] == card.rank]
            sums["bits"] += math.log2(len(unseen) / len(possible))
            sums["chance"] += len(fits) / len(possible)
            sums["certain"] += len(fits) == len(possible)
            sums["both"] += len(known.colors) == len(known.ranks) == 1
        elif event.action.kind == "discard" and event.card is not None:
            reachable = view.fireworks[event.card.color] <= event.card.rank
            gone = Counter(view.discards)
            copies = Counter(game.deck)
            for rank in range(view.fireworks[event.card.color], event.card.rank):
                one = Card(event.card.color, rank)
                reachable = reachable and gone[one] < copies[one]
            sums["critical"] += reachable and gone[event.card] + 1 == copies[event.card]
        table.apply(event.action)
        if event.action.target >= 0:
            after = table.view(event.player).knowledge
            possible_before = [(one.colors, one.ranks) for one in before[event.action.target]]
            sums["wasted"] += possible_before == [(one.colors, one.ranks) for one in after[event.action.target]]
    return dict(sums)


def _unseen(view: PlayerView, deck: tuple[Card, ...]) -> list[Card]:
    left = Counter(deck)
    left.subtract(view.discards)
    left.subtract(card for hand in view.hands for card in hand)
    left.subtract(Card(color, rank) for color, height in enumerate(view.fireworks) for rank in range(height))
    assert min(left.values()) >= 0
    return list(left.elements())


@pytest.mark.parametrize(("preset", "num_players"), ALL_BOARDS)
def test_on_every_board_the_counts_agree_with_what_the_players_see(preset: str, num_players: int) -> None:
    spec = make_spec(preset, num_players)
    rng = random.Random(f"{preset}{num_players}")
    for _ in range(6):
        game = random_game(spec, rng)
        wanted = by_views(spec, game)
        totals: Counter[str] = Counter()
        for seat in range(num_players):
            totals.update(seat_counts(game, seat))
        assert totals["MICROBITS"] / MICRO == pytest.approx(wanted.get("bits", 0), abs=1e-4)
        assert totals["MICROCHANCE"] / MICRO == pytest.approx(wanted.get("chance", 0), abs=1e-4)
        assert totals["CERTAIN_PLAYS"] == wanted.get("certain", 0)
        assert totals["PLAYS_BOTH"] == wanted.get("both", 0)
        assert totals["CRITICAL_DISCARDS"] == wanted.get("critical", 0)
        assert totals["WASTED_HINTS"] == wanted.get("wasted", 0)
        assert totals["TURNS"] == totals["PLAYS"] + totals["DISCARDS"] + totals["HINTS"] == len(game.events)
        layout, row = counted(game)
        assert sum(row[layout.pairs_start : layout.hints_start]) == max(0, len(game.events) - 1)


def test_merged_counts_are_those_of_all_games_in_any_order() -> None:
    spec = make_spec("marshal-full")
    one, two = some_counts(7, spec=spec), some_counts(9, spec=spec, first=7)
    everything = some_counts(16, spec=spec)
    assert one != everything
    two.merge(one)
    assert two == everything
    assert two.num_games == 16


def test_counts_survive_json_exactly() -> None:
    counts = some_counts(40)
    again = ConventionCounts.from_json(json.loads(json.dumps(counts.to_json())))
    assert again == counts
    assert again.spec == LAPTOP
    again.merge(some_counts(1))
    assert again != counts
    assert ConventionCounts.from_json(ConventionCounts(LAPTOP).to_json()) == ConventionCounts(LAPTOP)


def test_all_games_of_a_deal_are_in_one_group() -> None:
    counts = ConventionCounts(LAPTOP)
    for name in ("random", "iggi", "hint-bot"):
        counts.add(play_scripted(LAPTOP, [make_policy(name)] * 2, suite="eval", seed=3))
    assert counts.groups()[:, GameCount.GAMES].tolist() == [3]


def test_a_game_or_counts_of_another_board_are_refused_and_change_nothing() -> None:
    counts = some_counts(3)
    before = counts.to_json()
    other = make_spec("marshal-mini")
    with pytest.raises(GameParameterError, match="marshal-mini"):
        counts.add(play_scripted(other, [make_policy("random")] * 2, suite="eval", seed=0))
    with pytest.raises(GameParameterError, match="marshal-mini"):
        counts.merge(ConventionCounts(other))
    assert counts.to_json() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "hanabi-grpo conventions 0"}, "this version reads"),
        ({"board": {"preset": "laptop"}}, "board"),
        ({"board": {**some_counts(0).to_json()["board"], "num_colors": 99}}, "colours"),
        ({"shapes": {}}, "shapes"),
        ({"groups": []}, "0 groups"),
        ({"groups": [[0]] + [[]] * (NUM_GROUPS - 1)}, "ascending"),
        ({"groups": [[3, 1, 0, 1]] + [[]] * (NUM_GROUPS - 1)}, "ascending"),
        ({"groups": [[0, 1, 10**6, 1]] + [[]] * (NUM_GROUPS - 1)}, "ascending"),
        ({"groups": [[0, -1]] + [[]] * (NUM_GROUPS - 1)}, "groups"),
        ({"groups": [[0, 2**70]] + [[]] * (NUM_GROUPS - 1)}, "groups"),
        ({"groups": [[0, float("nan")]] + [[]] * (NUM_GROUPS - 1)}, "groups"),
        ({"groups": [[0, True]] + [[]] * (NUM_GROUPS - 1)}, "groups"),
        ({"groups": [[20, 1]] + [[]] * (NUM_GROUPS - 1)}, "no games"),
        ({"more": 1}, "more"),
    ],
)
def test_damaged_counts_are_refused_with_the_reason(change: dict[str, object], message: str) -> None:
    with pytest.raises(HanabiGrpoError, match=message):
        ConventionCounts.from_json(some_counts(2).to_json() | change)
