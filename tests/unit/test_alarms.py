"""Alarms over made-up histories: raised once, over once, quiet on healthy noise, the same after a
resume.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
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
HEALTHY = {
    "score/normalized": 0.4, "score/laptop": 1.6, "over_blind/laptop": 1.4, "kl": 0.1, "clip_ratio/region_mean": 0.05,
    "flat_group_share": 0.15, "share/play": 0.35, "share/hint": 0.45, "hint_bits": 0.25,
}  # fmt: skip
HEALTHY_PLAYER = {
    "blind_share": 0.2, "entropy_estimate": 0.4, "top_move_share": 0.3, "bad_reply_share": 0.05,
    "tokens_per_reply": 3.0, "cut_share": 0.01,
}  # fmt: skip
PLAYERS = ("player_0", "player_1")
BAD = {
    "score_fall": 0.4, "below_blind": -0.5, "blind_play": 0.95, "entropy": 0.002, "entropy_fall": 0.02,
    "entropy_rise": 1.2, "no_plays": 0.0, "no_hints": 0.0, "one_move": 0.99, "hints_silent": 0.0, "format": 0.6,
    "length_rise": 9.0, "length_fall": 1.2, "cut": 0.5, "kl": 3.0, "clip": 0.6, "flat_groups": 1.0,
}  # fmt: skip
"""Per alarm a value of its figure that is wrong."""


def healthy(step: int, rng: random.Random | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"step": step, "games": 128.0, "games/laptop": 128.0, **HEALTHY}
    row |= {
        f"{player}/{name}": value for player in PLAYERS for name, value in HEALTHY_PLAYER.items()
    }
    if rng:
        for name in (
            *HEALTHY,
            *(f"{player}/{name}" for player in PLAYERS for name in HEALTHY_PLAYER),
        ):
            row[name] = max(0.0, row[name] * (1 + 0.3 * rng.gauss(0, 1)))
    return row


def spoilt(step: int, alarm: Alarm, value: float) -> dict[str, Any]:
    return healthy(step) | {alarm.figure.format(player="player_1", board="laptop"): value}


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.name)
def test_an_alarm_is_raised_once_and_over_once(alarm: Alarm) -> None:
    watch = AlarmWatch(ALARMS)
    for step in range(1, 61):
        assert watch.update(healthy(step)) == []
    changes = [
        change
        for step in range(61, 91)
        for change in watch.update(spoilt(step, alarm, BAD[alarm.name]))
    ]
    mine = [change for change in changes if change.alarm is alarm]
    subject = (
        "player_1" if "{player}" in alarm.figure else "laptop" if "{board}" in alarm.figure else ""
    )
    assert [(change.subject, change.since) for change in mine] == [(subject, None)]
    assert 61 <= mine[0].step <= 61 + WINDOW
    assert watch.metrics()[f"alarm/{alarm.name}"] == 1.0
    assert mine[0].message.startswith(
        f"{alarm.name}: {f'{subject}: ' if subject else ''}{alarm.title} is "
    )
    assert mine[0].message.endswith(f"{alarm.means} {alarm.do}")
    assert {change.alarm.figure for change in changes} == {alarm.figure}, (
        "the other figures are healthy"
    )
    back = [change for step in range(91, 121) for change in watch.update(healthy(step))]
    assert [(one.subject, one.since) for one in back if one.alarm is alarm] == [
        (subject, mine[0].step)
    ]
    assert watch.raised == {}
    assert watch.metrics()[f"alarm/{alarm.name}"] == 0.0


def test_the_table_is_consistent() -> None:
    assert len({alarm.name for alarm in ALARMS}) == len(ALARMS)
    assert {alarm.name for alarm in ALARMS} == set(BAD)
    for alarm in ALARMS:
        level, clear = alarm.level(1.0), alarm.level(1.0, clear=True)
        assert level is not None and clear is not None
        assert level < clear if alarm.below else level > clear, f"{alarm.name} has no hysteresis"
        assert alarm.after >= WARM_UP >= 2 * WINDOW
        assert alarm.means.endswith(".") and alarm.do.endswith(".")
        noisy = alarm.level(1.0, noise=0.5)
        assert noisy == (level if alarm.reference is None else -3.0 if alarm.below else 5.0)
        assert (alarm.reference is None) == (alarm.level(None) is not None)


def test_a_run_that_learns_raises_nothing() -> None:
    rng = random.Random(1)
    watch = AlarmWatch(ALARMS)
    for step in range(1, 301):
        row = healthy(step, rng)
        done = min(1.0, step / 200)
        row["score/laptop"] = 1.0 + 2.0 * done + 0.1 * rng.gauss(0, 1)
        row["score/normalized"] = row["score/laptop"] / 4
        for player in PLAYERS:
            row[f"{player}/entropy_estimate"] = 0.5 - 0.4 * done
            row[f"{player}/bad_reply_share"] = 0.25 * (1 - done)
        assert watch.update(row) == []


def test_nothing_is_raised_before_the_warm_up_whatever_the_figures() -> None:
    watch = AlarmWatch(ALARMS)
    worst = {
        alarm.figure.format(player="player_0", board="laptop"): BAD[alarm.name] for alarm in ALARMS
    }
    for step in range(1, WARM_UP):
        assert watch.update({"step": step, "games/laptop": 9.0, **worst}) == []
    changes = watch.update({"step": WARM_UP, "games/laptop": 9.0, **worst})
    assert {change.alarm.name for change in changes} >= {
        "no_hints",
        "blind_play",
        "one_move",
        "flat_groups",
    }
    assert not {change.alarm.reference for change in changes} - {None}


def test_figures_that_are_no_number_change_nothing() -> None:
    watch, before = (AlarmWatch.after(map(healthy, range(1, 41)), ALARMS) for _ in range(2))
    for step, value in enumerate(
        (None, float("nan"), float("inf"), -math.inf, "0.1", True, [], {}) * 5, start=41
    ):
        spoilt_row = {name: value for name in healthy(41) if name not in ("step", "games/laptop")}
        assert watch.update({"step": step, "games/laptop": 1.0, **spoilt_row}) == []
        assert watch.readings == []
    assert watch.metrics() == before.metrics()


def collapse() -> Iterator[dict[str, Any]]:
    rng = random.Random(5)
    for step in range(1, 101):
        row = healthy(step, rng)
        share = min(1.0, max(0.0, (step - 30) / 30)) if step < 80 else 0.1
        row |= {f"{player}/blind_share": share for player in PLAYERS} | {
            "share/hint": 0.4 * (1 - share)
        }
        yield row


def callback(
    folder: Path, step: int = 0
) -> tuple[TrackingCallback, Callable[[dict[str, Any]], None]]:
    tracking = TrackingCallback(Settings(), folder)
    state = TrainerState(global_step=step, max_steps=100)
    tracking.on_train_begin(None, state, None)

    def log(row: dict[str, Any]) -> None:
        state.global_step = int(row["step"])
        shown = {
            "score/mean": 1.0,
            "score_kept/mean": 1.0,
            "illegal_per_game": 0.0,
            "hints_per_game": 1.0,
        }
        shown |= {"bombs_per_game": 0.0, "time/push": 0.1, "time/rollout": 0.1}
        tracking.on_log(
            None, state, None, {**{key: row[key] for key in row if key != "step"}, **shown}
        )

    return tracking, log


def incidents(folder: Path) -> list[tuple[str, int, str, str]]:
    path = folder / "incidents.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(row["kind"], row["step"], row["alarm"], row["subject"]) for row in rows]


def test_a_run_writes_alarms_beside_its_metrics_and_as_incidents_and_a_resumed_one_repeats_none(
    tmp_path: Path,
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rows = list(collapse())
    for folder, cuts in ((whole, [0, 100]), (parts, [0, 70, 100])):
        folder.mkdir()
        for start, end in pairwise(cuts):
            _, log = callback(folder, start)
            for row in rows[start:end]:
                log(row)
    assert incidents(parts) == incidents(whole)
    assert [row["alarm/blind_play"] for row in read_history(whole / "metrics.jsonl")][::79] == [
        0.0,
        1.0,
    ]
    kinds = [(kind, name, subject) for kind, _, name, subject in incidents(whole)]
    for player in PLAYERS:
        assert (
            kinds.count(("alarm", "blind_play", player))
            == kinds.count(("alarm_over", "blind_play", player))
            == 1
        )
    first = json.loads((whole / "incidents.jsonl").read_text().splitlines()[0])
    assert first["message"].startswith(f"{first['alarm']}: ") and math.isfinite(
        first["value"] + first["level"]
    )


def test_the_page_s_table_is_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "dynamics.md").read_text(encoding="utf-8")
    shown = (
        page.split("<!-- alarms:begin -->\n")[1].split("<!-- alarms:end -->")[0].splitlines()[2:]
    )
    for line, alarm in zip(shown, ALARMS, strict=True):
        name, figure, raised, over = line.split(" | ")[:4]
        assert (
            name == f"| `{alarm.name}`"
            and figure == f"`{alarm.figure.replace('{', '(').replace('}', ')')}`"
        )
        of = f" × {alarm.reference}" if alarm.reference else ""
        assert raised.startswith(f"{'<' if alarm.below else '>'} {alarm.raise_at:g}{of}")
        assert over.startswith(f"{alarm.clear_at:g}{of}")
        assert (f"from reading {alarm.after}" in line) == (alarm.after > WARM_UP)
