"""What we override in ms-swift, trl, PEFT and vLLM still exists in the shape that the overrides
expect.
"""

import inspect
import logging
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils.tensor_fragment import get_full_hp_param, set_full_hp_param
from peft import PeftModel, get_peft_model_state_dict
from swift.arguments import RLHFArguments
from swift.model import model_meta
from swift.model.register import ModelLoader
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.rl_core.data import GRPOBatch
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.trainers import TrainerFactory
from swift.trainers.mixin import SwiftMixin
from transformers import Trainer
from trl import GRPOTrainer as TRLTrainer

from hanabi_grpo.training.model import adapters
from hanabi_grpo.training.pipeline import register_trainer
from hanabi_grpo.training.trainer import HanabiGRPOTrainer
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
    "_generate_and_score_completions": ["self", "inputs"],
    "_get_grad_norm": ["self", "model", "grad_norm"],
    "_init_training_state": [
        *(
            "self",
            "max_steps",
            "num_update_steps_per_epoch",
            "num_train_epochs",
            "resume_from_checkpoint",
            "trial",
        )
    ],
    "_prepare_for_training": ["self", "max_steps", "train_dataloader", "resume_from_checkpoint"],
    "_prepare_inputs": ["self", "inputs"],
    "_prepare_vllm": ["self"],
    "_save_checkpoint": ["self", "args", "kwargs"],
    "compute_loss": ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
    "create_optimizer": ["self", "model"],
    "create_scheduler": ["self", "num_training_steps", "optimizer"],
    "get_train_dataloader": ["self", "args", "kwargs"],
    "training_step": ["self", "model", "inputs", "num_items_in_batch"],
}
"""Everything of ms-swift's trainer that ours replaces, with the parameters that the replacement
expects.
"""


def test_the_trainers_seams_have_their_signatures() -> None:
    for method, parameters in OVERRIDDEN.items():
        function = inspect.unwrap(getattr(GRPOTrainer, method))
        assert list(inspect.signature(function).parameters) == parameters, method


def test_the_trainer_overrides_nothing_else() -> None:
    classes = HanabiGRPOTrainer.__mro__
    ours = {
        name
        for one in classes[: classes.index(GRPOTrainer)]
        for name, value in vars(one).items()
        if callable(value)
    }
    assert {
        name for name in ours if hasattr(GRPOTrainer, name) and not name.startswith("__")
    } == OVERRIDDEN.keys()


def test_the_trainer_makes_optimizer_and_schedule_where_the_overrides_are() -> None:
    prepare = inspect.getsource(Trainer._prepare_for_training)
    assert "self.create_optimizer()" in prepare
    assert "self.create_scheduler(num_training_steps=max_steps)" in prepare
    assert prepare.index("self.create_scheduler") < prepare.index("# load checkpoint")
    loop = inspect.getsource(Trainer._run_epoch)
    assert loop.index("self._get_grad_norm(model") < loop.index("self.optimizer.step()")
    assert loop.index("self.optimizer.step()") < loop.index("callback_handler.on_optimizer_step")
    assert loop.index("callback_handler.on_optimizer_step") < loop.index("self.lr_scheduler.step()")
    assert "_optimizer_ori" in inspect.getsource(SwiftMixin.create_optimizer)


def test_several_updates_in_a_step_find_the_flag_and_the_counter_that_they_use() -> None:
    loop = inspect.getsource(Trainer._run_epoch)
    flag, train = (
        "gradient_state._set_sync_gradients(do_sync_step)",
        "self.training_step(model, inputs",
    )
    assert (
        loop.index(flag)
        < loop.index(train)
        < loop.index("self.optimizer.step()")
        < loop.index("model.zero_grad()")
    )
    assert loop.index("self.state.global_step += 1") < loop.index("callback_handler.on_step_end")
    assert "self._step += 1" in inspect.getsource(TRLTrainer.training_step)
    prepare = inspect.getsource(inspect.unwrap(GRPOTrainer._prepare_inputs))
    assert "self._buffered_inputs[self._step % num_rollout_samples]" in prepare
    assert "sync_gradients=self.sync_gradients" in inspect.getsource(Accelerator.backward)
    assert "if self.gradient_state.sync_gradients" in inspect.getsource(AcceleratedOptimizer.step)
    deepspeed = inspect.getsource(DeepSpeedEngineWrapper.backward)
    assert "set_gradient_accumulation_boundary(is_boundary=sync_gradients)" in deepspeed
    assert deepspeed.index("if sync_gradients") < deepspeed.index("self.engine.step()")


