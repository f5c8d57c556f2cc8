"""Settings as ms-swift's options."""

import json
from dataclasses import dataclass
from pathlib import Path

from swift.arguments import RLHFArguments
from swift.model import MODEL_MAPPING

from hanabi_grpo.runs.fingerprint import resolve_model
from hanabi_grpo.settings import Settings, batch_plan, deepspeed_stage, read_settings
from hanabi_grpo.training.fleet_link import make_link

_SAME = (
    *("lora_rank", "lora_alpha", "vllm_server_host", "vllm_server_port", "num_generations", "max_completion_length"),
    *("temperature", "learning_rate", "lr_scheduler_type", "warmup_steps", "beta", "seed", "save_steps"),
)
"""Options that are called as the setting is."""
_FALSE = (
    *("add_version", "create_checkpoint_symlink", "dataset_shuffle", "train_dataloader_shuffle"),
    # Asks a hub whether the local model is the newest, and waits through its retries.
    "check_model",
)


@dataclass
class HanabiArguments(RLHFArguments):
    """ms-swift's options and the path of ours."""

    hanabi_settings: str = ""

    def _init_external_vllm(self) -> None:
        # Every rank needs the settings that the link carries; only the main process talks to the server.
        self.vllm_client = make_link(read_settings(Path(self.hanabi_settings)), Path(self.output_dir))


def swift_options(settings: Settings, settings_path: Path, run_folder: Path, num_steps: int) -> list[str]:
    """Return the command line that ms-swift is started with."""
    plan = batch_plan(settings)
    model = resolve_model(settings.model)
    on_cpu = settings.device == "cpu"
    options: dict[str, object] = {
        **{name: getattr(settings, name) for name in _SAME},
        **dict.fromkeys(_FALSE, "false"),
        "hanabi_settings": settings_path,
        "rlhf_type": "grpo",
        "model": model,
        "torch_dtype": settings.dtype,
        # Left alone, ms-swift trains a float32 model in mixed float16.
        "bf16": settings.dtype == "bfloat16",
        "fp16": settings.dtype == "float16",
        # Rows are ours (`pipeline`); ms-swift only wants a name.
        "dataset": settings.dataset or settings.preset,
        "split_dataset_ratio": 0,
        "output_dir": run_folder,
        "use_hf": "true",
        "tuner_type": "lora",
        "use_vllm": "true",
        "vllm_mode": "server",
        "vllm_server_pass_dataset": "true",
        "per_device_train_batch_size": plan.per_device_train_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "max_steps": num_steps,
        "max_length": settings.max_model_len,
        "top_p": 1.0,
        "top_k": -1,
        # ms-swift's 0.1 would pull a player towards the base model also in steps without its data.
        "weight_decay": 0.0,
        # The loss is ours (`loss`); what it is made of is said to ms-swift too, so that its args.json is true.
        "kl_in_reward": "true" if settings.kl == "reward" else "false",
        "epsilon": settings.clip_low,
        "epsilon_high": settings.clip_high,
        # Clipping is ours, player by player; ZeRO-3 alone leaves it to DeepSpeed.
        "max_grad_norm": settings.max_grad_norm if deepspeed_stage(settings) == 3 else 0,
        # Normalised by tokens of the whole step: the cut into micro-batches does not change the gradient.
        "loss_type": "dapo",
        "logging_steps": 1,
        "save_strategy": "steps",
        "eval_strategy": "no",
        "report_to": "none",
        "dataloader_num_workers": 0,
        "gradient_checkpointing": "false" if on_cpu else "true",
        "disable_tqdm": "true",
    }
    # A folder's name says nothing to ms-swift, and one architecture may serve several of its model types.
    architecture = json.loads((model / "config.json").read_text()).get("model_type")
    if architecture in MODEL_MAPPING:
        options["model_type"] = architecture
    # Never encodes anything here: token ids come from the rollout server.
    options["template"] = "dummy"
    if settings.clip_dual is not None:
        options["delta"] = settings.clip_dual
    if settings.sampler_correction != "none":
        options["rollout_importance_sampling_mode"] = settings.sampler_correction
        options["rollout_importance_sampling_threshold"] = settings.sampler_correction_limit
    if on_cpu:
        options["use_cpu"] = "true"
        options["attn_impl"] = "sdpa"
    if settings.deepspeed != "none":
        options["deepspeed"] = settings.deepspeed
    return [text for name, value in options.items() for text in (f"--{name}", str(value))]
