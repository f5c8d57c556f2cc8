"""Checkpoints that lie elsewhere: at W&B, in this disk's offline runs, on the hub; and those that a
run used before.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
from hanabi_grpo.tracking.used_checkpoints import KEY, fetch_used, read_used, recorded_checkpoints
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
    for name in [
        name for name in os.environ if name.startswith(("WANDB_", "CKPT_", "HF_", "OUTPUT_DIR"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def games_of(word: str) -> tuple[Any, list[str]]:
    return read_recordings(recording_files(checkpoints.games_place(Path(word)), None))


def use(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)


def local_folder(word: str) -> Path:
    return checkpoints.local_folder(parse_checkpoint(word).place)


WORD, VERSION = "wandb:team/hanabi/laptop:best", "outputs/downloads/wandb/team/hanabi/laptop/v3"


def made(step: int) -> Path:
    """Write a run elsewhere and return its artifact of a step."""
    run = tracked_run(Path(f"elsewhere-{step}"), steps=step)
    checkpoint = add_checkpoint(run, step)
    return build_artifact(run, checkpoint, read_settings(run / "settings.json"), None)[0]


def test_an_offline_run_is_found_by_name_and_alias_and_the_sync_command_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(
        SettingsError,
        match=r"WANDB_MODE=offline, and no runs .*name the folder of one: RUN/artifacts",
    ):
        local_folder(WORD)
    for name, entity in (("one", "team"), ("two", "other")):
        run = tracked_run(Path("outputs") / name, steps=3, checkpoints=(2, 3))
        record = WandbRecord(id="abcd1234", project="hanabi", entity=entity, mode="offline")
        for step, alias in ((2, "best"), (3, "end")):
            folder, _ = build_artifact(
                run, run / f"checkpoint-{step}", read_settings(run / "settings.json"), None
            )
            place = folder.relative_to(run).as_posix()
            record.add(
                ArtifactRecord(
                    step=step, name="laptop", aliases=[alias], folder=place, mode="offline"
                )
            )
        write_record(run, record)
        (run / "wandb/offline-run-20260101_000000-abcd1234").mkdir(parents=True)
    for alias, step in (("best", 2), ("latest", 3)):
        assert local_folder(f"wandb:team/hanabi/laptop:{alias}") == Path(
            f"outputs/one/artifacts/step_{step}"
        )
    said = capsys.readouterr()
    assert "taken from outputs/one/artifacts/step_2" in said.err and said.out == ""
    assert "wandb sync outputs/one/wandb/offline-run-20260101_000000-abcd1234" in said.err
    for word in ("team/else/laptop:best", "team/hanabi/laptop:none", "nobody/hanabi/laptop:best"):
        with pytest.raises(SettingsError, match="no runs on this disk"):
            local_folder(f"wandb:{word}")
    with pytest.raises(
        SettingsError, match=r"2 runs .* outputs/one/artifacts/step_2, outputs/two/artifacts/step_2"
    ):
        local_folder("wandb:hanabi/laptop:best")


def test_lineups_and_entries_go_on_with_the_local_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    word, folder = "wandb:team/hanabi/laptop:v3", VERSION
    shutil.copytree(made(2), folder)
    lineup = parse_lineup(f"{word}:player_1,iggi", 2)
    assert lineup.words == (f"{folder}:player_1", "iggi")
    assert lineup.text == f"{word}:player_1,iggi", "tables say what was typed"
    first, second = parse_entries([f"ours={word}", "iggi"], LAPTOP)
    assert (first.label, str(first.ref), str(second.ref)) == ("ours", folder, "iggi")


def test_an_artifact_is_downloaded_once_and_a_version_needs_no_network_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = made(2)
    with artifact_store(source, "laptop") as store:
        use(store, monkeypatch)
        place = Path("outputs/downloads/wandb/team/hanabi/laptop/v3")
        assert local_folder("wandb:team/hanabi/laptop:best") == place
        assert dict(read_adapters(place).adapters) == dict(read_adapters(source).adapters)
        fetched = [path for path in store.seen if path.startswith("/files/")]
        assert "/files/player_1/adapter_model.safetensors" in fetched
        store.seen.clear()
        assert (
            str(checkpoints.local_ref(parse_checkpoint("wandb:hanabi/laptop:latest:player_1")))
            == f"{place}:player_1"
        )
        assert store.seen and not any(path.startswith("/files/") for path in store.seen)
        with pytest.raises(
            SettingsError,
            match=r"W&B says: .*laptop:end.* not found.*Downloaded versions are in "
            r"outputs/downloads",
        ):
            local_folder("wandb:team/hanabi/laptop:end")
    assert local_folder("wandb:team/hanabi/laptop:v3") == place
    games, _ = games_of("wandb:team/hanabi/laptop:v3")
    assert {game.source for game in games} == {"step_000002"} and len(games) == 4, (
        "those that went up with it"
    )
    shutil.rmtree(place / "episodes")
    with pytest.raises(SettingsError, match=r"holds no \*\.jsonl files of games"):
        games_of("wandb:team/hanabi/laptop:v3")
    assert [path.name for path in place.parent.iterdir()] == ["v3"]
    (place / "player_0/adapter_config.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"has sha256 .* To fetch it again: rm -r .*laptop/v3"):
        local_folder("wandb:team/hanabi/laptop:v3")


def test_an_artifact_that_is_damaged_or_of_another_type_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = made(2)
    manifest = json.loads((source / "manifest.json").read_text())
    with artifact_store(source, "laptop", kind="dataset") as store:
        use(store, monkeypatch)
        with pytest.raises(SettingsError, match="is of type 'dataset'"):
            local_folder("wandb:team/hanabi/laptop:best")
    (source / "manifest.json").unlink()
    (source / "manifest.json").write_text(json.dumps({**manifest, "step": 7}))
    with artifact_store(source, "laptop") as store:
        use(store, monkeypatch)
        with pytest.raises(
            SettingsError, match=r"wandb:.*manifest.json has sha256|something changed it"
        ):
            local_folder("wandb:team/hanabi/laptop:best")
    assert not list(Path("outputs").rglob("player_0"))


def look_up(word: str, **variables: str) -> str:
    known = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environ = {
        **known,
        "HF_HOME": str(Path("hf").absolute()),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **variables,
    }
    words = [sys.executable, "-c", LOOK_UP, word]
    return subprocess.run(
        words, env=environ, capture_output=True, text=True, check=True
    ).stdout.strip()


def repository(folder: Path) -> Path:
    def fill(partial: Path) -> None:
        (partial / "adapter_config.json").write_text('{"r": 8}')
        (partial / "adapter_model.safetensors").write_bytes(b"player_1")

    folder.mkdir()
    return write_checkpoint(folder, 9, fill, {"adapters": ["player_1"]}, needed_bytes=100)


def test_a_hub_repository_is_a_team_or_one_player_and_is_there_without_a_network_later(
    tmp_path: Path,
) -> None:
    team, damaged = (add_checkpoint(tracked_run(tmp_path / name), 3) for name in ("run", "damaged"))
    (damaged / "player_0/adapter_model.safetensors").write_bytes(b"others")
    plain = repository(tmp_path / "plain")
    (plain / "manifest.json").unlink()
    folders = {
        "org/team": team,
        "org/one": repository(tmp_path / "one"),
        "org/damaged": damaged,
        "org/plain": plain,
    }
    with hub(folders) as store:
        assert "player_0/adapter_model.safetensors has sha256" in look_up(
            "hf:org/damaged", HF_ENDPOINT=store.url
        )
        assert "which player this adapter is, is unknown" in look_up(
            "hf:org/plain", HF_ENDPOINT=store.url
        )
        first = look_up("hf:org/team", HF_ENDPOINT=store.url)
        assert first == "outputs/downloads/hf/org/team/0123456789ab"
        assert list(read_adapters(Path(first)).adapters) == list(PLAYERS)
        assert not any(path.startswith("trainer/") for path in store.given)
        one = look_up("hf:org/one@main", HF_ENDPOINT=store.url)
        assert dict(read_adapters(Path(one)).adapters) == {"player_1": (b"player_1", {"r": 8})}
        assert "no such repository" in look_up("hf:org/none", HF_ENDPOINT=store.url)
        assert "no revision v9" in look_up("hf:org/team@v9", HF_ENDPOINT=store.url)
    assert look_up("hf:org/team:player_0", HF_HUB_OFFLINE="1") == f"{first}:player_0"
    assert "hub does not answer from here" in look_up("hf:org/none", HF_HUB_OFFLINE="1")


def settings_of(**given: Any) -> Settings:
    return Settings(**{"output_dir": Path("run"), "lora_rank": 8, **given})


def keep(used: dict[str, Any]) -> None:
    """Record what was fetched, as `hanabi-grpo train` does."""
    Path("run").mkdir(exist_ok=True)
    Path("run/settings.json").write_text(json.dumps({"settings": {}, KEY: used}))


def test_words_are_fetched_once_and_a_resume_uses_the_same_weights_although_the_alias_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    settings = settings_of(start_from=(WORD,), partners=(f"player_1={WORD}:player_0", "iggi"))
    first, second = made(2), made(3)
    with artifact_store(first, "laptop") as store:
        use(store, monkeypatch)
        used = fetch_used(settings, Path("run"), say=said.append)
        assert sum(path.endswith("player_0/adapter_model.safetensors") for path in store.seen) == 1
    assert said == [f"{WORD}: {VERSION}, step 2"]
    assert json.loads(json.dumps(used)) == used
    assert {key: used[WORD][key] for key in ("folder", "version", "step")} == {
        "folder": VERSION,
        "version": "wandb:team/hanabi/laptop:v3",
        "step": 2,
    }
    keep(used)
    folder, saved = read_used(parse_checkpoint(WORD).place, Path("run"))
    assert (folder, saved.adapters["player_1"][0]) == (Path(VERSION), b"player_1 at 2")
    # Nobody is asked again: the alias may stand for other weights by now.
    with artifact_store(second, "laptop") as store:
        use(store, monkeypatch)
        assert fetch_used(settings, Path("run"), is_resumed=True) == used
        assert fetch_used(settings_of(start_from=(WORD,)), Path("run"), is_resumed=True) == used
        assert store.seen == []
        # The folder is gone: the very version is fetched again, and here that name has other
        # weights.
        shutil.rmtree("outputs")
        with pytest.raises(
            SettingsError,
            match=r"this run used .*laptop/v3 .*laptop:v3 has other weights now.*OUTPUT_DIR",
        ):
            fetch_used(settings, Path("run"))
        shutil.rmtree("outputs")
    with artifact_store(first, "laptop") as store:
        use(store, monkeypatch)
        assert fetch_used(settings, Path("run")) == used
    shutil.rmtree("outputs")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(
        SettingsError,
        match=r"not there as it was, and it cannot be fetched again .*Put that folder back",
    ):
        fetch_used(settings, Path("run"))


def test_a_resumed_run_uses_the_weights_that_were_the_best_of_another_when_it_began() -> None:
    run = tracked_run(Path("outputs/other"), checkpoints=(2, 3))
    rows = [Validated(step=step, score=score, se=0.1) for step, score in ((2, 1.0), (3, 2.0))]
    write_validations(run, rows[:1])
    word = "outputs/other@best"
    settings = settings_of(start_from=(word,), partners=(f"player_1={word}",))
    used = fetch_used(settings, Path("run"))
    assert (used[word]["version"], used[word]["step"]) == ("outputs/other/checkpoint-2", 2)
    keep(used)
    write_validations(run, rows)
    assert fetch_used(settings, Path("run"), is_resumed=True) == used
    folder, saved = read_used(parse_checkpoint(word).place, Path("run"))
    assert (folder, saved.step) == (run / "checkpoint-2", 2)
    shutil.rmtree(run / "checkpoint-2")
    with pytest.raises(
        SettingsError, match=r"this run used outputs/other/checkpoint-2 .*Put that folder back"
    ):
        fetch_used(settings, Path("run"))


def test_the_trainer_reads_what_was_recorded_and_fetches_nothing_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    settings = settings_of(start_from=(WORD,), partners=(WORD,), partner_share=1.0)
    with pytest.raises(
        SettingsError, match=rf"HANABI_START_FROM={WORD}: .*was not fetched for this run"
    ):
        recorded_start(settings, None)
    with pytest.raises(SettingsError, match=rf"HANABI_PARTNERS={WORD}: .*was not fetched"):
        PartnerSeats(settings, Path("run"), lambda *_: "").load({}, "here")
    shutil.copytree(made(2), VERSION)
    keep(fetch_used(settings_of(start_from=("wandb:team/hanabi/laptop:v3",)), Path("run")))
    Path("run/settings.json").write_text(
        Path("run/settings.json").read_text().replace("laptop:v3", "laptop:best")
    )
    assert recorded_start(settings, None)["player_1"] | {"sha256": ""} == {
        "folder": VERSION,
        "adapter": "player_1",
        "step": 2,
        "sha256": "",
    }
    lent: list[tuple[int, bytes]] = []

    def lend(version: int, weights: bytes, _: Mapping[str, Any]) -> str:
        lent.append((version, weights))
        return f"frozen_{len(lent):016x}@{version}"

    PartnerSeats(settings, Path("run"), lend).load({}, "here")
    assert lent == [(2, b"player_0 at 2"), (2, b"player_1 at 2")]


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
        with pytest.raises(SettingsError, match=r"run/settings\.json: which remote checkpoints"):
            recorded_checkpoints(Path("run"))
