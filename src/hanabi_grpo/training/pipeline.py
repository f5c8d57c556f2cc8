"""Passes our settings, model, data and trainer to ms-swift."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from swift.arguments import RLHFArguments
from swift.model import MODEL_MAPPING, get_model_processor, model_meta
from swift.model.register import ModelLoader
from swift.pipelines.train.rlhf import SwiftRLHF
from swift.trainers import TrainerFactory
from transformers import PrinterCallback

from hanabi_grpo.client.curves import validation_setups
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.rollout.budget import measure_budget
from hanabi_grpo.rollout.chat import ChatFormat
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.rollout.vocabulary import check_vocabulary
from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.runs.resume import read_resume
from hanabi_grpo.runs.validation import TRAINING_CURVE
from hanabi_grpo.settings import Settings, batch_plan, read_settings
from hanabi_grpo.settings.base_models import base_models, bases_by_player
from hanabi_grpo.tracking.callback import TrackingCallback
from hanabi_grpo.training.fleet_link import make_link
from hanabi_grpo.training.model.adapters import adapter_names, add_adapters, add_team_adapters
from hanabi_grpo.training.model.start_from import check_base, check_resumed_base, start_adapters
from hanabi_grpo.training.tasks import TaskDataset
from hanabi_grpo.training.trainer import (
    OPTIMIZER_PLUGIN,
    ZERO_STAGE_OF_SHARDED_WEIGHTS,
    HanabiGRPOTrainer,
    other_tokenizers,
    register_optimizers,
)

logger = logging.getLogger(__name__)

SAME_NAME_OPTIONS = (
    "vllm_server_host",
    "vllm_server_port",
    "num_generations",
    "max_completion_length",
    "temperature",
    "lr_scheduler_type",
    "warmup_steps",
    "beta",
    "seed",
    "save_steps",
)
"""ms-swift's options that have the same names as our settings."""
_SMALLEST_GROUP = 2
"""The smallest `num_generations` that ms-swift accepts."""
FIXED_OPTIONS = {
    "rlhf_type": "grpo",
    "tuner_type": "lora",
    "use_vllm": "true",
    "vllm_mode": "server",
    "vllm_server_pass_dataset": "true",
    "use_hf": "true",
    "split_dataset_ratio": "0",
    "dataset_shuffle": "false",
    "train_dataloader_shuffle": "false",
    "dataloader_num_workers": "0",
    "top_p": "1.0",
    "top_k": "-1",
    "logging_steps": "1",
    "report_to": "none",
    "disable_tqdm": "true",
    "save_strategy": "steps",
    "eval_strategy": "no",
    "add_version": "false",
    "create_checkpoint_symlink": "false",
    "optimizer": OPTIMIZER_PLUGIN,
    # Would ask a hub whether the local model is the newest, and wait for all retries.
    "check_model": "false",
    # Never encodes anything here: token ids come from the rollout server.
    "template": "dummy",
    # ms-swift's 0.1 would pull a player toward the base model even in steps without its data.
    "weight_decay": "0.0",
    # The loss is ours (`loss`); its options are also passed to ms-swift, so that its args.json is
    # correct.
    "loss_type": "dapo",
}
"""ms-swift's options that are the same in every run."""


