"""tools/bench: its arithmetic, its honesty about what it could not measure, and one real run."""

import asyncio
import json
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.catalogue import Family
from bench.context import Bench, board_of
from bench.memory_rows import game_rows, sampled
from bench.recording import ForcedSampler, Recorder
from bench.row import Row, at_least, at_most
from bench.run import measure_all
from bench.show import as_json, markdown
from bench.stand_in import compact_config
from bench.training_rows import made_rows, sequences_against_turns, small_model
from bench.trl_games import SeatEpisode, play_in_lock_step
from bench.trl_rows import trl_team
from fake_engine import CHAT, FakeEngine
from hanabi_grpo.agents.conversation import Conversation
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.sampler import SamplingConfig
from hanabi_grpo.settings import load_settings

ROOT = Path(__file__).parents[2]
SAMPLING = SamplingConfig(max_tokens=4)


def test_what_was_recorded_is_played_again_and_every_departure_is_loud() -> None:
    async def game(
        sampler: Recorder | ForcedSampler, prompts: list[list[int]]
    ) -> list[tuple[int, ...]]:
        return [(await sampler.generate(ids, SAMPLING, None)).ids for ids in prompts]

    async def play(
        sampler: Recorder | ForcedSampler, *games: list[list[int]]
    ) -> list[list[tuple[int, ...]]]:
        return list(
            await asyncio.gather(
                *(asyncio.create_task(game(sampler, prompts)) for prompts in games)
            )
        )

    first, second = [[1, 2], [1, 2, 3]], [[7]]
    recorder = Recorder(FakeEngine(("Play 0", "Hint R")))
    replies = asyncio.run(play(recorder, first, second))
    # Another engine, other replies: what the games hear is the recording.
    forced = ForcedSampler(FakeEngine(("Discard 1",)), recorder.games)
    assert asyncio.run(play(forced, first, second)) == replies
    forced.check_complete()
    for games, problem in (
        ((first, [[8]]), "game 1: its prompt 1 is not the recorded one"),
        ((first, second, second), "game 2 asks for more"),
    ):
        forced = ForcedSampler(FakeEngine(), recorder.games)
        with pytest.raises(ServerError, match=problem):
            asyncio.run(play(forced, *games))
    forced = ForcedSampler(FakeEngine(), recorder.games)
    asyncio.run(play(forced, first))
    with pytest.raises(ServerError, match="1 of 2 games did not follow"):
        forced.check_complete()


def test_conversations_give_the_gradient_of_their_turns_and_read_fewer_tokens() -> None:
    rows = made_rows(num_games=3, turns=4, prompt=6, reply=2, seed=0)
    found = asyncio.run(sequences_against_turns(small_model(), rows, limit=64, pairs=1))
    assert found.cosine > 0.9999
    assert found.largest_difference < 1e-3
    assert found.tokens == (3 * 32, 3 * (8 + 16 + 24 + 32))


def test_a_long_games_turns_have_the_sampled_tokens_of_its_whole_conversations_and_the_same_loss_on_them() -> (
    None
):
    turns, whole = (
        asyncio.run(game_rows(memory, num_games=2, seed=3)) for memory in ("turn", "game")
    )
    assert sampled(turns) == sampled(whole) and len(sampled(whole)) > 2 * 30 * 2
    assert (len(whole), len(turns)) == (2, sum(row.ids.count(CHAT.eos_id) for row in turns) // 2), (
        "one reply in each"
    )
    # In the compact style no system message is repeated, so both read every token once.
    assert sum(len(row.ids) for row in turns) == sum(len(row.ids) for row in whole)


