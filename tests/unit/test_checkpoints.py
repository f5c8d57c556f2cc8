"""Checkpoints are whole or found damaged; what of them is played."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hanabi_grpo.errors import RunFolderError, SettingsError
from hanabi_grpo.runs.checkpoints import (
    find_checkpoint,
    recover_checkpoints,
    rotate,
    write_checkpoint,
)
from hanabi_grpo.runs.manifest import check_checkpoint, manifest_sha256, read_manifest
from hanabi_grpo.runs.saved_adapters import read_adapters
from torn_checkpoints import FILES, copy_run, die_at_call, text_of, write


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def edit_manifest(folder: Path, **changes: object) -> None:
    """Change keys of a manifest, with the hash that is then right."""
    path = folder / "manifest.json"
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({**data, "manifest_sha256": manifest_sha256(data)}))


def flip_bit(data: bytes, position: int, bit: int) -> bytes:
    """Return bytes of which one bit is another."""
    changed = bytearray(data)
    changed[position] ^= 1 << bit
    return bytes(changed)


# Writing


def test_a_link_in_the_place_of_a_checkpoint_is_passed_over_and_what_it_points_to_stays(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write(run, 1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = write(elsewhere, 9)
    before = sorted(elsewhere.rglob("*"))
    for name in (
        "checkpoint-9",
        "checkpoint-2",
        ".checkpoint-3.partial",
        ".checkpoint-2.old",
        ".checkpoint-1.removed",
    ):
        (run / name).symlink_to(precious)
    (run / ".checkpoint-4.partial").symlink_to(tmp_path / "nowhere")
    found = find_checkpoint(run)
    assert found.manifest.step == 1
    reason = "is a symbolic link; to resume from its target"
    assert f"{run}/checkpoint-9: {reason}: RESUME={precious}" in found.skipped
    for step in (2, 3, 4):
        write(run, step)
    rotate(run, 1)
    assert names(run) == ["checkpoint-4", "checkpoint-9"]
    assert sorted(elsewhere.rglob("*")) == before
    assert (run / "checkpoint-9").is_symlink()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("bad"), SettingsError("ours")])
def test_an_interrupted_write_leaves_nothing_and_raises_what_happened(
    error: BaseException, tmp_path: Path
) -> None:
    write(tmp_path, 5, "first")

    def fill(partial: Path) -> None:
        (partial / "file").write_text("half")
        raise error

    with pytest.raises(type(error)) as caught:
        write_checkpoint(tmp_path, 5, fill, {}, needed_bytes=0)
    assert caught.value is error
    assert text_of(find_checkpoint(tmp_path)) == "first"
    assert names(tmp_path) == ["checkpoint-5"]


def test_a_checkpoint_is_written_although_the_one_that_it_replaces_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 5, "old")
    remove = shutil.rmtree

    def refuse(folder: Path, *args: Any, **options: Any) -> None:
        # As on NFS while another process reads a file in it.
        if folder.name == ".checkpoint-5.old":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))
        remove(folder, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        write(tmp_path, 5, "new")
    assert text_of(find_checkpoint(tmp_path)) == "new"
    assert ".checkpoint-5.old: cannot be removed" in caplog.text
    rotate(tmp_path, 1)
    assert names(tmp_path) == ["checkpoint-5"]


def test_a_write_that_is_interrupted_between_the_renames_brings_the_old_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 5, "first")
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        if Path(source).name == ".checkpoint-5.partial":
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 5, "second")
    assert text_of(find_checkpoint(tmp_path)) == "first"
    assert names(tmp_path) == ["checkpoint-5"]


@pytest.mark.rest
def test_a_checkpoint_survives_a_kill_at_every_call_that_changes_the_disk(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start = tmp_path / "start"
    start.mkdir()
    for step in (1, 2, 3):
        write(start, step, f"{step} old")

    def work() -> None:
        write(run, 3, "3 new")
        write(run, 4, "4 new")
        rotate(run, 2)

    texts = set()
    number = 1
    copy_run(start, run)
    while die_at_call(number, work):
        text = text_of(find_checkpoint(run))
        texts.add(text)
        recover_checkpoints(run)
        assert text_of(find_checkpoint(run)) == text
        assert all(name.startswith("checkpoint-") for name in names(run))
        for name in names(run):
            check_checkpoint(run / name)
        copy_run(start, run)
        number += 1
    assert names(run) == ["checkpoint-3", "checkpoint-4"]
    assert texts == {"3 old", "3 new", "4 new"}
    assert number > 50


# Damage


def test_a_flipped_bit_anywhere_in_the_manifest_is_found(tmp_path: Path) -> None:
    folder = write(tmp_path, 1, "hello")
    manifest = folder / "manifest.json"
    good = manifest.read_bytes()
    for position in range(len(good)):
        manifest.write_bytes(flip_bit(good, position, position % 8))
        with pytest.raises(RunFolderError, match=r"manifest\.json"):
            check_checkpoint(folder)


STATE = "trainer/state.json"


def flip_a_bit_of_the_state(folder: Path) -> None:
    data = (folder / STATE).read_bytes()
    (folder / STATE).write_bytes(flip_bit(data, len(data) // 2, 0))


def truncate_the_state(folder: Path) -> None:
    os.truncate(folder / STATE, 10)


def remove_the_state(folder: Path) -> None:
    (folder / STATE).unlink()


def put_a_link_in_the_place_of_the_state(folder: Path) -> None:
    (folder / STATE).unlink()
    (folder / STATE).symlink_to("/etc/hostname")


def add_a_file(folder: Path) -> None:
    (folder / "trainer/extra").touch()


def remove_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def write_another_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"step": 1}')


def change_the_step(folder: Path) -> None:
    edit_manifest(folder, step=2)


def change_the_format(folder: Path) -> None:
    edit_manifest(folder, format=2)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip_a_bit_of_the_state, "trainer/state.json has sha256 "),
        (truncate_the_state, "trainer/state.json has 10 bytes, manifest.json says 2030"),
        (remove_the_state, "trainer/state.json is missing"),
        (put_a_link_in_the_place_of_the_state, "trainer/state.json is not a plain file"),
        (add_a_file, "trainer/extra is not listed"),
        (remove_the_manifest, "no manifest.json; it was not written completely"),
        (write_another_manifest, "manifest.json is not from this version"),
        (change_the_step, "its manifest.json is for step 2"),
        (change_the_format, "format: Input should be 1"),
    ],
)
def test_what_is_wrong_with_a_checkpoint_is_named(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, 1)
    damage(folder)
    with pytest.raises(RunFolderError) as caught:
        check_checkpoint(folder)
    assert f"{folder}: " in str(caught.value)
    assert message in str(caught.value)


def test_a_manifest_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, 1)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    outside = ["../x", "/etc/passwd", "//etc/passwd", "a/../../x", "..", "../checkpoint-0/x"]
    odd = ["a/", "./a", "a//b", "", ".", "manifest.json", "a\0b"]
    for name in [*outside, *odd]:
        edit_manifest(folder, files={**files, name: files[FILES[0]]})
        with pytest.raises(RunFolderError, match="is not the name of a file inside the checkpoint"):
            read_manifest(folder)


# Which one is taken


def test_the_newest_valid_one_is_found_and_newer_ones_are_named(tmp_path: Path) -> None:
    for step in (9, 10, 11, 12):
        write(tmp_path, step)
    (tmp_path / "checkpoint-12" / FILES[0]).write_text("x")
    (tmp_path / "checkpoint-11" / "manifest.json").unlink()
    (tmp_path / ".checkpoint-13.partial").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    found = find_checkpoint(tmp_path)
    assert (found.folder.name, found.manifest.step) == ("checkpoint-10", 10)
    assert found.skipped == (
        f"{tmp_path}/.checkpoint-13.partial: was being written when its process ended.",
        f"{tmp_path}/checkpoint-12: {FILES[0]} has 1 bytes, manifest.json says 2031.",
        f"{tmp_path}/checkpoint-11: no manifest.json; it was not written completely, or is not a "
        "checkpoint.",
    )


def test_one_that_was_set_aside_is_found_and_brought_back(tmp_path: Path) -> None:
    write(tmp_path, 5, "first").rename(tmp_path / ".checkpoint-5.old")
    write(tmp_path, 4)
    assert text_of(find_checkpoint(tmp_path)) == "first"
    recover_checkpoints(tmp_path)
    assert names(tmp_path) == ["checkpoint-4", "checkpoint-5"]
    assert text_of(find_checkpoint(tmp_path)) == "first"


def test_one_without_the_needed_folder_is_passed_over(tmp_path: Path) -> None:
    def fill(partial: Path) -> None:
        (partial / "file").touch()

    write(tmp_path, 5)
    write_checkpoint(tmp_path, 6, fill, {}, needed_bytes=0)
    assert find_checkpoint(tmp_path).manifest.step == 6
    found = find_checkpoint(tmp_path, needs="trainer")
    assert found.manifest.step == 5
    assert found.skipped == (f"{tmp_path}/checkpoint-6: is complete but has no trainer/.",)


# Rotation


def test_rotation_keeps_the_newest_and_sweeps_what_killed_processes_left(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        write(tmp_path, step)
    for name in (".checkpoint-9.removed", ".checkpoint-12.partial", ".checkpoint-10.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "metrics.jsonl").touch()
    assert rotate(tmp_path, 2) == (tmp_path / "checkpoint-8", tmp_path / "checkpoint-9")
    assert names(tmp_path) == ["checkpoint-10", "checkpoint-11", "metrics.jsonl"]


def test_rotation_never_removes_the_last_valid_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    for step in (2, 3):
        (tmp_path / f"checkpoint-{step}" / FILES[0]).write_text("x")
    assert rotate(tmp_path, 1) == ()
    assert find_checkpoint(tmp_path).manifest.step == 1
    write(tmp_path, 4)
    assert rotate(tmp_path, 1) == tuple(tmp_path / f"checkpoint-{step}" for step in (1, 2, 3))


def test_what_an_interrupt_saved_besides_changes_none_of_the_checkpoints_that_count(
    tmp_path: Path,
) -> None:
    for step in (20, 30, 40, 50):
        write(tmp_path, step)
        rotate(tmp_path, 3, every=10)
    for step in (53, 56):
        write(tmp_path, step)
        rotate(tmp_path, 3, best=20, every=10)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in (30, 40, 50, 56)]
    write(tmp_path, 60)
    rotate(tmp_path, 3, best=30, every=10)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in (30, 40, 50, 60)]
    rotate(tmp_path, 3, every=10)
    assert names(tmp_path) == [f"checkpoint-{step}" for step in (40, 50, 60)]


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(RunFolderError) as caught:
        write_checkpoint(tmp_path, 7, lambda folder: None, {}, needed_bytes=2 * free)
    needed = 2 * free + 2 * free // 10 + 2**24
    assert "checkpoint-7: needs " in str(caught.value)
    assert f"{needed / 2**20:.0f} MiB of free space" in str(caught.value)
    assert str(caught.value).endswith(
        f" MiB are left. Free space there, then continue with OUTPUT_DIR={tmp_path} "
        "RESUME=latest; a lower SAVE_TOTAL_LIMIT keeps fewer checkpoints."
    )
    assert names(tmp_path) == []


# Adapters of a checkpoint


def save_adapter(folder: Path, name: str, rank: int = 8) -> None:
    """Write the files of an adapter, whose weights are its name."""
    adapter = folder / name
    adapter.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "base_model_name_or_path": "/models/tiny"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "adapter_model.safetensors").write_bytes(name.encode())


def test_a_checkpoint_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such folder"):
        read_adapters(tmp_path / "best")
    save_adapter(tmp_path / "best", "player_0")
    with pytest.raises(SettingsError, match="how many steps"):
        read_adapters(tmp_path / "best")


def saved_checkpoint(run_folder: Path) -> Path:
    def fill(partial: Path) -> None:
        save_adapter(partial, "player_0")
        save_adapter(partial, "player_1")
        (partial / "trainer").mkdir()
        (partial / "trainer" / "moments.safetensors").write_bytes(b"moments")

    return write_checkpoint(run_folder, 60, fill, {}, needed_bytes=0)


def test_adapters_that_are_not_those_of_the_manifest_are_refused(tmp_path: Path) -> None:
    folder = saved_checkpoint(tmp_path)
    weights = folder / "player_0" / "adapter_model.safetensors"
    weights.write_bytes(b"player_1")
    refusal = r"player_0/adapter_model\.safetensors has sha256 .* Use another"
    with pytest.raises(SettingsError, match=refusal):
        read_adapters(folder)
    weights.write_bytes(b"player_0")
    assert read_adapters(folder).step == 60
    config = folder / "player_0" / "adapter_config.json"
    text = config.read_text()
    config.write_text(text.replace("8", "16"))
    with pytest.raises(SettingsError, match=r"player_0/adapter_config\.json has sha256"):
        read_adapters(folder)
    config.write_text(text)
    save_adapter(folder, "player_2")
    with pytest.raises(SettingsError, match=r"player_2/adapter_config\.json is not listed"):
        read_adapters(folder)


def test_a_manifest_that_cannot_be_read_or_is_of_another_step_is_refused(tmp_path: Path) -> None:
    folder = saved_checkpoint(tmp_path)
    moved = folder.rename(tmp_path / "checkpoint-50")
    with pytest.raises(SettingsError, match=r"manifest\.json is for step 60"):
        read_adapters(moved)
    for text in ("{", "[]", "7", '{"format": 1, "files": {}}'):
        (moved / "manifest.json").write_text(text)
        with pytest.raises(SettingsError, match=r"manifest\.json"):
            read_adapters(moved)
