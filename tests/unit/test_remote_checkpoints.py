"""Checkpoints that lie elsewhere: at W&B, in offline runs, on the hub; and those used before."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from hanabi_grpo.client.lineups import parse_lineup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.crossplay.plan import parse_entries
from hanabi_grpo.rollout.recordings import read_recordings, recording_files
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.saved_adapters import read_adapters
from hanabi_grpo.runs.validation import Validated, write_validations
from hanabi_grpo.settings import Settings, read_settings
from hanabi_grpo.settings.refs import parse_checkpoint
from hanabi_grpo.tracking import checkpoints
from hanabi_grpo.tracking.artifact import build_artifact
from hanabi_grpo.tracking.record import ArtifactRecord, WandbRecord, write_record
from hanabi_grpo.tracking.used_checkpoints import (
    KEY,
    check_local,
    fetch_used,
    read_used,
    recorded_checkpoints,
)
from hanabi_grpo.training.model.start_from import recorded_start
from hanabi_grpo.training.partner_seats import PartnerSeats
from hub_store import hub
from tracked_runs import PLAYERS, add_checkpoint, tracked_run
from training_runs import LAPTOP
from wandb_backend import artifact_store

LOOK_UP = """
import sys
from hanabi_grpo.errors import HanabiGrpoError
from hanabi_grpo.settings.refs import parse_checkpoint
from hanabi_grpo.tracking.checkpoints import local_ref
try:
    print(local_ref(parse_checkpoint(sys.argv[1])))
except HanabiGrpoError as error:
    print("refused:", error)
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("WANDB_", "CKPT_", "HF_", "OUTPUT_DIR")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def games_of(reference: str) -> tuple[Any, list[str]]:
    """The recorded games behind a reference."""
    folder = checkpoints.games_place(Path(reference))
    return read_recordings(recording_files(folder, None))


def use_service(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)


def local_folder(reference: str) -> Path:
    return checkpoints.local_folder(parse_checkpoint(reference).place)


BEST = "wandb:team/hanabi/laptop:best"
"""A reference that moves."""
V3_FOLDER = "outputs/downloads/wandb/team/hanabi/laptop/v3"
"""Where the version that it stands for is downloaded."""


def make_artifact(step: int) -> Path:
    """Write a run elsewhere and return its artifact of a step."""
    run = tracked_run(Path(f"elsewhere-{step}"), steps=step)
    checkpoint = add_checkpoint(run, step)
    folder, _ = build_artifact(run, checkpoint, read_settings(run / "settings.json"), None)
    return folder


def add_offline_run(name: str, entity: str) -> None:
    """Write a run whose artifacts of steps 2 and 3 were recorded on this disk."""
    run = tracked_run(Path("outputs") / name, steps=3, checkpoints=(2, 3))
    settings = read_settings(run / "settings.json")
    record = WandbRecord(id="abcd1234", project="hanabi", entity=entity, mode="offline")
    for step, alias in ((2, "best"), (3, "end")):
        folder, _ = build_artifact(run, run / f"checkpoint-{step}", settings, None)
        record.add(
            ArtifactRecord(
                step=step,
                name="laptop",
                aliases=[alias],
                folder=folder.relative_to(run).as_posix(),
                mode="offline",
            )
        )
    write_record(run, record)
    (run / "wandb/offline-run-20260101_000000-abcd1234").mkdir(parents=True)


def test_an_offline_run_is_found_by_name_and_alias_and_the_sync_command_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(
        SettingsError,
        match=r"WANDB_MODE=offline, and no runs .*use the folder of one: RUN/artifacts",
    ):
        local_folder(BEST)
    add_offline_run("one", "team")
    add_offline_run("two", "other")
    artifacts = Path("outputs/one/artifacts")
    assert local_folder("wandb:team/hanabi/laptop:best") == artifacts / "step_2"
    assert local_folder("wandb:team/hanabi/laptop:latest") == artifacts / "step_3"
    printed = capsys.readouterr()
    assert "using outputs/one/artifacts/step_2" in printed.err
    assert "wandb sync outputs/one/wandb/offline-run-20260101_000000-abcd1234" in printed.err
    assert printed.out == ""
    for path in ("team/else/laptop:best", "team/hanabi/laptop:none", "nobody/hanabi/laptop:best"):
        with pytest.raises(SettingsError, match="no runs on this disk"):
            local_folder(f"wandb:{path}")
    with pytest.raises(
        SettingsError, match=r"2 runs .* outputs/one/artifacts/step_2, outputs/two/artifacts/step_2"
    ):
        local_folder("wandb:hanabi/laptop:best")


