"""Several updates from one step's games, inside the real loops of transformers, trl and
accelerate.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from trl import GRPOTrainer

from hanabi_grpo.settings import Settings, batch_plan
from hanabi_grpo.training.isolation import PlayerGuard, PlayerSchedule, player_groups
from hanabi_grpo.training.updates import (
    StepUpdates,
    game_log_ratios,
    game_weights,
    order_updates,
    player_order,
)

NAMES = ("player_0", "player_1")
BASE = dict(
    device="cpu",
    num_generations=2,
    tasks_per_step=2,
    per_device_train_batch_size=2,
    learning_rate=0.1,
)


class _Policy(torch.nn.Module):
    """Log probabilities of two actions, from an adapter of each player."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lora_A = torch.nn.ModuleDict(
            {name: torch.nn.Linear(3, 2, bias=False) for name in NAMES}
        )

    def forward(self, x: torch.Tensor, player: str) -> torch.Tensor:
        return torch.log_softmax(self.lora_A[player](x), -1)


@dataclass
class _Data:
    """What the trainer reads of a micro-batch."""

    player: str
    x: torch.Tensor
    actions: torch.Tensor
    advantages: torch.Tensor
    games: tuple[int, ...]
    completion_mask: torch.Tensor
    old_per_token_logps: torch.Tensor | None = None
    shaping: torch.Tensor | None = None
    seen: list[tuple[bool, float]] = field(default_factory=list)
    """Per forward pass: whether it was a first pass, and the largest gap to the recorded
    logprobs.
    """


def _batches(step: int) -> list[dict[str, Any]]:
    made = []
    for player in NAMES:
        for number in range(2):
            seeded = torch.Generator().manual_seed(100 * step + 10 * int(player[-1]) + number)
            data = _Data(
                player=player,
                x=torch.randn(2, 3, generator=seeded),
                actions=torch.randint(2, (2, 1), generator=seeded),
                advantages=torch.randn(2, 1, generator=seeded),
                games=(2 * number, 2 * number + 1),
                completion_mask=torch.ones(2, 1, dtype=torch.bool),
                shaping=torch.full((2, 1), 0.1),
            )
            made.append({"grpo_batch": data, "model_inputs": {}})
    return made


class _Rows(Dataset[dict[str, Any]]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"number": number}


