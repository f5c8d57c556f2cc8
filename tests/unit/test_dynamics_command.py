"""`hanabi-grpo dynamics` and its picture."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.report.charts.dynamics import draw_dynamics

RUNNER = CliRunner()


def rows(num: int, *, collapsed: bool) -> list[dict[str, Any]]:
    rng = random.Random(7)
    found = []
    for step in range(1, num + 1):
        share = min(1.0, step / 40) if collapsed else 0.2
        row = {"step": step, "games": 64.0, "games/laptop": 64.0, "score/laptop": 1.0 + 0.1 * rng.random()}
        for player in ("player_0", "player_1"):
            row[f"{player}/blind_share"] = share
            row[f"{player}/entropy_estimate"] = 0.5 + 0.05 * rng.random()
        found.append(row)
    return found


def write(folder: Path, found: list[dict[str, Any]], tail: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in found)
    (folder / "metrics.jsonl").write_text(text + tail)
    return folder


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_collapsed_run_says_what_happened_when_and_what_to_do(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rows(60, collapsed=True), tail='{"step": 61, "ga')
    answer = RUNNER.invoke(app, ["dynamics", str(run)])
    assert answer.exit_code == 0, answer.output
    lines = answer.output.splitlines()
    assert any(
        line.startswith("step 37: blind_play: player_0: share of moves: play the oldest card is") for line in lines
    )
    row = next(line for line in lines if "blind_play" in line and "player_1" in line and "│" in line)
    assert "since 37" in row
    assert next(line for line in lines if "score_fall" in line).rstrip(" │").endswith("quiet")
    assert lines[-1] == f"picture: {run / 'dynamics.png'}"
    width, height = size(run / "dynamics.png")
    assert width > height > 200


def test_a_healthy_run_has_no_alarm_and_its_picture_goes_where_it_is_asked_for(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rows(60, collapsed=False))
    picture = tmp_path / "new folder" / "picture.png"
    answer = RUNNER.invoke(app, ["dynamics", str(run / "metrics.jsonl"), "--out", str(picture)])
    assert answer.exit_code == 0, answer.output
    assert "No alarm was raised." in answer.output
    assert size(picture)[0] > 200
    assert not (run / "dynamics.png").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "metrics.jsonl: no such file; give the folder of a run."),
        ("", "holds no step"),
        ('{"st', "holds no step"),
        ('{"step": 1, "games": 0.0}\n', "no row has a figure that an alarm watches"),
        ('{"step": 1, "games": 2.0, "player_0/blind_share": null}\n', "no row has a figure that an alarm watches"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text)
    answer = RUNNER.invoke(app, ["dynamics", str(tmp_path)])
    assert answer.exit_code == 2
    assert message in answer.output.replace("\n", " ")


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"p\.png: cannot be written \(File exists\)"):
        draw_dynamics(tmp_path / "file" / "p.png", rows(3, collapsed=False), title="x")


@pytest.mark.parametrize("num", [1, 2, 11])
def test_short_runs_and_five_players_are_drawn(tmp_path: Path, num: int) -> None:
    found = rows(num, collapsed=False)
    for row in found:
        row.update({f"player_{player}/blind_share": 0.1 * player for player in range(5)})
        row.update({f"games/board {number}": 1.0 for number in range(7)})
        row.update({f"score/board {number}": float(number) for number in range(7)})
    draw_dynamics(tmp_path / "p.png", found, title="$x_1$ <b> ünïcode")
    assert size(tmp_path / "p.png")[1] > 200


def test_a_machine_reads_what_a_person_reads(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rows(60, collapsed=True))
    lines = RUNNER.invoke(app, ["dynamics", str(run)]).output.splitlines()
    found = json.loads(RUNNER.invoke(app, ["dynamics", str(run), "--json"]).stdout)
    raised = {(one["alarm"], one["of"]): one for one in found["alarms"] if one["raised_since"] is not None}
    one = raised["blind_play", "player_1"]
    assert one["raised_since"] == 37
    assert one["last_10"] > one["raised_above"]
    assert [f"step {change['step']}: {change['message']}" for change in found["changes"]] == [
        line for line in lines if line.startswith("step ")
    ]
    assert {change["is"] for change in found["changes"]} == {"raised"}
    assert found["picture"] == str(run / "dynamics.png")
    assert found["step"] == 60
