import pytest
from hypothesis import given
from hypothesis import strategies as st

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import BatchPlan, Settings, batch_plan


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
        deals=8,
        games=128,
        sequences=256,
        micro_batches_per_player=2,
        gradient_accumulation_steps=4,
        per_device_train_batch_size=64,
    )
    assert batch_plan(Settings(device="cpu", per_device_train_batch_size=64)) == expected
    assert batch_plan(Settings(device="cpu", tokens_per_micro_batch=0)) == expected
    both = batch_plan(Settings(device="cpu", per_device_train_batch_size=64, tokens_per_micro_batch=100))
    assert both.tokens_per_micro_batch == 100


@given(st.integers(1, 40), st.integers(2, 40), st.integers(1, 8), st.integers(2, 5))
def test_by_tokens_every_size_fits(deals: int, games: int, processes: int, players: int) -> None:
    plan = plan_of(deals_per_step=deals, num_generations=games, nproc_per_node=processes, players=players)
    assert plan.gradient_accumulation_steps == players
    # ms-swift wants whole groups, and at least as many trajectories as there are.
    whole = plan.per_device_train_batch_size * processes
    assert whole % games == 0 and whole >= deals * games


def test_several_processes_without_deepspeed_are_refused() -> None:
    with pytest.raises(SettingsError, match="NPROC_PER_NODE=2 DEEPSPEED=none: several processes need DEEPSPEED=zero1"):
        batch_plan(Settings(nproc_per_node=2))


def test_sizes_that_do_not_divide_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(SettingsError) as caught:
        plan_of(deals_per_step=8, num_generations=16, nproc_per_node=3, per_device_train_batch_size=64)
    assert str(caught.value) == (
        "8 deals × 16 games = 128 games do not divide by NPROC_PER_NODE=3 × PER_DEVICE_TRAIN_BATCH_SIZE=64 = 192: "
        "choose HANABI_DEALS_PER_STEP or NUM_GENERATIONS so that they do, a smaller batch, or unset it: micro-batches "
        "by tokens always fit."
    )


@given(st.integers(1, 40), st.integers(2, 40), st.integers(1, 8), st.integers(1, 80), st.integers(2, 5))
def test_a_plan_uses_every_trajectory_exactly_once(
    deals: int, games: int, processes: int, batch: int, players: int
) -> None:
    sizes = {"deals_per_step": deals, "num_generations": games, "nproc_per_node": processes, "players": players}
    if deals * games % (processes * batch):
        with pytest.raises(SettingsError, match="do not divide by"):
            plan_of(**sizes, per_device_train_batch_size=batch)
    else:
        plan = plan_of(**sizes, per_device_train_batch_size=batch)
        used = plan.gradient_accumulation_steps * plan.per_device_train_batch_size * processes
        assert used == plan.sequences == deals * games * players
