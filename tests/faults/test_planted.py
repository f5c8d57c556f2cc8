"""Six ways in which the sampled policy is not the trained one; the check stops each before anything
is learned.
"""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from planted_server import FAULTS, OVERFLOW, PREVIOUS
from running import adapter_for

from conftest_e2e import Server, start_server, stop, train
from fake_engine import task
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import write_dataset
from server_app import PEFT_CONFIG

pytestmark = pytest.mark.e2e


def _started(model: Path, folder: Path, **variables: object) -> tuple[Server, Path, Path]:
    plant = folder / "fault"
    plant.write_text("none")
    # The same two tasks at every step: a prefix that an earlier version cached is met again.
    write_dataset(
        folder / "tasks.jsonl", [dataset_row("laptop", players=None, suite="train", num_tasks=2)]
    )
    script = str(Path(__file__).parent / "planted_server.py")
    command = [sys.executable, script]
    server = start_server(
        model, folder / "server.log", command=command, PLANT_FILE=plant, **variables
    )
    return server, plant, folder / "tasks.jsonl"


@pytest.fixture(scope="module")
def planted(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Path, Path]]:
    started = _started(tiny_model, tmp_path_factory.mktemp("planted"))
    yield started
    assert stop(started[0].process) == []


@pytest.mark.parametrize(
    ("fault", "memory"), [*((fault, "game") for fault in FAULTS), ("stale", "turn")]
)
def test_the_check_stops(
    fault: str,
    memory: str,
    planted: tuple[Server, Path, Path],
    tmp_path: Path,
    injection: Callable[..., object],
) -> None:
    server, plant, dataset = planted
    plant.write_text(fault)
    what = f"{FAULTS[fault] or 'nothing (the same server trains on)'}{', memory of a turn' * (memory == 'turn')}"
    row = injection(f"planted: {what}", short=1, long=1)
    for _ in row:
        done = train(server, tmp_path / "train", DATASET=dataset, MAX_STEPS=4, HANABI_MEMORY=memory)
        plant.write_text("none")
        if fault == "none":
            assert done.returncode == 0, done.stdout[-4000:]
            continue
        assert done.returncode == 2, done.stdout[-4000:]
        found = re.search(
            r"ParityError: (player_\d@\d: trainer and sampler logprobs differ by \S+ on average)",
            done.stdout,
        )
        assert found, done.stdout[-4000:]
        row.lost = found[1]


@pytest.mark.rest
def test_in_bfloat16_an_adapter_that_is_one_step_old_is_found_where_the_tolerance_sees_nothing(
    tiny_model: Path, tmp_path: Path, injection: Callable[..., object]
) -> None:
    rounded = {"HANABI_DTYPE": "bfloat16", "HANABI_PARITY_TOLERANCE": 0.05, "LEARNING_RATE": 2e-3}
    # What is compared of a step is one micro-batch of each player: it should have many tokens.
    rounded |= {"NUM_GENERATIONS": 64, "PER_DEVICE_TRAIN_BATCH_SIZE": 128}
    server, plant, dataset = _started(tiny_model, tmp_path, HANABI_DTYPE="bfloat16")
    try:
        row = injection("planted in bfloat16: player 1's adapter is one step old", short=1, long=1)
        for _ in row:
            fresh = train(server, tmp_path / "fresh", DATASET=dataset, MAX_STEPS=12, **rounded)
            assert fresh.returncode == 0, fresh.stdout[-4000:]
            plant.write_text(PREVIOUS)
            done = train(server, tmp_path / "train", DATASET=dataset, MAX_STEPS=40, **rounded)
            assert done.returncode == 2, done.stdout[-4000:]
            found = re.search(
                r"ParityError: (player_1@\d+: .* are closer to those of version \d+ of its)",
                done.stdout,
            )
            assert found, done.stdout[-4000:]
            row.lost = found[1]
    finally:
        stop(server.process)


def test_an_adapter_whose_numbers_overflow_loses_its_own_games_and_nobody_elses(
    planted: tuple[Server, Path, Path], injection: Callable[..., object]
) -> None:
    server, plant, _ = planted
    (low, targets), (high, _) = (adapter_for(server.model, value, value) for value in (0.01, 0.02))
    config = {**PEFT_CONFIG, "target_modules": targets}

    def play(
        seats: list[str], *, suite: int = 0, temperature: float = 1.0, num_games: int = 8
    ) -> Any:
        tasks = [{**task(seed), "seats": seats} for seed in range(suite * 100, suite * 100 + 8)]
        with RolloutClient(server.url) as client:
            return client.play(tasks, num_games=num_games, max_tokens=4, temperature=temperature)

    def greedy(seat: str) -> list[tuple[int, ...]]:
        groups = play([seat, "base"], temperature=0.0, num_games=1).groups
        return [turn.reply_ids for group in groups for turn in group[0].turns]

    with RolloutClient(server.url) as client:
        good = client.upload_guest(1, low, config)
        before = greedy(good)
        plant.write_text(OVERFLOW)
        huge = client.upload_guest(1, high, config)
        plant.write_text("none")
    row = injection(
        "an adapter that overflows plays beside others",
        short=3,
        long=20,
        lost="the games of that adapter",
    )
    for number in row:
        with ThreadPoolExecutor() as pool:
            bad = pool.submit(play, [huge, huge], suite=number)
            others = [
                pool.submit(play, seats, suite=number) for seats in ([good, "base"], ["base", good])
            ]
            with pytest.raises(ServerError, match=r"all 64 games failed.*is nan"):
                bad.result()
            assert [other.result().dropped for other in others] == [(), ()]
    # Nobody uses it any more: nothing of it is left in what the engine remembers.
    assert play([good, "base"], suite=1, num_games=16).dropped == ()
    assert greedy(good) == before
