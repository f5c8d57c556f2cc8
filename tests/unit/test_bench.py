"""tools/bench: its arithmetic, its honesty about what it could not measure, and one real run."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from starlette.responses import Response
from typer.testing import CliRunner

from bench import env_rows, parity_rows, peak_rows
from bench.__main__ import app
from bench.catalogue import Family, chosen
from bench.context import Bench, board_of
from bench.engine_bench import lora_of
from bench.memory_rows import game_rows, sampled
from bench.pairing import Measure, Pair, Stopwatch
from bench.recording import Call, ForcedSampler, Recorder
from bench.rollout_rows import cached_share
from bench.row import Row, at_least, at_most
from bench.run import measure_all
from bench.serving import serving
from bench.show import as_json, cells, markdown
from bench.stand_in import compact_config
from bench.team_rows import check_passes
from bench.training_rows import check_cosine, made_rows, sequences_against_turns, small_model
from bench.trl_games import SeatEpisode, play_in_lock_step
from bench.trl_rows import learned_tokens, tokens_of_step, trl_team
from fake_engine import CHAT, FakeEngine
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.settings import load_settings

ROOT = Path(__file__).parents[2]
SAMPLING = SamplingConfig(max_tokens=4)


Replies = list[tuple[int, ...]]
GAMES = ([[1, 2], [1, 2, 3]], [[7]])
"""Prompts of two games."""


async def play_game(sampler: Recorder | ForcedSampler, prompts: list[list[int]]) -> Replies:
    """Ask for a reply to each prompt, one after the other."""
    replies = []
    for ids in prompts:
        sample = await sampler.generate(ids, SAMPLING, None)
        replies.append(sample.ids)
    return replies


def play(sampler: Recorder | ForcedSampler, *games: list[list[int]]) -> list[Replies]:
    """Play games side by side."""

    async def play_all() -> list[Replies]:
        tasks = [asyncio.create_task(play_game(sampler, prompts)) for prompts in games]
        return list(await asyncio.gather(*tasks))

    return asyncio.run(play_all())


def made_bench(engine: Any = None) -> Bench:
    """Return a quick run: three pairs."""
    environ = {"DATASET": str(ROOT / "data/hanabi.laptop.jsonl")}
    settings = load_settings(environ, ROOT / "no.env").settings
    return Bench(
        settings=settings,
        config=board_of(settings),
        say=lambda text: None,
        quick=True,
        engine=engine,
    )


@pytest.fixture
def recorder() -> Recorder:
    """Return a recording of `GAMES`."""
    recorder = Recorder(FakeEngine(("Play 0", "Hint R")))
    play(recorder, *GAMES)
    return recorder


def test_what_was_recorded_is_replayed() -> None:
    recorder = Recorder(FakeEngine(("Play 0", "Hint R")))
    replies = play(recorder, *GAMES)
    # Another engine, other replies: what the games hear is the recording.
    forced = ForcedSampler(FakeEngine(("Discard 1",)), recorder.games)
    assert play(forced, *GAMES) == replies
    forced.check_complete()


def test_another_prompt_than_the_recorded_one_is_refused(recorder: Recorder) -> None:
    forced = ForcedSampler(FakeEngine(), recorder.games)
    with pytest.raises(ServerError, match="game 1: its prompt 1 is not the recorded one"):
        play(forced, GAMES[0], [[8]])


def test_a_game_that_was_not_recorded_is_refused(recorder: Recorder) -> None:
    forced = ForcedSampler(FakeEngine(), recorder.games)
    with pytest.raises(ServerError, match="game 2 asks for more"):
        play(forced, *GAMES, GAMES[1])


def test_a_recorded_game_that_is_not_replayed_is_noticed(recorder: Recorder) -> None:
    forced = ForcedSampler(FakeEngine(), recorder.games)
    play(forced, GAMES[0])
    with pytest.raises(ServerError, match="1 of 2 games did not follow"):
        forced.check_complete()


def test_conversations_give_the_gradient_of_their_turns_and_read_fewer_tokens() -> None:
    rows = made_rows(num_games=3, turns=4, prompt=6, reply=2, seed=0)
    compared = asyncio.run(sequences_against_turns(small_model(), rows, limit=64, pairs=1))
    assert compared.cosine > 0.9999
    assert compared.largest_difference < 1e-3
    tokens_of_conversations = 3 * 32
    tokens_of_turns = 3 * (8 + 16 + 24 + 32)
    assert compared.tokens == (tokens_of_conversations, tokens_of_turns)


def test_a_long_games_turns_have_the_sampled_tokens_and_the_loss_of_its_whole_conversations() -> (
    None
):
    turns = asyncio.run(game_rows("turn", num_games=2, seed=3))
    whole = asyncio.run(game_rows("game", num_games=2, seed=3))
    assert sampled(turns) == sampled(whole)
    assert len(sampled(whole)) > 2 * 30 * 2
    assert len(whole) == 2
    # One reply in each: a message and a reply end with the same token.
    num_replies = sum(row.ids.count(CHAT.eos_id) for row in turns) // 2
    assert len(turns) == num_replies
    # In the compact style no system message is repeated, so both read every token once.
    assert sum(len(row.ids) for row in turns) == sum(len(row.ids) for row in whole)


def test_lock_step_gives_each_seat_its_own_conversation_with_a_mask_over_its_replies() -> None:
    batch_sizes: list[int] = []
    reply = [*CHAT.tokenizer.encode("Discard 0", add_special_tokens=False), CHAT.eos_id]

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        batch_sizes.append(len(prompts))
        return [reply for _ in prompts]

    config = compact_config("laptop", max_turns=5)
    games = play_in_lock_step(config, CHAT, [(7, 0), (7, 1), (8, 0)], generate)
    assert batch_sizes == [3, 3, 3, 3, 3], "one batch for each turn of all games"
    for seats in games:
        for seat, num_turns in zip(seats, (3, 2), strict=True):
            fields = seat.fields(CHAT.eos_id)
            ids = fields["completion_ids"]
            mask = fields["env_mask"]
            assert fields["prompt_ids"] + ids == seat.conversation.ids
            assert len(mask) == len(ids)
            masked = [token for token, is_reply in zip(ids, mask, strict=True) if is_reply]
            assert masked == reply * num_turns
            assert mask[0] == 1
            assert mask[-1] == 1
            assert ids[-1] == CHAT.eos_id
    first, same_task, other_task = [game[0].fields(CHAT.eos_id)["prompt_ids"] for game in games]
    assert first == same_task
    assert first != other_task


def test_a_seat_without_a_turn_is_one_token_without_loss() -> None:
    silent = SeatEpisode(conversation=Conversation(CHAT, ""))
    assert silent.fields(2) == {
        "prompt_ids": [2],
        "completion_ids": [2],
        "env_mask": [0],
        "game_reward": 0.0,
    }


def trl_process() -> psutil.Process:
    """Return the process of TRL's trainer."""
    [process] = [
        child for child in psutil.Process().children() if "bench.trl_games" in child.cmdline()
    ]
    return process


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.rest
def test_trl_learns_from_as_many_tokens_as_its_seats_sampled_and_is_held_before_each_step(
    tmp_path: Path,
) -> None:
    environ = {
        "HANABI_TASKS_PER_STEP": "1",
        "NUM_GENERATIONS": "2",
        "MODEL": str(ROOT / "data/tiny-model"),
    }
    settings = load_settings(environ, ROOT / "no.env").settings
    with trl_team(settings, compact_config("laptop"), tmp_path) as step:
        trainer = trl_process()
        for _ in range(2):
            num_tokens = step()
            assert 2 * 2 < num_tokens <= 2 * 20 * settings.max_completion_length
            before = cpu_seconds(trainer)
            time.sleep(1)
            while_held = cpu_seconds(trainer) - before
            assert while_held < 0.5, "it works though no step was requested"
    assert not trainer.is_running()


