"""Ways in which the sampled policy is not the trained one.

The logprob mismatch check stops each of them before anything is learned.
"""

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted_server import FAULTS, OVERFLOW, PREVIOUS, WRAPPER_FAULTS
from planted_table import TRUTHFUL, Case, lines_of, run_server_cases
from running import adapter_for

from conftest_e2e import Server, start_server, stop, train
from fake_engine import task
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.rollout.dataset_rows import dataset_row
from hanabi_grpo.rollout.datasets import write_dataset
from server_app import PEFT_CONFIG

pytestmark = pytest.mark.e2e


PLANTED_SERVER = Path(__file__).parent / "planted_server.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedServer:
    """A running server into which faults can be planted."""

    server: Server
    """The server."""
    fault_file: Path
    """The file that names its fault."""
    dataset: Path
    """Tasks for a trainer on it."""

    def plant(self, fault: str) -> None:
        """Choose the fault of all that follows; "none" for a sound server."""
        self.fault_file.write_text(fault)


def start_planted_server(model: Path, folder: Path, **variables: object) -> PlantedServer:
    """Start a sound server into which faults can be planted."""
    fault_file = folder / "fault"
    fault_file.write_text("none")
    # The same two tasks at every step: a prefix that an earlier version cached is met again.
    dataset = folder / "tasks.jsonl"
    write_dataset(dataset, [dataset_row("laptop", players=None, suite="train", num_tasks=2)])
    server = start_server(
        model,
        folder / "server.log",
        command=[sys.executable, str(PLANTED_SERVER)],
        PLANT_FILE=fault_file,
        **variables,
    )
    return PlantedServer(server=server, fault_file=fault_file, dataset=dataset)


@pytest.fixture(scope="module")
def planted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlantedServer]:
    planted = start_planted_server(tiny_model, tmp_path_factory.mktemp("planted"))
    yield planted
    assert stop(planted.server.process) == []


def describe(fault: str, memory: str) -> str:
    """Return the name of a planted fault in the table of injections."""
    description = FAULTS[fault] or "nothing (the same server trains on)"
    if memory == "turn":
        description += ", memory of a turn"
    return f"planted: {description}"


def first_match(pattern: str, output: str) -> str:
    """Return what the group of a pattern matches in a trainer's output."""
    match = re.search(pattern, output)
    assert match, output[-4000:]
    return match[1]


@pytest.mark.parametrize(
    ("fault", "memory"),
    [*((fault, "game") for fault in FAULTS), ("stale", "turn")],
)
def test_the_check_stops(
    fault: str,
    memory: str,
    planted: PlantedServer,
    tmp_path: Path,
    injection: Callable[..., object],
) -> None:
    planted.plant(fault)
    row = injection(describe(fault, memory), short=1, long=1)
    for _ in row:
        trainer = train(
            planted.server,
            tmp_path / "train",
            DATASET=planted.dataset,
            MAX_STEPS=4,
            HANABI_MEMORY=memory,
        )
        planted.plant("none")
        if fault == "none":
            assert trainer.returncode == 0, trainer.stdout[-4000:]
            continue
        assert trainer.returncode == 2, trainer.stdout[-4000:]
        row.lost = first_match(
            r"ParityError: (player_\d@\d: trainer and sampler logprobs differ by \S+ on average)",
            trainer.stdout,
        )


@pytest.mark.parametrize("fault", list(WRAPPER_FAULTS))
def test_modules_that_the_engine_does_not_find_are_named_before_the_first_step(
    fault: str, planted: PlantedServer, tmp_path: Path
) -> None:
    planted.plant(fault)
    trainer = train(planted.server, tmp_path / "train", MAX_STEPS=1)
    planted.plant("none")
    assert trainer.returncode == 2, trainer.stdout[-4000:]
    kinds = first_match(
        r"ParityError: player_0: an adapter with random weights moves the sampler's logprobs by "
        r".* No effect on the sampler: ([\w, ]+)\.",
        trainer.stdout,
    )
    assert kinds.split(", ") == sorted(WRAPPER_FAULTS[fault])
    assert "no step was finished" in trainer.stdout
    assert not list((tmp_path / "train").glob("checkpoint-*"))


