"""The training loop: updates, passes, sequential players, states and interrupts."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

import loop_parts
from hanabi_grpo.client.answers import RolloutResult
from hanabi_grpo.errors import ServerError, SettingsError
from hanabi_grpo.runs.checkpoints import write_checkpoint
from hanabi_grpo.runs.manifest import checkpoints_of
from hanabi_grpo.settings import Settings
from hanabi_grpo.training import loop
from hanabi_grpo.training.batching import CutPlan, build_micro_batches
from hanabi_grpo.training.estimators import make_estimator
from hanabi_grpo.training.loop import train
from hanabi_grpo.training.loss import PolicyLoss
from hanabi_grpo.training.micro_batch import MicroBatch
from hanabi_grpo.training.mismatch import TokenGaps
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.policy import Policy
from hanabi_grpo.training.run import PlayedStep
from hanabi_grpo.training.state import LossScale
from hanabi_grpo.training.updates import (
    game_log_ratios,
    game_weights,
    plan_updates,
    player_order,
    sum_log_ratios,
)
from hanabi_grpo.types import DroppedGame, Episode, Lesson
from loop_parts import (
    BASE_SETTINGS,
    NAMES,
    RunOfATest,
    same_weights,
    tiny_policy_model,
    written_games,
)
from small_models import small_model


def batches_of(policy: Policy, step: int, settings: Settings) -> list[MicroBatch]:
    """Return a step's micro-batches, one for each player."""
    seats = tuple(f"{name}@{step}" for name in NAMES)
    return build_micro_batches(
        written_games(step),
        trained_seats=seats,
        players=NAMES,
        estimator=make_estimator(settings.advantage),
        cut=CutPlan(
            tokens_per_micro_batch=2048,
            micro_batches_per_player=1,
            rank=0,
            world_size=1,
            shares_prefixes=policy.shares_prefixes,
        ),
        pad_id=0,
        device=torch.device("cpu"),
    )


def trained_by_hand(num_steps: int, passes: int, order: Any = None) -> dict[str, torch.Tensor]:
    """Return the weights of a loop that is written out: torch's own clip and AdamW, no guard."""
    settings = Settings(**BASE_SETTINGS)
    model = tiny_policy_model(settings)
    policy = Policy(model, NAMES, temperature=1.0, has_whole_weights=True)
    loss_of = PolicyLoss(settings)
    parameters = {
        player: [value for key, value in model.named_parameters() if f".{player}." in key]
        for player in NAMES
    }
    optimizers = {
        player: torch.optim.AdamW(parameters[player], lr=0.05, weight_decay=0.0) for player in NAMES
    }
    for step in range(num_steps):
        for optimizer in optimizers.values():
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / num_steps)
        batches = batches_of(policy, step, settings)
        log_ratios: list[dict[int, float]] = []
        players = order(step) if order is not None else NAMES
        for player in players:
            [batch] = [batch for batch in batches if batch.player == player]
            if order is not None and log_ratios:
                batch.game_weights = game_weights(log_ratios, batch.games, 2.0)
            for _ in range(passes):
                optimizers[player].zero_grad()
                logprobs = policy.logprobs(batch)
                if batch.old_logprobs is None:
                    batch.old_logprobs = logprobs.detach()
                loss, _ = loss_of(logprobs, batch)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters[player], settings.max_grad_norm)
                optimizers[player].step()
            after = policy.fixed_logprobs(batch)
            log_ratios.append(
                game_log_ratios(after, batch.old_logprobs, batch.reply_mask, batch.games)
            )
    return {
        name: value.detach()
        for name, value in model.named_parameters()
        if any(f".{player}." in name for player in NAMES)
    }


def assert_weights_close(run: RunOfATest, expected: dict[str, torch.Tensor]) -> None:
    for player in NAMES:
        for name, value in run.weights(player).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("passes", [1, 3])
def test_passes_are_those_of_a_loop_that_is_written_out(tmp_path: Path, passes: int) -> None:
    made = RunOfATest(tmp_path, updates_per_step=passes)
    before = made.weights("player_0")
    train(made.run)
    assert not same_weights(before, made.weights("player_0"))
    assert_weights_close(made, trained_by_hand(3, passes))
    assert made.run.state.step == 3
    # The first version is pushed before the first step, the last one behind the last.
    assert made.link.pushed == [0, 1, 2, 3]
    assert [group["updates"] for group in made.optimizer.param_groups] == [3, 3]
    assert {int(state["step"]) for state in made.optimizer.state.values()} == {3 * passes}
    assert [row["learning_rate"] for row in made.events.rows] == pytest.approx(
        [0.05, 0.05 * 2 / 3, 0.05 / 3]
    )
    assert [row["updates_dropped"] for row in made.events.rows] == [0.0] * 3
    assert all(row["player_0/grad_norm"] > 0 for row in made.events.rows)
    assert not made.guard.is_stepping


