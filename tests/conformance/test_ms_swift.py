"""What we override in ms-swift, trl, PEFT and vLLM still exists in the shape that the overrides
expect.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import swift.utils
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from peft import PeftModel, get_peft_model_state_dict
from swift.arguments import RLHFArguments
from swift.model import model_meta
from swift.model.register import ModelLoader
from swift.optimizers import OptimizerCallback, optimizers_map
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.trainers import TrainerFactory
from swift.trainers.mixin import SwiftMixin
from swift.utils import is_mp
from transformers import Trainer, TrainerCallback, TrainingArguments

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.pipeline import check_gpus, register_trainer
from hanabi_grpo.training.trainer import (
    OPTIMIZER_PLUGIN,
    HanabiGRPOTrainer,
    PlayerOptimizers,
    register_optimizers,
)
from small_models import small_model

NAMES = ("player_0", "player_1")


@pytest.fixture(scope="module")
def model() -> PeftModel:
    shape = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    torch.manual_seed(0)
    return adapters.add_adapters(
        small_model(**shape, num_attention_heads=2), NAMES, rank=4, alpha=8, seed=1
    )


OVERRIDDEN = {
    "_run_epoch",
    "_init_training_state",
    # A team of several base models trains in layers of all of them: e2e/test_team_of_models.py.
    "_prepare_gradient_checkpointing",
    "_prepare_vllm",
}
"""Everything of ms-swift's trainer that ours replaces."""


def test_the_trainer_overrides_four_methods_and_nothing_else() -> None:
    classes = HanabiGRPOTrainer.__mro__
    own_names: set[str] = set()
    for cls in classes[: classes.index(GRPOTrainer)]:
        own_names |= {name for name, value in vars(cls).items() if callable(value)}
    inherited = {
        name for name in own_names if hasattr(GRPOTrainer, name) and not name.startswith("__")
    }
    assert inherited == OVERRIDDEN


class _Seams(Trainer):
    """transformers' trainer, of which the same two methods are replaced."""

    def __init__(self, **kwargs: Any) -> None:
        self.seen: list[str] = []
        super().__init__(**kwargs)

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        self.seen.append(f"state of {max_steps} steps")
        return super()._init_training_state(max_steps, *args, **kwargs)

    def _run_epoch(self, model: torch.nn.Module, **_: Any) -> None:
        # Prepared by now: optimizer and schedule, as accelerate wraps them, and the callbacks.
        assert isinstance(self.optimizer, AcceleratedOptimizer)
        assert self.lr_scheduler is not None
        assert model.weight.device == self.accelerator.device
        self.seen.append("epoch")
        self.state.global_step = self.state.max_steps
        self.control.should_training_stop = True


class _Heard(TrainerCallback):
    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._heard.append("train begin")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._heard.append("train end")


def test_transformers_comes_once_to_the_seam_of_our_loop_with_everything_prepared(
    tmp_path: Path,
) -> None:
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        # More steps than one pass over the data: transformers plans several epochs.
        max_steps=5,
        per_device_train_batch_size=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    # ms-swift, once imported anywhere in this process, replaces the callback that ends a training,
    # and asks for this.
    arguments.max_epochs = None
    trainer = _Seams(
        model=torch.nn.Linear(1, 1), args=arguments, train_dataset=[{"x": 0}, {"x": 1}]
    )
    trainer.add_callback(_Heard(trainer.seen))
    result = trainer.train()
    assert trainer.seen == ["state of 5 steps", "train begin", "epoch", "train end"]
    assert result.global_step == 5


def test_accelerate_makes_an_update_only_where_gradients_are_shared() -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.gradient_accumulation_steps == 1, "it would divide every loss"
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=1.0))
    for is_last in (False, True):
        accelerator.sync_gradients = is_last
        accelerator.backward(weight.sum())
        optimizer.step()
        assert float(weight) == (-2.0 if is_last else 0.0)