@dataclass
class HanabiArguments(RLHFArguments):
    """ms-swift's options, and the path of our settings."""

    hanabi_settings: str = ""
    """Path of the run's `settings.json`."""

    def _init_external_vllm(self) -> None:
        # Every rank needs the settings that the link carries; only the main process talks to the
        # server.
        settings = read_settings(Path(self.hanabi_settings))
        self.vllm_client = make_link(settings, Path(self.output_dir))
        if torch.cuda.is_available():
            _prepare_gpu(settings)

    def _init_deepspeed(self) -> None:
        super()._init_deepspeed()
        if not self.deepspeed:
            return
        if not torch.cuda.is_available():
            _compile_no_reductions()
        stage = self.deepspeed.get("zero_optimization", {}).get("stage")
        if stage == ZERO_STAGE_OF_SHARDED_WEIGHTS and not torch.cuda.is_available():
            import deepspeed

            # Weights are partitioned while the model is loaded, over the processes that DeepSpeed
            # knows at that time. accelerate initializes them early enough only on GPUs.
            deepspeed.init_distributed(dist_backend="gloo")
        if stage == 2:
            # By default, gradients accumulate in the model's own format: with 64 micro-batches in
            # bfloat16 the sum was off by 1 %, with float32 by .2 %. Under ZeRO-1 this option would
            # make DeepSpeed use another optimizer, whose state `checkpoint` does not support.
            data_types = self.deepspeed.setdefault("data_types", {})
            data_types.setdefault("grad_accum_dtype", "fp32")


def _compile_no_reductions() -> None:
    """Keep DeepSpeed from compiling reductions through shared memory at its first start on a CPU.

    Only tensor-parallel inference uses them. Compiling needs a C++ compiler and up to a minute, and
    a start that is killed meanwhile leaves a lock file behind, for which all later ones would wait
    without a word and without end.
    """
    import deepspeed

    # DeepSpeed compiles only what this dictionary lists as compatible. To make it, every process
    # would first test all extensions.
    deepspeed.ops.__compatible_ops__ = {}


def _prepare_gpu(settings: Settings) -> None:
    """Limit this rank's GPU memory and set its float32 precision, before a model is loaded.

    With a 16-bit model, the only float32 products are those of the output head and of the mismatch
    check. Their weights are 16-bit numbers, which TensorFloat-32 represents exactly, and so are the
    inputs of the head. On Hopper, TensorFloat-32 is about ten times as fast as float32.
    """
    if settings.trainer_memory < 1:
        gpu = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_per_process_memory_fraction(settings.trainer_memory, gpu)
    if settings.dtype != "float32":
        torch.set_float32_matmul_precision("high")


def check_gpus(settings: Settings) -> None:
    """Refuse to train unless torch sees one GPU for each trainer process of this machine.

    The libraries' own messages would mislead. With no GPU, transformers would train on the CPU, or
    report that bfloat16 needs `use_cpu`. With too few GPUs, CUDA would report an invalid device
    ordinal. With too many, ms-swift (4.6) would try to spread a process's model over them, and
    fail.

    Args:
        settings: The run's settings; a run on the CPU is not checked.

    Raises:
        SettingsError: torch sees a different number of GPUs.
    """
    if settings.device != "gpu":
        return
    # Set by torchrun. The settings are those of node 0, and this node may have other GPUs.
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus == needed:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = "CUDA_VISIBLE_DEVICES is unset"
    if visible is not None:
        listed = f"CUDA_VISIBLE_DEVICES={visible}"
    problem = f"{needed} trainer process(es) on this machine, but torch sees {num_gpus} GPU(s)"
    if num_gpus > needed:
        first = num_gpus - needed
        names = ",".join(str(number) for number in range(first, num_gpus))
        raise SettingsError(
            f"{problem} ({listed}). Name one GPU for each process, and none of the server's, e.g. "
            f"CUDA_VISIBLE_DEVICES_TRAINER={names}; the repository's scripts do this for you."
        )
    raise SettingsError(
        f"{problem} ({listed}): the list names a GPU that does not exist, or torch cannot use the "
        "driver. `nvidia-smi -L` lists the GPUs, and `hanabi-grpo doctor` compares them with the "
        "settings."
    )