def test_sequential_players_move_one_after_the_other_on_weighed_games(tmp_path: Path) -> None:
    settings = Settings(**{**BASE_SETTINGS, "update": "sequential", "updates_per_step": 2})
    made = RunOfATest(tmp_path, num_steps=2, update="sequential", updates_per_step=2)
    train(made.run)
    expected = trained_by_hand(2, 2, order=lambda step: player_order(settings, step))
    assert_weights_close(made, expected)
    # Independent players would have ended elsewhere: the weights of games count.
    independent = trained_by_hand(2, 2)
    later = player_order(settings, 0)[1]
    moved = [
        name
        for name, value in made.weights(later).items()
        if not torch.allclose(value, independent[name], atol=1e-4)
    ]
    assert moved
    for row in made.events.rows:
        assert {f"{name}/game_weight" in row for name in NAMES} == {True, False}


def taught_games(step: int) -> list[list[Episode]]:
    """Return games of which each group's first has labels of a teacher."""
    lesson = Lesson(action="Play 0", reply_ids=(9, 10))
    groups = []
    for first, *others in written_games(step):
        turns = tuple(replace(turn, lesson=lesson) for turn in first.turns)
        groups.append([replace(first, turns=turns), *others])
    return groups


@pytest.mark.parametrize("tokens", [2048, 12])
def test_the_weight_of_a_players_games_is_a_mean_over_what_is_weighed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    made = RunOfATest(
        tmp_path,
        num_steps=1,
        games=taught_games,
        update="sequential",
        sequential_limit=0.0,
        teacher=("iggi",),
        tokens_per_micro_batch=tokens,
    )
    batches: list[MicroBatch] = []
    build_batches = made.run.build_batches

    def record(played: PlayedStep) -> list[MicroBatch]:
        batches.extend(build_batches(played))
        return batches

    monkeypatch.setattr(made.run, "build_batches", record)
    play_and_learn(made, next(made.run.remaining_steps()))
    [row] = made.events.rows
    later = player_order(made.settings, 0)[1]
    weights = []
    for batch in batches:
        if batch.player == later:
            assert batch.game_weights is not None
            weights.append(batch.game_weights[batch.reply_mask.any(1)])
    # One conversation of each of the four games; the teacher's replies are rows of their own.
    assert len(set(torch.cat(weights)[:, 0].tolist())) == 4
    assert row[f"{later}/game_weight"] == pytest.approx(float(torch.cat(weights).mean()))


def test_the_order_of_a_sequential_step_is_drawn_anew_and_again_by_a_resumed_run(
    tmp_path: Path,
) -> None:
    settings = Settings(**{**BASE_SETTINGS, "update": "sequential", "updates_per_step": 2})
    orders = [player_order(settings, step) for step in range(20)]
    assert set(orders) == {("player_0", "player_1"), ("player_1", "player_0")}
    assert orders == [player_order(settings, step) for step in range(20)]
    step = orders.index(("player_1", "player_0"))
    policy = RunOfATest(tmp_path).policy
    batches = batches_of(policy, step, settings)
    updates = plan_updates(batches, settings, step=step, adapter_names=NAMES, active=set(NAMES))
    planned = [
        (sorted(update.adapters), update.is_first_pass, update.last_of_player) for update in updates
    ]
    assert planned == [
        (["player_1"], True, ""),
        (["player_1"], False, "player_1"),
        (["player_0"], True, ""),
        (["player_0"], False, "player_0"),
    ]
    for update in updates:
        players = {batch.player for batches in update.passes for batch in batches}
        assert players == set(update.adapters)


