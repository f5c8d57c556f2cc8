"""A step with one player's data leaves the other player bit-identical, optimizer state and schedule
included.
"""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from transformers import SchedulerType

from hanabi_grpo.errors import NonFiniteError, SettingsError
from hanabi_grpo.settings.model import Schedule
from hanabi_grpo.training.isolation import PlayerGuard, PlayerSchedule, player_groups

NAMES = ("player_0", "player_1")


class _Adapters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = torch.nn.Linear(4, 4).requires_grad_(False)
        self.lora_A = torch.nn.ModuleDict(
            {name: torch.nn.Linear(4, 4, bias=False) for name in NAMES}
        )

    def forward(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return self.base(x) + self.lora_A[name](x)


class _Training:
    """A model, an optimizer with weight decay and momentum, a schedule with warm-up, and the guard
    on it.
    """

    def __init__(
        self,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        *,
        loss_scaled: bool = False,
    ) -> None:
        self.model = _Adapters()
        self.reports: list[tuple[str, str]] = []
        self.guard = PlayerGuard(
            max_norm=1.0,
            sharded=False,
            loss_scaled=loss_scaled,
            report=lambda kind, message, **_: self.reports.append((kind, message)),
        )
        options = {"weight_decay": 0.1} if optimizer is torch.optim.AdamW else {}
        self.optimizer = optimizer(player_groups(self.model, NAMES), lr=0.1, **options)
        self.guard.watch(self.optimizer)
        self.schedule = PlayerSchedule(
            self.optimizer, "linear", num_training_steps=20, num_warmup_steps=5
        )

    def step(self, **data: float) -> None:
        self.optimizer.zero_grad()
        for name in NAMES:
            # A player without data goes through its micro-batch with a loss of zero, as in
            # training.
            (self.model(torch.ones(2, 4), name).sum() * data.get(name, 0.0)).backward()
        self.guard.begin_step()
        self.guard.begin_update(data)
        self.optimizer.step()
        self.guard.end_update()
        self.guard.end_step()
        self.schedule.step()

    def of(self, name: str) -> dict[str, Any]:
        """Return everything that belongs to a player, copied."""
        weight = self.model.lora_A[name].weight
        group = next(group for group in self.optimizer.param_groups if group["player"] == name)
        rest = {key: value for key, value in group.items() if key != "params"}
        return copy.deepcopy(
            {"weight": weight.detach(), "group": rest, **self.optimizer.state[weight]}
        )


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) if torch.is_tensor(one[key]) else one[key] == other[key]
        for key in one
    )


def test_weights_moments_counters_and_schedule_of_a_player_without_data_do_not_move() -> None:
    run = _Training()
    for _ in range(3):
        run.step(player_0=1.0, player_1=0.5)
    other, mine = run.of("player_1"), run.of("player_0")
    assert other["exp_avg"].abs().max() > 0
    assert other["group"]["updates"] == 3
    for _ in range(3):
        run.step(player_0=1.0)
    assert _same(run.of("player_1"), other)
    assert not torch.equal(run.of("player_0")["weight"], mine["weight"])
    assert run.of("player_0")["group"]["updates"] == 6
    assert run.of("player_0")["group"]["lr"] != other["group"]["lr"], (
        "each player is at its own place in the schedule"
    )
    steady = _Training()
    for _ in range(3):
        steady.step(player_0=1.0, player_1=0.5)
    for one in (run, steady):
        one.step(player_1=0.3)
    assert _same(run.of("player_1"), steady.of("player_1")), "it goes on as if nothing had happened"


def test_an_optimizer_that_is_stepped_group_by_group_moves_everybody_as_in_one_step() -> None:
    # As ZeRO-3 does, which takes the parameters of the other groups out meanwhile.
    whole = _Training()
    parts = _Training()
    whole.step(player_0=1.0, player_1=0.5)
    for name, weight in (("player_0", 1.0), ("player_1", 0.5)):
        (parts.model(torch.ones(2, 4), name).sum() * weight).backward()
    parts.guard.begin_step()
    parts.guard.begin_update(("player_0", "player_1"))
    groups = parts.optimizer.param_groups
    held = [group["params"] for group in groups]
    for number in range(len(groups)):
        for other, group in enumerate(groups):
            group["params"] = held[number] if other == number else []
        parts.optimizer.step()
    for group, parameters in zip(groups, held, strict=True):
        group["params"] = parameters
    parts.guard.end_update()
    parts.guard.end_step()
    parts.schedule.step()
    for name in ("player_0", "player_1"):
        assert _same(parts.of(name), whole.of(name))


def test_a_players_gradient_that_is_stepped_in_pieces_is_refused() -> None:
    run = _Training()
    run.guard.begin_step()
    run.guard.begin_update(("player_0",))
    run.optimizer.step()
    with pytest.raises(SettingsError, match=r"player_0: a second optimizer step.*sub_group_size"):
        run.optimizer.step()