class _CountingTrainer(GRPOTrainer):
    """trl's count and clock around transformers' own step, and batches that are kept; no model of
    language.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._step, self._current_train_step_time = 0, 0.0
        Trainer.__init__(self, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = None

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, collate_fn=self.data_collator)

    def log(self, *_: Any, **__: Any) -> None:
        pass

    def _prepare_inputs(self, inputs: Any) -> Any:
        place = self._step % self.plan.gradient_accumulation_steps
        if place == 0:
            step = self.state.global_step
            batches = [part for batch in _batches(step) for part in _cut(batch, self.cut)]
            self.steps.append([batch["grpo_batch"] for batch in batches])
            self._kept = self.begin_updates(
                order_updates(batches, self.settings, step=step, adapters=NAMES, active=NAMES)
            )
        return self._kept[place]


def _cut(batch: dict[str, Any], cut: bool) -> list[dict[str, Any]]:
    data = batch["grpo_batch"]
    return [
        {
            "grpo_batch": _Data(
                player=data.player,
                games=data.games[rows],
                **{
                    name: getattr(data, name)[rows]
                    for name in ("x", "actions", "advantages", "completion_mask", "shaping")
                },
            ),
            "model_inputs": {},
        }
        for rows in ((slice(0, 1), slice(1, 2)) if cut else (slice(0, 2),))
    ]


class _PlayersTrainer(StepUpdates, _CountingTrainer):
    """The trainer's own methods around updates; loss and games are this file's."""

    def __init__(self, settings: Settings, cut: bool, *args: Any, **kwargs: Any) -> None:
        self.settings, self.plan, self.adapter_names, self.cut = (
            settings,
            batch_plan(settings),
            NAMES,
            cut,
        )
        self.guard = PlayerGuard(max_norm=1.0, sharded=False, report=lambda *_, **__: None)
        self._metrics = {"train": defaultdict(list)}
        self.steps: list[list[_Data]] = []
        self.shared: list[bool] = []
        self.rates: list[list[float]] = []
        super().__init__(*args, **kwargs)
        self.add_callback(_After(self))

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.AdamW(
            player_groups(self.model, NAMES), lr=self.settings.learning_rate
        )
        self.optimizer.register_step_pre_hook(self.guard.before_step)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> PlayerSchedule:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        self.lr_scheduler = PlayerSchedule(
            optimizer, "linear", num_training_steps=num_training_steps, num_warmup_steps=0
        )
        return self.lr_scheduler

    def logps_of(self, batch: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            return self._logps(self.model, batch["grpo_batch"])

    @staticmethod
    def _logps(model: Any, data: _Data) -> torch.Tensor:
        logps: torch.Tensor = model(data.x, data.player).gather(1, data.actions)
        return logps

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        self.shared.append(self.accelerator.sync_gradients)
        data = inputs["grpo_batch"]
        logps = self._logps(model, data)
        if self.in_first_pass:
            data.old_per_token_logps = logps.detach()
        data.seen.append(
            (self.in_first_pass, float((logps.detach() - data.old_per_token_logps).abs().max()))
        )
        return _loss(logps, data) * self.plan.gradient_accumulation_steps


class _After(TrainerCallback):
    def __init__(self, trainer: _PlayersTrainer) -> None:
        self._trainer = trainer

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        trainer = self._trainer
        trainer.rates.append([group["lr"] for group in trainer.optimizer.param_groups])
        trainer.end_update()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trainer.guard.stepping = False


def _loss(logps: torch.Tensor, data: _Data) -> torch.Tensor:
    assert data.old_per_token_logps is not None
    ratio = (logps - data.old_per_token_logps).exp()
    clipped = ratio.clamp(0.8, 1.2)
    return -torch.min(ratio * data.advantages, clipped * data.advantages).sum() / 4


def _train(
    tmp_path: Path, *, num_steps: int = 3, cut: bool = False, **values: Any
) -> _PlayersTrainer:
    settings = Settings(**{**BASE, **values})
    plan = batch_plan(settings)
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        max_steps=num_steps,
        gradient_accumulation_steps=plan.gradient_accumulation_steps,
        per_device_train_batch_size=1,
        max_grad_norm=0,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    # ms-swift, once imported anywhere in this process, replaces the callback that ends a training,
    # and asks for this.
    arguments.max_epochs = None
    rows = _Rows(num_steps * plan.gradient_accumulation_steps)
    trainer = _PlayersTrainer(
        settings,
        cut,
        model=_Policy(),
        args=arguments,
        train_dataset=rows,
        data_collator=lambda _: {},
    )
    trainer.train()
    return trainer


def _by_hand(num_steps: int, passes: int, order: Any = None) -> _Policy:
    """Train without any trainer: clipped passes over all players' data, torch's own clip and
    AdamW.
    """
    model = _Policy()
    optimizers = {name: torch.optim.AdamW([model.lora_A[name].weight], lr=0.1) for name in NAMES}
    for step in range(num_steps):
        batches = [batch["grpo_batch"] for batch in _batches(step)]
        for optimizer in optimizers.values():
            optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / num_steps)
        for number in range(passes):
            for name in NAMES:
                optimizers[name].zero_grad()
                for data in batches:
                    if data.player == name:
                        logps = _PlayersTrainer._logps(model, data)
                        if number == 0:
                            data.old_per_token_logps = logps.detach()
                        _loss(logps, data).backward()
                torch.nn.utils.clip_grad_norm_([model.lora_A[name].weight], 1.0)
                optimizers[name].step()
    return model


@pytest.mark.parametrize("passes", [1, 3])
def test_passes_are_those_of_a_loop_by_hand_and_the_loop_counts_steps(
    tmp_path: Path, passes: int
) -> None:
    trainer = _train(tmp_path, updates_per_step=passes)
    expected = _by_hand(3, passes)
    for name in NAMES:
        assert torch.allclose(
            trainer.model.lora_A[name].weight, expected.lora_A[name].weight, atol=1e-6
        )
    assert trainer.state.global_step == len(trainer.steps) == 3
    optimizer = trainer.optimizer.optimizer
    assert [group["updates"] for group in optimizer.param_groups] == [3, 3]
    assert [int(state["step"]) for state in optimizer.state.values()] == [3 * passes] * 2
    assert trainer.rates == [pytest.approx([0.1 * (1 - step / 3)] * 2) for step in range(3)]
    assert len(trainer._metrics["train"]["player_0/grad_norm"]) == 3 * passes
    assert trainer._metrics["train"]["updates_dropped"] == [0.0] * 3
    assert not trainer.guard.stepping


def test_sequential_players_move_one_after_the_other_in_an_order_that_a_resumed_run_draws_again() -> (
    None
):
    settings = Settings(**BASE, update="sequential", updates_per_step=2)
    orders = [player_order(settings, step) for step in range(20)]
    assert set(orders) == {("player_0", "player_1"), ("player_1", "player_0")}
    assert orders == [player_order(settings, step) for step in range(20)]
    step = orders.index(("player_1", "player_0"))
    updates = order_updates(_batches(step), settings, step=step, adapters=NAMES, active=NAMES)
    assert [(sorted(one.adapters), one.first_pass, one.last_of_player) for one in updates] == [
        (["player_1"], True, ""),
        (["player_1"], False, "player_1"),
        (["player_0"], True, ""),
        (["player_0"], False, "player_0"),
    ]
    assert all(
        batch["grpo_batch"].player in one.adapters for one in updates for batch in one.batches
    )


def test_a_sequential_step_weighs_the_second_players_games_by_what_the_first_has_changed(
    tmp_path: Path,
) -> None:
    trainer = _train(tmp_path, update="sequential", updates_per_step=2, num_steps=1)
    first, second = player_order(trainer.settings, 0)
    independent = _by_hand(1, 2)
    assert torch.allclose(
        trainer.model.lora_A[first].weight, independent.lora_A[first].weight, atol=1e-6
    )
    assert not torch.allclose(
        trainer.model.lora_A[second].weight, independent.lora_A[second].weight, atol=1e-4
    )
    planned = {batch["grpo_batch"].player: [] for batch in _batches(0)}
    for batch in _batches(0):
        planned[batch["grpo_batch"].player].append(batch["grpo_batch"])
    with torch.no_grad():
        for mine, theirs, used in zip(
            planned[first],
            planned[second],
            [one for one in trainer.steps[0] if one.player == second],
            strict=True,
        ):
            old = _PlayersTrainer._logps(_Policy(), mine)
            new = _PlayersTrainer._logps(trainer.model, mine)
            weights = (new - old).exp().clamp(0.5, 2.0)
            # The parts of KL and entropy, 0.1 here, are not weighed.
            weighed = (theirs.advantages - 0.1) * weights + 0.1
            assert torch.allclose(used.advantages, weighed, atol=1e-5)


def test_a_games_weight_is_the_product_of_earlier_players_ratios_over_its_sampled_tokens_and_is_cut() -> (
    None
):
    new = torch.tensor([[-1.0, -0.5, 7.0], [-2.0, math.nan, 0.0], [3.0, 3.0, 3.0]])
    old = torch.tensor([[-1.5, -0.25, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert game_log_ratios(new, old, mask, [4, 2, -1]) == {4: 0.25, 2: -1.0}
    earlier = [
        {0: math.log(1.25), 1: 5.0, 2: -5.0, 4: math.nan},
        {0: math.log(1.2), 3: math.log(0.75)},
    ]
    weights = game_weights(earlier, [3, 0, 1, 2, 9, 4])
    assert weights.shape == (6, 1)
    assert weights[:, 0].tolist() == pytest.approx([0.75, 1.5, 2.0, 0.5, 1.0, 1.0])


@pytest.mark.parametrize("values", [{}, {"update": "sequential", "updates_per_step": 2}], ids=str)
def test_the_cut_into_micro_batches_changes_neither_weights_nor_loss_nor_the_count_of_steps(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    whole, cut = _train(tmp_path, **values), _train(tmp_path, cut=True, **values)
    for name in NAMES:
        torch.testing.assert_close(cut.model.lora_A[name].weight, whole.model.lora_A[name].weight)
    assert cut.state.global_step == whole.state.global_step == 3
    assert cut._step == whole._step
    assert len(cut.shared) == 2 * len(whole.shared)
    assert float(cut._total_loss_scalar) == pytest.approx(float(whole._total_loss_scalar), rel=1e-5)
    # One time of each step, however many micro-batches it had.
    assert len(cut._metrics["train"]["step_time"]) == len(whole._metrics["train"]["step_time"]) == 3


def test_gradients_are_shared_among_processes_only_behind_the_last_micro_batch_of_an_update(
    tmp_path: Path,
) -> None:
    trainer = _train(tmp_path, cut=True, num_steps=1, updates_per_step=2)
    assert trainer.shared == ([False] * 7 + [True]) * 2
