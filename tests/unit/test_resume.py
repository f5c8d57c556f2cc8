"""What a run resumes from, with which settings, and what becomes of its later records."""

import errno
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import RunFolderError, SettingsError, UnreadableError
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.history import cut_records
from hanabi_grpo.runs.manifest import manifest_sha256
from hanabi_grpo.runs.resume import ResumePlan, ResumePoint, plan_resume, read_resume, write_resume
from hanabi_grpo.runs.resume_settings import (
    check_compatible,
    check_new_teacher,
    dataset_sha256,
    keep_settings,
    read_saved_settings,
)
from hanabi_grpo.runs.start_record import RecordedGame, RecordedThing, start_record
from hanabi_grpo.settings import Settings, settings_values
from torn_checkpoints import write

NOW = datetime(2026, 1, 31, 9, 5, 7)


def make_run(folder: Path, *steps: int, started: int = 0) -> Path:
    """Write a run folder with checkpoints of some steps; `started` is its settings' file time."""
    folder.mkdir(parents=True)
    settings = folder / "settings.json"
    settings.write_text("{}")
    os.utime(settings, (started, started))
    for step in steps:
        write(folder, step)
    return folder


def tear(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()


def plan_of(now: datetime | None = None, **settings: Any) -> ResumePlan:
    plan = plan_resume(Settings(**settings), now)
    assert plan is not None
    return plan


def check_refused(match: str, **settings: Any) -> None:
    with pytest.raises(RunFolderError, match=match):
        plan_resume(Settings(**settings))


# The plan


def test_without_resume_there_is_no_plan(tmp_path: Path) -> None:
    assert plan_resume(Settings(output_dir=tmp_path)) is None


def test_latest_takes_the_newest_valid_one_of_output_dir_and_names_the_torn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10, 11)
    tear(run / "checkpoint-11")
    plan = plan_of(resume="latest", output_dir=run)
    assert plan.run_folder == run
    assert plan.checkpoint == run / "checkpoint-10"
    assert plan.step == 10
    assert not plan.fork
    assert plan.skipped == (
        f"{run}/checkpoint-11: no manifest.json; it was not written completely, or is not a "
        "checkpoint.",
    )
    assert plan.summary.startswith(f"resumes from step 10 ({run}/checkpoint-10, saved 20")


def test_latest_begins_at_step_0_where_there_is_nothing_yet(tmp_path: Path) -> None:
    run = tmp_path / "run"
    expected = ResumePlan(
        run_folder=run, summary=f"nothing to resume in {run} yet: starts at step 0 in {run}"
    )
    assert plan_of(resume="latest", output_dir=run) == expected
    run.mkdir()
    (run / ".lock").touch()
    assert plan_of(resume="latest", output_dir=run) == expected


def test_latest_begins_at_step_0_where_every_checkpoint_is_damaged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "torn", 1)
    tear(run / "checkpoint-1")
    plan = plan_of(resume="latest", output_dir=run)
    assert plan.checkpoint is None
    assert plan.step == 0
    assert plan.summary.startswith(f"no checkpoint to resume from in {run}: starts at step 0")
    assert plan.skipped[0].startswith(
        f"{run}/checkpoint-1: no manifest.json; it was not written completely"
    )


