"""The same seed, the same run: games, figures and adapters, on a real server with a real engine."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conftest_e2e import Server, read_metrics, train
from faults.running import Training
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.envs.hanabi.config import EnvConfig
from hanabi_grpo.rollout.messages import ReplyRequest
from hanabi_grpo.runs.digest import RunDigest, run_digest, timeless
from hanabi_grpo.types import Episode, Reply

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("in_repository_root")]

LAPTOP = EnvConfig(preset="laptop", observation="compact", legal_moves=False)
PLAYERS = ("player_0", "player_1")
STEPS = 4
TRAINED = {"MAX_STEPS": STEPS, "SAVE_STEPS": 1, "HANABI_EVAL_STEPS": 2, "HANABI_EVAL_TASKS": 8}


def tasks(*seeds: int) -> list[dict[str, Any]]:
    config = LAPTOP.model_dump(mode="json")
    return [{"env_config": config, "suite": "train", "seed": seed} for seed in seeds]


def play(
    server: Server,
    *seeds: int,
    sampling_seed: int | None = 5,
    num_games: int = 8,
) -> list[list[Episode]]:
    """Return the games of some tasks by the base model."""
    with RolloutClient(server.url) as client:
        result = client.play(
            tasks(*seeds),
            num_games=num_games,
            max_tokens=4,
            temperature=1.0,
            sampling_seed=sampling_seed,
            seats=("base", "base"),
        )
    assert not result.dropped
    return result.groups


@pytest.mark.rest
def test_a_game_is_the_same_bits_alone_beside_others_in_another_order_and_again(
    server: Server,
) -> None:
    seeds = range(16)
    # 128 games at once: the engine reads their first prompts in parts.
    together = play(server, *seeds)
    assert play(server, *seeds) == together, "with the prefixes of the first time in the cache"
    assert play(server, *reversed(seeds)) == together[::-1]
    alone = [play(server, seed)[0] for seed in (0, 7)]
    assert alone == [together[0], together[7]]
    [single] = play(server, 7, num_games=1)
    assert single == together[7][:1]
    with ThreadPoolExecutor() as threads:
        halves = [
            threads.submit(play, server, *seeds[start : start + 4]) for start in (0, 4, 8, 12)
        ]
        beside_strangers: list[list[Episode]] = []
        for half in halves:
            beside_strangers += half.result()
    assert beside_strangers == together
    replies = {tuple(turn.reply_ids for turn in game.turns) for group in together for game in group}
    assert len(replies) > 100, "the games differ from each other"


def test_games_of_another_seed_and_of_none_are_other_games(server: Server) -> None:
    games = play(server, 1)
    assert play(server, 1, sampling_seed=6) != games
    assert play(server, 1, sampling_seed=None) != play(server, 1, sampling_seed=None)


def test_a_reply_outside_of_games_takes_a_seed_too(server: Server) -> None:
    asked = ReplyRequest(
        seat="base",
        system="",
        turns=(),
        prompt="life1",
        max_tokens=8,
        temperature=1.0,
        seed=3,
    )

    def replies(seeds: Iterable[int]) -> list[Reply]:
        with RolloutClient(server.url) as client:
            return [client.reply(msgspec.structs.replace(asked, seed=seed)) for seed in seeds]

    same = replies([3] * 4)
    assert len({(reply.reply_ids, reply.logprobs) for reply in same}) == 1
    assert len({reply.reply_ids for reply in replies(range(8))}) > 1


def digest_of(server: Server, folder: Path, **variables: object) -> RunDigest:
    """Train and return the run's digests."""
    trainer = train(server, folder, **{**TRAINED, **variables})
    assert trainer.returncode == 0, trainer.stdout[-4000:]
    return run_digest(folder)


@pytest.mark.rest
def test_two_runs_of_one_seed_are_the_same_run_and_so_is_a_resumed_one(
    server: Server, tmp_path: Path
) -> None:
    first = digest_of(server, tmp_path / "first", SEED=7)
    assert set(first.adapters) == set(PLAYERS)
    assert digest_of(server, tmp_path / "second", SEED=7) == first

    other = digest_of(server, tmp_path / "other", SEED=8)
    assert other.metrics != first.metrics
    for player in PLAYERS:
        assert other.adapters[player] != first.adapters[player]

    # Killed in the middle of its third step, or wherever it is by then, with sampled games.
    cut = tmp_path / "cut"
    trainer = Training(server, cut, SEED=7, **TRAINED)
    trainer.wait_for_step(2)
    trainer.kill()
    assert digest_of(server, cut, SEED=7, RESUME="latest") == first
    rows = [timeless(row) for row in read_metrics(cut)]
    assert rows == [timeless(row) for row in read_metrics(tmp_path / "first")]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert (cut / "validation.json").read_text() == (tmp_path / "first/validation.json").read_text()


@pytest.mark.rest
@pytest.mark.parametrize(
    "variables",
    [
        {"HANABI_OVERLAP": 1},
        {"HANABI_OVERLAP": 3, "MAX_STEPS": 5},
        {"HANABI_RESAMPLE_FLAT": 2, "NUM_GENERATIONS": 2, "HANABI_TASKS_PER_STEP": 8},
        {"DEEPSPEED": "zero2", "NPROC_PER_NODE": 2, "PER_DEVICE_TRAIN_BATCH_SIZE": 4},
    ],
    ids=["overlap", "three-steps-ahead", "resampled", "two-processes"],
)
def test_two_runs_of_other_kinds_are_the_same_run_too(
    server: Server, tmp_path: Path, variables: dict[str, object]
) -> None:
    variables = {"SEED": 7, "MAX_STEPS": 3, **variables}
    first = digest_of(server, tmp_path / "first", **variables)
    assert digest_of(server, tmp_path / "second", **variables) == first
