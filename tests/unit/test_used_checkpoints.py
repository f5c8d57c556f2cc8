"""Remote words in HANABI_START_FROM and HANABI_PARTNERS: fetched once and recorded."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from doctor_machines import find, only
from hanabi_grpo.commands.doctor import starts
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings, load_settings, read_settings
from hanabi_grpo.settings.partners import parse_pool
from hanabi_grpo.settings.refs import parse_checkpoint
from hanabi_grpo.tracking.artifact import build_artifact
from hanabi_grpo.tracking.checkpoints import pinned
from hanabi_grpo.tracking.used_checkpoints import KEY, fetch_used, read_used, recorded
from hanabi_grpo.training.model.start_from import parse_start, recorded_start
from hanabi_grpo.training.partner_seats import PartnerSeats
from hanabi_grpo.types import player_names
from tracked_runs import add_checkpoint, tracked_run
from wandb_artifacts import Store, artifact_store

WORD, VERSION = "wandb:team/hanabi/laptop:best", "outputs/downloads/wandb/team/hanabi/laptop/v3"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("WANDB_", "CKPT_", "HF_", "OUTPUT_DIR"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def made(step: int) -> Path:
    """Write a run elsewhere and return its artifact of a step."""
    run = tracked_run(Path(f"elsewhere-{step}"), steps=step)
    checkpoint = add_checkpoint(run, step)
    return build_artifact(run, checkpoint, read_settings(run / "settings.json"), None)[0]


@contextmanager
def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with artifact_store(folder, "laptop") as store:
        for name, value in store.environ.items():
            monkeypatch.setenv(name, value)
        yield store


def settings_of(**given: Any) -> Settings:
    return Settings(**{"output_dir": Path("run"), "lora_rank": 8, **given})


def keep(used: dict[str, Any]) -> None:
    """Record what was fetched, as `hanabi-grpo train` does."""
    Path("run").mkdir(exist_ok=True)
    Path("run/settings.json").write_text(json.dumps({"settings": {}, KEY: used}))


def test_a_remote_word_is_a_partner_and_a_start_with_its_colons() -> None:
    for entry, name, seat, folder, adapter in (
        (WORD, "laptop.best", None, WORD, None),
        (f"player_1={WORD}:player_0", "laptop.best.player_0", 1, WORD, "player_0"),
        ("hf:org/repo@refs/pr/1", "repo.refs.pr.1", None, "hf:org/repo@refs/pr/1", None),
        ("hf:org/repo:shared", "repo.shared", None, "hf:org/repo", "shared"),
        ("./here:player_1", "here.player_1", None, "here", "player_1"),
    ):
        [partner] = parse_pool([entry], 2)
        assert (partner.name, partner.seat, str(partner.place), partner.adapter) == (name, seat, folder, adapter)
        at = parse_start([entry], player_names(2))[f"player_{seat or 0}"]
        assert (at[0], str(at[1].place), at[1].adapter) == (entry, folder, adapter)
        assert load_settings({"HANABI_PARTNERS": entry}, dotenv=Path("none.env")).settings.partners == (entry,)


def test_words_are_fetched_once_and_a_resume_uses_the_same_weights_although_the_alias_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    settings = settings_of(start_from=(WORD,), partners=(f"player_1={WORD}:player_0", "iggi"))
    first, second = made(2), made(3)
    with served(first, monkeypatch) as store:
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
    with served(second, monkeypatch) as store:
        assert fetch_used(settings, Path("run"), is_resumed=True) == used
        assert fetch_used(settings_of(start_from=(WORD,)), Path("run"), is_resumed=True) == used
        assert store.seen == []
        # The folder is gone: the very version is fetched again, and here that name has other weights.
        shutil.rmtree("outputs")
        with pytest.raises(
            SettingsError, match=r"this run used .*laptop/v3 .*laptop:v3 has other weights now.*OUTPUT_DIR"
        ):
            fetch_used(settings, Path("run"))
        shutil.rmtree("outputs")
    with served(first, monkeypatch):
        assert fetch_used(settings, Path("run")) == used
    shutil.rmtree("outputs")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(
        SettingsError, match=r"not there as it was, and it cannot be fetched again .*Put that folder back"
    ):
        fetch_used(settings, Path("run"))


def test_the_trainer_reads_what_was_recorded_and_fetches_nothing_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    settings = settings_of(start_from=(WORD,), partners=(WORD,), partner_share=1.0)
    with pytest.raises(SettingsError, match=rf"HANABI_START_FROM={WORD}: .*was not fetched for this run"):
        recorded_start(settings, None)
    with pytest.raises(SettingsError, match=rf"HANABI_PARTNERS={WORD}: .*was not fetched"):
        PartnerSeats(settings, Path("run"), lambda *_: "").load({}, "here")
    shutil.copytree(made(2), VERSION)
    keep(fetch_used(settings_of(start_from=("wandb:team/hanabi/laptop:v3",)), Path("run")))
    Path("run/settings.json").write_text(Path("run/settings.json").read_text().replace("laptop:v3", "laptop:best"))
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
    assert recorded(Path("run")) == recorded(None) == {}
    for text in ("{", "[]", '{"remote_checkpoints": {"hf:a/b": {"folder": 3}}}', '{"remote_checkpoints": 1}'):
        Path("run/settings.json").write_text(text)
        with pytest.raises(SettingsError, match=r"run/settings\.json: which remote checkpoints"):
            recorded(Path("run"))


def test_the_doctor_fetches_what_the_trainer_will_read(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"LORA_RANK": 8, "OUTPUT_DIR": "run", "MODEL": "no/model"}
    with served(made(2), monkeypatch) as store:
        checks = find(starts.start_checks, HANABI_START_FROM=WORD, **given)
        assert [(check.status, check.finding) for check in checks] == [
            ("ok", f"{name} from {name} of {VERSION}, step 2") for name in player_names(2)
        ]
        check = only(find(starts.partner_checks, HANABI_PARTNERS=f"{WORD}:player_4", **given))
        assert check.status == "fail" and "no adapter player_4 in it; it has player_0, player_1" in check.finding
        check = find(starts.start_checks, HANABI_START_FROM=WORD, **{**given, "LORA_RANK": 16})[0]
        assert check.status == "fail" and "LORA_RANK was 8 there and is 16 here" in check.finding
        check = only(find(starts.partner_checks, HANABI_PARTNERS="wandb:team/hanabi/laptop:gone", **given))
        assert check.status == "fail" and "laptop:gone" in check.finding and "wandb login" in check.remedy
        assert not Path("run").exists()
        keep(fetch_used(settings_of(partners=(WORD,)), Path("run")))
        store.seen.clear()
        given |= {"RESUME": "latest"}
        check = only(find(starts.partner_checks, HANABI_PARTNERS=WORD, **given))
        assert check.status == "ok" and check.finding == f"{WORD}: {VERSION}, step 2, adapters player_0, player_1"
        assert store.seen == [], "what the run used before is here"


def test_the_version_behind_a_word_that_moves_is_named() -> None:
    for word, folder, version in (
        ("wandb:hanabi/laptop:best", "outputs/downloads/wandb/-/hanabi/laptop/v3", "wandb:hanabi/laptop:v3"),
        ("wandb:hanabi/laptop:best", "outputs/one/artifacts/step_2", "wandb:hanabi/laptop:best"),
        ("hf:org/repo@main", "cache/snapshots/0123", "hf:org/repo@0123"),
    ):
        assert str(pinned(parse_checkpoint(word).place, Path(folder))) == version
