import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.history import cut_records
from hanabi_grpo.runs.manifest import manifest_sha256
from hanabi_grpo.runs.resume import ResumePlan, ResumePoint, plan_resume, read_resume, write_resume
from hanabi_grpo.runs.resume_settings import (
    check_compatible,
    dataset_sha256,
    keep_settings,
    read_saved_settings,
)
from hanabi_grpo.settings import Settings, settings_values
from torn_checkpoints import write

NOW = datetime(2026, 1, 31, 9, 5, 7)


def run(folder: Path, *steps: int, started: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text("{}")
    os.utime(folder / "settings.json", (started, started))
    for step in steps:
        write(folder, step)
    return folder


def tear(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def planned(now: datetime | None = None, **settings: Any) -> ResumePlan:
    plan = plan_resume(Settings(**settings), now)
    assert plan is not None
    return plan


def refused(match: str, **settings: Any) -> None:
    with pytest.raises(RunFolderError, match=match):
        plan_resume(Settings(**settings))


def test_latest_takes_the_newest_valid_one_of_output_dir_and_names_the_torn(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 9, 10, 11)
    tear(folder / "checkpoint-11")
    plan = planned(resume="latest", output_dir=folder)
    assert (plan.run_folder, plan.checkpoint, plan.step, plan.fork) == (
        folder,
        folder / "checkpoint-10",
        10,
        False,
    )
    assert plan.skipped == (
        f"{folder}/checkpoint-11: no manifest.json; it was not written to its end, or is no "
        "checkpoint.",
    )
    assert plan.summary.startswith(f"goes on from step 10 ({folder}/checkpoint-10, saved 20")


def test_latest_begins_at_step_0_where_there_is_nothing_yet(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for _ in range(2):
        plan = planned(resume="latest", output_dir=folder)
        assert (plan.run_folder, plan.checkpoint, plan.step, plan.skipped, plan.fork) == (
            folder,
            None,
            0,
            (),
            False,
        )
        assert (
            plan.summary == f"nothing to go on from in {folder} yet: starts at step 0 in {folder}"
        )
        folder.mkdir(exist_ok=True)
        (folder / ".lock").touch()
    assert plan_resume(Settings(output_dir=folder)) is None
    # And again where every checkpoint is damaged.
    tear(run(tmp_path / "torn", 1) / "checkpoint-1")
    plan = planned(resume="latest", output_dir=tmp_path / "torn")
    assert (plan.checkpoint, plan.step) == (None, 0)
    assert plan.summary.startswith(
        f"no checkpoint to go on from in {tmp_path}/torn: starts at step 0"
    )
    assert plan.skipped[0].startswith(
        f"{tmp_path}/torn/checkpoint-1: no manifest.json; it was not written to its end"
    )
    # A folder that is no run is refused.
    (tmp_path / "thesis.tex").touch()
    refused(
        r"thesis\.tex, torn but neither settings\.json nor a checkpoint",
        resume="latest",
        output_dir=tmp_path,
    )


def saved_at(checkpoint: Path, created: str) -> None:
    data = {**json.loads((checkpoint / "manifest.json").read_text()), "created": created}
    (checkpoint / "manifest.json").write_text(
        json.dumps(data | {"manifest_sha256": manifest_sha256(data)})
    )


def test_latest_without_output_dir_takes_the_run_that_saved_last_whatever_the_times_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = planned(NOW, resume="latest", preset="laptop")
    assert plan.checkpoint is None
    assert plan.summary == (
        "no run in outputs/ has a valid checkpoint: starts at step 0 in "
        "outputs/laptop-20260131-090507"
    )
    # A copy of an old run has the newest file times and the most steps.
    saved_at(run(Path("outputs/a"), 20, started=200) / "checkpoint-20", "2026-01-02T00:00:00+00:00")
    saved_at(
        run(Path("outputs/copied"), 50, started=2**31) / "checkpoint-50",
        "2026-01-01T00:00:00+00:00",
    )
    run(Path("outputs/began-later"), started=2**30 + 2**29 + 2**28)
    plan = planned(NOW, resume="latest", preset="laptop")
    assert (plan.run_folder, plan.checkpoint) == (
        Path("outputs/a"),
        Path("outputs/a/checkpoint-20"),
    )


def test_a_run_or_one_of_its_checkpoints_can_be_named(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 9, 10)
    for named in (folder, folder / "checkpoint-10"):
        for output_dir in (None, folder):
            plan = planned(resume=str(named), output_dir=output_dir)
            assert (plan.run_folder, plan.checkpoint, plan.fork) == (
                folder,
                folder / "checkpoint-10",
                False,
            )
    os.chdir(folder / "checkpoint-10")
    (tmp_path / "best").symlink_to(folder / "checkpoint-10")
    for named in (Path("."), tmp_path / "best"):
        plan = planned(resume=str(named))
        assert (plan.run_folder, plan.step) == (folder, 10)


def test_another_output_dir_forks(tmp_path: Path) -> None:
    folder, new = run(tmp_path / "run", 9, 10), tmp_path / "new"
    plan = planned(resume=str(folder / "checkpoint-9"), output_dir=new)
    assert (plan.run_folder, plan.checkpoint, plan.step, plan.fork) == (
        new,
        folder / "checkpoint-9",
        9,
        True,
    )
    assert plan.summary.endswith(f", as a new run in {new}")
    plan = planned(resume=str(folder), output_dir=new)
    assert (plan.step, plan.fork) == (10, True)
    run(new)
    refused(
        r"holds another run already \(settings\.json\).*by RESUME=latest",
        resume=str(folder),
        output_dir=new,
    )


def test_an_older_checkpoint_in_place_is_refused_while_a_newer_one_is_valid(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 9, 10)
    named = folder / "checkpoint-9"
    with pytest.raises(RunFolderError) as caught:
        plan_resume(Settings(resume=str(named)))
    assert str(caught.value) == (
        f"RESUME={str(named)!r}: this run has a newer valid checkpoint, checkpoint-10, and would "
        "go on beside its own "
        "later steps. Keep them and start a new run from here with OUTPUT_DIR=(a new folder), or "
        "remove the "
        f"checkpoints after step 9 from {folder}."
    )
    tear(folder / "checkpoint-10")
    plan = planned(resume=str(named))
    assert plan.step == 9 and len(plan.skipped) == 1


def test_what_was_named_must_be_there_whole_and_resumable(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 9)
    refused("no such folder", resume=str(folder / "checkpoint-8"))
    write_checkpoint(folder, 10, lambda path: (path / "x").touch() or None, {}, needed_bytes=0)
    refused("holds adapters but no trainer/", resume=str(folder / "checkpoint-10"))
    plan = planned(resume=str(folder))
    assert plan.step == 9 and "holds no trainer/" in plan.skipped[0]
    tear(folder / "checkpoint-9")
    refused(r"checkpoint-9: no manifest\.json", resume=str(folder / "checkpoint-9"))
    refused("no valid checkpoint to go on from", resume=str(folder))


def test_the_trainer_is_told_what_it_goes_on_from(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", 9)
    plan = planned(resume="latest", output_dir=folder)
    write_resume(plan, folder)
    assert read_resume(folder) == ResumePoint(checkpoint=folder / "checkpoint-9", step=9)
    write_resume(None, folder)
    assert read_resume(folder) is None
    (folder / "resume.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"resume\.json: not what"):
        read_resume(folder)


def saved(**changes: Any) -> dict[str, Any]:
    return {"settings": settings_values(Settings()) | changes}


def test_every_setting_that_may_not_change_is_listed_with_both_values_and_what_may_is_told() -> (
    None
):
    with pytest.raises(SettingsError) as caught:
        check_compatible(
            saved(LORA_RANK=8, TEMPERATURE=0.5, HANABI_PRESET="mini"), Settings(resume="latest")
        )
    assert str(caught.value) == (
        "RESUME=latest: these settings cannot change on the way:\n"
        "  HANABI_PRESET: was mini, is laptop\n"
        "  TEMPERATURE: was 0.5, is 1.0\n"
        "  LORA_RANK: was 8, is 16\n"
        "Set them back, or start anew without RESUME."
    )
    with pytest.raises(SettingsError, match="start a new run from the checkpoint with OUTPUT_DIR="):
        check_compatible(saved(TEMPERATURE=0.5), Settings())
    with pytest.raises(SettingsError, match="HANABI_GROUP: was mixed, is task in every run now"):
        check_compatible(saved(HANABI_GROUP="mixed"), Settings())
    assert check_compatible(saved(HANABI_GROUP="mixed"), Settings(), fork=True) == []
    # A fork may change what is optimised, but not what the tensors fit.
    assert check_compatible(saved(TEMPERATURE=0.5), Settings(), fork=True) == [
        "TEMPERATURE: was 0.5, is 1.0"
    ]
    with pytest.raises(SettingsError, match="LORA_RANK: was 8, is 16"):
        check_compatible(saved(LORA_RANK=8, TEMPERATURE=0.5), Settings(), fork=True)
    # What may change is told.
    before = saved(
        LEARNING_RATE=0.1, NPROC_PER_NODE=4, OUTPUT_DIR="x", RESUME="y", HANABI_API_KEY="old"
    )
    del before["settings"]["SAVE_STEPS"]
    assert check_compatible(before, Settings()) == [
        "NPROC_PER_NODE: was 4, is 1",
        "LEARNING_RATE: was 0.1, is 0.0015",
        "SAVE_STEPS: not recorded by the earlier run; now 50",
    ]
    assert check_compatible(saved(), Settings()) == []


def test_two_spellings_of_a_folder_are_one_and_a_dataset_with_other_deals_is_another(
    tmp_path: Path,
) -> None:
    dataset = tmp_path / "tasks.jsonl"
    dataset.write_text("{}")
    settings = Settings(dataset=str(dataset), model=str(tmp_path))
    before = {
        "settings": settings_values(settings)
        | {"DATASET": f"{tmp_path}/./tasks.jsonl", "MODEL": f"{tmp_path}/"},
        "dataset_sha256": dataset_sha256(settings),
    }
    assert check_compatible(before, settings) == []
    dataset.write_text("{ }")
    with pytest.raises(
        SettingsError,
        match=r"DATASET: the file's sha256 was 44136fa355b3…, is .*: its tasks are other",
    ):
        check_compatible(before, settings)
    assert len(check_compatible(before, settings, fork=True)) == 1


def test_settings_of_before_that_cannot_be_read_stop_the_resume(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nobody can tell whether the settings of now fit"):
        read_saved_settings(tmp_path)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(RunFolderError, match="is not a JSON object"):
        read_saved_settings(tmp_path)
    with pytest.raises(SettingsError, match="holds no settings"):
        check_compatible({}, Settings())


def test_the_settings_until_the_resume_are_kept_once_each(tmp_path: Path) -> None:
    assert keep_settings(tmp_path, 9) is None
    for content, step, wanted in [(1, 9, 1), (2, 9, 1), (2, 10, 2)]:
        (tmp_path / "settings.json").write_text(f'{{"a": {content}}}')
        kept = keep_settings(tmp_path, step)
        assert kept == tmp_path / f"settings-until-step-{step}.json"
        assert json.loads(kept.read_text()) == {"a": wanted}


def record(folder: Path, *rows: str) -> None:
    (folder / "metrics.jsonl").write_text("".join(rows))


def test_rows_after_the_checkpoint_and_a_torn_line_are_moved_aside(tmp_path: Path) -> None:
    record(
        tmp_path,
        '{"step": 1}\n',
        '{"step": 2, "é": 0}\n',
        '{"step": 3}\n',
        '{"note": "x"}\n',
        '{"step": 4, "lo',
    )
    assert cut_records(tmp_path, 2)[0] == 2
    assert (
        tmp_path / "metrics.jsonl"
    ).read_text() == '{"step": 1}\n{"step": 2, "é": 0}\n{"note": "x"}\n'
    assert (tmp_path / "metrics.discarded.jsonl").read_text() == '{"step": 3}\n{"step": 4, "lo\n'
    assert cut_records(tmp_path, 2)[0] == 0
    record(tmp_path, '{"step": 1}\n', '{"step": 2}\n')
    assert cut_records(tmp_path, 0)[0] == 2
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert (tmp_path / "metrics.discarded.jsonl").read_text() == (
        '{"step": 3}\n{"step": 4, "lo\n{"step": 1}\n{"step": 2}\n'
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.discarded.jsonl",
        "metrics.jsonl",
    ]


def test_a_kill_between_the_two_files_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, '{"step": 1}\n', '{"step": 2}\n')
    (tmp_path / "metrics.discarded.jsonl").write_text('{"step": 9, "to')

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            cut_records(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    cut_records(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert (tmp_path / "metrics.discarded.jsonl").read_text() == '{"step": 9, "to\n{"step": 2}\n'


def test_games_behind_later_steps_are_moved_aside_and_none_is_overwritten(tmp_path: Path) -> None:
    episodes = tmp_path / "episodes"
    for attempt in ("a", "b"):
        episodes.mkdir(exist_ok=True)
        for step in (0, 10, 20):
            (episodes / f"step_{step:06d}.jsonl").write_text(f"{attempt}{step}")
        (episodes / "notes.txt").touch()
        assert cut_records(tmp_path, 10) == (0, 2)
    assert sorted(path.name for path in episodes.iterdir()) == [
        "discarded",
        "notes.txt",
        "step_000000.jsonl",
    ]
    assert {path.name: path.read_text() for path in (episodes / "discarded").iterdir()} == {
        "step_000010.jsonl": "a10",
        "step_000020.jsonl": "a20",
        "step_000010.1.jsonl": "b10",
        "step_000020.1.jsonl": "b20",
    }
    assert cut_records(tmp_path / "none", 0) == (0, 0)