@pytest.mark.rest
def test_in_bfloat16_an_adapter_that_is_one_step_old_is_found_where_the_tolerance_sees_nothing(
    tiny_model: Path, tmp_path: Path, injection: Callable[..., object]
) -> None:
    variables = {
        "HANABI_DTYPE": "bfloat16",
        "HANABI_PARITY_TOLERANCE": 0.05,
        # What is compared of a step is one micro-batch of each player: it should have many tokens.
        # Large updates are found within a few steps: a CPU that cannot multiply in 16 bits takes
        # half a minute for one.
        "LEARNING_RATE": 4e-3,
        "NUM_GENERATIONS": 64,
        "PER_DEVICE_TRAIN_BATCH_SIZE": 128,
    }
    planted = start_planted_server(tiny_model, tmp_path, HANABI_DTYPE="bfloat16")
    variables["DATASET"] = planted.dataset
    try:
        row = injection("planted in bfloat16: player 1's adapter is one step old", short=1, long=1)
        for _ in row:
            trainer = train(planted.server, tmp_path / "fresh", MAX_STEPS=3, **variables)
            assert trainer.returncode == 0, trainer.stdout[-4000:]
            planted.plant(PREVIOUS)
            trainer = train(planted.server, tmp_path / "train", MAX_STEPS=40, **variables)
            assert trainer.returncode == 2, trainer.stdout[-4000:]
            row.lost = first_match(
                r"ParityError: (player_1@\d+: .* are closer to those of version \d+ of its)",
                trainer.stdout,
            )
    finally:
        stop(planted.server.process)


@pytest.mark.rest
def test_small_faults_and_other_sampling_are_seen_within_ten_steps_and_sound_steps_are_not(
    tmp_path: Path, injection: Callable[..., object]
) -> None:
    """At 1e-6 the gaps are a thousandth of the tolerance; the last three report right logprobs."""
    faults = ["swapped", "stale_by_one", "scaled_0.9", "temperature_0.7", "greedy", "fixed_seed"]
    row = injection("planted in float32 at LEARNING_RATE 1e-6, one after another", short=1, long=1)
    for _ in row:
        run_server_cases(tmp_path, "float32", TRUTHFUL, ["1e-6"], faults)
        case = Case(dtype="float32", rate="1e-6", logprobs=TRUTHFUL)
        verdicts = {}
        num_sound = 0
        for line in lines_of(tmp_path, case):
            if line["fault"] == "none":
                assert "sound" in line, line
                num_sound += 1
            else:
                assert line["stop_at"] is not None, line
                verdicts[line["fault"]] = line["stop_at"]
        assert list(verdicts) == faults
        assert max(verdicts.values()) <= 10
        assert num_sound >= 16
        row.lost = ", ".join(f"{fault} at step {step}" for fault, step in verdicts.items())


NUM_SEEDS = 8


def play(
    server: Server,
    seats: list[str],
    *,
    first_seed: int = 0,
    temperature: float = 1.0,
    num_games: int = 8,
) -> RolloutResult:
    """Play games of eight tasks.

    Args:
        server: The server that plays.
        seats: What plays in each seat.
        first_seed: Seed of the first task.
        temperature: The sampling temperature.
        num_games: Number of games of each task.
    """
    tasks = []
    for seed in range(first_seed, first_seed + NUM_SEEDS):
        tasks.append({**task(seed), "seats": seats})
    with RolloutClient(server.url) as client:
        return client.play(tasks, num_games=num_games, max_tokens=4, temperature=temperature)


def greedy_replies(server: Server, seat: str) -> list[tuple[int, ...]]:
    """Return the replies of a seat beside the base model, without chance."""
    result = play(server, [seat, "base"], temperature=0.0, num_games=1)
    replies = []
    for [episode] in result.groups:
        replies += [turn.reply_ids for turn in episode.turns]
    return replies


def test_an_adapter_whose_numbers_overflow_loses_its_own_games_and_nobody_elses(
    planted: PlantedServer, injection: Callable[..., object]
) -> None:
    server = planted.server
    good_weights, target_modules = adapter_for(server.model, 0.01, 0.01)
    bad_weights, _ = adapter_for(server.model, 0.02, 0.02)
    config = {**PEFT_CONFIG, "target_modules": target_modules}
    with RolloutClient(server.url) as client:
        good = client.upload_guest(1, good_weights, config)
        replies_before = greedy_replies(server, good)
        planted.plant(OVERFLOW)
        bad = client.upload_guest(1, bad_weights, config)
        planted.plant("none")
    row = injection(
        "an adapter that overflows plays beside others",
        short=3,
        long=20,
        lost="the games of that adapter",
    )
    for number in row:
        first_seed = 100 * number
        with ThreadPoolExecutor() as pool:
            overflowing = pool.submit(play, server, [bad, bad], first_seed=first_seed)
            beside = pool.submit(play, server, [good, "base"], first_seed=first_seed)
            beside_swapped = pool.submit(play, server, ["base", good], first_seed=first_seed)
            message = r"all 64 games failed.*is nan"
            with pytest.raises(ServerError, match=message):
                overflowing.result()
            assert beside.result().dropped == ()
            assert beside_swapped.result().dropped == ()
    # Nobody uses it any more: nothing of it is left in what the engine remembers.
    result = play(server, [good, "base"], first_seed=100, num_games=16)
    assert result.dropped == ()
    assert greedy_replies(server, good) == replies_before