def test_latest_does_not_begin_anew_where_checkpoints_cannot_be_read_at_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    tear(run / "checkpoint-10")
    real_open = os.open

    def open_later(path: Path, *args: Any) -> int:
        if Path(path).name == "adapter_model.safetensors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real_open(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_later)
        with pytest.raises(UnreadableError) as caught:
            plan_resume(Settings(resume="latest", output_dir=run))
    assert str(caught.value) == (
        f"{run}: no valid checkpoint to resume from.\n"
        f"  {run}/checkpoint-10: no manifest.json; it was not written completely, or is not a "
        "checkpoint.\n"
        f"  {run}/checkpoint-9: {run}/checkpoint-9/player_0/adapter_model.safetensors cannot be "
        "read (Input/output error).\n"
        "Its checkpoints may be intact, so the run does not start over. Make them readable and "
        "start again, or choose another OUTPUT_DIR for a new run."
    )
    assert plan_of(resume="latest", output_dir=run).step == 9


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make the operating system refuse every file of a folder."""
    real_open = os.open

    def open_others(path: Path, *args: Any) -> int:
        if Path(path).is_relative_to(folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real_open(path, *args)

    monkeypatch.setattr(os, "open", open_others)


def test_an_older_checkpoint_does_not_stand_in_for_one_that_cannot_be_read_at_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    with monkeypatch.context() as patch:
        refuse_to_read(patch, run / "checkpoint-10")
        with pytest.raises(UnreadableError, match=r"checkpoint-10.*cannot be read"):
            plan_resume(Settings(resume="latest", output_dir=run))
    assert plan_of(resume="latest", output_dir=run).step == 10


def test_another_run_does_not_stand_in_for_one_that_cannot_be_read_at_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "outputs" / "old", 3)
    newer = make_run(tmp_path / "outputs" / "new", 5)
    with monkeypatch.context() as patch:
        refuse_to_read(patch, Path("outputs/new"))
        with pytest.raises(UnreadableError, match=r"so no other one is continued"):
            plan_resume(Settings(resume="latest"))
    tear(newer / "checkpoint-5")
    assert plan_of(resume="latest").run_folder == Path("outputs/old")


def test_latest_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    check_refused(
        r"thesis\.tex but neither settings\.json nor a checkpoint",
        resume="latest",
        output_dir=tmp_path,
    )


def set_created(checkpoint: Path, created: str) -> None:
    """Change when a checkpoint was saved."""
    path = checkpoint / "manifest.json"
    data = {**json.loads(path.read_text()), "created": created}
    path.write_text(json.dumps({**data, "manifest_sha256": manifest_sha256(data)}))


def test_latest_without_output_dir_begins_a_new_run_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = plan_of(NOW, resume="latest", preset="laptop")
    assert plan.checkpoint is None
    assert plan.summary == (
        "no run in outputs/ has a valid checkpoint: starts at step 0 in "
        "outputs/laptop-20260131-090507"
    )


def test_latest_without_output_dir_takes_the_run_that_saved_last_whatever_the_times_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    last = make_run(Path("outputs/a"), 20, started=200)
    set_created(last / "checkpoint-20", "2026-01-02T00:00:00+00:00")
    # A copy of an old run has the newest file times and the most steps.
    copied = make_run(Path("outputs/copied"), 50, started=2**31)
    set_created(copied / "checkpoint-50", "2026-01-01T00:00:00+00:00")
    make_run(Path("outputs/began-later"), started=2**30 + 2**29 + 2**28)
    plan = plan_of(NOW, resume="latest", preset="laptop")
    assert plan.run_folder == last
    assert plan.checkpoint == last / "checkpoint-20"


def test_a_run_or_its_newest_checkpoint_can_be_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    for named in (run, run / "checkpoint-10"):
        for output_dir in (None, run):
            plan = plan_of(resume=str(named), output_dir=output_dir)
            assert plan.run_folder == run
            assert plan.checkpoint == run / "checkpoint-10"
            assert not plan.fork


def test_a_checkpoint_can_be_named_by_a_link_or_as_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    monkeypatch.chdir(run / "checkpoint-10")
    link = tmp_path / "best"
    link.symlink_to(run / "checkpoint-10")
    for named in (Path("."), link):
        plan = plan_of(resume=str(named))
        assert (plan.run_folder, plan.step) == (run, 10)


def test_another_output_dir_makes_a_fork(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    new = tmp_path / "new"
    plan = plan_of(resume=str(run / "checkpoint-9"), output_dir=new)
    assert plan.run_folder == new
    assert plan.checkpoint == run / "checkpoint-9"
    assert plan.step == 9
    assert plan.fork
    assert plan.summary.endswith(f", as a new run in {new}")
    plan = plan_of(resume=str(run), output_dir=new)
    assert (plan.step, plan.fork) == (10, True)


def test_a_fork_into_a_used_folder_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    used = make_run(tmp_path / "used")
    check_refused(
        r"already holds another run \(settings\.json\).*with RESUME=latest",
        resume=str(run),
        output_dir=used,
    )


def begin_fork(run: Path, fork: Path) -> None:
    """Leave what a fork has before its first checkpoint."""
    plan = plan_of(resume=str(run), output_dir=fork)
    make_run(fork)
    write_resume(plan, fork)


def test_a_fork_that_has_saved_nothing_yet_begins_with_its_checkpoint_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    fork = tmp_path / "fork"
    begin_fork(run, fork)
    plan = plan_of(resume="latest", output_dir=fork)
    assert (plan.run_folder, plan.checkpoint, plan.step) == (fork, run / "checkpoint-10", 10)
    assert (plan.fork, plan.needs_fresh_folder) == (True, False)
    assert plan.summary.startswith(f"resumes from step 10 ({run}/checkpoint-10, saved ")
    write(fork, 12)
    plan = plan_of(resume="latest", output_dir=fork)
    assert (plan.checkpoint, plan.step, plan.fork) == (fork / "checkpoint-12", 12, False)
    tear(fork / "checkpoint-12")
    plan = plan_of(resume="latest", output_dir=fork)
    assert (plan.checkpoint, plan.step) == (run / "checkpoint-10", 10)
    assert plan.skipped[0].startswith(f"{fork}/checkpoint-12: no manifest.json")


def test_a_fork_that_was_killed_before_it_wrote_its_settings_begins_with_its_checkpoint_again(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    fork = tmp_path / "fork"
    plan = plan_of(resume=str(run / "checkpoint-10"), output_dir=fork)
    fork.mkdir()
    write_resume(plan, fork)
    for resume in ("latest", str(run / "checkpoint-10")):
        again = plan_of(resume=resume, output_dir=fork)
        assert (again.checkpoint, again.step, again.fork) == (run / "checkpoint-10", 10, True)
        assert not again.needs_fresh_folder


def test_a_fork_whose_checkpoint_is_gone_does_not_begin_at_step_0(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 10)
    fork = tmp_path / "fork"
    begin_fork(run, fork)
    tear(run / "checkpoint-10")
    check_refused(
        r"has no valid checkpoint of its own yet, and the one that it began with cannot be used: "
        r".*run/checkpoint-10: no manifest\.json.* Restore that one",
        resume="latest",
        output_dir=fork,
    )


def test_a_run_that_was_moved_and_whose_checkpoints_are_damaged_begins_at_step_0(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "run", 10)
    write_resume(plan_of(resume="latest", output_dir=run), run)
    moved = run.rename(tmp_path / "moved")
    tear(moved / "checkpoint-10")
    assert plan_of(resume="latest", output_dir=moved).step == 0


def test_an_older_checkpoint_in_place_is_refused_while_a_newer_one_is_valid(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9, 10)
    named = run / "checkpoint-9"
    with pytest.raises(RunFolderError) as caught:
        plan_resume(Settings(resume=str(named)))
    assert str(caught.value) == (
        f"RESUME={str(named)!r}: this run has a newer valid checkpoint, checkpoint-10, whose steps "
        "it would repeat in the same folder. Keep them and start a new run from here with "
        "OUTPUT_DIR=(a new folder), or remove the checkpoints after step 9 from "
        f"{run}."
    )
    tear(run / "checkpoint-10")
    plan = plan_of(resume=str(named))
    assert plan.step == 9
    assert len(plan.skipped) == 1


def test_what_was_named_must_be_there_whole_and_resumable(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9)
    check_refused("no such folder", resume=str(run / "checkpoint-8"))

    def fill(partial: Path) -> None:
        (partial / "x").touch()

    write_checkpoint(run, 10, fill, {}, needed_bytes=0)
    check_refused("holds adapters but no trainer/", resume=str(run / "checkpoint-10"))
    plan = plan_of(resume=str(run))
    assert plan.step == 9
    assert "has no trainer/" in plan.skipped[0]
    tear(run / "checkpoint-9")
    check_refused(r"checkpoint-9: no manifest\.json", resume=str(run / "checkpoint-9"))
    check_refused("no valid checkpoint to resume from", resume=str(run))


def test_the_trainer_is_told_what_it_goes_on_from(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 9)
    write_resume(plan_of(resume="latest", output_dir=run), run)
    assert read_resume(run) == ResumePoint(checkpoint=run / "checkpoint-9", step=9)
    write_resume(None, run)
    assert read_resume(run) is None
    (run / "resume.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"resume\.json: not written by"):
        read_resume(run)


# Its settings


def saved(**changes: Any) -> dict[str, Any]:
    """Return the settings.json of a run with the default settings, but for these by variable."""
    return {"settings": {**settings_values(Settings()), **changes}}


def test_every_setting_that_may_not_change_is_listed_with_both_values() -> None:
    before = saved(LORA_RANK=8, TEMPERATURE=0.5, HANABI_PRESET="mini")
    with pytest.raises(SettingsError) as caught:
        check_compatible(before, Settings(resume="latest"))
    assert str(caught.value) == (
        "RESUME=latest: these settings cannot change in the middle of a run:\n"
        "  HANABI_PRESET: was mini, is laptop\n"
        "  TEMPERATURE: was 0.5, is 1.0\n"
        "  LORA_RANK: was 8, is 16\n"
        "Set them back, or start over without RESUME."
    )


def test_a_fork_is_offered_where_the_tensors_fit() -> None:
    with pytest.raises(SettingsError, match="start a new run from the checkpoint with OUTPUT_DIR="):
        check_compatible(saved(TEMPERATURE=0.5), Settings())


def test_a_fork_may_change_what_is_optimised_but_not_what_the_tensors_fit() -> None:
    assert check_compatible(saved(TEMPERATURE=0.5), Settings(), fork=True) == [
        "TEMPERATURE: was 0.5, is 1.0"
    ]
    with pytest.raises(SettingsError, match="LORA_RANK: was 8, is 16"):
        check_compatible(saved(LORA_RANK=8, TEMPERATURE=0.5), Settings(), fork=True)


def test_a_new_teacher_whose_steps_are_over_is_refused() -> None:
    before = {"settings": settings_values(Settings())}
    taught = Settings(teacher=("iggi",), teacher_steps=100, resume="outputs/run/checkpoint-100")
    with pytest.raises(SettingsError, match=r"its weight is 0 from step 100 on, and the run cont"):
        check_new_teacher(before, taught, 100)
    check_new_teacher(before, taught, 99)
    check_new_teacher(before, taught.model_copy(update={"teacher_steps": 0}), 100)
    # A run may go on after its teacher.
    check_new_teacher({"settings": settings_values(taught)}, taught, 100)


def test_what_may_change_is_told_but_places_and_keys_are_not() -> None:
    before = saved(
        LEARNING_RATE=0.1, NPROC_PER_NODE=4, OUTPUT_DIR="x", RESUME="y", HANABI_API_KEY="old"
    )
    del before["settings"]["SAVE_STEPS"]
    assert check_compatible(before, Settings(save_steps=7)) == [
        "NPROC_PER_NODE: was 4, is 1",
        "LEARNING_RATE: was 0.1, is 0.0015",
        "SAVE_STEPS: not recorded by the earlier run; now 7",
    ]
    assert check_compatible(saved(), Settings()) == []


def test_a_setting_that_is_newer_than_the_run_and_has_its_default_is_no_change() -> None:
    before = saved()
    del before["settings"]["SAVE_STEPS"]
    assert check_compatible(before, Settings()) == []


def test_two_spellings_of_a_folder_are_one(tmp_path: Path) -> None:
    dataset = tmp_path / "tasks.jsonl"
    dataset.write_text("{}")
    settings = Settings(dataset=str(dataset), model=str(tmp_path))
    before = {
        "settings": {
            **settings_values(settings),
            "DATASET": f"{tmp_path}/./tasks.jsonl",
            "MODEL": f"{tmp_path}/",
        }
    }
    assert check_compatible(before, settings) == []


def test_a_dataset_with_other_tasks_is_another(tmp_path: Path) -> None:
    dataset = tmp_path / "tasks.jsonl"
    dataset.write_text("{}")
    settings = Settings(dataset=str(dataset), model=str(tmp_path))
    before = {"settings": settings_values(settings), "dataset_sha256": dataset_sha256(settings)}
    assert check_compatible(before, settings) == []
    dataset.write_text("{ }")
    message = r"DATASET: the file's sha256 was 44136fa355b3…, is .*: its tasks have changed"
    with pytest.raises(SettingsError, match=message):
        check_compatible(before, settings)
    assert len(check_compatible(before, settings, fork=True)) == 1


def game(name: str, spec_hash: str, **digests: str) -> RecordedGame:
    """Return a game that reads files with these digests, by the field that names them."""
    outside = {}
    for field, digest in digests.items():
        outside[field] = RecordedThing(value=f"{field}.jsonl", digest=digest)
    return RecordedGame(name=name, spec_hash=spec_hash, outside=outside)


def test_other_content_of_a_file_is_named_once_and_other_rules_with_both_hashes() -> None:
    old = "sha256:" + "0" * 64
    new = "sha256:" + "1" * 64
    before = {
        **saved(),
        **start_record([game("vote", "a", problems=old), game("debate", "b", problems=old)], []),
    }
    now = [game("vote", "c", problems=new), game("debate", "d", problems=new)]
    assert check_compatible(before, Settings(), fork=True, games=now) == [
        "problems=problems.jsonl: its content has changed, from sha256:000000000000… to "
        "sha256:111111111111…"
    ]
    with pytest.raises(SettingsError, match=r"problems=problems\.jsonl: its content has changed"):
        check_compatible(before, Settings(), games=now)

    same_file = [game("vote", "a", problems=old), game("debate", "e", problems=old)]
    line = "debate: its rules, prompts or tools have changed; their hash was b, is e"
    assert check_compatible(before, Settings(), fork=True, games=same_file) == [line]
    with pytest.raises(SettingsError, match=line):
        check_compatible(before, Settings(), games=same_file)
    fewer = [game("vote", "a", problems=old)]
    [line] = check_compatible(before, Settings(), fork=True, games=fewer)
    assert line.endswith("their hash was b, is none")


def test_a_changed_setting_of_the_game_is_not_told_a_second_time_by_its_hash() -> None:
    before = {**saved(HANABI_PRESET="mini"), **start_record([game("mini", "a")], [])}
    notes = check_compatible(before, Settings(), fork=True, games=[game("laptop", "b")])
    assert notes == ["HANABI_PRESET: was mini, is laptop"]


def test_a_record_of_games_or_options_that_cannot_be_read_stops_the_resume() -> None:
    with pytest.raises(RunFolderError, match="games is not from this version"):
        check_compatible({**saved(), "games": {"vote": 1}}, Settings(), games=[])
    with pytest.raises(RunFolderError, match="options is not from this version"):
        check_compatible({**saved(), "options": "--optim sgd"}, Settings(), options=[])


def test_settings_of_before_that_cannot_be_read_stop_the_resume(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="the current settings cannot be compared"):
        read_saved_settings(tmp_path)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(RunFolderError, match="is not a JSON object"):
        read_saved_settings(tmp_path)
    with pytest.raises(SettingsError, match="holds no settings"):
        check_compatible({}, Settings())


def test_the_settings_until_the_resume_are_kept_once_each(tmp_path: Path) -> None:
    assert keep_settings(tmp_path, 9) is None
    for content, step, expected in [(1, 9, 1), (2, 9, 1), (2, 10, 2)]:
        (tmp_path / "settings.json").write_text(f'{{"a": {content}}}')
        copy = keep_settings(tmp_path, step)
        assert copy == tmp_path / f"settings-until-step-{step}.json"
        assert json.loads(copy.read_text()) == {"a": expected}


# Its records


def write_rows(folder: Path, *rows: str) -> None:
    (folder / "metrics.jsonl").write_text("".join(rows))


def test_rows_after_the_checkpoint_and_a_torn_line_are_moved_aside(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    discarded = tmp_path / "metrics.discarded.jsonl"
    write_rows(
        tmp_path,
        '{"step": 1}\n',
        '{"step": 2, "é": 0}\n',
        '{"step": 3}\n',
        '{"note": "x"}\n',
        '{"step": 4, "lo',
    )
    assert cut_records(tmp_path, 2)[0] == 2
    assert metrics.read_text() == '{"step": 1}\n{"step": 2, "é": 0}\n{"note": "x"}\n'
    assert discarded.read_text() == '{"step": 3}\n{"step": 4, "lo\n'
    assert cut_records(tmp_path, 2)[0] == 0
    write_rows(tmp_path, '{"step": 1}\n', '{"step": 2}\n')
    assert cut_records(tmp_path, 0)[0] == 2
    assert metrics.read_text() == ""
    assert discarded.read_text() == '{"step": 3}\n{"step": 4, "lo\n{"step": 1}\n{"step": 2}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "metrics.discarded.jsonl",
        "metrics.jsonl",
    ]


def test_a_kill_between_the_two_files_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = tmp_path / "metrics.jsonl"
    discarded = tmp_path / "metrics.discarded.jsonl"
    write_rows(tmp_path, '{"step": 1}\n', '{"step": 2}\n')
    discarded.write_text('{"step": 9, "to')

    def killed(source: object, target: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            cut_records(tmp_path, 1)
    assert metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    cut_records(tmp_path, 1)
    assert metrics.read_text() == '{"step": 1}\n'
    assert discarded.read_text() == '{"step": 9, "to\n{"step": 2}\n'


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
    discarded = {path.name: path.read_text() for path in (episodes / "discarded").iterdir()}
    assert discarded == {
        "step_000010.jsonl": "a10",
        "step_000020.jsonl": "a20",
        "step_000010.1.jsonl": "b10",
        "step_000020.1.jsonl": "b20",
    }
    assert cut_records(tmp_path / "none", 0) == (0, 0)