def swift_options(
    settings: Settings, settings_path: Path, run_folder: Path, num_steps: int
) -> list[str]:
    """Return the command line that ms-swift is started with.

    Args:
        settings: The run's settings.
        settings_path: Path of the settings file.
        run_folder: Where the run writes.
        num_steps: Number of steps of the whole run.
    """
    plan = batch_plan(settings)
    # With several base models, player_0's; `prepare_model` loads the others.
    model = resolve_model(base_models(settings)[0])
    options: dict[str, object] = dict(FIXED_OPTIONS)
    for name in SAME_NAME_OPTIONS:
        options[name] = getattr(settings, name)
    # Player_0's values; our adapters and optimizer use each player's own.
    first = adapter_names(settings.players, settings.adapters)[0]
    options["lora_rank"] = settings.rank_of(first)
    options["lora_alpha"] = settings.alpha_of(first)
    options["learning_rate"] = settings.rate_of(first)
    options["hanabi_settings"] = settings_path
    options["output_dir"] = run_folder
    options["model"] = model
    model_type = swift_model_type(model)
    if model_type is not None:
        options["model_type"] = model_type
    # Our own code reads the rows; ms-swift only needs a name.
    options["dataset"] = settings.dataset or settings.board
    options["torch_dtype"] = settings.dtype
    # By default, ms-swift trains a float32 model in mixed float16.
    options["bf16"] = settings.dtype == "bfloat16"
    options["fp16"] = settings.dtype == "float16"
    options["per_device_train_batch_size"] = plan.per_device_train_batch_size
    if settings.num_generations == 1:
        # ms-swift refuses groups of one and requires whole groups in a batch. Our loop reads
        # neither option.
        options["num_generations"] = _SMALLEST_GROUP
        options["per_device_train_batch_size"] = _SMALLEST_GROUP * plan.per_device_train_batch_size
    options["gradient_accumulation_steps"] = plan.gradient_accumulation_steps
    options["max_steps"] = num_steps
    options["max_length"] = settings.max_model_len
    options["epsilon"] = settings.clip_low
    options["epsilon_high"] = settings.clip_high
    if settings.sampler_correction != "none":
        options["rollout_importance_sampling_mode"] = settings.sampler_correction
        options["rollout_importance_sampling_threshold"] = settings.sampler_correction_limit
    # Our own code clips gradients, for each player separately.
    options["max_grad_norm"] = 0
    if settings.deepspeed != "none":
        options["deepspeed"] = settings.deepspeed
    if settings.device == "cpu":
        options["gradient_checkpointing"] = "false"
        options["use_cpu"] = "true"
        options["attn_impl"] = "sdpa"
    else:
        options["gradient_checkpointing"] = "true"
    words: list[str] = []
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return words


def swift_model_type(folder: Path) -> str | None:
    """Return ms-swift's model type for an architecture; None: ms-swift detects it.

    ms-swift does not recognize the folder's name, and one architecture may have several of its
    types.
    """
    architecture = json.loads((folder / "config.json").read_text()).get("model_type")
    return str(architecture) if architecture in MODEL_MAPPING else None


def load_other_base(args: RLHFArguments, name: str) -> torch.nn.Module:
    """Load another base model as ms-swift has loaded the first: same format, same attention.

    Args:
        args: ms-swift's options.
        name: The base model as MODEL names it.
    """
    folder = resolve_model(name)
    options = args.get_model_kwargs()
    options["model_id_or_path"] = str(folder)
    options["model_type"] = swift_model_type(folder)
    model, _ = get_model_processor(**options)
    return model


