"""Where ms-swift is told of our settings, model, data and trainer."""

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
"""ms-swift's options that are called as our settings are."""
_SMALLEST_GROUP = 2
"""The smallest `num_generations` that ms-swift takes."""
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
    # Asks a hub whether the local model is the newest, and waits through its retries.
    "check_model": "false",
    # Never encodes anything here: token ids come from the rollout server.
    "template": "dummy",
    # ms-swift's 0.1 would pull a player towards the base model also in steps without its data.
    "weight_decay": "0.0",
    # The loss is ours (`loss`); what it is made of is said to ms-swift too, so that its args.json
    # is true.
    "loss_type": "dapo",
}
"""ms-swift's options that are the same in every run."""


@dataclass
class HanabiArguments(RLHFArguments):
    """ms-swift's options and the path of ours."""

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
        stage = self.deepspeed.get("zero_optimization", {}).get("stage")
        if stage == ZERO_STAGE_OF_SHARDED_WEIGHTS and not torch.cuda.is_available():
            import deepspeed

            # Weights are divided while the model is loaded, for as many processes as DeepSpeed
            # knows of. accelerate tells it of them before that on GPUs only.
            deepspeed.init_distributed(dist_backend="gloo")
        if stage == 2:
            # Else micro-batches add up in the model's own format: of 64 in bfloat16 the sum was off
            # by 1 %, so by .2 %. Under ZeRO-1 DeepSpeed would take another optimizer, whose state
            # `checkpoint` does not know.
            data_types = self.deepspeed.setdefault("data_types", {})
            data_types.setdefault("grad_accum_dtype", "fp32")


def _prepare_gpu(settings: Settings) -> None:
    """Bound the memory of this rank's GPU, and choose its float32 products, before a model comes.

    With a model of 16 bits, float32 products are those of the output head and of the mismatch
    check. Their weights are numbers of 16 bits, which TensorFloat-32 holds exactly, and the head's
    inputs are too; on Hopper it is about ten times as fast as float32.
    """
    if settings.trainer_memory < 1:
        gpu = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_per_process_memory_fraction(settings.trainer_memory, gpu)
    if settings.dtype != "float32":
        torch.set_float32_matmul_precision("high")


def check_gpus(settings: Settings) -> None:
    """Refuse to train where torch does not see a GPU for each trainer process of this machine.

    With none, transformers would train on the CPU, or say that bfloat16 needs `use_cpu`; with too
    few, CUDA would speak of an invalid device ordinal; with too many, ms-swift (4.6) would spread a
    process's model over them, and refuses to.

    Args:
        settings: The run's; nothing is asked where it is meant for a CPU.

    Raises:
        SettingsError: It sees another number of GPUs.
    """
    if settings.device != "gpu":
        return
    # torchrun's; this node may have others than node 0, whose settings these are.
    needed = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus == needed:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = "CUDA_VISIBLE_DEVICES is unset"
    if visible is not None:
        listed = f"CUDA_VISIBLE_DEVICES={visible}"
    problem = f"{needed} trainer process(es) on this machine, and torch sees {num_gpus} GPU(s)"
    if num_gpus > needed:
        first = num_gpus - needed
        names = ",".join(str(number) for number in range(first, num_gpus))
        raise SettingsError(
            f"{problem} ({listed}). Name one for each process, others than the server's, e.g. "
            f"CUDA_VISIBLE_DEVICES_TRAINER={names}; the scripts of the repository do so."
        )
    raise SettingsError(
        f"{problem} ({listed}): the list names a GPU that is not there, or torch cannot use the "
        "driver. `nvidia-smi -L` lists the GPUs, `hanabi-grpo doctor` compares them with the "
        "settings."
    )


def swift_options(
    settings: Settings, settings_path: Path, run_folder: Path, num_steps: int
) -> list[str]:
    """Return the command line that ms-swift is started with.

    Args:
        settings: The run's.
        settings_path: Where they are on this disk.
        run_folder: Where the run writes.
        num_steps: Optimizer steps of the whole run.
    """
    plan = batch_plan(settings)
    # Of a team player_0's; `prepare_model` loads the others.
    model = resolve_model(base_models(settings)[0])
    options: dict[str, object] = dict(FIXED_OPTIONS)
    for name in SAME_NAME_OPTIONS:
        options[name] = getattr(settings, name)
    # Our adapters and optimizer have each player's own.
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
    # Rows are ours; ms-swift only wants a name.
    options["dataset"] = settings.dataset or settings.board
    options["torch_dtype"] = settings.dtype
    # Left alone, ms-swift trains a float32 model in mixed float16.
    options["bf16"] = settings.dtype == "bfloat16"
    options["fp16"] = settings.dtype == "float16"
    options["per_device_train_batch_size"] = plan.per_device_train_batch_size
    if settings.num_generations == 1:
        # ms-swift refuses groups of one, and wants whole groups in a batch. Our loop reads neither.
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
    # Clipping is ours, player by player.
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
    """Return what ms-swift calls a model's architecture; None: it finds out itself.

    A folder's name says nothing to ms-swift, and one architecture may serve several of its types.
    """
    architecture = json.loads((folder / "config.json").read_text()).get("model_type")
    return str(architecture) if architecture in MODEL_MAPPING else None


def load_other_base(args: RLHFArguments, name: str) -> torch.nn.Module:
    """Load a further base model as ms-swift has loaded the first: same format, same attention.

    Args:
        args: ms-swift's options.
        name: As MODEL says it.
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
        """Wrap the base model, or each of a team's, with its players' adapters."""
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
            # Its dictionary per step says what the tracking callback's line says better.
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
            # Behind the last validation, which says what W&B calls the best.
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
    """Warn where the longest conversation does not fit.

    Args:
        settings: The run's.
        setups: What is played.
        tokenizer: Of the base model that is looked at.
        whose: Its name with a colon, or "" for the first.
    """
    chat = ChatFormat.from_tokenizer(tokenizer, thinking=settings.thinking)
    budget = measure_budget(setups, chat, settings.max_completion_length)
    warning = budget.warning(settings.max_model_len)
    if warning:
        logger.warning("%s%s", whose, warning)


def register_trainer() -> None:
    """Make ms-swift build our trainer for `--rlhf_type grpo`, from a model that brings no code."""
    # A model folder's own Python code is never run; the architectures that vLLM and ms-swift know
    # need none.
    ModelLoader.default_trust_remote_code = False
    # ms-swift says of every model that its code will be executed. `resolve_model` refuses a folder
    # that names any.
    model_meta.logger.addFilter(
        lambda record: "with trust_remote_code=True" not in record.getMessage()
    )
    trainer_path = f"{HanabiGRPOTrainer.__module__}.{HanabiGRPOTrainer.__name__}"
    TrainerFactory.TRAINER_MAPPING["grpo"] = trainer_path
    register_optimizers()
