import asyncio
import json
import math
from functools import partial
from pathlib import Path

import pytest

from bench.growth import log_slope, slopes
from bench.loop_lag import percentile, watched_loop
from bench.pairing import Measure, Pair, Stopwatch, descendants, measure_pairs, ratios_of
from bench.prefix_trie import PrefixTrie, sharing
from bench.recording import Call, ForcedSampler, Recorder, mean_active, reply_tokens, tail_share
from bench.row import Row, at_least, at_most, not_measured, quartiles
from bench.show import notes
from bench.stock_rows import seat_scripts
from fake_engine import CHAT, FakeEngine
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.server.engine import SamplingConfig

SAMPLING = SamplingConfig(max_tokens=4)


def _measure(seconds: float, cpu: float, amount: float) -> Measure:
    return Measure(seconds=seconds, cpu_seconds=cpu, amount=amount)


def _call(prompt: list[int], reply: list[int], start: float, end: float, *, adapter: str = "", cached: int = 0) -> Call:
    return Call(
        prompt_ids=tuple(prompt),
        reply_ids=tuple(reply),
        logprobs=(0.0,) * len(reply),
        adapter=adapter,
        num_cached=cached,
        started=start,
        ended=end,
    )


def test_ratios_are_divided_by_what_each_arm_did() -> None:
    pair = Pair(first=_measure(2.0, 3.0, 100), second=_measure(1.0, 1.0, 25))
    assert (pair.speed, pair.time, pair.cpu) == (2.0, 0.5, 0.75)
    assert ratios_of([pair]) == ((2.0,), (0.75,))
    assert ratios_of([pair], of_time=True) == ((0.5,), (0.75,))


def test_arms_are_run_a_b_b_a_and_the_first_pair_is_thrown_away() -> None:
    order: list[str] = []

    def arm(name: str):  # type: ignore[no-untyped-def]
        async def run() -> Measure:
            order.append(name)
            return _measure(1.0, 1.0, len(order))

        return run

    pairs = asyncio.run(measure_pairs(arm("A"), arm("B"), pairs=3))
    assert "".join(order) == "BAABBAAB"
    # The amounts are the places in the order: none of the warm-up's is kept, and each arm is in its own place.
    assert [(pair.first.amount, pair.second.amount) for pair in pairs] == [(3, 4), (6, 5), (7, 8)]


def test_the_cpu_seconds_of_children_are_counted_and_names_with_spaces_are_read(tmp_path: Path) -> None:
    for pid, parent, name in ((10, 1, "a"), (11, 10, "b c) d"), (12, 11, "e"), (20, 1, "f")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} " + "0 " * 40)
    (tmp_path / "13").mkdir()
    assert descendants(10, proc=tmp_path) == [11, 12]
    assert descendants(10, proc=tmp_path / "nowhere") == []
    with Stopwatch(children=True) as watch:
        sum(range(200_000))
    assert watch.seconds > 0
    assert watch.cpu_seconds > 0


def test_a_row_says_median_quartiles_and_whether_the_target_is_met() -> None:
    row = Row(
        id="R1", name="a ÷ b", arms=("a", "b"), ratios=(0.8, 1.0, 0.9, 1.3), cpu_ratios=(2.0,), target=at_least(0.9)
    )
    assert row.median == pytest.approx(0.95)
    assert row.quartiles == pytest.approx((0.875, 1.075))
    assert (row.cpu_ratio, row.met) == (2.0, True)
    assert at_most(0.9).met_by(0.95) is False
    assert at_least(0.9).met_by(math.nan) is False
    assert quartiles([3.0]) == (3.0, 3.0)
    assert json.loads(json.dumps(row.as_json()))["quartiles"] == pytest.approx([0.875, 1.075])


def test_a_missed_target_says_by_how_much_and_why_and_a_met_one_says_nothing() -> None:
    row = partial(Row, id="R1", name="a ÷ b", arms=("a", "b"), target=at_least(0.9), if_missed="small models")
    assert row(ratios=(0.8, 0.85, 0.7)).shortfall == "misses by 0.1: small models"
    assert row(ratios=(0.8,)).as_json()["shortfall"] == "misses by 0.1: small models"
    assert notes([row(ratios=(0.8,), how="so")]) == ["R1: so; misses by 0.1: small models"]
    assert row(ratios=(0.9,)).shortfall == row().shortfall == ""
    assert Row(id="R7", name="c", arms=("a", "b"), ratios=(0.8,), if_missed="no target").shortfall == ""


def test_a_row_without_ratios_or_with_one_that_is_no_number_meets_nothing_and_is_still_json() -> None:
    missing = not_measured("R8", "x", ("a", "b"), at_most(1), "no GPU")
    assert (missing.median, missing.quartiles, missing.cpu_ratio, missing.met) == (None, None, None, None)
    broken = Row(id="R8", name="x", arms=("a", "b"), ratios=(math.nan, math.nan), target=at_most(1))
    assert broken.met is False
    for row in (missing, broken):
        assert json.loads(json.dumps(row.as_json(), allow_nan=False))["median"] is None


def test_a_trie_knows_the_longest_beginning_that_was_added() -> None:
    trie = PrefixTrie()
    trie.add([1, 2, 3])
    trie.add([1, 2, 9, 9])
    assert [trie.shared(ids) for ids in ([1, 2, 3, 4], [1, 2, 9], [1, 5], [], [7])] == [3, 3, 1, 0, 0]


