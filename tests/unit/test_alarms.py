"""Alarms over made-up histories: raised once, ended once, quiet on noise, replayed by a resume."""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState

from hanabi_grpo.envs.alarms import WARM_UP, WINDOW, Alarm
from hanabi_grpo.runs.alarms import AlarmWatch, alarms_of
from hanabi_grpo.runs.history import read_history
from hanabi_grpo.settings import Settings
from hanabi_grpo.tracking.callback import TrackingCallback

ALARMS = alarms_of({"HANABI_ENV": "hanabi"})
PLAYERS = ("player_0", "player_1")
HEALTHY_TEAM = {
    "score/normalized": 0.4,
    "score/laptop": 1.6,
    "over_blind/laptop": 1.4,
    "kl": 0.1,
    "clip_ratio/region_mean": 0.05,
    "flat_group_share": 0.15,
    "late/length_effect": 0.1,
    "share/play": 0.35,
    "share/hint": 0.45,
    "hint_bits": 0.25,
    "illegal_mass": 0.005,
}
HEALTHY_PLAYER = {
    "blind_share": 0.2,
    "entropy_estimate": 0.4,
    "top_move_share": 0.3,
    "bad_reply_share": 0.05,
    "tokens_per_reply": 3.0,
    "cut_share": 0.01,
}
HEALTHY = dict(HEALTHY_TEAM)
"""Metrics of a step that raise no alarm."""
for _player in PLAYERS:
    for _name, _value in HEALTHY_PLAYER.items():
        HEALTHY[f"{_player}/{_name}"] = _value
BAD = {
    "score_fall": 0.4,
    "below_blind": -0.5,
    "blind_play": 0.95,
    "entropy": 0.002,
    "entropy_fall": 0.02,
    "entropy_rise": 1.2,
    "no_plays": 0.0,
    "no_hints": 0.0,
    "one_move": 0.99,
    "hints_silent": 0.0,
    "format": 0.6,
    "other_replies": 0.2,
    "length_rise": 9.0,
    "length_fall": 1.2,
    "cut": 0.5,
    "kl": 3.0,
    "clip": 0.6,
    "flat_groups": 1.0,
    "late_games": 0.8,
}
"""Per alarm a value of its figure that raises it."""


def healthy_row(step: int) -> dict[str, Any]:
    return {"step": step, "games": 128.0, "games/laptop": 128.0, **HEALTHY}


def noisy_row(step: int, generator: random.Random) -> dict[str, Any]:
    """Return a healthy row whose metrics vary by 30 %."""
    row = healthy_row(step)
    for name in HEALTHY:
        row[name] = max(0.0, row[name] * (1 + 0.3 * generator.gauss(0, 1)))
    return row


def metric_of(alarm: Alarm, player: str = "player_1") -> str:
    """Return the metric that an alarm reads of one player, or of the board."""
    return alarm.figure.format(player=player, board="laptop")


def subject_of(alarm: Alarm) -> str:
    """Return whom the alarm is about where `metric_of` is bad."""
    if "{player}" in alarm.figure:
        return "player_1"
    return "laptop" if "{board}" in alarm.figure else ""


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.name)
def test_an_alarm_is_raised_once_and_over_once(alarm: Alarm) -> None:
    watch = AlarmWatch(ALARMS)
    for step in range(1, 61):
        assert watch.update(healthy_row(step)) == []
    changes = []
    for step in range(61, 91):
        changes += watch.update({**healthy_row(step), metric_of(alarm): BAD[alarm.name]})
    assert {change.alarm.figure for change in changes} == {alarm.figure}, (
        "the other figures are healthy"
    )
    [raised] = [change for change in changes if change.alarm is alarm]
    subject = subject_of(alarm)
    assert raised.subject == subject
    assert raised.since is None
    assert 61 <= raised.step <= 61 + WINDOW
    assert watch.metrics()[f"alarm/{alarm.name}"] == 1.0
    whose = f"{subject}: " if subject else ""
    assert raised.message.startswith(f"{alarm.name}: {whose}{alarm.title} is ")
    assert raised.message.endswith(f"{alarm.means} {alarm.do}")
    ends = []
    for step in range(91, 121):
        ends += watch.update(healthy_row(step))
    [over] = [change for change in ends if change.alarm is alarm]
    assert over.subject == subject
    assert over.since == raised.step
    assert watch.raised == {}
    assert watch.metrics()[f"alarm/{alarm.name}"] == 0.0


def test_every_alarm_has_a_name_of_its_own_and_a_bad_value_here() -> None:
    names = [alarm.name for alarm in ALARMS]
    assert len(set(names)) == len(names)
    assert set(names) == set(BAD)


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.name)
def test_every_alarm_has_hysteresis_a_warm_up_and_sentences(alarm: Alarm) -> None:
    level = alarm.level(1.0)
    clear_level = alarm.level(1.0, clear=True)
    assert level is not None
    assert clear_level is not None
    assert level < clear_level if alarm.below else level > clear_level
    assert alarm.after >= WARM_UP >= 2 * WINDOW
    assert alarm.means.endswith(".")
    assert alarm.do.endswith(".")
    assert (alarm.reference is None) == (alarm.level(None) is not None)


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.name)
def test_a_relative_threshold_is_eight_standard_errors_away_from_its_reference(
    alarm: Alarm,
) -> None:
    noisy_level = alarm.level(1.0, noise=0.5)
    if alarm.reference is None:
        assert noisy_level == alarm.level(1.0)
    else:
        assert noisy_level == (1.0 - 8 * 0.5 if alarm.below else 1.0 + 8 * 0.5)