def test_lineups_and_entries_go_on_with_the_local_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    reference = "wandb:team/hanabi/laptop:v3"
    shutil.copytree(make_artifact(2), V3_FOLDER)
    lineup = parse_lineup(f"{reference}:player_1,iggi", 2)
    assert lineup.specs == (f"{V3_FOLDER}:player_1", "iggi")
    assert lineup.text == f"{reference}:player_1,iggi", "tables say what was typed"
    first, second = parse_entries([f"ours={reference}", "iggi"], LAPTOP)
    assert first.label == "ours"
    assert str(first.ref) == V3_FOLDER
    assert str(second.ref) == "iggi"


@pytest.mark.rest
def test_an_artifact_is_downloaded_once_and_a_version_needs_no_network_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make_artifact(2)
    folder = Path(V3_FOLDER)
    with artifact_store(source, "laptop") as store:
        use_service(store, monkeypatch)
        assert local_folder(BEST) == folder
        assert dict(read_adapters(folder).adapters) == dict(read_adapters(source).adapters)
        assert "/files/player_1/adapter_model.safetensors" in store.seen
        store.seen.clear()
        again = checkpoints.local_ref(parse_checkpoint("wandb:hanabi/laptop:latest:player_1"))
        assert str(again) == f"{folder}:player_1"
        assert store.seen, "the alias may have moved"
        assert not any(path.startswith("/files/") for path in store.seen)
        with pytest.raises(
            SettingsError,
            match=r"W&B reports: .*laptop:end.* not found.*Downloaded versions are in "
            r"outputs/downloads",
        ):
            local_folder("wandb:team/hanabi/laptop:end")
    assert local_folder("wandb:team/hanabi/laptop:v3") == folder
    assert [path.name for path in folder.parent.iterdir()] == ["v3"]


def test_the_process_that_downloads_for_wandb_is_given_no_secret_of_somebody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import wandb

    tear_down = wandb.teardown
    # Other tests' servers may be children of this process as well.
    others = {process.pid for process in psutil.Process().children(recursive=True)}
    environs: list[bytes] = []

    def look_and_tear_down() -> None:
        for process in psutil.Process().children(recursive=True):
            if process.pid not in others:
                environs.append(Path(f"/proc/{process.pid}/environ").read_bytes())
        tear_down()

    monkeypatch.setattr(wandb, "teardown", look_and_tear_down)
    canaries = ("HANABI_API_KEY", "HANABI_PARTNER_KEY", "HF_TOKEN", "OPENAI_API_KEY")
    for name in canaries:
        monkeypatch.setenv(name, "canary-of-somebody-else")
    with artifact_store(make_artifact(2), "laptop") as store:
        use_service(store, monkeypatch)
        local_folder(BEST)
    assert environs, "W&B's own process"
    for environ in environs:
        assert b"WANDB_API_KEY=" in environ
        assert b"canary" not in environ
    assert all(os.environ[name] == "canary-of-somebody-else" for name in canaries)


def test_a_downloaded_artifact_has_the_games_that_went_up_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with artifact_store(make_artifact(2), "laptop") as store:
        use_service(store, monkeypatch)
        local_folder(BEST)
    games, _ = games_of("wandb:team/hanabi/laptop:v3")
    assert [game.source for game in games] == ["step_000002"] * 4
    shutil.rmtree(f"{V3_FOLDER}/episodes")
    with pytest.raises(SettingsError, match=r"contains no \*\.jsonl files of games"):
        games_of("wandb:team/hanabi/laptop:v3")


