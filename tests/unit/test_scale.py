"""tools/scale: the stand-in for a GPU, the simulated step by hand, and one beside real servers."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.errors import ServerError
from scale.__main__ import app
from scale.check import compare, use_one_core
from scale.measured import GROUP, Measured, measure, qwen3_4b_shapes, running_fleet
from scale.replica import EngineSpeed, Replica
from scale.simulation import Cluster, Costs, Work, request_sizes, simulate, sync_seconds
from scale.table import GAMES_ON_ONE_GPU, calibrated, lines, markdown

NOTHING = Costs(
    turn=0.0,
    encode=0.0,
    prepare=0.0,
    receive=0.0,
    decode=0.0,
    accept=0.0,
    push=0.0,
    digest=0.0,
    store=0.0,
    episode_bytes=0.0,
    episode_memory=0.0,
)
SECOND = EngineSpeed(pass_seconds=1.0, sequence_seconds=0.0)
"""A token a second for each sequence."""
ALONE = Cluster(num_servers=1, gpus_per_server=1, speed=SECOND, bytes_per_second=1.0)
TWO_GAMES = Work(num_episodes=2, group_size=2, games=[(3, 4)], adapter_bytes=0)
GAMES = [(128,) * turns for turns in (3, 4, 4, 5, 6)]


def test_replies_in_flight_share_the_passes_and_further_ones_wait() -> None:
    speed = EngineSpeed(pass_seconds=1.0, sequence_seconds=0.5, max_sequences=2)
    assert speed.seconds(2) == 2.0
    assert speed.highest_rate == 1.0
    replica: Replica[str] = Replica(speed)
    assert replica.next_end() is None
    replica.ask(0.0, 4, "long")
    # Alone a pass takes 1.5 s: two tokens until 3.0.
    replica.ask(3.0, 3, "short")
    replica.ask(3.0, 1, "waits")
    # Together a pass takes 2 s: the two tokens that are left are there at 7.0.
    assert replica.next_end() == 7.0
    assert replica.ended(6.9) == []
    assert replica.ended(7.0) == ["long"]
    # The one that waited has taken its place; both need one more pass.
    assert replica.next_end() == 9.0
    assert replica.ended(20.0) == ["short", "waits"]
    assert replica.busy_seconds == 9.0
    assert replica.num_tokens == 8


def test_a_step_of_two_games_takes_what_they_take_by_hand() -> None:
    step = simulate(ALONE, TWO_GAMES, NOTHING)
    assert step.seconds == 7.0
    assert step.num_tokens == 14
    assert step.idle == 0.0
    # The loop works 3 s on each turn, a half before the first reply and a half after the last, and
    # on one game at a time. The games' first replies are asked for at 1.5 and 3.0.
    step = simulate(ALONE, TWO_GAMES, replace(NOTHING, turn=3.0))
    # First game: 1.5 + 3 = 4.5, loop until 7.5, 4 tokens until 11.5, loop until 13.0.
    # Second game: 3.0 + 3 = 6.0, loop free at 7.5 until 10.5, 4 tokens until 14.5, until 16.0.
    assert step.games_seconds == 16.0
    assert step.loop == 12.0 / 16.0
    # Two episodes of 5 bytes take 10 s on the link, then 2 s to read and 4 s to accept.
    after = replace(NOTHING, episode_bytes=5.0, decode=1.0, accept=2.0, encode=0.5)
    step = simulate(ALONE, TWO_GAMES, after)
    assert step.games_seconds == 7.0
    assert step.after_seconds == 1.0 + 10.0 + 2.0 + 4.0
    assert step.bytes_in == 10.0
    assert step.reading_seconds == 6.0
    assert step.link_seconds == 10.0
    assert step.limit == "process 0"
    assert step.idle == pytest.approx(1.0 - 7.0 / 24.0)


def test_servers_share_games_but_process_0_reads_one_answer_after_the_other() -> None:
    work = replace(TWO_GAMES, num_episodes=8)
    costs = replace(NOTHING, decode=1.0)
    for num_servers, seconds in ((1, 7.0 + 8.0), (2, 7.0 + 8.0), (4, 7.0 + 8.0)):
        cluster = replace(ALONE, num_servers=num_servers)
        assert simulate(cluster, work, costs).seconds == seconds
    # A server without a group plays nothing, and its GPU is idle.
    step = simulate(replace(ALONE, num_servers=2), TWO_GAMES, NOTHING)
    assert (step.seconds, step.idle) == (7.0, 0.5)


def test_the_requests_are_those_of_the_client_and_an_answer_is_read_while_others_play() -> None:
    assert request_sizes(100, 16) == [1600]
    assert request_sizes(1024, 16) == [2048, 4096, 4096, 4096, 2048]
    work = Work(num_episodes=16384, group_size=16, games=GAMES, adapter_bytes=0)
    speed = EngineSpeed(pass_seconds=5e-3, sequence_seconds=5e-5)
    cluster = Cluster(num_servers=1, gpus_per_server=1, speed=speed, bytes_per_second=3e9)
    costs = replace(NOTHING, decode=1e-4, turn=4e-4)
    step = simulate(cluster, work, costs)
    assert step.reading_seconds == pytest.approx(1.6384)
    # The last two requests, of 4,096 and 2,048 games, are all that is read after the last game.
    assert step.after_seconds < 0.6144
    assert step.idle < 0.01


def test_other_programs_slow_the_processor_down_by_no_more_than_their_fair_share() -> None:
    costs = replace(NOTHING, turn=3.0, episode_bytes=5.0)
    assert costs.slowed(0.0) == costs
    assert costs.slowed(0.25) == replace(costs, turn=4.0)
    assert costs.slowed(0.9) == replace(costs, turn=6.0)


def test_a_weight_sync_grows_with_the_servers_by_processor_or_link() -> None:
    costs = replace(NOTHING, push=2.0, digest=3.0, store=5.0)
    work = replace(TWO_GAMES, adapter_bytes=10, sync_seconds=1.0)
    fast = replace(ALONE, num_servers=4, bytes_per_second=1e9)
    # 1 s, the digests once, 4 servers × 10 bytes × 2 s, each server's own 50 s at the same time.
    assert sync_seconds(fast, work, costs) == 1.0 + 30.0 + 80.0 + 50.0
    assert sync_seconds(replace(fast, bytes_per_second=0.25), work, costs) == 1 + 30 + 160 + 50
    assert sync_seconds(replace(fast, one_core=True), work, costs) == 1 + 30 + 80 + 200


def test_a_calibrated_gpu_has_the_rates_that_were_measured_on_one() -> None:
    costs = replace(NOTHING, turn=4e-4, decode=1e-4)
    speed = calibrated(GAMES, costs)
    cluster = Cluster(num_servers=1, gpus_per_server=1, speed=speed, bytes_per_second=1e9)
    for num_games, rate in GAMES_ON_ONE_GPU.items():
        work = Work(num_episodes=num_games, group_size=GROUP, games=GAMES, adapter_bytes=0)
        step = simulate(cluster, work, costs)
        assert step.num_tokens / step.seconds == pytest.approx(rate, rel=0.01)


def test_the_table_has_a_line_for_each_size() -> None:
    measured = Measured(costs=replace(NOTHING, episode_bytes=2e4), games=GAMES, adapter_bytes=132)
    made = list(
        lines(
            measured,
            EngineSpeed(pass_seconds=5e-3, sequence_seconds=5e-5),
            gpus_per_server=1,
            bytes_per_second=3e9,
            servers=(1, 64),
            episodes=(2048,),
        )
    )
    assert [line.num_servers for line in made] == [1, 64]
    assert made[0].step.games_seconds > 10 * made[1].step.games_seconds
    text = markdown(made)
    assert text.count("\n| 2,048 | ") == 2
    [*_, last] = text.splitlines()
    assert last.endswith("| few games per GPU |")


def test_the_adapters_are_those_of_qwen3_4b() -> None:
    shapes = qwen3_4b_shapes()
    assert len(shapes) == 36 * 7
    parameters = sum(16 * (num_in + num_out) for num_out, num_in in shapes.values())
    assert parameters == 33_030_144


@pytest.fixture
def one_core() -> Iterator[None]:
    """Let this process and its children use one core."""
    cores = os.sched_getaffinity(0)
    use_one_core()
    yield
    os.sched_setaffinity(0, cores)


def test_check_plays_on_one_core_which_the_simulation_has_for_all_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = os.sched_getaffinity(0)
    seen: list[int] = []

    def look(*_: object, **__: object) -> Measured:
        seen.append(len(os.sched_getaffinity(0)))
        return Measured(costs=NOTHING, games=[], adapter_bytes=0)

    monkeypatch.setattr("scale.__main__.measure", look)
    monkeypatch.setattr("scale.__main__.compare", look)
    try:
        result = CliRunner().invoke(app, ["check", "--servers", "1", "--servers", "2"])
    finally:
        os.sched_setaffinity(0, cores)
    assert result.exit_code == 0, result.output
    assert seen == [1, 1, 1]


def test_a_server_that_does_not_start_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scale.measured.plan_to_text", lambda _: "no plan")
    with (
        pytest.raises(ServerError, match="ended with 1 before it had started"),
        running_fleet(tmp_path, 1, speed=SECOND),
    ):
        pass


@pytest.mark.rest
def test_a_simulated_step_takes_as_long_as_a_real_one(tmp_path: Path, one_core: None) -> None:
    first = tmp_path / "measured"
    second = tmp_path / "step"
    first.mkdir()
    second.mkdir()
    costs = measure(first, num_episodes=256).costs
    result = compare(second, costs, num_servers=2, num_episodes=512)
    # Differences of 5 to 9 % were measured; a machine that is shared adds its own.
    assert abs(result.error) < 0.3, str(result)
