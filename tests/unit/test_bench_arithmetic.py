import asyncio
import json
import math
from pathlib import Path

import pytest

from bench.growth import log_slope, slopes
from bench.pairing import Measure, Pair, Stopwatch, descendants, measure_pairs, ratios_of
from bench.prefix_trie import sharing
from bench.recording import Call, ForcedSampler, Recorder
from bench.row import Row, at_least, at_most, quartiles
from fake_engine import FakeEngine
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


def test_a_slope_is_the_exponent_of_the_growth() -> None:
    sizes = [2.0, 4.0, 8.0]
    assert log_slope(sizes, [3 * size**2 for size in sizes]) == pytest.approx(2.0)
    assert slopes([{1.0: 5.0, 10.0: 50.0}, {1.0: 5.0, 10.0: 5.0}]) == pytest.approx((1.0, 0.0))
    for bad in (([1.0], [1.0]), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0], [math.nan, 1.0])):
        with pytest.raises(SettingsError, match="slope"):
            log_slope(*bad)


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
