import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import BatchPlan, Settings, batch_plan


def plan_of(**values: int) -> BatchPlan:
    return batch_plan(Settings(deepspeed="zero2", **values))


def test_the_cpu_defaults_make_four_micro_batches() -> None:
    assert batch_plan(Settings(device="cpu")) == BatchPlan(
        deals=8,
        games=128,
        sequences=256,
        micro_batches_per_player=2,
        gradient_accumulation_steps=4,
        per_device_train_batch_size=64,
    )


def test_the_gpu_defaults_make_32_micro_batches_on_each_of_four_processes() -> None:
    plan = batch_plan(Settings(device="gpu"))
    assert (plan.games, plan.sequences, plan.micro_batches_per_player) == (64, 128, 16)
    assert plan.gradient_accumulation_steps == 32


def test_several_processes_without_deepspeed_are_refused() -> None:
    with pytest.raises(SettingsError, match="NPROC_PER_NODE=2 DEEPSPEED=none: several processes need DEEPSPEED=zero1"):
        batch_plan(Settings(nproc_per_node=2))


def test_three_players_make_three_halves_of_the_accumulation_of_two() -> None:
    assert plan_of(device="cpu", players=3).gradient_accumulation_steps == 6


def test_sizes_that_do_not_divide_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(SettingsError) as caught:
        plan_of(deals_per_step=8, num_generations=16, nproc_per_node=3, per_device_train_batch_size=64)
    assert str(caught.value) == (
        "8 deals × 16 games = 128 games do not divide by NPROC_PER_NODE=3 × PER_DEVICE_TRAIN_BATCH_SIZE=64 = 192: "
        "the nearest that fit are HANABI_DEALS_PER_STEP=12."
    )


def test_the_nearest_batch_sizes_that_fit_are_named() -> None:
    with pytest.raises(SettingsError, match="PER_DEVICE_TRAIN_BATCH_SIZE=32 or 64, or HANABI_DEALS_PER_STEP=5 or 10"):
        plan_of(deals_per_step=8, num_generations=16, nproc_per_node=2, per_device_train_batch_size=40)


sizes = st.fixed_dictionaries(
    {
        "deals_per_step": st.integers(1, 40),
        "num_generations": st.integers(2, 40),
        "nproc_per_node": st.integers(1, 8),
        "per_device_train_batch_size": st.integers(1, 80),
        "players": st.integers(2, 5),
    }
)


@given(sizes)
def test_a_plan_uses_every_trajectory_exactly_once_and_every_suggestion_fits(values: dict[str, int]) -> None:
    try:
        plan = plan_of(**values)
    except SettingsError as error:
        suggestions = str(error).split("the nearest that fit are ")[1].rstrip(".").split(", or ")
        for suggestion in suggestions:
            name, numbers = suggestion.split("=")
            field = name.removeprefix("HANABI_").lower()
            for number in numbers.split(" or "):
                plan_of(**{**values, field: int(number)})
    else:
        used = plan.gradient_accumulation_steps * plan.per_device_train_batch_size * values["nproc_per_node"]
        assert used == plan.sequences == values["deals_per_step"] * values["num_generations"] * values["players"]
