"""Micro-batches of a size that the games decide, inside the real loops of transformers and trl."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainingArguments
from trl import GRPOTrainer

from hanabi_grpo.training.micro_steps import MicroSteps, micro_steps
from hanabi_grpo.training.update_order import Update

STEPS = 3
MICRO_STEPS = 2


def _batch(player: str, x: torch.Tensor) -> dict[str, Any]:
    return {"grpo_batch": SimpleNamespace(player=player), "x": x}


def _update(*players: str) -> Update:
    batches = tuple(_batch(player, torch.tensor([float(number)])) for number, player in enumerate(players))
    return Update(batches=batches, adapters=frozenset(players), first_pass=True)


def _numbers(found: list[list[dict[str, Any]]]) -> list[list[float]]:
    return [[float(batch["x"]) for batch in one] for one in found]


def test_by_tokens_a_players_micro_batches_of_an_update_are_one_micro_step() -> None:
    updates = [_update("player_1", "player_1", "player_0"), _update("player_0")]
    assert _numbers(micro_steps(updates, 1)) == [[0.0, 1.0], [2.0], [0.0]]


def test_by_rows_each_micro_batch_is_a_micro_step() -> None:
    updates = [_update("player_0", "player_0", "player_1", "player_1")]
    assert _numbers(micro_steps(updates, 2)) == [[0.0], [1.0], [2.0], [3.0]]


class _Rows(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return STEPS * MICRO_STEPS

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {}


class _Kept(GRPOTrainer):
    """trl's count and clock around transformers' own step, and batches that are kept; no model of language."""

    def __init__(self, cuts: tuple[int, ...], *args: Any, **kwargs: Any) -> None:
        self.cuts, self.seen, self._step, self._current_train_step_time = cuts, [], 0, 0.0
        self._metrics = {"train": defaultdict(list)}
        Trainer.__init__(self, *args, **kwargs)

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = None

    def _prepare_inputs(self, inputs: Any) -> Any:
        rows = torch.arange(12.0).reshape(4, 3) + self._step
        return [_batch("player_0", part) for part in rows.tensor_split(self.cuts)]

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        self.seen.append((self._step, self.accelerator.sync_gradients, len(inputs["x"])))
        return model(inputs["x"]).square().sum() * MICRO_STEPS

    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, collate_fn=self.data_collator)

    def log(self, *_: Any, **__: Any) -> None:
        pass


class _Trainer(MicroSteps, _Kept):
    pass


def _train(tmp_path: Path, cuts: tuple[int, ...]) -> _Trainer:
    torch.manual_seed(0)
    options = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        max_steps=STEPS,
        gradient_accumulation_steps=MICRO_STEPS,
        per_device_train_batch_size=1,
        learning_rate=0.1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    # ms-swift, once imported anywhere in this process, replaces the callback that ends a training, and asks for this.
    options.max_epochs = None
    trainer = _Trainer(
        cuts, model=torch.nn.Linear(3, 1), args=options, train_dataset=_Rows(), data_collator=lambda _: {}
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("cuts", [(1,), (1, 2, 3), (2,)])
def test_the_cut_changes_neither_weights_nor_loss_nor_the_count_of_steps(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    whole, cut = _train(tmp_path, ()), _train(tmp_path, cuts)
    torch.testing.assert_close(cut.model.weight, whole.model.weight)
    assert not torch.allclose(cut.model.weight, torch.nn.Linear(3, 1).weight)
    assert cut.state.global_step == whole.state.global_step == STEPS
    assert cut._step == whole._step == STEPS * MICRO_STEPS
    assert float(cut._total_loss_scalar) == pytest.approx(float(whole._total_loss_scalar), rel=1e-5)
    # One time of each step, however many micro-batches it had.
    assert len(cut._metrics["train"]["step_time"]) == len(whole._metrics["train"]["step_time"]) == STEPS


def test_gradients_are_shared_among_processes_only_behind_the_last_micro_batch_of_an_update(tmp_path: Path) -> None:
    trainer = _train(tmp_path, (1, 3))
    assert trainer.seen[:6] == [(0, False, 1), (0, False, 2), (0, False, 1), (1, False, 1), (1, False, 2), (1, True, 1)]
    assert trainer._micro_batch is None


def test_a_failed_micro_batch_leaves_no_micro_batch_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("planted")

    monkeypatch.setattr(_Kept, "compute_loss", fails)
    with pytest.raises(RuntimeError, match="planted"):
        _train(tmp_path, (2,))