async def measure_r8(bench: Bench) -> list[Row]:
    return [
        Row(
            id="R8",
            name="a | b",
            arms=("a", "b"),
            ratios=(0.2,) * bench.pairs,
            target=at_most(1 / 3),
        )
    ]


async def fail(bench: Bench) -> list[Row]:
    raise ServerError("the engine died during the call")


def test_a_row_that_fails_says_so_and_the_others_are_measured_and_shown() -> None:
    bench = made_bench()
    target = at_least(1)
    families = [
        Family(id="R1", title="R1", target=target, needs_engine=False, measure=fail),
        Family(id="R3", title="R3", target=target, needs_engine=True, measure=measure_r8),
        Family(id="R8", title="R8", target=target, needs_engine=False, measure=measure_r8),
    ]
    result = asyncio.run(measure_all(bench, families, use_engine=False, report=lambda row: None))
    assert result.failed == ["R1"]
    assert [row.id for row in result.rows] == ["R1", "R3", "R8"]
    assert result.rows[0].why_not == "failed: ServerError: the engine died during the call"
    assert result.rows[1].why_not == "the run may not start an engine (--no-engine)"
    table = markdown(result.rows, result.facts)
    assert "| R8 | a \\| b | 0.2 | 0.2 to 0.2 | – | 3 | ≤ 0.333333 | yes |" in table
    text = json.dumps(as_json(result.rows, result.facts, result.failed), allow_nan=False)
    document = json.loads(text)
    assert document["rows"][2]["median"] == 0.2
    assert document["failed"] == ["R1"]
    assert document["quick"] is True


