"""W&B's bad days, with its real library and a stand-in for its service: who is refused, and who trains on."""

import json
import logging
import os
import socket
from pathlib import Path

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.tracking import mirror
from hanabi_grpo.tracking.mirror import Mirror
from tracked_runs import SECRET, add_checkpoint, add_row, tracked_run
from wandb_backend import KEY, Backend, backend, wait_until
from wandb_files import artifacts, offline_records


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "4")
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "4")
    monkeypatch.setattr(mirror, "MARGIN_SECONDS", 2.0)


def use(service: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def has_ended(started: Mirror) -> bool:
    """Tell whether the mirror and W&B's own process, which is in its group, are gone."""
    try:
        os.killpg(started._process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def files_with(folder: Path, secret: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param("401", "error 401", id="wrong-key"),
        pytest.param("no", "permission denied", id="errors-with-status-200"),
    ],
)
def test_what_the_service_refuses_ends_the_run_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, reason: str
) -> None:
    run = tracked_run(tmp_path / "run", games=False, WANDB_PROJECT="hanabi", WANDB_ENTITY="team")
    with backend(answer) as service:
        use(service, monkeypatch)
        with pytest.raises(SettingsError, match=rf"WANDB_PROJECT='hanabi' WANDB_ENTITY='team': W&B refuses .*{reason}"):
            Mirror(run, 0)
    assert not (run / "wandb.json").exists()


def test_without_a_key_the_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tracked_run(tmp_path / "run", games=False)
    # Keys of whoever runs this test lie in their home.
    monkeypatch.setenv("HOME", str(tmp_path))
    with backend("good") as service:
        monkeypatch.setenv("WANDB_BASE_URL", service.environ["WANDB_BASE_URL"])
        with pytest.raises(SettingsError, match="REPORT_TO=none"):
            Mirror(run, 0)
    assert service.seen == []


def test_a_service_that_is_away_at_the_start_leaves_an_offline_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=3, games=False)
    # Nothing is waited for in vain here; the pictures of the run are drawn meanwhile.
    monkeypatch.setattr(mirror, "MARGIN_SECONDS", 120.0)
    with backend("500") as service, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        use(service, monkeypatch)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with caplog.at_level(logging.INFO):
            started = Mirror(run, 0)
            add_row(run, 4)
            add_checkpoint(run, 4)
            started.close(0)
    assert len(warnings(caplog)) == 1
    assert "does not answer" in warnings(caplog)[0] and f"hanabi-grpo upload {run}" in warnings(caplog)[0]
    [made] = {one.name for one in artifacts(offline_records(run)) if one.kind == "model"}
    assert made == "run-adapters"
    assert ".venv/bin/wandb sync " in caplog.messages[-1]
    assert has_ended(started)


def test_a_service_that_fails_during_training_is_reported_once_and_waited_for_in_vain_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", steps=2)
    monkeypatch.setenv("HANABI_API_KEY", SECRET)
    with backend("good") as service:
        use(service, monkeypatch)
        started = Mirror(run, 0)
        assert wait_until(lambda: any(b"score/mean" in body for body in service.bodies), 60)
        assert not warnings(caplog)
        service.mode = "hang"
        for step in range(3, 6):
            add_row(run, step)
            started.check()
        add_checkpoint(run, 5)
        started.close(0)
        bodies = b"".join(service.bodies)
    said = warnings(caplog)
    assert said[-1] == f"W&B: not everything was sent (see {run}/wandb.log). Later: hanabi-grpo upload {run}"
    assert len(said) <= 2, said
    assert has_ended(started)
    assert SECRET.encode() not in bodies and KEY.encode() not in bodies
    assert files_with(run, KEY) == [] and files_with(run, SECRET) == []
    assert json.loads((run / "wandb.json").read_text())["mode"] == "online"


def test_a_mirror_that_dies_is_reported_when_training_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracked_run(tmp_path / "run", games=False, WANDB_MODE="offline")
    started = Mirror(run, 0)
    started._process.kill()
    started._process.wait()
    started.check()
    started.close(0)
    assert warnings(caplog)[-1].startswith("W&B: not everything was sent")
    assert has_ended(started)