def test_ms_swift_asks_a_registered_class_for_optimizer_and_schedule() -> None:
    register_optimizers()
    assert optimizers_map[OPTIMIZER_PLUGIN] is PlayerOptimizers
    asked: list[str] = []

    class Recorder(OptimizerCallback):
        def __init__(self) -> None:
            pass

        def create_optimizer(self, model: Any = None) -> Any:
            asked.append("optimizer")
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

        def create_scheduler(self, num_training_steps: int, optimizer: Any) -> str:
            # The optimizer as it was made, not as accelerate or DeepSpeed wraps it.
            assert isinstance(optimizer, torch.optim.SGD)
            asked.append(f"schedule of {num_training_steps}")
            return "schedule"

    trainer = SimpleNamespace(optimizer_callback=Recorder(), _disable_foreach_for_deepspeed=int)
    SwiftMixin.create_optimizer(trainer)
    SwiftMixin.create_scheduler(trainer, 7)
    assert asked == ["optimizer", "schedule of 7"]


@pytest.fixture
def swift_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what `register_trainer` does to ms-swift."""
    num_filters = len(model_meta.logger.filters)
    trust = ModelLoader.default_trust_remote_code
    monkeypatch.setattr(ModelLoader, "default_trust_remote_code", trust)
    trainer = TrainerFactory.TRAINER_MAPPING["grpo"]
    monkeypatch.setitem(TrainerFactory.TRAINER_MAPPING, "grpo", trainer)
    yield
    del model_meta.logger.filters[num_filters:]


@pytest.mark.usefixtures("swift_as_it_was")
def test_ms_swift_loads_a_model_without_running_code_of_its_folder(tmp_path: Path) -> None:
    asked: list[bool] = []

    class RecordedConfig:
        @staticmethod
        def from_pretrained(model_dir: str, trust_remote_code: bool) -> None:
            asked.append(trust_remote_code)

    loader = object.__new__(ModelLoader)
    loader.auto_config_cls = RecordedConfig
    loader.get_config(str(tmp_path))
    register_trainer()
    loader.get_config(str(tmp_path))
    assert asked == [True, False]


@pytest.mark.usefixtures("swift_as_it_was")
def test_ms_swift_s_warning_of_code_is_left_out_and_other_warnings_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    messages: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: messages.append(record.getMessage()))
    model_meta.logger.addHandler(handler)
    try:
        model_meta._get_model_info(str(tmp_path), "qwen3", None)
        warned = any("trust_remote_code=True" in message for message in messages)
        assert warned, "nothing to leave out any more"
        messages.clear()
        register_trainer()
        model_meta._get_model_info(str(tmp_path), "qwen3", None)
        model_meta.logger.warning("Loading model from elsewhere")
    finally:
        model_meta.logger.removeHandler(handler)
    assert messages == ["Loading model from elsewhere"]


def test_ms_swift_keeps_its_client_where_the_link_is_put() -> None:
    # A run proves the rest: `HanabiGRPOTrainer` without its link or one of these ends at once.
    assert "_init_external_vllm" in vars(RLHFArguments)
    assert "grpo" in TrainerFactory.TRAINER_MAPPING


def see_gpus(monkeypatch: pytest.MonkeyPatch, num_gpus: int, num_processes: int) -> None:
    """Let torch see some GPUs from a process of a trainer of several."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", f"{num_processes}")


@pytest.mark.parametrize(
    ("num_gpus", "num_processes", "visible", "problem"),
    [
        # A driver that is too old, or a list whose first GPU is not there.
        (0, 1, "4", "1 trainer process(es) on this machine, but torch sees 0 GPU(s) "),
        (2, 4, "0,1,2,3", "4 trainer process(es) on this machine, but torch sees 2 GPU(s) "),
        # `hanabi-grpo train` without the script.
        (8, 4, None, "4 trainer process(es) on this machine, but torch sees 8 GPU(s) "),
        (4, 4, "4,5,6,7", ""),
        (1, 1, None, ""),
    ],
)
def test_a_trainer_that_does_not_see_a_gpu_for_each_process_ends_before_it_loads_a_model(
    monkeypatch: pytest.MonkeyPatch,
    num_gpus: int,
    num_processes: int,
    visible: str | None,
    problem: str,
) -> None:
    see_gpus(monkeypatch, num_gpus, num_processes)
    listed = "CUDA_VISIBLE_DEVICES is unset"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        listed = f"CUDA_VISIBLE_DEVICES={visible}"
    check_gpus(Settings())
    settings = Settings(device="gpu")
    if not problem:
        check_gpus(settings)
        return
    with pytest.raises(SettingsError) as caught:
        check_gpus(settings)
    assert str(caught.value).startswith(f"{problem}({listed})")
    proposed = "CUDA_VISIBLE_DEVICES_TRAINER=4,5,6,7;" in str(caught.value)
    assert proposed == (num_gpus > num_processes)