def test_zero_1_and_2_step_the_torch_optimizer_group_by_group_and_keep_moments_where_they_are_read() -> (
    None
):
    source = inspect.getsource(DeepSpeedZeroOptimizer)
    step = inspect.getsource(DeepSpeedZeroOptimizer._optimizer_step)
    assert "self.optimizer.param_groups = [original_param_groups[group_no]]" in step
    assert "self.optimizer.step()" in step
    assert "self.single_partition_of_fp32_groups[i].grad = single_grad_partition" in source
    for name in ("bit16_groups", "_hp_optimizer_states_linked"):
        assert f"self.{name} = " in source, name
    link = inspect.getsource(DeepSpeedZeroOptimizer._lazy_init_hp_params_optimizer_state)
    assert "if not self._hp_optimizer_states_linked" in link
    assert list(inspect.signature(get_full_hp_param).parameters) == ["self", "optim_state_key"]
    assert list(inspect.signature(set_full_hp_param).parameters) == [
        "self",
        "value",
        "optim_state_key",
    ]


def test_the_loop_divides_a_loss_by_the_number_of_micro_steps_which_ours_is_multiplied_by() -> None:
    assert "sum(val) / len(val)" in inspect.getsource(GRPOTrainer.log), (
        "what the loss measures are numbers"
    )
    step = inspect.getsource(Trainer.training_step)
    assert "self.compute_loss(model, inputs" in step
    assert "loss = loss / self.current_gradient_accumulation_steps" in step
    assert "self.model_accepts_loss_kwargs = False" in inspect.getsource(GRPOTrainer.__init__)
    names = {field.name for field in fields(GRPOBatch)}
    assert {
        "completion_mask",
        "advantages",
        "num_items_in_batch",
        "rollout_per_token_logps",
        "logits_to_keep",
    } <= names


def test_ms_swift_s_warning_of_code_that_no_model_here_has_is_left_out_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "trust_remote_code=self.default_trust_remote_code" in inspect.getsource(ModelLoader)
    monkeypatch.setattr(
        ModelLoader, "default_trust_remote_code", ModelLoader.default_trust_remote_code
    )
    monkeypatch.setitem(
        TrainerFactory.TRAINER_MAPPING, "grpo", TrainerFactory.TRAINER_MAPPING["grpo"]
    )
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}'
    )
    said, num_filters = list[str](), len(model_meta.logger.filters)
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    model_meta.logger.addHandler(handler)
    try:
        model_meta._get_model_info(str(tmp_path), "qwen3", None)
        assert any("trust_remote_code=True" in text for text in said), (
            "nothing to leave out any more"
        )
        said.clear()
        register_trainer()
        model_meta._get_model_info(str(tmp_path), "qwen3", None)
        model_meta.logger.warning("Loading model from elsewhere")
    finally:
        model_meta.logger.removeHandler(handler)
        del model_meta.logger.filters[num_filters:]
    assert said == ["Loading model from elsewhere"]


def test_ms_swift_keeps_its_client_where_the_link_is_put() -> None:
    assert "_init_external_vllm" in vars(RLHFArguments)
    assert "grpo" in TrainerFactory.TRAINER_MAPPING
    assert "vllm_client" in inspect.getsource(SwiftRLHF._get_trainer_kwargs)
    ours = SimpleNamespace()
    HanabiGRPOTrainer._prepare_vllm(ours)
    # The others concern an engine in the trainer's own process, weights on their way to it, and its
    # version.
    others = {
        "engine",
        "_cached_vllm_param_names",
        "vllm_version_ge_0_10_2",
        "disable_rollout_importance_sampling",
    }
    assert (
        set(re.findall(r"self\.(\w+) = ", inspect.getsource(GRPOTrainer._prepare_vllm)))
        == vars(ours).keys() | others
    )
    assert "self.disable_rollout_importance_sampling = False" in inspect.getsource(
        GRPOTrainer._prepare_rollout_params
    )


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