WORKER_OF_A_WORKER = """
import os, signal, sys, time
child = os.fork()
if child == 0:
    while time.process_time() < 0.3:
        pass
    print("has worked", flush=True)
    time.sleep(60)
sys.stdin.readline()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("has ended it", flush=True)
time.sleep(60)
"""


def test_a_stopwatch_keeps_the_cpu_seconds_of_processes_that_end_meanwhile(
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    parent = start_process(
        [sys.executable, "-c", WORKER_OF_A_WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.stdout.readline() == "has worked\n"
    with Stopwatch(children=True) as watch:
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "has ended it\n"
    # The 0.3 s of its past would be missing at the end.
    assert -0.05 < watch.cpu_seconds < 0.25
    with Stopwatch(children=True) as watch:
        parent.kill()
        parent.wait()
    assert -0.05 < watch.cpu_seconds < 0.25


def row_of(*ratios: float, each: bool, least: bool = False) -> Row:
    target = at_least(0.01) if least else at_most(0.01)
    return Row(id="R10a", name="gap", arms=("", ""), ratios=ratios, target=target, each=each)


def test_a_row_of_several_cases_meets_its_target_with_all_of_them_or_not_at_all() -> None:
    ratios = (0.001, 0.001, 0.001, 0.03, 0.001)
    assert row_of(*ratios, each=False).met is True
    row = row_of(*ratios, each=True)
    assert row.met is False
    assert row.median == 0.001
    assert row.shortfall == "misses by 0.02"
    assert cells(row)[-2:] == ("each ≤ 0.01", "NO")
    assert row.as_json()["judged"] == 0.03
    assert row_of(0.02, 0.03, 0.005, each=True, least=True).shortfall == "misses by 0.005"
    assert row_of(0.02, 0.03, 0.04, each=True, least=True).met is True
    assert row_of(0.001, float("nan"), 0.001, each=True).met is False
    assert row_of(each=True).met is None


def test_one_setting_whose_memory_is_predicted_wrong_is_a_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peaks = iter([peak_rows._Peak(predicted=2.0, measured=1.0)])
    right = peak_rows._Peak(predicted=1.0, measured=1.0)
    monkeypatch.setattr(peak_rows, "_compare", lambda *_, **__: next(peaks, right))
    [row] = asyncio.run(peak_rows.predicted_peaks(made_bench()))
    assert len(row.ratios) == 16
    assert row.median == 0.0
    assert row.met is False


def test_one_stale_player_of_five_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    players = tuple(f"player_{number}" for number in range(5))
    gaps = {players[0]: 0.5}

    async def games() -> list[tuple[Call, ...]]:
        return [tuple(Call(reply_ids=(1,), prompt_ids=(1,), adapter=name) for name in players)]

    async def push() -> None:
        return

    async def sample(*_: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(ids=(1,))]

    engine = SimpleNamespace(players=players, recorded_games=games, push=push, model=None)
    monkeypatch.setattr(parity_rows, "_sample", sample)
    monkeypatch.setattr(parity_rows, "_change_adapters", lambda *_: None)
    monkeypatch.setattr(parity_rows, "_gaps", lambda *_: [gaps.get(name, 1e-7) for name in players])
    fresh, stale = asyncio.run(parity_rows.parity(made_bench(engine)))
    assert fresh.median == 1e-7
    assert (fresh.met, stale.met) == (False, False)


def test_an_arm_without_the_recorded_adapter_is_refused() -> None:
    assert lora_of({"player_0": "handle"}, "player_0") == "handle"
    with pytest.raises(ServerError, match="recorded with player_1, but the served adapters"):
        lora_of({"player_0": "handle"}, "player_1")
    with pytest.raises(ServerError, match=r"the base model, .* are none"):
        lora_of({}, "")


def test_arms_that_do_not_learn_the_same_are_refused() -> None:
    check_cosine(0.9995)
    for cosine in (0.99, float("nan")):
        with pytest.raises(RuntimeError, match="they do not learn the same"):
            check_cosine(cosine)


def test_arms_with_another_number_of_passes_are_refused() -> None:
    def measure(passes: int) -> Measure:
        return Measure(seconds=1.0, cpu_seconds=1.0, amount=1, notes={"passes": passes})

    check_passes("R20", [Pair(first=measure(1), second=measure(1))], expected=(1, 1))
    pairs = [Pair(first=measure(1), second=measure(1)), Pair(first=measure(1), second=measure(2))]
    with pytest.raises(RuntimeError, match=r"R20 must compare \(1, 1\) passes, not \(1, 2\)"):
        check_passes("R20", pairs, expected=(1, 1))


def test_only_takes_all_rows_of_a_number_or_the_family_of_one_letter() -> None:
    def ids(*only: str) -> list[str]:
        return [family.id for family in chosen(only)]

    assert ids("R3") == ["R3a", "R3b"]
    assert ids("r3b") == ["R3b"]
    assert ids("R8") == ["R8", "R8b"]
    assert ids("R11") == ["R8"]
    assert ids("R12") == ["R12", "R12d"]
    # The server path alone, without starting the engine.
    assert ids("R12a") == ["R12"]
    assert ids("R12d") == ["R12d"]
    assert ids("R20c", "R18d") == ["R18", "R20"]


def test_what_lies_between_two_requests_must_be_one_step(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    assert learned_tokens(metrics) == []
    metrics.write_text('{"reply_tokens": 90.0}\n{"reply_tokens": 80.0}\n')
    assert learned_tokens(metrics) == [90, 80]
    assert tokens_of_step([90, 80], 1) == 80
    # With HANABI_OVERLAP=1 the next games are requested before the step has ended.
    with pytest.raises(ServerError, match="0 steps ended between two requests for games"):
        tokens_of_step([90, 80], 2)


def test_what_whole_blocks_could_give_is_counted_in_blocks_of_the_running_engine() -> None:
    prompt = tuple(range(20))
    games: list[tuple[Call, ...]] = []
    for start in (0.0, 2.0):
        games.append((Call(reply_ids=(9,), prompt_ids=prompt, started=start, ended=start + 1),))

    async def plays(count: int) -> list[list[tuple[Call, ...]]]:
        return [games] * count

    llm = SimpleNamespace(vllm_config=SimpleNamespace(cache_config=SimpleNamespace(block_size=16)))
    engine = SimpleNamespace(plays=plays, engine=SimpleNamespace(_engine=llm))
    [row] = asyncio.run(cached_share(made_bench(engine)))
    # The last token of a prompt is always computed: 19 of the second prompt, 16 in whole blocks.
    assert row.details["sharable"] == 19
    assert row.details["sharable_in_blocks"] == 16
    assert "with blocks of 16 tokens, at most 0.84 is reachable" in row.how


def test_the_lag_is_measured_with_an_empty_cache_in_every_run() -> None:
    resets: list[bool] = []

    async def reset() -> None:
        resets.append(True)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await Response("{}")(scope, receive, send)

    async def measure() -> list[Row]:
        async with serving(answer) as url:
            engine = SimpleNamespace(
                config=compact_config("laptop"),
                chat=CHAT,
                url=url,
                client=SimpleNamespace(headers={}),
                engine=SimpleNamespace(reset_prefix_cache=reset),
            )
            return await env_rows.loop_lag(made_bench(engine))

    [row] = asyncio.run(measure())
    assert len(row.ratios) == 3
    assert len(resets) == 4


def test_the_command_measures_one_ratio_and_writes_both_files(tmp_path: Path) -> None:
    out = tmp_path / "new" / "bench"
    arguments = ["--quick", "--no-engine", "--only", "R9a", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads((out / "bench.json").read_text())
    assert [row["id"] for row in document["rows"]] == ["R9a"]
    assert 0 < document["rows"][0]["median"] < 1
    assert (out / "bench.md").read_text().count("| R9a |") == 1