@pytest.mark.parametrize(("num_gpus", "is_spread"), [(4, False), (8, True)])
def test_ms_swift_spreads_a_model_over_gpus_that_no_other_process_has(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, is_spread: bool
) -> None:
    see_gpus(monkeypatch, num_gpus, 4)
    monkeypatch.setattr(swift.utils, "get_device_count", lambda: num_gpus)
    assert is_mp() == is_spread


@pytest.mark.rest
def test_a_trainer_s_imports_come_in_parts_and_vllm_is_none_of_them() -> None:
    code = (
        "import gc, sys; from hanabi_grpo.training import main; parts = sum(1 for _ in "
        "main.import_parts()); "
        "assert parts > 1 and gc.isenabled() and gc.get_freeze_count() > 100_000; "
        "before = set(sys.modules); import hanabi_grpo.training.trainer, "
        "hanabi_grpo.training.pipeline; "
        "assert set(sys.modules) == before; assert sys.modules['vllm'] is None; "
        "assert not [name for name in before if name.startswith('vllm.')]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, "nanobind" in done.stderr) == (0, False), done.stderr[-2000:]


def test_selecting_an_adapter_leaves_requires_grad_alone_and_changes_the_output(
    model: PeftModel,
) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1 if "player_0" in name else -0.1)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert before == {name: "lora_" in name for name in before}
    assert all(
        value.dtype == torch.float32 for name, value in model.named_parameters() if "lora_" in name
    )
    ids = torch.arange(6)[None]
    outputs = {}
    for name in NAMES:
        adapters.use_adapter(model, name)
        outputs[name] = model(input_ids=ids).logits
    with adapters.base_only(model):
        base = model(input_ids=ids).logits
    assert not torch.allclose(outputs["player_0"], outputs["player_1"])
    assert not torch.allclose(outputs["player_0"], base)
    with model.disable_adapter():
        assert torch.allclose(base, model(input_ids=ids).logits)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(before[name])
    adapters.use_adapter(model, "player_0")
    assert torch.allclose(outputs["player_0"], model(input_ids=ids).logits)


def test_a_loss_of_one_player_reaches_only_its_adapter(model: PeftModel) -> None:
    model.zero_grad()
    adapters.use_adapter(model, "player_1")
    model(input_ids=torch.arange(6)[None]).logits.sum().backward()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            assert (parameter.grad is not None) == ("player_1" in name), name
    model.zero_grad()


def test_the_same_seed_gives_the_same_adapters_and_players_differ() -> None:
    def make(seed: int) -> dict[str, torch.Tensor]:
        made = adapters.add_adapters(small_model(), NAMES, rank=2, alpha=4, seed=seed)
        return {
            f"{player}/{name}": tensor
            for player in NAMES
            for name, tensor in adapters.adapter_tensors(made, player, torch.float32).items()
            if "lora_A" in name
        }

    first, again, other = make(1), make(1), make(5)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    twins = [
        (name, name.replace("player_0", "player_1"))
        for name in first
        if name.startswith("player_0")
    ]
    assert not any(torch.equal(first[one], first[two]) for one, two in twins)


def test_an_exported_adapter_is_what_peft_itself_would_save(model: PeftModel) -> None:
    for name in NAMES:
        ours = adapters.adapter_tensors(model, name, torch.float32)
        theirs = get_peft_model_state_dict(model, adapter_name=name)
        assert len(ours) == 28 and ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_the_base_checksum_sees_a_single_changed_weight(model: PeftModel) -> None:
    before = adapters.base_checksum(model)
    weight = model.get_base_model().model.embed_tokens.weight
    with torch.no_grad():
        weight[3, 5] += 1e-3
    assert adapters.base_checksum(model) != before
    with torch.no_grad():
        weight[3, 5] -= 1e-3