def test_lock_step_gives_each_seat_its_own_conversation_with_a_mask_over_what_it_said() -> None:
    asked: list[int] = []
    said = [*CHAT.tokenizer.encode("Discard 0", add_special_tokens=False), CHAT.eos_id]

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        asked.append(len(prompts))
        return [said for _ in prompts]

    games = play_in_lock_step(
        compact_config("laptop", max_turns=5), CHAT, [(7, 0), (7, 1), (8, 0)], generate
    )
    assert asked == [3, 3, 3, 3, 3], "one batch for each turn of all games"
    for seats, turns in ((game, (3, 2)) for game in games):
        for seat, own in zip(seats, turns, strict=True):
            fields = seat.fields(CHAT.eos_id)
            ids, mask = fields["completion_ids"], fields["env_mask"]
            assert fields["prompt_ids"] + ids == seat.conversation.ids and len(mask) == len(ids)
            assert [one for one, is_said in zip(ids, mask, strict=True) if is_said] == said * own
            assert (mask[0], mask[-1], ids[-1]) == (1, 1, CHAT.eos_id)
    first, same, other = (game[0].fields(CHAT.eos_id)["prompt_ids"] for game in games)
    assert first == same != other
    silent = SeatEpisode(conversation=Conversation(CHAT, ""))
    assert silent.fields(2) == {
        "prompt_ids": [2],
        "completion_ids": [2],
        "env_mask": [0],
        "game_reward": 0.0,
    }


def test_trl_learns_from_as_many_tokens_as_its_seats_said_and_is_held_before_each_step(
    tmp_path: Path,
) -> None:
    given = {
        "HANABI_TASKS_PER_STEP": "1",
        "NUM_GENERATIONS": "2",
        "MODEL": str(ROOT / "data/tiny-model"),
    }
    settings = load_settings(given, ROOT / "no.env").settings
    with trl_team(settings, compact_config("laptop"), tmp_path) as step:
        (trainer,) = (
            one for one in psutil.Process().children() if "bench.trl_games" in one.cmdline()
        )
        for _ in range(2):
            assert 2 * 2 < step() <= 2 * 20 * settings.max_completion_length
            busy = sum(trainer.cpu_times()[:2])
            time.sleep(1)
            assert sum(trainer.cpu_times()[:2]) - busy < 0.5, (
                "it works though nobody asked for a step"
            )
    assert not trainer.is_running()


def test_a_row_that_fails_says_so_and_the_others_are_measured_and_shown() -> None:
    async def good(bench: Bench) -> list[Row]:
        return [
            Row(
                id="R8",
                name="a | b",
                arms=("a", "b"),
                ratios=(0.2,) * bench.pairs,
                target=at_most(1 / 3),
            )
        ]

    async def gone(bench: Bench) -> list[Row]:
        raise ServerError("the engine died during the call")

    settings = load_settings(
        {"DATASET": str(ROOT / "data/hanabi.laptop.jsonl")}, ROOT / "no.env"
    ).settings
    bench = Bench(settings=settings, config=board_of(settings), say=lambda text: None, quick=True)
    families = [
        Family(id=name, title=name, target=at_least(1), needs_engine=name == "R3", measure=measure)
        for name, measure in (("R1", gone), ("R3", good), ("R8", good))
    ]
    result = asyncio.run(measure_all(bench, families, use_engine=False, report=lambda row: None))
    assert (result.failed, [row.id for row in result.rows]) == (["R1"], ["R1", "R3", "R8"])
    assert result.rows[0].why_not == "failed: ServerError: the engine died during the call"
    assert result.rows[1].why_not == "the run was asked not to start one"
    assert "| R8 | a \\| b | 0.2 | 0.2 to 0.2 | – | 3 | ≤ 0.333333 | yes |" in markdown(
        result.rows, result.facts
    )
    document = json.loads(
        json.dumps(as_json(result.rows, result.facts, result.failed), allow_nan=False)
    )
    assert (document["rows"][2]["median"], document["failed"], document["quick"]) == (
        0.2,
        ["R1"],
        True,
    )


def test_the_command_measures_one_ratio_and_writes_both_files(tmp_path: Path) -> None:
    out = tmp_path / "new" / "bench"
    result = CliRunner().invoke(app, ["--quick", "--no-engine", "--only", "R9a", "--out", str(out)])
    assert result.exit_code == 0, result.output
    document = json.loads((out / "bench.json").read_text())
    assert [row["id"] for row in document["rows"]] == ["R9a"]
    assert 0 < document["rows"][0]["median"] < 1
    assert (out / "bench.md").read_text().count("| R9a |") == 1
