"""A run may be resumed with another DEEPSPEED: adapters, float32 copies, and the loss scale.

DeepSpeed is the real one, in a process of its own (zero_sessions.py).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ports import free_port

SESSIONS = Path(__file__).parent.parent / "zero_sessions.py"


@pytest.fixture(scope="module")
def series() -> dict[str, list[dict[str, Any]]]:
    """The states after each session, by the name of the series of sessions."""
    command = [sys.executable, SESSIONS]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def values(states: list[dict[str, Any]], key: str) -> list[Any]:
    return [state[key] for state in states]


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_adapters_in_16_bits_go_on_where_they_were_with_and_without_deepspeed(
    series: dict[str, list[dict[str, Any]]], stage: str
) -> None:
    # Adam moves player_0's weights from 1 by a quarter in each of two updates of a session.
    # player_1 makes none, and has weights but no moments.
    states = series[f"none, {stage}"]
    assert values(states, "player_0") == pytest.approx([0.5, 0.0], abs=1e-5)
    assert values(states, "player_1") == [5.0, 5.0]
    assert values(states, "has_copies") == [False, True]
    states = series[f"{stage}, none, {stage}"]
    assert values(states, "player_0") == pytest.approx([0.5, 0.0, -0.5], abs=1e-5)
    assert values(states, "player_1") == [5.0, 5.0, 5.0]
    assert values(states, "has_copies") == [True, False, True]


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_without_deepspeed_adapters_go_on_from_the_float32_copies(
    series: dict[str, list[dict[str, Any]]], stage: str
) -> None:
    # One update in each session by 2^-10, which 16 bits cannot tell from none.
    weights = values(series[f"{stage}, none in small steps"], "player_0")
    assert weights == [1.0, pytest.approx(1 - 2 * 2**-10, abs=1e-6)]


def test_copies_that_an_earlier_version_saved_again_unchanged_are_not_used(
    series: dict[str, list[dict[str, Any]]],
) -> None:
    states = series["outdated copies"]
    assert values(states, "has_copies") == [True, True, True]
    assert values(states, "player_0") == pytest.approx([0.5, 0.0, -0.5], abs=1e-5)


def test_a_resumed_session_in_float16_drops_no_updates_to_find_its_loss_scale_again(
    series: dict[str, list[dict[str, Any]]],
) -> None:
    # 2^16 · 300 is infinite in float16, until the scale has been halved nine times. The first drop
    # under DeepSpeed halves nothing. Each session makes twelve updates.
    states = series["float16: zero2, zero2, none"]
    assert values(states, "dropped") == [10, 0, 0]
    assert values(states, "scale") == [2.0**7] * 3
    assert values(states, "good_updates") == [2, 14, 26]
    states = series["float16: none, none, zero2"]
    assert values(states, "dropped") == [9, 0, 0]
    assert values(states, "scale") == [2.0**7] * 3
    assert values(states, "good_updates") == [3, 15, 27]