def test_a_large_gradient_of_one_player_is_clipped_as_by_torch_and_does_not_shrink_the_others() -> (
    None
):
    def move(scale: float) -> _Training:
        run = _Training(torch.optim.SGD)
        for group in run.optimizer.param_groups:
            group["lr"] = 0.1
        run.step(player_0=scale, player_1=0.01)
        assert run.guard.norms["player_0"] == pytest.approx(8.0 * scale, rel=1e-5)
        return run

    large = move(1000.0)
    assert torch.equal(move(0.01).of("player_1")["weight"], large.of("player_1")["weight"])
    theirs = _Adapters()
    weight = theirs.lora_A["player_0"].weight
    (theirs(torch.ones(2, 4), "player_0").sum() * 1000.0).backward()
    torch.nn.utils.clip_grad_norm_([weight], 1.0)
    torch.optim.SGD([weight], lr=0.1).step()
    assert torch.allclose(large.of("player_0")["weight"], weight, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_dropped_counted_and_leaves_the_other_player_its_step(
    bad: float,
) -> None:
    run, clean = _Training(), _Training()
    for one in (run, clean):
        one.step(player_0=1.0, player_1=0.5)
    before = run.of("player_1")
    run.step(player_0=1.0, player_1=bad)
    clean.step(player_0=1.0)
    assert _same(run.of("player_1"), before)
    assert _same(run.of("player_0"), clean.of("player_0"))
    assert run.guard.dropped == ["player_1"]
    [(kind, message)] = run.reports
    assert kind == "update_dropped"
    assert message.startswith(
        f"player_1: the gradient's norm is {bad if bad == bad else 'nan'}; the update is dropped, "
    )


def test_three_dropped_updates_in_a_row_stop_the_run_and_two_do_not() -> None:
    run = _Training()
    nan = float("nan")
    for _ in range(2):
        run.step(player_0=1.0, player_1=nan)
    run.step(player_0=1.0, player_1=0.5)
    for _ in range(2):
        run.step(player_0=1.0, player_1=nan)
    with pytest.raises(
        NonFiniteError, match=r"player_1: 3 updates in a row were dropped .*RESUME=latest"
    ):
        run.step(player_0=1.0, player_1=nan)


def test_updates_that_a_falling_loss_scale_skips_do_not_stop_the_run_and_endless_ones_do() -> None:
    run = _Training(loss_scaled=True)
    before = run.of("player_0")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(torch.zeros(()))  # makes the scale

    def step(gradient: float) -> None:
        run.optimizer.zero_grad()
        run.guard.begin_step()
        run.guard.begin_update(NAMES)
        for name in NAMES:
            # What float16 would make of a loss of this size times the scale.
            value = torch.tensor(gradient * scaler.get_scale()).half().float()
            run.model.lora_A[name].weight.grad = torch.full((4, 4), float(value))
        scaler.step(run.optimizer)
        scaler.update()
        run.guard.end_update()

    # 2^16 · 500 is infinite in float16, until the scale has been halved nine times.
    for skipped in range(1, 10):
        step(500.0)
        assert run.guard.streaks["player_0"] == skipped and _same(run.of("player_0"), before)
    step(500.0)
    assert run.guard.streaks["player_0"] == 0 and not _same(run.of("player_0"), before)
    with pytest.raises(NonFiniteError, match=r"player_0: 20 updates in a row were dropped"):
        for _ in range(21):
            step(float("nan"))
    assert len([kind for kind, _ in run.reports]) == 2 * 9 + 2 * 20


def test_a_fused_optimizer_clips_gradients_without_the_loss_scale() -> None:
    """As in float16 on a GPU, where transformers' default optimizer is fused."""
    fused = functools.partial(torch.optim.AdamW, fused=True)
    run = _Training(fused, loss_scaled=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def step(gradients: dict[str, float]) -> dict[str, float]:
        run.optimizer.zero_grad()
        run.guard.begin_step()
        run.guard.begin_update(NAMES)
        for name, gradient in gradients.items():
            weight = run.model.lora_A[name].weight
            scaler.scale(weight.sum() * gradient).backward()
        scaler.step(run.optimizer)
        scaler.update()
        norms = run.guard.end_update()
        run.guard.end_step()
        return norms

    plain = _Training(fused)
    for gradient in (0.001, 0.1):
        # 16 numbers: the norm is 4 times as large.
        norms = step({"player_0": gradient, "player_1": gradient})
        assert norms == {name: pytest.approx(4 * gradient, rel=1e-5) for name in NAMES}
        plain.optimizer.zero_grad()
        plain.guard.begin_step()
        plain.guard.begin_update(NAMES)
        for name in NAMES:
            (plain.model.lora_A[name].weight.sum() * gradient).backward()
        plain.optimizer.step()
        plain.guard.end_update()
        plain.guard.end_step()
    # The scale is a power of two, so it leaves no trace.
    assert _same(run.of("player_0"), plain.of("player_0"))

    before = run.of("player_1")
    assert step({"player_0": float("inf"), "player_1": 0.1}) == {}
    assert _same(run.of("player_1"), before), "nobody moves, and nobody is counted as moved"
    assert run.guard.dropped == ["player_0", "player_1"]


def test_a_step_that_nobody_announced_is_refused_and_one_that_never_came_is_counted() -> None:
    run = _Training()
    run.guard.begin_step()
    run.guard.begin_update({"player_0", "player_1"})
    run.guard.end_update()
    assert run.guard.dropped == ["player_0", "player_1"]
    assert "the optimizer step was skipped" in run.reports[0][1]
    run = _Training()
    run.optimizer.step()
    run.step(player_0=1.0)
    with pytest.raises(
        SettingsError, match=r"a second optimizer step on the same games, .*--num_iterations"
    ):
        run.optimizer.step()


def test_several_updates_from_one_steps_games_count_once_and_clip_each_time() -> None:
    run = _Training(torch.optim.SGD)
    weight = run.model.lora_A["player_0"].weight
    group = run.optimizer.param_groups[0]
    group["lr"] = 0.1
    run.guard.begin_step()
    run.guard.begin_update({"player_0"})
    for scale in (5.0, 0.01):
        before = weight.detach().clone()
        run.optimizer.zero_grad()
        (run.model(torch.ones(2, 4), "player_0").sum() * scale).backward()
        run.optimizer.step()
        assert run.guard.end_update() == {"player_0": pytest.approx(8.0 * scale, rel=1e-5)}
        assert (weight - before).norm().item() == pytest.approx(
            0.1 * min(8.0 * scale, 1.0), rel=1e-3
        )
        assert run.guard.is_stepping, "an interrupt now would find half a step"
        run.guard.begin_update({"player_0"})
    assert [one["updates"] for one in run.optimizer.param_groups] == [1, 0]


def test_bad_updates_of_one_step_are_one_step_of_the_three_that_stop_a_run() -> None:
    run = _Training()
    run.guard.begin_step()
    run.guard.begin_update(NAMES)
    for _ in range(5):
        run.optimizer.zero_grad()
        (run.model(torch.ones(2, 4), "player_0").sum() * float("nan")).backward()
        run.model(torch.ones(2, 4), "player_1").sum().backward()
        run.optimizer.step()
        assert list(run.guard.end_update()) == ["player_1"]
        run.guard.begin_update(NAMES)
    assert run.guard.dropped == ["player_0"]
    assert run.guard.streaks == {"player_0": 1, "player_1": 0}
    assert len(run.reports) == 1
    assert [one["updates"] for one in run.optimizer.param_groups] == [0, 1]


def test_every_player_is_at_its_own_count_of_updates_and_the_base_model_has_no_group() -> None:
    groups = player_groups(_Adapters(), NAMES)
    assert [(group["player"], len(group["params"])) for group in groups] == [
        ("player_0", 1),
        ("player_1", 1),
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    schedule = PlayerSchedule(optimizer, "linear", num_training_steps=4, num_warmup_steps=0)
    rates = []
    for count in range(3):
        optimizer.param_groups[0]["updates"] = count
        schedule.refresh()
        rates.append([group["lr"] for group in optimizer.param_groups])
    assert rates == [pytest.approx([one, 0.1]) for one in (0.1, 0.075, 0.05)]


def test_warmup_stable_decay_stays_and_falls_in_the_last_third() -> None:
    optimizer = torch.optim.SGD(player_groups(_Adapters(), NAMES), lr=0.1)
    schedule = PlayerSchedule(
        optimizer, "warmup_stable_decay", num_training_steps=9, num_warmup_steps=0
    )
    group = optimizer.param_groups[0]
    for group["updates"], rate in (
        (0, 0.1),
        (6, 0.1),
        (7, 0.075),
        (8, 0.025),
        (9, 0.0),
    ):  # half a cosine from 6 to 9
        schedule.refresh()
        assert group["lr"] == pytest.approx(rate)


def test_a_schedule_that_is_no_function_of_steps_is_refused() -> None:
    optimizer = torch.optim.SGD(player_groups(_Adapters(), NAMES), lr=0.1)
    for name, reason in (
        ("reduce_lr_on_plateau", "depends on more"),
        ("nonsense", "transformers refuses it"),
    ):
        with pytest.raises(SettingsError, match=f"LR_SCHEDULER_TYPE={name}: {reason}"):
            PlayerSchedule(optimizer, name, num_training_steps=10, num_warmup_steps=0)


def test_the_settings_know_the_schedules_that_a_player_can_have() -> None:
    optimizer = torch.optim.SGD(player_groups(_Adapters(), NAMES), lr=0.1)
    possible = set()
    without_warmup = set()
    for schedule in SchedulerType:
        with contextlib.suppress(SettingsError):
            made = PlayerSchedule(
                optimizer, schedule.value, num_training_steps=9, num_warmup_steps=2
            )
            possible.add(schedule.value)
            if made.get_lr() != [0.0, 0.0]:
                without_warmup.add(schedule.value)
    assert possible == set(get_args(Schedule))
    assert without_warmup == {"constant"}
