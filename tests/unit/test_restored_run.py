"""A run folder made from an artifact, where its own was never seen."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs import restored_run
from hanabi_grpo.runs.history import cut_records, read_history
from hanabi_grpo.runs.manifest import check_checkpoint
from hanabi_grpo.runs.restored_run import is_restored, restore_run, restored_folder
from hanabi_grpo.runs.resume import plan_resume, read_resume, write_resume
from hanabi_grpo.runs.resume_settings import check_compatible, read_saved_settings
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.settings import Settings, read_settings
from hanabi_grpo.tracking.artifact import build_artifact
from tracked_runs import PLAYERS, SECRET, add_checkpoint, tracked_run


def make_artifact(folder: Path, upload: str = "full") -> Path:
    """Write a run of four steps with a checkpoint at step 2, and return its artifact elsewhere."""
    run = tracked_run(folder / "there/run", steps=4, UPLOAD_CKPT_TO_WANDB=upload)
    (run / ".run-secret").write_text(SECRET)
    (run / "train.log").write_text("what the trainer said\n")
    (run / "resume.json").write_text("{}")
    settings = read_settings(run / "settings.json")
    made, _ = build_artifact(run, add_checkpoint(run, 2), settings, None)
    artifact = folder / "artifact"
    shutil.copytree(made, artifact)
    shutil.rmtree(folder / "there")
    return artifact


def resumed(artifact: Path | str, folder: Path, **settings: Any) -> Settings:
    return Settings(resume=str(artifact), output_dir=folder, **settings)


def test_a_run_goes_on_from_its_artifact_where_its_folder_was_never_seen(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path)
    for path in artifact.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
    # It is played as any other.
    assert sorted(read_adapters(artifact).adapters) == list(PLAYERS)
    folder = tmp_path / "here"
    settings = resumed(artifact, folder)
    plan = plan_resume(settings)
    assert plan is not None
    assert plan.summary == f"a run folder is made from it: {folder}"
    assert not folder.exists()
    # A script that starts both processes writes there before.
    folder.mkdir()
    (folder / "train.log").write_text("what it says now\n")

    restore_run(artifact, folder, resume=str(artifact))

    check_checkpoint(folder / "checkpoint-2")
    assert (folder / "train.log").read_text() == "what it says now\n"
    assert (folder / "train-until-step-2.log").read_text() == "what the trainer said\n"
    plan = plan_resume(settings)
    assert plan is not None
    assert (plan.step, plan.checkpoint, plan.fork) == (2, folder / "checkpoint-2", False)
    # Rows after the checkpoint go the way that they go in any resume.
    cut_records(folder, plan.step)
    assert [row["step"] for row in read_history(folder / "metrics.jsonl")] == [1, 2]
    write_resume(plan, folder)
    point = read_resume(folder)
    assert point is not None
    assert point.checkpoint == (folder / "checkpoint-2").resolve()
    saved = read_saved_settings(folder)
    with pytest.raises(SettingsError, match="LORA_RANK: was 8, is 16"):
        check_compatible(saved, settings.model_copy(update={"lora_rank": 16}))


def test_the_same_command_goes_on_from_what_the_restored_run_has_saved_since(
    tmp_path: Path,
) -> None:
    artifact = make_artifact(tmp_path)
    folder = tmp_path / "here"
    restore_run(artifact, folder, resume=str(artifact))
    add_checkpoint(folder, 3)
    plan = plan_resume(resumed(artifact, folder))
    assert plan is not None
    assert plan.step == 3


def test_a_restoration_that_was_cut_off_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact(tmp_path)
    folder = tmp_path / "here"

    def full_disk(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(restored_run.shutil, "copy2", full_disk)
        with pytest.raises(RunFolderError, match=r"No space left on device.*start again"):
            restore_run(artifact, folder, resume=str(artifact))
    assert not is_restored(folder, str(artifact))
    assert not (folder / "checkpoint-2").exists()
    restore_run(artifact, folder, resume=str(artifact))
    assert is_restored(folder, str(artifact))
    check_checkpoint(folder / "checkpoint-2")


def test_an_artifact_without_the_optimizer_says_what_uploads_it(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path, upload="true")
    expected = r"UPLOAD_CKPT_TO_WANDB=full.*HANABI_START_FROM=wandb:team/hanabi/laptop:v3"
    with pytest.raises(RunFolderError, match=expected):
        restore_run(artifact, tmp_path / "here", resume="wandb:team/hanabi/laptop:v3")
    assert not (tmp_path / "here").exists()


def test_a_damaged_artifact_leaves_no_checkpoint(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path)
    (artifact / "trainer/optimizer.safetensors").write_bytes(b"Moments")
    with pytest.raises(RunFolderError, match=r"trainer/optimizer\.safetensors has sha256"):
        restore_run(artifact, tmp_path / "here", resume=str(artifact))
    assert list((tmp_path / "here").glob("checkpoint-*")) == []


def test_links_and_hidden_files_of_an_artifact_are_not_taken_over(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path)
    private = tmp_path / "private"
    private.mkdir()
    (private / "settings.json").write_text('{"settings": {}}')
    (artifact / "run/notes.txt").symlink_to(private / "settings.json")
    (artifact / "run/.run-secret").write_text(SECRET)
    (artifact / "run/.run-id").write_text('"000000000000"')
    here = tmp_path / "here"
    restore_run(artifact, here, resume=str(artifact))
    names = {path.name for path in here.iterdir()}
    assert "settings.json" in names
    assert names.isdisjoint({"notes.txt", ".run-secret", ".run-id"})

    # Without records of its own there is nothing to resume.
    for linked, target in (("run/settings.json", "settings.json"), ("run", ".")):
        if (artifact / linked).is_dir():
            shutil.rmtree(artifact / linked)
        else:
            (artifact / linked).unlink()
        (artifact / linked).symlink_to(private / target)
        with pytest.raises(RunFolderError, match="training cannot resume from it"):
            restore_run(artifact, tmp_path / "there", resume=str(artifact))
        assert not (tmp_path / "there/settings.json").exists()


def test_the_folder_of_another_run_stays_as_it_is(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path)
    other = tracked_run(tmp_path / "other", checkpoints=(1,))
    with pytest.raises(RunFolderError, match=r"already holds another run.*RESUME=latest"):
        restore_run(artifact, other, resume=str(artifact))
    assert not (other / "checkpoint-2").exists()


def test_a_repository_of_the_hub_never_holds_what_a_resume_needs(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="HANABI_START_FROM=hf:team/laptop"):
        plan_resume(resumed("hf:team/laptop", tmp_path / "here"))


@pytest.mark.parametrize(
    ("resume", "expected"),
    [
        ("wandb:team/hanabi/laptop-adapters:v3", "outputs/laptop-adapters-v3"),
        ("wandb:hanabi/laptop-adapters", "outputs/laptop-adapters"),
        ("/data/artifacts/step_50", "outputs/artifacts-step_50"),
    ],
)
def test_without_output_dir_the_run_folder_is_called_after_the_artifact(
    resume: str, expected: str
) -> None:
    assert restored_folder(Settings(resume=resume)) == Path(expected)
