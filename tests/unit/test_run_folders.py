"""What a command takes for a run: the folder of tools/demo.sh too; and that evaluations stay with their run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.client.rollout_client import RolloutClient
from hanabi_grpo.report.run_report import read_evaluations
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.evaluation_result import read_result
from hanabi_grpo.runs.resume import plan_resume
from hanabi_grpo.runs.run_folder import find_run, public_run, run_identity
from hanabi_grpo.runs.saved_adapters import newest_checkpoint
from hanabi_grpo.settings import Settings
from server_app import PEFT_CONFIG, PLAYERS, RunningApp, adapter_bytes, running_app, session_body
from tracked_runs import add_row, tracked_run


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize(
    "words",
    [
        ("view", "RUN"),
        ("view", "RUN", "--worst", 1),
        ("watch", "RUN", "--once"),
        ("report", "RUN", "--alarms", "--html", "run.html", "--png", "new", "--conventions", "page.html"),
        ("compare", "a=RUN"),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_every_command_finds_the_run_in_the_demos_folder(
    words: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    add_row(tracked_run(tmp_path / "demo" / "train", steps=12), 13, **{"player_0/blind_share": 0.95})
    (tmp_path / "demo" / "before.json").write_text("{}")
    answer = invoke(*[str(word).replace("RUN", "demo") for word in words])
    assert answer.exit_code == 0, answer.output


def test_checkpoints_and_resumes_find_it_too_and_a_run_stays_itself(tmp_path: Path) -> None:
    outer = tmp_path / "demo"
    tracked_run(outer / "train", checkpoints=(3,), games=False)
    assert newest_checkpoint(outer) == outer / "train" / "checkpoint-3"
    plan = plan_resume(Settings(resume=str(outer)))
    assert plan is not None and (plan.run_folder, plan.step) == (outer / "train", 3)
    # A run that has something called train/ in it is still the run.
    shutil.copytree(outer / "train", outer / "train" / "train")
    assert newest_checkpoint(outer / "train") == outer / "train" / "checkpoint-3"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tracked_run(tmp_path / "outputs" / "mine", games=False)


def serve(run: Path, app: RunningApp) -> None:
    """Push adapters as the run's trainer."""
    with RolloutClient(app.url) as client:
        body = session_body(app.identity, run_id=run_identity(run))
        client.open_session(**{name: body[name] for name in body if name not in ("protocol", "trainer_id")})
        client.push(1, {name: (adapter_bytes(number + 0.5), PEFT_CONFIG) for number, name in enumerate(PLAYERS)})
        client.release()


def test_what_a_runs_trainer_serves_and_its_checkpoints_leave_their_evaluations_with_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_app(max_lora_rank=8) as server:
        serve(run, server)

        def fill(partial: Path) -> None:
            for number, name in enumerate(PLAYERS):
                (partial / name).mkdir()
                (partial / name / "adapter_config.json").write_text(json.dumps(PEFT_CONFIG))
                (partial / name / "adapter_model.safetensors").write_bytes(adapter_bytes(number + 0.5))

        facts = server.identity.model_dump(include={"model_fingerprint", "tokenizer_hash", "chat_hash"})
        write_checkpoint(run, 1, fill, facts, needed_bytes=1000)
        monkeypatch.setenv("VLLM_SERVER_PORT", str(server.port))
        options = ("--preset", "laptop", "--deals", 12)
        for words in (("served", "--out", tmp_path / "after.json"), (run,), ("base",), ("served,iggi", "iggi")):
            answer = invoke("evaluate", *words, *options)
            assert answer.exit_code == 0, answer.output
            # Again is the same evaluation, and no second file.
            assert invoke("evaluate", *words, *options).exit_code == 0
        kept = sorted((run / "evaluations").iterdir())
        assert sorted(read_result(path).line_up for path in kept) == sorted(["served", str(run), "served,iggi"])
        assert read_result(tmp_path / "after.json") in map(read_result, kept)
        # One that is written into the run anyway is there once.
        assert invoke("evaluate", "served", *options, "--temperature", 0, "--out", run / "greedy.json").exit_code == 0
        assert sorted((run / "evaluations").iterdir()) == kept
        exported = invoke("export", run, "--out", tmp_path / "hub")
    results, _, notes = read_evaluations(run)
    assert len(results) == 4 and notes == []
    assert "How well it plays" not in (tmp_path / "hub" / "README.md").read_text(), exported.output


def test_a_run_that_is_not_here_has_no_folder(run: Path, tmp_path: Path) -> None:
    name = public_run(run_identity(run))
    assert find_run(name) == run.resolve()
    moved = run.rename(tmp_path / "outputs" / "moved")
    for other in (None, "0123456789ab", name):
        assert find_run(other) is None
    assert find_run(public_run(run_identity(moved))) == moved.resolve()
