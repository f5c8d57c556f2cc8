"""Six ways in which the sampled policy is not the trained one; the gate stops each before anything is trained on it."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planted_server import FAULTS

from conftest_e2e import Server, start_server, stop, train
from hanabi_grpo.commands.dataset import dataset_row, write_dataset

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def planted(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path, Path]]:
    folder = tmp_path_factory.mktemp("planted")
    plant = folder / "fault"
    plant.write_text("none")
    # The same two deals at every step: a prefix that an earlier version cached is met again.
    write_dataset(folder / "deals.jsonl", [dataset_row("laptop", players=None, suite="train", num_deals=2)])
    script = str(Path(__file__).parent / "planted_server.py")
    server = start_server(tiny_model, folder / "server.log", command=[sys.executable, script], PLANT_FILE=plant)
    yield server, plant, folder / "deals.jsonl"
    assert stop(server.process) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_stops(
    fault: str, planted: tuple[Server, Path, Path], tmp_path: Path, drill: Callable[..., object]
) -> None:
    server, plant, dataset = planted
    plant.write_text(fault)
    row = drill(f"planted: {FAULTS[fault] or 'nothing (the same server trains on)'}", short=1, long=1)
    for _ in row:
        done = train(server, tmp_path / "train", DATASET=dataset, MAX_STEPS=4)
        plant.write_text("none")
        if fault == "none":
            assert done.returncode == 0, done.stdout[-4000:]
            continue
        assert done.returncode == 2, done.stdout[-4000:]
        found = re.search(
            r"ParityError: (player_\d@\d: trainer and sampler logprobs differ by \S+ on average)", done.stdout
        )
        assert found, done.stdout[-4000:]
        row.lost = found[1]