def test_a_downloaded_artifact_that_was_changed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with artifact_store(make_artifact(2), "laptop") as store:
        use_service(store, monkeypatch)
        folder = local_folder(BEST)
    (folder / "player_0/adapter_config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"has sha256 .* To fetch it again: rm -r .*laptop/v3"):
        local_folder("wandb:team/hanabi/laptop:v3")


def test_an_artifact_that_is_damaged_or_of_another_type_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = make_artifact(2)
    manifest = json.loads((source / "manifest.json").read_text())
    with artifact_store(source, "laptop", kind="dataset") as store:
        use_service(store, monkeypatch)
        with pytest.raises(SettingsError, match="has type 'dataset'"):
            local_folder("wandb:team/hanabi/laptop:best")
    (source / "manifest.json").unlink()
    (source / "manifest.json").write_text(json.dumps({**manifest, "step": 7}))
    with artifact_store(source, "laptop") as store:
        use_service(store, monkeypatch)
        with pytest.raises(
            SettingsError, match=r"wandb:.*manifest.json has sha256|something changed it"
        ):
            local_folder("wandb:team/hanabi/laptop:best")
    assert not list(Path("outputs").rglob("player_0"))


def look_up(reference: str, **variables: str) -> str:
    """The local folder of a reference, or why it is refused, in a process of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ["HF_HOME"] = str(Path("hf").absolute())
    environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    environ.update(variables)
    command = [sys.executable, "-c", LOOK_UP, reference]
    process = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return process.stdout.strip()


def make_repository(folder: Path) -> Path:
    """Write a checkpoint of player 1 alone."""

    def fill(partial: Path) -> None:
        (partial / "adapter_config.json").write_text('{"r": 8}')
        (partial / "adapter_model.safetensors").write_bytes(b"player_1")

    folder.mkdir()
    return write_checkpoint(folder, 9, fill, {"adapters": ["player_1"]}, needed_bytes=100)


@pytest.mark.rest
def test_a_hub_repository_is_a_team_or_one_player_and_is_there_without_a_network_later(
    tmp_path: Path,
) -> None:
    team = add_checkpoint(tracked_run(tmp_path / "run"), 3)
    damaged = add_checkpoint(tracked_run(tmp_path / "damaged"), 3)
    (damaged / "player_0/adapter_model.safetensors").write_bytes(b"others")
    plain = make_repository(tmp_path / "plain")
    (plain / "manifest.json").unlink()
    folders = {
        "org/team": team,
        "org/one": make_repository(tmp_path / "one"),
        "org/damaged": damaged,
        "org/plain": plain,
    }
    with hub(folders) as store:

        def look_up_online(reference: str) -> str:
            return look_up(reference, HF_ENDPOINT=store.url)

        changed = "player_0/adapter_model.safetensors has sha256"
        assert changed in look_up_online("hf:org/damaged")
        assert "cannot tell which player this adapter belongs to" in look_up_online("hf:org/plain")
        team_folder = look_up_online("hf:org/team")
        assert team_folder == "outputs/downloads/hf/org/team/0123456789ab"
        assert list(read_adapters(Path(team_folder)).adapters) == list(PLAYERS)
        assert not any(path.startswith("trainer/") for path in store.given)
        one = read_adapters(Path(look_up_online("hf:org/one@main")))
        assert dict(one.adapters) == {"player_1": (b"player_1", {"r": 8})}
        assert "no such repository" in look_up_online("hf:org/none")
        assert "no revision v9" in look_up_online("hf:org/team@v9")
    assert look_up("hf:org/team:player_0", HF_HUB_OFFLINE="1") == f"{team_folder}:player_0"
    assert "the hub cannot be reached" in look_up("hf:org/none", HF_HUB_OFFLINE="1")


def settings_of(**fields: Any) -> Settings:
    return Settings(output_dir=Path("run"), lora_rank=8, **fields)


def record_used(used: dict[str, Any]) -> None:
    """Record what was fetched, as `hanabi-grpo train` does."""
    Path("run").mkdir(exist_ok=True)
    Path("run/settings.json").write_text(json.dumps({"settings": {}, KEY: used}))


def test_references_are_fetched_once_and_a_resume_uses_the_same_weights_although_the_alias_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[str] = []
    settings = settings_of(start_from=(BEST,), partners=(f"player_1={BEST}:player_0", "iggi"))
    first = make_artifact(2)
    second = make_artifact(3)
    with artifact_store(first, "laptop") as store:
        use_service(store, monkeypatch)
        used = fetch_used(settings, Path("run"), say=printed.append)
        assert sum(path.endswith("player_0/adapter_model.safetensors") for path in store.seen) == 1
    assert printed == [f"{BEST}: {V3_FOLDER}, step 2"]
    assert json.loads(json.dumps(used)) == used
    assert used[BEST]["folder"] == V3_FOLDER
    assert used[BEST]["version"] == "wandb:team/hanabi/laptop:v3"
    assert used[BEST]["step"] == 2
    record_used(used)
    folder, saved = read_used(parse_checkpoint(BEST).place, Path("run"))
    weights, _ = saved.adapters["player_1"]
    assert folder == Path(V3_FOLDER)
    assert weights == b"player_1 at 2"
    # The service is not asked again: the alias may stand for other weights by now.
    with artifact_store(second, "laptop") as store:
        use_service(store, monkeypatch)
        assert fetch_used(settings, Path("run"), is_resumed=True) == used
        assert fetch_used(settings_of(start_from=(BEST,)), Path("run"), is_resumed=True) == used
        assert store.seen == []
        # The folder is gone: the very version is fetched again, and here that name has other
        # weights.
        shutil.rmtree("outputs")
        with pytest.raises(
            SettingsError,
            match=r"this run used .*laptop/v3 .*laptop:v3 now has different weights.*OUTPUT_DIR",
        ):
            fetch_used(settings, Path("run"))
        shutil.rmtree("outputs")
    with artifact_store(first, "laptop") as store:
        use_service(store, monkeypatch)
        assert fetch_used(settings, Path("run")) == used
    shutil.rmtree("outputs")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(
        SettingsError,
        match=r"is missing or has changed, and it cannot be fetched again .*Put that folder back",
    ):
        fetch_used(settings, Path("run"))


def test_a_resumed_run_uses_the_weights_that_were_the_best_of_another_when_it_began() -> None:
    run = tracked_run(Path("outputs/other"), checkpoints=(2, 3))
    first = Validated(step=2, score=1.0, se=0.1)
    better = Validated(step=3, score=2.0, se=0.1)
    write_validations(run, [first])
    reference = "outputs/other@best"
    settings = settings_of(start_from=(reference,), partners=(f"player_1={reference}",))
    used = fetch_used(settings, Path("run"))
    assert used[reference]["version"] == "outputs/other/checkpoint-2"
    assert used[reference]["step"] == 2
    record_used(used)
    write_validations(run, [first, better])
    assert fetch_used(settings, Path("run"), is_resumed=True) == used
    folder, saved = read_used(parse_checkpoint(reference).place, Path("run"))
    assert folder == run / "checkpoint-2"
    assert saved.step == 2
    shutil.rmtree(run / "checkpoint-2")
    with pytest.raises(
        SettingsError, match=r"this run used outputs/other/checkpoint-2 .*Put that folder back"
    ):
        fetch_used(settings, Path("run"))


def test_a_run_stands_for_the_checkpoint_that_was_its_newest_when_the_run_that_uses_it_began() -> (
    None
):
    run = tracked_run(Path("outputs/other"), checkpoints=(2,))
    settings = settings_of(
        start_from=("outputs/other",),
        partners=("player_1=outputs/other*2", "outputs/other/checkpoint-2", "iggi"),
    )
    printed: list[str] = []
    opponents = [parse_checkpoint("outputs/other").place]
    used = fetch_used(settings, Path("run"), opponents=opponents, say=printed.append)
    assert printed == ["outputs/other: outputs/other/checkpoint-2, step 2"]
    assert list(used) == ["outputs/other"]
    record_used(used)
    # The other run goes on training.
    add_checkpoint(run, 3)
    assert fetch_used(settings, Path("run"), is_resumed=True) == used
    folder, saved = read_used(Path("outputs/other"), Path("run"))
    assert (folder, saved.step) == (run / "checkpoint-2", 2)
    assert read_used(Path("outputs/other"), None)[1].step == 3
    # It has removed what was its newest one.
    shutil.rmtree(run / "checkpoint-2")
    with pytest.raises(SettingsError, match=r"^HANABI_PARTNERS=outputs/other/checkpoint-2: "):
        fetch_used(settings, Path("run"), is_resumed=True)
    settings = settings_of(partners=("player_1=outputs/other*2", "iggi"))
    printed.clear()
    now = fetch_used(settings, Path("run"), is_resumed=True, say=printed.append)
    assert printed == [
        "outputs/other: this run used outputs/other/checkpoint-2 (step 2), which is missing or "
        "has changed; the newest checkpoint is used instead",
        "outputs/other: outputs/other/checkpoint-3, step 3",
    ]
    assert now["outputs/other"]["step"] == 3


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ("HANABI_START_FROM=player_1=outputs/none", {"start_from": ("player_1=outputs/none",)}),
        ("HANABI_PARTNERS=outputs/none", {"partners": ("iggi", "player_1=outputs/none*2")}),
        ("HANABI_TEACHER=outputs/none", {"teacher": ("outputs/none",)}),
        ("HANABI_EVAL_LINEUPS=served,outputs/none", {"eval_lineups": "served,outputs/none"}),
    ],
)
def test_a_local_checkpoint_that_is_missing_is_refused_with_its_setting(
    setting: str, fields: dict[str, Any]
) -> None:
    tracked_run(Path("outputs/other"), checkpoints=(2,))
    settings = settings_of(**fields)
    opponents = []
    if "eval_lineups" in fields:
        opponents = [parse_checkpoint("outputs/none").place]
    reason = f"{setting}: outputs/none: no such folder; give a run, or its checkpoint-N."
    for check in (fetch_used, check_local):
        with pytest.raises(SettingsError) as caught:
            check(settings, Path("run"), opponents=opponents)
        assert str(caught.value) == reason


def test_local_checkpoints_are_checked_without_a_download_and_without_a_record() -> None:
    run = tracked_run(Path("outputs/other"), checkpoints=(2,))
    settings = settings_of(
        start_from=("outputs/other",),
        partners=("outputs/other/checkpoint-2", "hf:nobody/none", "wandb:none/none:best", "iggi"),
    )
    places = ["outputs/other/checkpoint-2", "outputs/other"]
    assert check_local(settings, None) == places
    assert check_local(settings, None, is_resumed=True) == places[:1]
    (run / "checkpoint-2" / "player_0" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(
        SettingsError, match=r"^HANABI_PARTNERS=outputs/other/checkpoint-2: .* has sha256"
    ):
        check_local(settings, None)
    with pytest.raises(SettingsError, match=r"outputs/none@best: no such folder; give a run\."):
        check_local(settings_of(partners=("outputs/none@best",)), None)


def test_the_trainer_reads_what_was_recorded_and_fetches_nothing_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    settings = settings_of(start_from=(BEST,), partners=(BEST,), partner_share=1.0)
    with pytest.raises(
        SettingsError, match=rf"HANABI_START_FROM={BEST}: .*was not fetched for this run"
    ):
        recorded_start(settings, None)
    with pytest.raises(SettingsError, match=rf"HANABI_PARTNERS={BEST}: .*was not fetched"):
        PartnerSeats(settings, Path("run"), lambda *_: "").load({}, "here")
    shutil.copytree(make_artifact(2), V3_FOLDER)
    pinned = settings_of(start_from=("wandb:team/hanabi/laptop:v3",))
    record_used(fetch_used(pinned, Path("run")))
    record = Path("run/settings.json")
    record.write_text(record.read_text().replace("laptop:v3", "laptop:best"))
    start = recorded_start(settings, None)["player_1"]
    assert {**start, "sha256": ""} == {
        "folder": V3_FOLDER,
        "adapter": "player_1",
        "step": 2,
        "sha256": "",
    }
    uploads: list[tuple[int, bytes]] = []

    def upload(version: int, weights: bytes, _: Mapping[str, Any]) -> str:
        uploads.append((version, weights))
        return f"frozen_{len(uploads):016x}@{version}"

    PartnerSeats(settings, Path("run"), upload).load({}, "here")
    assert uploads == [(2, b"player_0 at 2"), (2, b"player_1 at 2")]


def test_a_damaged_record_stops_the_run_and_a_missing_one_is_empty() -> None:
    Path("run").mkdir()
    assert recorded_checkpoints(Path("run")) == recorded_checkpoints(None) == {}
    for text in (
        "{",
        "[]",
        '{"remote_checkpoints": {"hf:a/b": {"folder": 3}}}',
        '{"remote_checkpoints": 1}',
    ):
        Path("run/settings.json").write_text(text)
        problem = r"run/settings\.json: the record of the checkpoints"
        with pytest.raises(SettingsError, match=problem):
            recorded_checkpoints(Path("run"))