def test_a_games_weight_is_the_product_of_earlier_players_ratios_and_is_cut() -> None:
    new = torch.tensor([[-1.0, -0.5, 7.0], [-2.0, math.nan, 0.0], [3.0, 3.0, 3.0]])
    old = torch.tensor([[-1.5, -0.25, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert game_log_ratios(new, old, mask, [4, 2, -1]) == {4: 0.25, 2: -1.0}
    earlier = [
        {0: math.log(1.25), 1: 5.0, 2: -5.0, 4: math.nan},
        {0: math.log(1.2), 3: math.log(0.75)},
    ]
    weights = game_weights(earlier, [3, 0, 1, 2, 9, 4], 2.0)
    assert weights.shape == (6, 1)
    assert weights[:, 0].tolist() == pytest.approx([0.75, 1.5, 2.0, 0.5, 1.0, 1.0])


def test_turns_that_are_rows_of_their_own_all_count_for_their_game() -> None:
    new = torch.tensor([[-1.0], [-2.0], [-3.0]])
    old = torch.tensor([[-1.5], [-2.5], [-3.0]])
    mask = torch.ones(3, 1, dtype=torch.bool)
    # Two turns of game 4 with HANABI_MEMORY=turn, in one micro-batch or in two.
    assert game_log_ratios(new, old, mask, [4, 4, 2]) == {4: 1.0, 2: 0.0}
    assert sum_log_ratios([{4: 0.5}, {4: 0.5, 2: 0.0}]) == {4: 1.0, 2: 0.0}


@pytest.mark.parametrize("values", [{}, {"update": "sequential", "updates_per_step": 2}], ids=str)
def test_the_cut_into_micro_batches_changes_neither_weights_nor_loss(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    whole = RunOfATest(tmp_path / "whole", **values)
    cut = RunOfATest(tmp_path / "cut", tokens_per_micro_batch=6, **values)
    for made in (whole, cut):
        train(made.run)
    for player in NAMES:
        expected = whole.weights(player)
        for name, value in cut.weights(player).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=5e-5)
    assert len(cut.events.calls) > len(whole.events.calls)
    assert [row["loss"] for row in cut.events.rows] == pytest.approx(
        [row["loss"] for row in whole.events.rows], rel=1e-4, abs=1e-6
    )
    assert [row.keys() for row in cut.events.rows] == [row.keys() for row in whole.events.rows]


def test_gradients_are_shared_among_processes_only_behind_the_last_micro_batch_of_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunOfATest(tmp_path, num_steps=1, updates_per_step=2, tokens_per_micro_batch=6)
    accelerator = made.run._accelerator
    shared: list[bool] = []
    backward = accelerator.backward

    def record(loss: torch.Tensor, **options: Any) -> None:
        shared.append(accelerator.sync_gradients)
        backward(loss, **options)

    monkeypatch.setattr(accelerator, "backward", record)
    train(made.run)
    per_update = len(shared) // 2
    assert per_update > 2
    assert shared == ([False] * (per_update - 1) + [True]) * 2


def test_the_rest_of_the_process_hears_of_every_step_update_and_pass_in_order(
    tmp_path: Path,
) -> None:
    by_trajectories = {"tokens_per_micro_batch": 0, "per_device_train_batch_size": 4}
    # Counted in trajectories, each player has a pass of its own.
    for sizes, told in (({}, []), (by_trajectories, ["end_micro_batch"])):
        made = RunOfATest(tmp_path, num_steps=1, updates_per_step=2, **sizes)
        train(made.run)
        update = [*told, "before_update", "after_update"]
        assert made.events.calls == ["begin_step", *update, *update, "end_step"]


def test_a_figure_of_every_part_of_a_step_is_in_its_row(tmp_path: Path) -> None:
    made = RunOfATest(tmp_path, num_steps=1, entropy_bonus=0.01, beta=0.1)
    train(made.run)
    [row] = made.events.rows
    expected = {
        "loss",
        "learning_rate",
        "grad_norm",
        "kl",
        "clip_ratio/region_mean",
        "player_0/parity",
        "player_1/grad_norm",
        "player_0/reward",
        "games",
        "score/mean",
        "step_time",
        "time/push",
        "time/rollout",
        "time/train",
        "memory/peak_gib",
        "tokens/useful_share",
        "tokens/sampled_per_second",
        "updates_dropped",
    }
    assert expected <= row.keys()


EARLIER_PARTNERS: dict[str, Any] = {
    "partners": ("earlier",),
    "partner_share": 0.5,
    "save_steps": 2,
    "save_total_limit": 2,
}


def run_with_earlier_partners(folder: Path, *, num_steps: int) -> RunOfATest:
    """Make the first steps of a run of eight, which saves behind every second one."""
    made = RunOfATest(folder, num_steps=8, **EARLIER_PARTNERS)
    made.events.save_every = 2
    steps = made.run.remaining_steps()
    for step in range(num_steps):
        assert next(steps) == step
        play_and_learn(made, step)
        if made.run.should_save():
            made.run.save()
    return made


def test_an_interrupt_leaves_the_earlier_versions_that_the_whole_run_has_as_partners(
    tmp_path: Path,
) -> None:
    made = run_with_earlier_partners(tmp_path, num_steps=5)
    assert list(checkpoints_of(tmp_path)) == [2, 4]
    assert "step 5 is saved in" in made.run.save_interrupted()
    assert list(checkpoints_of(tmp_path)) == [2, 4, 5]
    resumed = RunOfATest(
        tmp_path,
        num_steps=8,
        resume_folder=tmp_path / "checkpoint-5",
        first_step=5,
        **EARLIER_PARTNERS,
    )
    play_and_learn(resumed, next(resumed.run.remaining_steps()))
    resumed.run.save()
    assert list(checkpoints_of(tmp_path)) == [4, 6]


def test_a_resume_removes_what_a_killed_process_had_yet_to_remove(tmp_path: Path) -> None:
    run_with_earlier_partners(tmp_path, num_steps=6)
    assert list(checkpoints_of(tmp_path)) == [4, 6]
    # As a kill leaves it between the new checkpoint and the removal of the oldest one.
    write_checkpoint(tmp_path, 2, lambda folder: None, {}, needed_bytes=0)
    RunOfATest(
        tmp_path,
        num_steps=8,
        resume_folder=tmp_path / "checkpoint-6",
        first_step=6,
        **EARLIER_PARTNERS,
    )
    assert list(checkpoints_of(tmp_path)) == [4, 6]


def test_an_interrupted_step_saves_the_state_of_the_step_before(tmp_path: Path) -> None:
    made = RunOfATest(tmp_path, num_steps=3, advantage="baseline")
    run = made.run
    assert run.save_interrupted() == "no step was finished, so there is nothing to save"
    steps = run.remaining_steps()
    play_and_learn(made, next(steps))
    finished = run.state
    assert finished.step == 1
    assert finished.baselines
    # The second step is under way: its games are played and its batches are made.
    step = next(steps)
    version = run.push_adapters()
    run.validate(version)
    batches = run.build_batches(run.play(step, version))
    assert run.state is finished
    assert "step 1 is saved in" in run.save_interrupted()
    again = RunOfATest(
        tmp_path / "again",
        num_steps=3,
        advantage="baseline",
        resume_folder=tmp_path / "checkpoint-1",
        first_step=1,
    )
    assert again.run.state.baselines == finished.baselines
    assert same_weights(again.weights("player_0"), made.weights("player_0"))
    # Once an update has begun, half of the step is in the weights.
    for update in run.plan_updates(batches):
        for batches in update.passes:
            run.backward(run.loss(run.logprobs(batches, update), batches), batches, update)
        run.optimizer_step(update)
        assert "an optimizer update was interrupted" in run.save_interrupted()


def interrupt_second_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a signal arrive when the weights that a block has replaced are half restored."""
    fill = adapters.fill
    calls = []

    def fill_or_stop(
        parameters: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]
    ) -> None:
        calls.append(values)
        if len(calls) != 2:
            fill(parameters, values)
            return
        names = list(values)[: len(values) // 2]
        fill(parameters, {name: values[name] for name in names})
        raise KeyboardInterrupt

    monkeypatch.setattr(adapters, "fill", fill_or_stop)


@pytest.mark.parametrize("place", ["probe", "reference", "mismatch check"])
def test_an_interrupt_amid_other_weights_saves_those_of_the_last_finished_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    settings = {"beta": 0.1, "reference": "start", "kl_in": "loss"} if place == "reference" else {}
    made = RunOfATest(tmp_path, **settings)
    run = made.run
    steps = run.remaining_steps()
    play_and_learn(made, next(steps))
    finished = {player: made.weights(player) for player in NAMES}
    step = next(steps)
    if place == "probe":
        # A server was replaced. The probe comes before the new version is pushed.
        made.link.instances = ("another server",)
        interrupt_second_fill(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            run.probe_adapters()
    else:
        version = run.push_adapters()
        run.validate(version)
        games = run.play(step, version)
        if place == "reference":
            interrupt_second_fill(monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                run.build_batches(games)
        else:
            batches = run.build_batches(games)
            interrupt_second_fill(monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                run.check_logprobs(batches, games)
    assert any(not same_weights(finished[player], made.weights(player)) for player in NAMES)
    assert "step 1 is saved in" in run.save_interrupted()
    again = RunOfATest(
        tmp_path / "again", resume_folder=tmp_path / "checkpoint-1", first_step=1, **settings
    )
    for player in NAMES:
        assert same_weights(finished[player], again.weights(player))


def play_and_learn(made: RunOfATest, step: int) -> None:
    """Make one step as the loop does."""
    run = made.run
    version = run.push_adapters()
    run.validate(version)
    if not run.return_to_phase_best():
        loop.play_and_learn(run, step, version)
    run.finish_step()


def test_a_resumed_run_ends_where_the_whole_one_does_bit_by_bit(tmp_path: Path) -> None:
    whole = RunOfATest(tmp_path / "whole", advantage="baseline")
    whole.events.save_every = 1
    train(whole.run)
    resumed = RunOfATest(
        tmp_path / "resumed",
        advantage="baseline",
        resume_folder=tmp_path / "whole" / "checkpoint-2",
        first_step=2,
    )
    train(resumed.run)
    for player in NAMES:
        assert same_weights(whole.weights(player), resumed.weights(player))
    assert whole.run.state == resumed.run.state
    assert resumed.link.pushed == [2, 3]


def test_a_resumed_run_in_float16_goes_on_with_its_loss_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accelerator_with_loss_scale(cpu: bool) -> Accelerator:
        accelerator = Accelerator(cpu=cpu)
        # As accelerate does in float16, which it refuses on a CPU.
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        return accelerator

    monkeypatch.setattr(loop_parts, "Accelerator", accelerator_with_loss_scale)
    whole = RunOfATest(tmp_path / "whole", num_steps=4)
    whole.events.save_every = 1
    train(whole.run)
    # It was doubled after two updates, and after two more.
    assert whole.run.state.loss_scale == LossScale(scale=32.0, good_updates=0)
    checkpoint = tmp_path / "whole" / "checkpoint-3"

    def resumed(folder: Path) -> RunOfATest:
        made = RunOfATest(folder, num_steps=4, resume_folder=checkpoint, first_step=3)
        train(made.run)
        return made

    made = resumed(tmp_path / "resumed")
    assert made.run.state == whole.run.state
    for player in NAMES:
        assert same_weights(whole.weights(player), made.weights(player))
    # A checkpoint of an earlier version has no scale, and the run begins with the initial one.
    (checkpoint / "trainer" / "loss_scale.json").unlink()
    made = resumed(tmp_path / "of an earlier version")
    assert made.run.state.loss_scale == LossScale(scale=8.0, good_updates=1)


def without_player_1(step: int) -> list[list[Episode]]:
    """Return games in which player 1's seat is a partner's."""
    groups = written_games(step)
    return [[replace(game, seats=(game.seats[0], "base")) for game in group] for group in groups]


def test_a_player_without_data_keeps_weights_moments_and_place_in_the_schedule(
    tmp_path: Path,
) -> None:
    made = RunOfATest(tmp_path, num_steps=2, games=without_player_1)
    before = made.weights("player_1")
    train(made.run)
    assert same_weights(before, made.weights("player_1"))
    assert [group["updates"] for group in made.optimizer.param_groups] == [2, 0]
    assert all("player_1/grad_norm" not in row for row in made.events.rows)


def test_what_is_measured_of_the_final_adapters_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = RunOfATest(tmp_path, num_steps=4, exploit_every=2)

    def exploited(names: tuple[str, ...], version: int) -> dict[str, float]:
        return {"exploitability": 1 / (version + 2)}

    monkeypatch.setattr(made.link, "exploited", exploited, raising=False)
    with caplog.at_level("INFO"):
        train(made.run)
    # A row has what was measured of the version that its step began with.
    assert [row.get("exploitability") for row in made.events.rows] == [0.5, None, 0.25, None]
    assert "final version 4: exploitability 0.1667" in caplog.text


def test_a_log_that_cannot_be_copied_does_not_cost_the_recorded_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunOfATest(tmp_path, num_steps=1)

    def refuse() -> None:
        raise ServerError("the server answered 403: no")

    monkeypatch.setattr(made.link, "copy_log", refuse)
    train(made.run)
    assert made.incidents == [("records_failed", f"{tmp_path}: the server answered 403: no")]
    games = (tmp_path / "episodes" / "step_000000.jsonl").read_text().splitlines()
    assert len(games) == 4


def test_the_share_of_late_games_is_of_all_games_that_were_finished_or_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunOfATest(tmp_path, num_steps=1)
    whole, halved = written_games(0)
    late = DroppedGame(suite="train", seed=1, game=1, reason="too late", is_late=True, num_turns=3)
    result = RolloutResult(groups=[whole, halved[:1]], dropped=(late,))
    monkeypatch.setattr(made.link, "play", lambda *_: result)
    train(made.run)
    [row] = made.events.rows
    # The second group has one game left and is not learned from; that game was finished in time.
    assert row["games"] == 2.0
    assert row["late/share"] == 1 / 4


def test_the_time_of_recalling_counts_every_extra_pass_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunOfATest(
        tmp_path,
        overlap=1,
        decoupled_loss=True,
        sampler_correction="token_truncate",
    )
    seconds_of_steps = [0.0, 0.0, 0.0]
    fixed_logprobs = made.policy.fixed_logprobs

    def slow(batch: MicroBatch) -> torch.Tensor:
        start = time.perf_counter()
        time.sleep(0.02)
        logprobs = fixed_logprobs(batch)
        seconds_of_steps[made.run.state.step] += time.perf_counter() - start
        return logprobs

    monkeypatch.setattr(made.policy, "fixed_logprobs", slow)
    train(made.run)
    # The first step's games are of its own version. Later each of the two players has two passes:
    # under the version that sampled, and under that of now.
    assert "time/recall" not in made.events.rows[0]
    for row, seconds in zip(made.events.rows[1:], seconds_of_steps[1:], strict=True):
        assert seconds >= 4 * 0.02
        assert row["time/recall"] >= seconds


@pytest.mark.parametrize(
    "values", [{}, {"tokens_per_micro_batch": 6}, {"freeze": ("player_1",)}], ids=str
)
def test_the_share_of_clipped_tokens_is_of_all_tokens_that_carry_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    made = RunOfATest(
        tmp_path, num_steps=1, updates_per_step=2, clip_low=1e-6, clip_high=1e-6, beta=0.1, **values
    )
    sums = {"region": 0.0, "kl": 0.0}
    num_tokens = 0
    loss_of = made.run._loss

    def record(logprobs: torch.Tensor, batch: MicroBatch, num_processes: int) -> Any:
        nonlocal num_tokens
        loss, means = loss_of(logprobs, batch, num_processes)
        num_own = int(batch.trained_mask.sum())
        num_tokens += num_own
        for name in sums:
            sums[name] += float(means[name]) * num_own
        return loss, means

    monkeypatch.setattr(made.run, "_loss", record)
    train(made.run)
    [row] = made.events.rows
    # Of the first update nothing is clipped, of the second the tokens with a gain.
    assert 0 < sums["region"] < num_tokens / 2
    assert row["clip_ratio/region_mean"] == pytest.approx(sums["region"] / num_tokens)
    assert row["kl"] == pytest.approx(sums["kl"] / num_tokens)


@pytest.mark.parametrize("values", [{}, {"tokens_per_micro_batch": 6}], ids=str)
def test_the_gap_of_a_player_is_the_mean_over_its_sampled_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any]
) -> None:
    made = RunOfATest(tmp_path, num_steps=1, freeze=("player_1",), **values)
    gaps: list[torch.Tensor] = []
    check_gap = made.run._mismatch.check_gap

    def record(batch: MicroBatch, logprobs: torch.Tensor, version: int) -> TokenGaps:
        gap = (logprobs.detach() - batch.sampler_logprobs).abs()
        gaps.append(gap[batch.reply_mask])
        return check_gap(batch, logprobs, version)

    monkeypatch.setattr(made.run._mismatch, "check_gap", record)
    train(made.run)
    [row] = made.events.rows
    assert row["player_0/parity"] == pytest.approx(float(torch.cat(gaps).mean()))
    # A player at rest has no sampled tokens here, which is no gap of 0.
    assert "player_1/parity" not in row


class InterruptedWeights(dict[str, Any]):
    """A layer's weights; when they are restored, a signal arrives the first time."""

    num_restored = 0

    def update(self, *others: Any, **names: Any) -> None:
        self.num_restored += 1
        if self.num_restored == 1:
            raise KeyboardInterrupt
        super().update(*others, **names)


def test_an_interrupt_while_a_model_of_16_bits_gets_its_weights_back_saves_the_last_step(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    base = small_model().to(torch.bfloat16)
    model = adapters.add_adapters(base, NAMES, rank=8, alpha=16, seed=1)
    made = RunOfATest(tmp_path, policy_model=model, dtype="bfloat16")
    run = made.run
    steps = run.remaining_steps()
    play_and_learn(made, next(steps))
    step = next(steps)
    version = run.push_adapters()
    run.validate(version)
    games = run.play(step, version)
    batches = run.build_batches(games)
    [norm] = [layer for name, layer in base.named_modules() if name == "model.norm"]
    norm._parameters = InterruptedWeights(norm._parameters)
    with pytest.raises(KeyboardInterrupt):
        run.check_logprobs(batches, games)
    assert norm.weight.dtype == torch.float32, "its own weight has 16 bits"
    # With another weight in the base model, this would be refused as a change of it.
    assert "step 1 is saved in" in run.save_interrupted()
    assert norm.weight.dtype == torch.bfloat16


def run_in_phases(tmp_path: Path, *, num_steps: int, patience: int, **other: Any) -> RunOfATest:
    """Return a run of best responses in which every version is validated."""
    return RunOfATest(
        tmp_path,
        num_steps=num_steps,
        update="best_response",
        lr_scheduler_type="constant",
        eval_steps=1,
        save_steps=1,
        eval_tasks=2,
        eval_patience=patience,
        **other,
    )


def test_a_player_whose_phase_is_over_returns_to_its_best_version(tmp_path: Path) -> None:
    made = run_in_phases(tmp_path, num_steps=5, patience=2)
    # Version 1 is the best of player_0's phase, and versions 2 and 3 are no better. In step 3
    # player_0 returns to version 1, and from step 4 on player_1 is trained.
    made.link.validation_scores = [1.0, 3.0, 2.0, 2.0]
    first: dict[int, dict[str, torch.Tensor]] = {}
    second: dict[int, dict[str, torch.Tensor]] = {}
    for step in made.run.remaining_steps():
        first[step] = made.weights("player_0")
        second[step] = made.weights("player_1")
        play_and_learn(made, step)
    first[5] = made.weights("player_0")
    second[5] = made.weights("player_1")
    assert not same_weights(first[1], first[2])
    assert not same_weights(first[1], first[3])
    assert same_weights(first[4], first[1])
    assert same_weights(first[5], first[1])
    # Nobody plays or learns beside the version that player_0 gave up.
    assert [row["games"] for row in made.events.rows] == [4, 4, 4, 0, 4]
    assert same_weights(second[4], second[0])
    assert not same_weights(second[5], second[4])
    returned = made.events.rows[3]
    assert "loss" not in returned
    assert (returned["grad_norm"], returned["validation/phase"]) == (0, 1)
    # Version 4 is the best one again, so it is not validated, which would count against player_1.
    assert made.link.validation_scores == []


def test_a_phase_that_is_over_discards_games_that_were_asked_for_ahead(tmp_path: Path) -> None:
    made = run_in_phases(tmp_path, num_steps=6, patience=1, overlap=2)
    # player_0's phase is over at version 1. Games of steps 1, 2 and 3 were asked for before.
    made.link.validation_scores = [1.0, 0.5, 2.0, 3.0, 4.0, 5.0]
    stale = []
    for step in made.run.remaining_steps():
        play_and_learn(made, step)
        stale.append(made.events.rows[-1].get("staleness"))
    # Step 2 plays its games itself, as the first step does, and asks for those of the next two.
    assert stale == [0, None, 0, 1, 2, 2]
    assert made.link.incidents.counts == {}


def test_players_who_begin_to_think_end_the_figures_of_beliefs_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_refused = 0

    def believed(names: tuple[str, ...], version: int) -> dict[str, float]:
        if version >= first_refused:
            raise SettingsError(f"player_0 wrote a thought at version {version}")
        return {"beliefs/gap": 0.5}

    made = RunOfATest(tmp_path, beliefs_every=1)
    monkeypatch.setattr(made.link, "believed", believed, raising=False)
    # What cannot be measured at all is a wrong setting.
    with pytest.raises(SettingsError, match="at version 0"):
        train(made.run)
    first_refused = 2
    train(made.run)
    assert made.link.pushed[-1] == len(made.events.rows) == 3
    assert {message for kind, message in made.incidents if kind == "beliefs"} == {
        f"no beliefs at version {version}: player_0 wrote a thought at version {version}"
        for version in (2, 3)
    }


def test_a_rate_is_that_of_the_players_count_though_the_last_update_of_a_step_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a loss scale skips the second of two updates whose gradient has an infinity.
    made = RunOfATest(tmp_path, updates_per_step=2)
    accelerator = type(made.run._accelerator)
    monkeypatch.setattr(accelerator, "optimizer_step_was_skipped", property(lambda _: True))
    train(made.run)
    assert [group["updates"] for group in made.optimizer.param_groups] == [3, 3]
    assert [row["learning_rate"] for row in made.events.rows] == pytest.approx(
        [0.05, 0.05 * 2 / 3, 0.05 / 3]
    )


def test_a_team_of_best_responses_ends_with_its_best_version(tmp_path: Path) -> None:
    made = run_in_phases(tmp_path, num_steps=8, patience=1)
    # Neither player improves on version 0: each learns in one step and returns in the next.
    made.link.validation_scores = [1.0, 0.5, 0.5]
    start = {name: made.weights(name) for name in ("player_0", "player_1")}
    train(made.run)
    assert made.run.state.step == 4
    for name, weights in start.items():
        assert same_weights(made.weights(name), weights)


def test_the_only_player_that_is_trained_begins_its_next_phase_with_its_best_version(
    tmp_path: Path,
) -> None:
    made = run_in_phases(tmp_path, num_steps=8, patience=2, freeze=("player_1",))
    # Version 1 is the best. Its phase ends at version 3, whose step is the return. The next phase
    # ends in vain at version 6, and the run with the return after it.
    made.link.validation_scores = [1.0, 3.0, 2.0, 2.0, 2.0, 2.0]
    versions: dict[int, dict[str, torch.Tensor]] = {}
    for step in made.run.remaining_steps():
        versions[step] = made.weights("player_0")
        play_and_learn(made, step)
    versions[7] = made.weights("player_0")
    assert list(versions) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert same_weights(versions[4], versions[1])
    assert not same_weights(versions[5], versions[1])
    assert same_weights(versions[7], versions[1])
    # Resumed, it is still over, whatever MAX_STEPS says.
    assert made.run.state.step == 7
    assert list(made.run.remaining_steps()) == []


def test_a_fork_has_its_own_beta(tmp_path: Path) -> None:
    for target, weight in ((None, 0.5), (0.1, 0.01)):
        made = RunOfATest(tmp_path, beta=0.5, kl_target=target)
        # The state of the run that it continues.
        made.run.state = replace(made.run.state, kl_weights={"player_0": 0.01})
        assert made.run._kl_weights() == {"player_0": weight, "player_1": 0.5}


def test_a_run_without_a_kl_target_leaves_no_weights_to_a_fork_that_has_one(
    tmp_path: Path,
) -> None:
    for target, saved in ((None, set()), (0.1, {"player_0", "player_1"})):
        made = RunOfATest(tmp_path / str(target), beta=0.5, kl_target=target)
        weights = made.run._kl_weights()
        made.run._adapt_kl_weights(weights, dict.fromkeys(weights, 0.2))
        assert set(made.run._next_state.kl_weights) == saved


def test_an_entropy_target_falls_with_the_rate_of_the_player_whose_bonus_it_is(
    tmp_path: Path,
) -> None:
    # player_0 stays at the peak of its schedule for ever: it makes no update.
    made = RunOfATest(
        tmp_path,
        num_steps=4,
        freeze=("player_0",),
        entropy_bonus=0.4,
        entropy_target=1.0,
    )
    steps = made.run.remaining_steps()
    play_and_learn(made, next(steps))
    play_and_learn(made, next(steps))
    version = made.run.push_adapters()
    made.run.validate(version)
    batches = made.run.build_batches(made.run.play(next(steps), version))
    [batch] = [batch for batch in batches if batch.player == "player_1"]
    assert batch.entropy_bonus is not None
    assert [row["learning_rate"] for row in made.events.rows] == pytest.approx([0.05, 0.0375])
    # After two of four updates the target is 1/2, which the entropy of 1/2 nat a token has reached.
    assert made.run._entropy_targets() == {"player_0": 1.0, "player_1": 0.5}
    assert not batch.entropy_bonus.any()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Returns are 0, 1, 0, 1 and .5 more, see `written_games`: 1.5 is cut to 1.
        ({}, {"player_0 x": 1.0, "player_1 x": 1.0}),
        ({"reward_clip": 1.0}, {"player_0 x": 0.75, "player_1 x": 0.75}),
        ({"whiten_rewards": True}, {"player_0 x": 0.0, "player_1 x": 0.0}),
        # Whoever rests is paid, and compared with what it was paid, all the same.
        ({"whiten_rewards": True, "freeze": ("player_1",)}, {"player_0 x": 0.0, "player_1 x": 0.0}),
    ],
    ids=str,
)
def test_a_moving_baseline_is_of_the_rewards_that_it_is_compared_with(
    tmp_path: Path, values: dict[str, Any], expected: dict[str, float]
) -> None:
    made = RunOfATest(tmp_path, num_steps=1, advantage="baseline", **values)
    train(made.run)
    assert made.run.state.baselines == pytest.approx(expected, abs=1e-6)
