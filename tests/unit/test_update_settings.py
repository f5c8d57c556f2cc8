"""The sizes of a step, who is trained in it, and which settings of updates are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.runs.resume_settings import check_compatible
from hanabi_grpo.settings import BatchPlan, Settings, batch_plan, deepspeed_stage, settings_values
from hanabi_grpo.training.estimators import ESTIMATORS, GROUP_ESTIMATORS, Pool

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"freeze": ("player_2",)},
        "HANABI_FREEZE=player_2: not a player; allowed are player_0, player_1",
    ),
    ({"freeze": ("player_0", "player_1")}, "no player is left to train"),
    ({"adapters": "shared", "freeze": ("player_0",)}, "HANABI_FREEZE with HANABI_ADAPTERS=shared"),
    (
        {"adapters": "shared", "update": "sequential"},
        "HANABI_UPDATE=sequential with HANABI_ADAPTERS=shared",
    ),
    (
        {"start_from": ("outputs/a",), "resume": "outputs/b"},
        "HANABI_START_FROM with RESUME=outputs/b",
    ),
    (
        {"nproc_per_node": 2},
        "NPROC_PER_NODE=2 DEEPSPEED=none: several processes need DEEPSPEED=zero1",
    ),
    (
        {"overlap": 1, "deepspeed": "zero3"},
        r"HANABI_OVERLAP=1 with DEEPSPEED=zero3: .*use zero2",
    ),
    (
        {"resample_flat": 2, "overlap": 1},
        "HANABI_RESAMPLE_FLAT=2 with HANABI_OVERLAP=1: .*unset one of them",
    ),
    (
        {"decoupled_loss": True, "sampler_correction": "token_truncate"},
        "HANABI_DECOUPLED_LOSS=1 with HANABI_OVERLAP=0: .*set HANABI_OVERLAP",
    ),
    (
        {"decoupled_loss": True, "overlap": 2},
        "HANABI_DECOUPLED_LOSS=1 with HANABI_SAMPLER_CORRECTION=none: .*set ",
    ),
    (
        {"eval_patience": 3},
        "HANABI_EVAL_PATIENCE=3 with HANABI_EVAL_STEPS=0: nothing is validated, .*e.g. to 50, or",
    ),
    (
        {"warmup_steps": 10},
        "WARMUP_STEPS=10 with LR_SCHEDULER_TYPE=constant: .*LR_SCHEDULER_TYPE=constant_with_warmup",
    ),
    (
        {"resample_flat": 1, "advantage": "return_to_go"},
        "HANABI_ADVANTAGE=return_to_go: .* use one of grpo,",
    ),
    (
        {"resample_flat": 1, "whiten_rewards": True},
        "HANABI_RESAMPLE_FLAT=1 with HANABI_WHITEN_REWARDS=1: games of equal reward have a gradien",
    ),
    (
        {"resample_flat": 1, "beta": 0.1, "kl_in": "reward"},
        "HANABI_RESAMPLE_FLAT=1 with HANABI_KL_IN=reward: games of equal reward have a gradient",
    ),
    (
        {"entropy_target": 0.5},
        "HANABI_ENTROPY_TARGET=0.5 with HANABI_ENTROPY_BONUS=0: .*set HANABI_ENTROPY_BONUS",
    ),
    (
        {"beta": 0.1, "kl_in": "reward", "teacher": ("iggi",), "reward_weight": 0.0},
        "HANABI_KL_IN=reward with HANABI_REWARD_WEIGHT=0.0: .*player_0 would not learn from it",
    ),
    (
        {"partners": ("player_1=iggi",), "partner_share": 1.0, "freeze": ("player_0",)},
        "HANABI_FREEZE=player_0 and a partner in the seat of player_1 in every task: no player",
    ),
]
"""Settings, and how the refusal begins."""


@pytest.mark.parametrize(("values", "message"), CONTRADICTIONS)
def test_what_contradicts_itself_is_refused_before_anything_starts(
    values: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        batch_plan(Settings(**values))


@pytest.mark.parametrize(
    ("typed", "steps"), [("0", 0), ("false", 0), ("1", 1), ("true", 1), ("Yes", 1), ("8", 8)]
)
def test_overlap_is_a_number_of_steps_and_still_reads_the_booleans_that_it_was(
    typed: str, steps: int
) -> None:
    assert Settings.model_validate({"overlap": typed}).overlap == steps


@pytest.mark.parametrize("typed", ["9", "-1", "2.5", "maybe"])
def test_overlap_refuses_more_steps_than_a_server_has_room_for(typed: str) -> None:
    with pytest.raises(ValidationError, match="overlap"):
        Settings.model_validate({"overlap": typed})


def test_a_supervisor_may_set_a_start_and_resume_latest() -> None:
    batch_plan(Settings(start_from=("outputs/a",), resume="latest"))


def test_every_estimator_can_be_chosen_and_those_within_groups_go_with_further_tasks() -> None:
    assert [Settings(advantage=name).advantage for name in ESTIMATORS] == list(ESTIMATORS)
    # Of these two a group teaches something also where all earned the same.
    within = [
        name
        for name, one in ESTIMATORS.items()
        if one.pool is Pool.GROUP and name not in ("vdn", "qmix")
    ]
    assert list(GROUP_ESTIMATORS) == within
    for name in within:
        batch_plan(Settings(advantage=name, resample_flat=15))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("updates_per_step", 0),
        ("minibatches", 0),
        ("clip_low", 0.0),
        ("entropy_bonus", -0.1),
        ("resample_flat", -1),
        ("resample_flat", 16),
        ("sampler_correction_limit", 0.5),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValidationError):
        Settings(**{field: value})


CHANGES: list[tuple[str, Any]] = [
    ("updates_per_step", 2),
    ("minibatches", 2),
    ("critic", "adapter"),
    ("gae_unit", "token"),
    ("sequential_factor", "step"),
    ("sequential_limit", 0.0),
    ("clip_low", 0.1),
    ("clip_high", 0.3),
    ("entropy_bonus", 0.01),
    ("sampler_correction", "token_mask"),
    ("sampler_correction_limit", 3.0),
    ("update", "sequential"),
    ("freeze", ("player_1",)),
    ("advantage_scale", "none"),
    ("resample_flat", 1),
    ("loss_unit", "turn"),
    ("overlap", True),
    ("partners", ("iggi",)),
    ("bomb_rule", "keep"),
    ("reward_illegal", -1.0),
    ("max_turns", 9),
]
"""Fields of HANABI_ variables, each with another value than its default."""


@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(("field", "value"), CHANGES)
def test_a_resumed_run_cannot_change_its_loss_or_game_even_where_it_did_not_record_it(
    field: str, value: Any, is_recorded: bool
) -> None:
    name = f"HANABI_{field.upper()}"
    before = settings_values(Settings())
    if not is_recorded:
        del before[name]
    saved = {"settings": before}
    assert check_compatible(saved, Settings()) == []
    changed = Settings(**{field: value})
    with pytest.raises(SettingsError, match=f"{name}: was"):
        check_compatible(saved, changed)
    notes = check_compatible(saved, changed, fork=True)
    assert any(note.startswith(f"{name}: was") for note in notes)


def test_a_resumed_run_cannot_change_its_environment() -> None:
    with pytest.raises(SettingsError, match="HANABI_ENV: was hanabi, is kuhn"):
        check_compatible({"settings": settings_values(Settings())}, Settings(env="kuhn"))


def plan_of(**values: int) -> BatchPlan:
    return batch_plan(Settings(deepspeed="zero2", **values))


@pytest.mark.parametrize(("device", "tokens", "games"), [("cpu", 2048, 128), ("gpu", 16384, 64)])
def test_by_default_a_micro_step_of_each_player_holds_as_many_micro_batches_as_its_tokens_fill(
    device: str, tokens: int, games: int
) -> None:
    plan = batch_plan(Settings(device=device))
    assert (plan.games, plan.sequences, plan.tokens_per_micro_batch) == (games, 2 * games, tokens)
    assert (plan.micro_batches_per_player, plan.gradient_accumulation_steps) == (1, 2)


def test_by_trajectories_64_of_128_make_four_micro_batches() -> None:
    expected = BatchPlan(
        tasks=8,
        games=128,
        sequences=256,
        micro_batches_per_player=2,
        gradient_accumulation_steps=4,
        per_device_train_batch_size=64,
    )
    assert batch_plan(Settings(device="cpu", per_device_train_batch_size=64)) == expected
    assert batch_plan(Settings(device="cpu", tokens_per_micro_batch=0)) == expected
    both = batch_plan(
        Settings(device="cpu", per_device_train_batch_size=64, tokens_per_micro_batch=100)
    )
    assert both.tokens_per_micro_batch == 100


@given(st.integers(1, 40), st.integers(2, 40), st.integers(1, 8), st.integers(2, 5))
def test_by_tokens_every_size_fits(tasks: int, games: int, processes: int, players: int) -> None:
    plan = plan_of(
        tasks_per_step=tasks, num_generations=games, nproc_per_node=processes, players=players
    )
    assert plan.gradient_accumulation_steps == players
    # ms-swift wants whole groups, and at least as many trajectories as there are.
    whole = plan.per_device_train_batch_size * processes
    assert whole % games == 0 and whole >= tasks * games


def test_sizes_that_do_not_divide_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(SettingsError) as caught:
        plan_of(
            tasks_per_step=8, num_generations=16, nproc_per_node=3, per_device_train_batch_size=64
        )
    assert str(caught.value) == (
        "8 tasks × 16 games = 128 games are not divisible by NPROC_PER_NODE=3 × "
        "PER_DEVICE_TRAIN_BATCH_SIZE=64 = 192: change HANABI_TASKS_PER_STEP or NUM_GENERATIONS, "
        "lower the batch size, or unset it: micro-batches sized by tokens always fit."
    )


@given(
    st.integers(1, 40), st.integers(2, 40), st.integers(1, 8), st.integers(1, 80), st.integers(2, 5)
)
def test_a_plan_uses_every_trajectory_exactly_once(
    tasks: int, games: int, processes: int, batch: int, players: int
) -> None:
    sizes = {
        "tasks_per_step": tasks,
        "num_generations": games,
        "nproc_per_node": processes,
        "players": players,
        "per_device_train_batch_size": batch,
    }
    if tasks * games % (processes * batch):
        with pytest.raises(SettingsError, match="games are not divisible by"):
            plan_of(**sizes)
        return
    plan = plan_of(**sizes)
    used = plan.gradient_accumulation_steps * plan.per_device_train_batch_size * processes
    assert used == plan.sequences == tasks * games * players


def test_a_file_of_deepspeed_may_move_weights_off_the_gpu_but_not_the_optimizer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "zero.json"
    zero = {"stage": 3, "offload_param": {"device": "cpu"}}
    path.write_text(json.dumps({"zero_optimization": zero}))
    settings = Settings(deepspeed=str(path))
    assert deepspeed_stage(settings) == 3
    zero["offload_optimizer"] = {"device": "cpu"}
    path.write_text(json.dumps({"zero_optimization": zero}))
    with pytest.raises(SettingsError, match=r"offload_optimizer is 'cpu'; allowed is 'none'"):
        deepspeed_stage(settings)
