"""Incidents are written, counted, and never end a run themselves."""

import json
import logging
from pathlib import Path

import pytest

from hanabi_grpo.runs.incidents import IncidentLog


def test_an_incident_is_a_line_a_warning_and_a_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = IncidentLog(tmp_path)
    with caplog.at_level(logging.WARNING, logger="hanabi_grpo.runs.incidents"):
        log.record("server_gone", "the games of version 3: connection refused", version=3)
        log.record("server_gone", "again")
    [first, second] = [json.loads(line) for line in (tmp_path / "incidents.jsonl").read_text().splitlines()]
    assert first["kind"] == "server_gone" and first["version"] == 3 and first["time"] > 1e9
    assert second["message"] == "again"
    assert log.counts == {"server_gone": 2}
    assert "server_gone: the games of version 3: connection refused" in caplog.text


def test_a_folder_that_cannot_be_written_loses_the_line_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = IncidentLog(tmp_path / "gone")
    with caplog.at_level(logging.WARNING, logger="hanabi_grpo.runs.incidents"):
        log.record("save_failed", "no space")
    assert log.counts == {"save_failed": 1}
    assert "incidents.jsonl cannot be written (No such file or directory)" in caplog.text