def test_a_run_that_learns_raises_nothing() -> None:
    generator = random.Random(1)
    watch = AlarmWatch(ALARMS)
    for step in range(1, 301):
        row = noisy_row(step, generator)
        progress = min(1.0, step / 200)
        row["score/laptop"] = 1.0 + 2.0 * progress + 0.1 * generator.gauss(0, 1)
        row["score/normalized"] = row["score/laptop"] / 4
        for player in PLAYERS:
            row[f"{player}/entropy_estimate"] = 0.5 - 0.4 * progress
            row[f"{player}/bad_reply_share"] = 0.25 * (1 - progress)
        assert watch.update(row) == []


def test_nothing_is_raised_before_the_warm_up_whatever_the_figures() -> None:
    watch = AlarmWatch(ALARMS)
    worst: dict[str, Any] = {"games/laptop": 9.0}
    for alarm in ALARMS:
        worst[metric_of(alarm, "player_0")] = BAD[alarm.name]
    for step in range(1, WARM_UP):
        assert watch.update({"step": step, **worst}) == []
    changes = watch.update({"step": WARM_UP, **worst})
    names = {change.alarm.name for change in changes}
    assert names >= {"no_hints", "blind_play", "one_move", "flat_groups"}
    assert {change.alarm.reference for change in changes} == {None}, "nothing was better before"


def test_figures_that_are_no_number_change_nothing() -> None:
    rows = [healthy_row(step) for step in range(1, 41)]
    watch = AlarmWatch.after(rows, ALARMS)
    before = AlarmWatch.after(rows, ALARMS)
    values: tuple[object, ...] = (None, math.nan, math.inf, -math.inf, "0.1", True, [], {})
    for step, value in enumerate(values * 5, start=41):
        row = {"step": step, "games/laptop": 1.0, **dict.fromkeys(["games", *HEALTHY], value)}
        assert watch.update(row) == []
        assert watch.readings == []
    assert watch.metrics() == before.metrics()


def collapsing_rows() -> Iterator[dict[str, Any]]:
    """Yield 100 rows: play turns blind from step 30 to 60, and is healthy again from 80 on."""
    generator = random.Random(5)
    for step in range(1, 101):
        row = noisy_row(step, generator)
        blind_share = min(1.0, max(0.0, (step - 30) / 30)) if step < 80 else 0.1
        for player in PLAYERS:
            row[f"{player}/blind_share"] = blind_share
        row["share/hint"] = 0.4 * (1 - blind_share)
        yield row


def logger_of(folder: Path, step: int = 0) -> Callable[[dict[str, Any]], None]:
    """Return what logs rows as a trainer does that starts after a step."""
    tracking = TrackingCallback(Settings(), folder)
    state = TrainerState(global_step=step, max_steps=100)
    tracking.on_train_begin(None, state, None)
    shown_metrics = {
        "score/mean": 1.0,
        "score_kept/mean": 1.0,
        "illegal_per_game": 0.0,
        "hints_per_game": 1.0,
        "bombs_per_game": 0.0,
        "time/push": 0.1,
        "time/rollout": 0.1,
    }

    def log(row: dict[str, Any]) -> None:
        state.global_step = int(row["step"])
        metrics = {name: value for name, value in row.items() if name != "step"}
        tracking.on_log(None, state, None, {**metrics, **shown_metrics})

    return log


@dataclass(frozen=True)
class Logged:
    """One line of `incidents.jsonl` about an alarm."""

    kind: str
    step: int
    alarm: str
    subject: str


def incidents(folder: Path) -> list[Logged]:
    path = folder / "incidents.jsonl"
    logged = []
    for line in path.read_text().splitlines():
        row = json.loads(line)
        logged.append(Logged(row["kind"], row["step"], row["alarm"], row["subject"]))
    return logged


def test_a_run_writes_alarms_beside_its_metrics_and_as_incidents_and_a_resumed_one_repeats_none(
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    resumed = tmp_path / "resumed"
    rows = list(collapsing_rows())
    for folder, cuts in ((whole, [0, 100]), (resumed, [0, 70, 100])):
        folder.mkdir()
        for start, end in pairwise(cuts):
            log = logger_of(folder, start)
            for row in rows[start:end]:
                log(row)
    assert incidents(resumed) == incidents(whole)
    history = read_history(whole / "metrics.jsonl")
    assert history[0]["alarm/blind_play"] == 0.0
    assert history[79]["alarm/blind_play"] == 1.0
    for player in PLAYERS:
        kinds = []
        for incident in incidents(whole):
            if incident.alarm == "blind_play" and incident.subject == player:
                kinds.append(incident.kind)
        assert kinds == ["alarm", "alarm_over"]
    first = json.loads((whole / "incidents.jsonl").read_text().splitlines()[0])
    assert first["message"].startswith(f"{first['alarm']}: ")
    assert math.isfinite(first["value"])
    assert math.isfinite(first["level"])


def test_the_page_s_table_is_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dynamics.md").read_text(encoding="utf-8")
    table = page.split("<!-- alarms:begin -->\n")[1].split("<!-- alarms:end -->")[0]
    for line, alarm in zip(table.splitlines()[2:], ALARMS, strict=True):
        name, figure, raised, over = line.split(" | ")[:4]
        assert name == f"| `{alarm.name}`"
        assert figure == f"`{alarm.figure.replace('{', '(').replace('}', ')')}`"
        reference = f" × {alarm.reference}" if alarm.reference else ""
        side = "<" if alarm.below else ">"
        assert raised.startswith(f"{side} {alarm.raise_at:g}{reference}")
        assert over.startswith(f"{alarm.clear_at:g}{reference}")
        assert (f"from reading {alarm.after}" in line) == (alarm.after > WARM_UP)