def test_sharable_tokens_are_those_of_earlier_prompts_and_of_replies_that_had_come_back() -> None:
    games = [
        (
            _call([1, 2, 3, 4], [5, 6], 0.0, 2.0),
            # Its beginning is the first prompt and reply; the reply's last token was sampled, never computed.
            _call([1, 2, 3, 4, 5, 6, 7], [8], 3.0, 4.0, cached=4),
        ),
        # At the same moment as another: the prompt is shared but for its last token, whose logits are needed.
        (_call([1, 2, 3, 4], [9], 1.0, 5.0, cached=2),),
        # Another adapter's keys are of no use to it.
        (_call([1, 2, 3, 4], [9], 6.0, 7.0, adapter="player_0"),),
    ]
    found = sharing(games, block_size=2)
    assert (found.prompt, found.sharable, found.sharable_in_blocks, found.cached) == (19, 5 + 3, 4 + 2, 6)


def test_a_reply_that_has_not_come_back_is_not_sharable() -> None:
    games = [(_call([1, 2], [3, 4], 0.0, 9.0),), (_call([1, 2, 3, 7], [5], 1.0, 2.0),)]
    assert sharing(games, block_size=1).sharable == 2


def test_a_slope_is_the_exponent_of_the_growth() -> None:
    sizes = [2.0, 4.0, 8.0]
    assert log_slope(sizes, [3 * size**2 for size in sizes]) == pytest.approx(2.0)
    assert slopes([{1.0: 5.0, 10.0: 50.0}, {1.0: 5.0, 10.0: 5.0}]) == pytest.approx((1.0, 0.0))
    for bad in (([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0], [math.nan, 1.0])):
        with pytest.raises(SettingsError, match="slope"):
            log_slope(*bad)


def test_the_tail_is_the_time_after_nine_tenths_of_the_games_ended() -> None:
    games = [(_call([1], [2], 0.0, float(end)),) for end in range(1, 10)] + [(_call([1], [2], 0.0, 19.0),)]
    assert tail_share(games) == pytest.approx(10 / 19)
    assert mean_active(games) == pytest.approx((45 + 19) / 19 / 10)
    assert tail_share([games[0]]) == 0.0
    assert reply_tokens(games) == 10


@pytest.mark.parametrize(("share", "expected"), [(0.99, 99), (0.5, 50), (1.0, 100), (0.001, 1)])
def test_a_percentile_is_a_value_that_was_seen(share: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected
    assert percentile([], share) == 0.0


def test_a_callback_that_keeps_the_loop_busy_is_seen_as_lag() -> None:
    async def work() -> float:
        async with watched_loop() as lags:
            await asyncio.sleep(0.02)
            deadline = asyncio.get_running_loop().time() + 0.05
            while asyncio.get_running_loop().time() < deadline:
                pass
            await asyncio.sleep(0.01)
        return max(lag.late for lag in lags)

    assert asyncio.run(work()) > 0.03


def test_what_was_recorded_is_played_again_and_every_departure_is_loud() -> None:
    async def game(sampler: object, prompts: list[list[int]]) -> list[tuple[int, ...]]:
        return [(await sampler.generate(ids, SAMPLING, None)).ids for ids in prompts]  # type: ignore[attr-defined]

    async def play(sampler: object, *games: list[list[int]]) -> list[list[tuple[int, ...]]]:
        tasks = [asyncio.create_task(game(sampler, prompts)) for prompts in games]
        return list(await asyncio.gather(*tasks))

    first, second = [[1, 2], [1, 2, 3]], [[7]]
    recorder = Recorder(FakeEngine(("Play 0", "Hint R")))
    replies = asyncio.run(play(recorder, first, second))
    assert [[call.prompt_ids for call in calls] for calls in recorder.games] == [[(1, 2), (1, 2, 3)], [(7,)]]
    # Another engine, other replies: what the games hear is the recording.
    forced = ForcedSampler(FakeEngine(("Discard 1",)), recorder.games)
    assert asyncio.run(play(forced, first, second)) == replies
    forced.check_complete()
    assert forced.num_tokens == 9

    for games, problem in (
        ((first, [[8]]), "game 1: its prompt 1 is not the recorded one"),
        ((first, [[7], [7, 1]]), "game 1 asks for more"),
        ((first, second, second), "game 2 asks for more"),
    ):
        forced = ForcedSampler(FakeEngine(), recorder.games)
        with pytest.raises(ServerError, match=problem):
            asyncio.run(play(forced, *games))
        with pytest.raises(ServerError, match="would not have done the same work"):
            forced.check_complete()
    forced = ForcedSampler(FakeEngine(), recorder.games)
    asyncio.run(play(forced, first))
    with pytest.raises(ServerError, match="1 of 2 games did not follow"):
        forced.check_complete()


def test_recorded_replies_are_dealt_out_to_the_seats_in_turn_order() -> None:
    words = ("Play 0", "Hint R", "Discard 1")
    ids = [(*CHAT.tokenizer.encode(word, add_special_tokens=False), CHAT.eos_id) for word in words]
    scripts = seat_scripts(tuple(Call(reply_ids=one) for one in ids), 2, CHAT)
    assert scripts == [[("Play 0", ids[0]), ("Discard 1", ids[2])], [("Hint R", ids[1])]]
