"""A model teaches a smaller one of the same tokens: on-policy distillation across base models.

The teacher is the adapter of another run on the larger base model, which the server holds because a
player of the team has it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from scripted_runs import load_adapter
from transformers import AutoModelForCausalLM

from conftest_e2e import Server, read_episodes, read_metrics, start_server, stop, train
from hanabi_grpo.types import Turn
from wider_models import write_wider_model

pytestmark = [pytest.mark.e2e, pytest.mark.rest, pytest.mark.usefixtures("in_repository_root")]

STEPS = 3
TEACHER_STEPS = 2
LARGEST_GAP = 1e-3
"""In nats, of logprobs in float32 by vLLM and by transformers."""
MOST_CHECKED = 40


@pytest.fixture(scope="module")
def larger_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wider model with the shipped one's tokenizer."""
    return write_wider_model(tmp_path_factory.mktemp("larger") / "model", has_own_words=False)


@pytest.fixture(scope="module")
def team_server(
    tiny_model: Path, larger_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server with an engine for each of the two base models."""
    log = tmp_path_factory.mktemp("team") / "server.log"
    model = f"player_0={tiny_model},player_1={larger_model}"
    server = start_server(Path(model), log, MODEL=model)
    yield server
    assert stop(server.process) == [], "engine processes outlived the server"


def run_of(server: Server, folder: Path, **variables: object) -> Path:
    done = train(
        server,
        folder,
        MODEL=server.model,
        DATASET=Path("data/hanabi.laptop.jsonl").resolve(),
        **variables,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return folder


@pytest.fixture(scope="module")
def teacher_run(team_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose player_1 has learned on the larger model."""
    folder = tmp_path_factory.mktemp("teacher") / "train"
    return run_of(team_server, folder, MAX_STEPS=TEACHER_STEPS)


def test_the_adapter_of_a_larger_model_teaches_a_player_on_a_smaller_one(
    team_server: Server, teacher_run: Path, larger_model: Path, tmp_path: Path
) -> None:
    taught = run_of(
        team_server,
        tmp_path / "taught",
        MAX_STEPS=STEPS,
        SEED=7,
        HANABI_TEACHER=f"player_0={teacher_run}:player_1",
        HANABI_REWARD_WEIGHT="player_0=0,player_1=1",
    )
    rows = read_metrics(taught)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all("player_1/teacher_kl" not in row for row in rows)
    first = load_adapter(taught / "checkpoint-1", "player_0")
    last = load_adapter(taught / f"checkpoint-{STEPS}", "player_0")
    assert any(not torch.equal(first[name], last[name]) for name in first)

    # What it scored is what the larger model with that adapter says of these tokens.
    base = AutoModelForCausalLM.from_pretrained(larger_model, dtype=torch.float32)
    adapter = teacher_run / f"checkpoint-{TEACHER_STEPS}" / "player_1"
    teacher = PeftModel.from_pretrained(base, adapter).eval()
    gaps: list[float] = []
    checked = 0
    for episode in read_episodes(taught, version=0):
        ids: list[int] = []
        for turn in episode.trajectory(0):
            ids = [] if turn.fresh else ids
            ids += turn.prompt_ids
            assert turn.lesson is not None
            assert not turn.lesson.action
            if checked < MOST_CHECKED:
                expected = logprobs_of(teacher, ids, turn)
                assert turn.lesson.logprobs == pytest.approx(expected, abs=LARGEST_GAP)
                checked += 1
            ids += turn.reply_ids
            pairs = zip(turn.logprobs, turn.lesson.logprobs, strict=True)
            gaps.extend(by_player - by_teacher for by_player, by_teacher in pairs)
        assert all(turn.lesson is None for turn in episode.trajectory(1))
    assert checked == MOST_CHECKED
    assert rows[0]["player_0/teacher_kl"] == pytest.approx(sum(gaps) / len(gaps), abs=1e-6)


@torch.no_grad()
def logprobs_of(model: torch.nn.Module, prompt_ids: list[int], turn: Turn) -> list[float]:
    """Return by a forward pass how likely each token of a reply is behind a conversation."""
    ids = torch.tensor([[*prompt_ids, *turn.reply_ids]])
    logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
    first = len(prompt_ids) - 1
    return [logprobs[first + number, token].item() for number, token in enumerate(turn.reply_ids)]
