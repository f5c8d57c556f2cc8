"""Who is trained when, at which rate, and which settings of updates are refused."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.resume_settings import check_compatible
from hanabi_grpo.settings import (
    Settings,
    active_players,
    batch_plan,
    load_settings,
    rates_of_each,
    settings_values,
    steps_of_each,
    trained_players,
    update_notes,
)


def test_by_default_everybody_trains_in_every_step_at_one_rate() -> None:
    settings = Settings(players=3, learning_rate=0.5)
    assert active_players(settings, 0) == active_players(settings, 17) == ("player_0", "player_1", "player_2")
    assert steps_of_each(settings, 40) == {"player_0": 40, "player_1": 40, "player_2": 40}
    assert rates_of_each(settings) == {"player_0": 0.5, "player_1": 0.5, "player_2": 0.5, "shared": 0.5}
    assert update_notes(settings) == []


def test_alternating_players_take_turns_of_so_many_steps() -> None:
    settings = Settings(players=3, update="alternating", alternate_every=2)
    turns = [active_players(settings, step)[0][-1] for step in range(14)]
    assert "".join(turns) == "00112200112200"
    assert steps_of_each(settings, 14) == {"player_0": 6, "player_1": 4, "player_2": 4}
    assert steps_of_each(settings, 9) == {"player_0": 4, "player_1": 3, "player_2": 2}


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 30, 31, 77])
@pytest.mark.parametrize("freeze", [(), ("player_1",)])
def test_the_counted_steps_are_those_in_which_a_player_is_active(num_steps: int, freeze: tuple[str, ...]) -> None:
    settings = Settings(players=3, update="alternating", alternate_every=3, freeze=freeze)
    seen = [active_players(settings, step) for step in range(num_steps)]
    assert steps_of_each(settings, num_steps) == {
        f"player_{number}": max(sum(f"player_{number}" in active for active in seen), 1) for number in range(3)
    }


def test_a_frozen_player_has_no_turn() -> None:
    settings = Settings(players=3, update="alternating", alternate_every=1, freeze=("player_1",))
    assert trained_players(settings) == ("player_0", "player_2")
    assert [active_players(settings, step) for step in range(3)] == [("player_0",), ("player_2",), ("player_0",)]


def test_each_player_may_have_a_rate() -> None:
    loaded = load_settings({"HANABI_LEARNING_RATES": "1e-3, 5e-4"}, Path("nowhere"))
    assert loaded.settings.learning_rates == (1e-3, 5e-4)
    assert rates_of_each(loaded.settings) == {"player_0": 1e-3, "player_1": 5e-4, "shared": 1.5e-3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"freeze": ("player_2",)}, "HANABI_FREEZE=player_2: not at the table; allowed are player_0, player_1"),
        ({"freeze": ("player_0", "player_1")}, "nobody is left to train"),
        ({"learning_rates": (1e-3,)}, r"has 1 rate\(s\) for 2 players"),
        ({"adapters": "shared", "freeze": ("player_0",)}, "HANABI_FREEZE with HANABI_ADAPTERS=shared"),
        ({"adapters": "shared", "update": "alternating"}, "HANABI_UPDATE=alternating with HANABI_ADAPTERS=shared"),
        ({"adapters": "shared", "update": "sequential"}, "HANABI_UPDATE=sequential with HANABI_ADAPTERS=shared"),
        ({"adapters": "shared", "learning_rates": (1e-3, 1e-3)}, "HANABI_LEARNING_RATES with HANABI_ADAPTERS=shared"),
        ({"clip_dual": 1.2}, r"HANABI_CLIP_DUAL=1.2 is not above 1 \+ HANABI_CLIP_HIGH = 1.2"),
        ({"start_from": ("outputs/a",), "resume": "outputs/b"}, "HANABI_START_FROM with RESUME=outputs/b"),
        ({"overlap": True, "deepspeed": "zero3"}, r"HANABI_OVERLAP=1 with DEEPSPEED=zero3: .*take zero2"),
    ],
)
def test_what_contradicts_itself_is_refused_before_anything_starts(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))


def test_a_supervisor_may_keep_both_names_when_it_says_latest() -> None:
    batch_plan(Settings(start_from=("outputs/a",), resume="latest"))


@pytest.mark.parametrize(
    "values",
    [
        {"learning_rates": (0.0, 1.0)},
        {"learning_rates": (float("nan"), 1.0)},
        {"learning_rates": (float("inf"), 1.0)},
        {"learning_rates": "1e-3,fast"},
        {"updates_per_step": 0},
        {"clip_low": 0.0},
        {"clip_dual": 1.0},
        {"entropy_bonus": -0.1},
        {"sampler_correction_limit": 0.5},
        {"alternate_every": 0},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**values)


def test_passes_lengthen_the_step_and_nothing_else() -> None:
    one, three = batch_plan(Settings()), batch_plan(Settings(updates_per_step=3))
    assert three.gradient_accumulation_steps == 3 * one.gradient_accumulation_steps == 6
    assert (three.games, three.micro_batches_per_player) == (one.games, one.micro_batches_per_player)


def test_settings_without_effect_are_named() -> None:
    settings = Settings(clip_high=0.3, kl="reward", sampler_correction_limit=3.0, alternate_every=5)
    assert [note.split(":")[0] for note in update_notes(settings)] == [
        "HANABI_CLIP_HIGH",
        "HANABI_KL=reward",
        "HANABI_SAMPLER_CORRECTION_LIMIT",
        "HANABI_ALTERNATE_EVERY",
    ]
    assert update_notes(Settings(clip_high=0.3, updates_per_step=2)) == []
    assert update_notes(Settings(clip_high=0.3, overlap=True)) == []


CHANGED = {
    "HANABI_UPDATES_PER_STEP": {"updates_per_step": 2},
    "HANABI_CLIP_LOW": {"clip_low": 0.1},
    "HANABI_CLIP_HIGH": {"clip_high": 0.3},
    "HANABI_CLIP_DUAL": {"clip_dual": 3.0},
    "HANABI_KL": {"kl": "reward"},
    "HANABI_ENTROPY_BONUS": {"entropy_bonus": 0.01},
    "HANABI_SAMPLER_CORRECTION": {"sampler_correction": "token_mask"},
    "HANABI_SAMPLER_CORRECTION_LIMIT": {"sampler_correction_limit": 3.0},
    "HANABI_UPDATE": {"update": "sequential"},
    "HANABI_ALTERNATE_EVERY": {"alternate_every": 3},
    "HANABI_FREEZE": {"freeze": ("player_1",)},
    "HANABI_ADVANTAGE_SCALE": {"advantage_scale": "none"},
    "HANABI_WHITEN": {"whiten": True},
    "HANABI_LOSS_UNIT": {"loss_unit": "turn"},
    "HANABI_LENGTH_PENALTY": {"length_penalty": 0.01},
    "HANABI_LENGTH_FREE": {"length_free": 64},
    "HANABI_GROUP": {"group": "mixed"},
    "HANABI_OVERLAP": {"overlap": True},
    "HANABI_PARTNERS": {"partners": ("iggi",)},
}


@pytest.mark.parametrize("recorded", [True, False])
def test_a_resumed_run_cannot_change_its_loss_even_where_the_earlier_one_did_not_record_it(recorded: bool) -> None:
    for name, values in CHANGED.items():
        before = settings_values(Settings())
        if not recorded:
            del before[name]
        saved = {"settings": before}
        assert not [note for note in check_compatible(saved, Settings()) if note.startswith(name)]
        with pytest.raises(SettingsError, match=f"{name}: was"):
            check_compatible(saved, Settings(**values))
        assert any(note.startswith(f"{name}: was") for note in check_compatible(saved, Settings(**values), fork=True))
