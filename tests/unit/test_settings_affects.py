"""Every setting says what it affects; resume, fork and comparisons follow from it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hanabi_grpo.envs import registry
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.comparison.arms import Arm, Run
from hanabi_grpo.evaluation.comparison.conditions import condition_notes
from hanabi_grpo.runs.resume_settings import check_compatible
from hanabi_grpo.settings import Affects, Settings, settings_values, variables
from hanabi_grpo.settings.variables import Variable, game, run, server, tracking, trainer


def variable_of(env: str) -> Variable:
    [variable] = [variable for variable in variables() if variable.env == env]
    return variable


def saved_by(**values: Any) -> dict[str, Any]:
    """Return the settings.json of a run with these settings, the others having their defaults."""
    return {"settings": settings_values(Settings(**values))}


def run_with(settings: dict[str, Any]) -> Run:
    """Return a run of one step with these settings, by variable."""
    return Run(
        folder=Path("outputs/a"),
        x=np.array([1.0]),
        scores=np.array([0.0]),
        last_step=1,
        num_games=1.0,
        seconds=None,
        settings=settings,
    )


@pytest.mark.parametrize("field", [run, server, game, trainer, tracking])
def test_a_field_that_does_not_say_what_it_affects_cannot_be_written(field: Any) -> None:
    with pytest.raises(TypeError, match="affects"):
        field("HANABI_NEW", "A new setting.", 1)
    field("HANABI_NEW", "A new setting.", 1, affects=Affects.LEARNING)


def test_every_field_of_the_settings_says_what_it_affects() -> None:
    known = variables()
    assert all(isinstance(variable.affects, Affects) for variable in known)
    # The device is found, not set; every other field is a variable.
    fields = {variable.field for variable in known}
    assert Settings.model_fields.keys() - fields == {"device", "device_reason"}


def test_settings_of_an_environment_affect_what_is_played() -> None:
    for env in registry.OWN:
        for variable in variables(env):
            if variable.field not in registry.get(env).Config.model_fields:
                continue
            expected = Affects.WEIGHTS if variable.field == "players" else Affects.PLAY
            assert variable.affects is expected, (env, variable.env)


def test_each_kind_of_settings_has_these() -> None:
    by_kind: dict[Affects, set[str]] = {affects: set() for affects in Affects}
    for variable in variables():
        if variable.section != "game":
            by_kind[variable.affects].add(variable.env)
    assert by_kind[Affects.WEIGHTS] == {"MODEL", "HANABI_ADAPTERS", "LORA_RANK", "LORA_ALPHA"}
    assert by_kind[Affects.SEED] == {"SEED", "HANABI_TASK_SEED"}
    assert by_kind[Affects.SCHEDULE] == {
        "HANABI_START_FROM",
        "LEARNING_RATE",
        "LR_SCHEDULER_TYPE",
        "WARMUP_STEPS",
        "MAX_GRAD_NORM",
        "MAX_STEPS",
        "NUM_TRAIN_EPOCHS",
        "HANABI_EVAL_STEPS",
        "HANABI_EVAL_TASKS",
        "HANABI_EVAL_DATASET",
        "HANABI_EVAL_LINEUPS",
        "HANABI_EVAL_BEST",
        "HANABI_EVAL_PATIENCE",
    }
    assert {"HANABI_GAE_LAMBDA", "HANABI_CRITIC_LEARNING_RATE"} <= by_kind[Affects.LEARNING]
    assert "HANABI_SWAP_EVERY" in by_kind[Affects.PLAY]
    assert {"NPROC_PER_NODE", "DEEPSPEED"} <= by_kind[Affects.MACHINE]
    assert {"REPORT_TO", "WANDB_NAME", "SAVE_STEPS"} <= by_kind[Affects.RECORD]
    assert {"OUTPUT_DIR", "RESUME", "HANABI_API_KEY"} <= by_kind[Affects.PLACE]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("swap_every", 10),
        ("gae_lambda", 0.5),
        ("critic_learning_rate", 1e-2),
    ],
)
def test_a_resumed_run_cannot_change_what_an_earlier_list_forgot(field: str, value: float) -> None:
    name = f"HANABI_{field.upper()}"
    with pytest.raises(SettingsError, match=f"{name}: was"):
        check_compatible(saved_by(), Settings(**{field: value}))
    [note] = check_compatible(saved_by(), Settings(**{field: value}), fork=True)
    assert note.startswith(f"{name}: was ")


@pytest.mark.parametrize(
    ("field", "value", "note"),
    [
        ("learning_rate", 0.1, "LEARNING_RATE: was 0.0015, is 0.1"),
        ("lr_scheduler_type", "linear", "LR_SCHEDULER_TYPE: was constant, is linear"),
        ("warmup_steps", 5, "WARMUP_STEPS: was 0, is 5"),
        ("max_grad_norm", 0.5, "MAX_GRAD_NORM: was 1.0, is 0.5"),
    ],
)
def test_a_resumed_run_may_change_its_schedule_and_says_so(
    field: str, value: Any, note: str
) -> None:
    assert check_compatible(saved_by(device="cpu"), Settings(device="cpu", **{field: value})) == [
        note
    ]


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", 0.5), ("max_completion_length", 9), ("thinking", True)]
)
def test_a_resumed_run_cannot_change_what_its_players_may_say(field: str, value: Any) -> None:
    with pytest.raises(SettingsError, match="start a new run from the checkpoint"):
        check_compatible(saved_by(), Settings(**{field: value}))


def test_lora_alpha_fits_the_saved_tensors_also_in_a_fork() -> None:
    with pytest.raises(SettingsError, match="LORA_ALPHA: was 32, is 64"):
        check_compatible(saved_by(), Settings(lora_alpha=64), fork=True)


def test_validations_are_decisive_where_they_choose_who_is_trained() -> None:
    eval_tasks = variable_of("HANABI_EVAL_TASKS")
    assert eval_tasks.affects_in(Settings()) is Affects.SCHEDULE
    phases = {"update": "best_response", "eval_steps": 50, "eval_patience": 3}
    assert eval_tasks.affects_in(Settings(**phases)) is Affects.LEARNING
    assert check_compatible(saved_by(), Settings(eval_tasks=9)) == [
        "HANABI_EVAL_TASKS: was 200, is 9"
    ]
    with pytest.raises(SettingsError, match="HANABI_EVAL_TASKS: was 200, is 9"):
        check_compatible(saved_by(**phases), Settings(**phases, eval_tasks=9))


def test_addresses_may_change_without_a_word() -> None:
    assert check_compatible(saved_by(), Settings(vllm_server_port=9000, port=9000)) == []


def test_a_comparison_names_conditions_and_neither_seeds_nor_records() -> None:
    def arm(name: str, **values: Any) -> Arm:
        settings = settings_values(Settings(device="cpu", **values))
        return Arm(name=name, runs=(run_with(settings),))

    first = arm("a", seed=1)
    second = arm("b", seed=2, beta=0.5, nproc_per_node=2, save_steps=7, wandb_name="b", port=8001)
    assert condition_notes([first, second]) == [
        "Settings of b that differ from those of a: NPROC_PER_NODE=2 (vs. 1), BETA=0.5 (vs. 0)."
    ]