class HanabiPipeline(SwiftRLHF):
    """ms-swift's GRPO pipeline with one adapter per player."""

    args_class = HanabiArguments
    args: HanabiArguments

    def _get_dataset(self) -> tuple[TaskDataset, None]:
        settings: Settings = self.args.vllm_client.settings
        num_tasks = self.args.max_steps * batch_plan(settings).tasks
        return TaskDataset(training_rows(settings), num_tasks), None

    def _prepare_dataset(self) -> list[Any]:
        return list(self._get_dataset())

    @classmethod
    def prepare_model(
        cls, args: HanabiArguments, model: torch.nn.Module, **_: Any
    ) -> torch.nn.Module:
        """Wrap the base model, or each of several, with its players' adapters."""
        settings: Settings = args.vllm_client.settings
        names = adapter_names(settings.players, settings.adapters)
        ranks = {name: settings.rank_of(name) for name in names}
        alphas = {name: settings.alpha_of(name) for name in names}
        peft_model: PeftModel
        first, *others = base_models(settings)
        if others:
            models = {first: model} | {name: load_other_base(args, name) for name in others}
            base_of = bases_by_player(settings)
            peft_model = add_team_adapters(
                models, base_of, rank=ranks, alpha=alphas, seed=settings.seed
            )
        else:
            peft_model = add_adapters(model, names, rank=ranks, alpha=alphas, seed=settings.seed)
        start_adapters(peft_model, settings, read_resume(args.vllm_client.run_folder))
        return peft_model

    def train(self, trainer: HanabiGRPOTrainer) -> Any:
        """Connect to the server and train; an interrupted run keeps its last finished step."""
        settings = trainer.settings
        setups = [*played_setups(training_rows(settings)), *validation_setups(settings)]
        tokenizer = trainer.processing_class
        base_of = bases_by_player(settings)
        check_vocabulary(setups, tokenizer, base_models(settings)[0])
        others = {base_of[name]: one for name, one in other_tokenizers(settings).items()}
        for name, other in others.items():
            check_vocabulary(setups, other, name)
        tracking = TrackingCallback(settings, trainer.link.run_folder)
        is_main_process = trainer.accelerator.is_main_process
        if is_main_process:
            _warn_of_budget(settings, setups, tokenizer, "")
            for name, other in others.items():
                _warn_of_budget(settings, setups, other, f"{name}: ")
            trainer.link.connect(trainer.first_step)
            # It prints a dictionary per step; the tracking callback logs a more readable line.
            trainer.remove_callback(PrinterCallback)
            trainer.add_callback(tracking)
        try:
            if is_main_process:
                check_base(settings, trainer.resume, trainer.link.server_facts)
                check_resumed_base(trainer.resume, trainer.link.server_facts)
            result = super().train(trainer)
            best = trainer.validation.best
            if is_main_process and best is not None:
                name = f"checkpoint-{best.step}" if best.step else "the start"
                of_curve = "" if best.curve == TRAINING_CURVE else f" ({best.curve})"
                logger.info(
                    "best in validation%s: %s, %.3f ± %.3f", of_curve, name, best.score, best.se
                )
            # After the last validation, which determines the best version in W&B.
            tracking.close()
            return result
        except BaseException as error:
            is_ctrl_c = isinstance(error, KeyboardInterrupt)
            cause = "Ctrl-C" if is_ctrl_c else type(error).__name__
            logger.info("stopped by %s: %s", cause, trainer.save_interrupted())
            tracking.close(exit_code=1)
            raise
        finally:
            trainer.link.disconnect()


def _warn_of_budget(
    settings: Settings, setups: Sequence[Setup[Any]], tokenizer: Any, whose: str
) -> None:
    """Warn if the longest conversation does not fit.

    Args:
        settings: The run's settings.
        setups: The environments that are played.
        tokenizer: Tokenizer of the base model to check.
        whose: The base model's name and a colon, or "" for the first one.
    """
    chat = ChatFormat.from_tokenizer(tokenizer, thinking=settings.thinking)
    budget = measure_budget(setups, chat, settings.max_completion_length)
    warning = budget.warning(settings.max_model_len)
    if warning:
        logger.warning("%s%s", whose, warning)


def register_trainer() -> None:
    """Make ms-swift build our trainer for `--rlhf_type grpo`, and never run a model's own code."""
    # The architectures that vLLM and ms-swift support do not need Python code from the model's
    # folder.
    ModelLoader.default_trust_remote_code = False
    # For every model, ms-swift warns that its code will be executed. `resolve_model` refuses
    # folders with code.
    model_meta.logger.addFilter(
        lambda record: "with trust_remote_code=True" not in record.getMessage()
    )
    trainer_path = f"{HanabiGRPOTrainer.__module__}.{HanabiGRPOTrainer.__name__}"
    TrainerFactory.TRAINER_MAPPING["grpo"] = trainer_path
    register_optimizers()
