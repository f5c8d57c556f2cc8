"""Options of ms-swift (terminal 2) and vLLM (terminal 1) that are not handed on, because they break a guarantee.

The one list behind the refusals, the dry run and docs/pass-through.md. Everything that it does not name is handed on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from hanabi_grpo.errors import SettingsError

Terminal = Literal["server", "trainer"]
PAGE = "docs/pass-through.md"
SOFTWARE: dict[Terminal, str] = {"trainer": "ms-swift", "server": "vLLM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Options that are refused for one reason."""

    options: tuple[str, ...]
    """Names with underscores; a star at the end stands for the rest of a name."""
    why: str
    """The guarantee, as a part of a sentence."""
    instead: str = ""
    """The setting, or several with commas, or a command; empty: there is none."""


_TABLES: dict[Terminal, str] = {
    "trainer": """\
# the loss
loss_type acc_strategy loss_scale loss_weights enable_dft_loss enable_channel_loss | a player's loss is divided by \
its reply tokens of the whole step, however the step is cut | HANABI_LOSS_UNIT
use_liger_kernel liger_kernel_config | its loss never calls the forward pass that chooses the player's adapter and \
compares logprobs
padding_free packing packing_* sequence_parallel_size | a row of a micro-batch is one player's conversation, and its \
positions are those of the game | HANABI_TOKENS_PER_MICRO_BATCH
log_entropy top_entropy_quantile | no entropies are computed beside the logprobs; entropy_estimate in metrics.jsonl \
is the sampler's | HANABI_ENTROPY_BONUS
epsilon | the clip is a setting | HANABI_CLIP_LOW
epsilon_high | the clip is a setting | HANABI_CLIP_HIGH
delta | the clip is a setting | HANABI_CLIP_DUAL
beta | the weight of the KL term is a setting | BETA
kl_in_reward | rewards come from the environment, and the KL term is added there | HANABI_KL
sync_ref_model ref_* | the reference of the KL term is the base model, whose weights never change | BETA
advantage_estimator scale_rewards whiten_rewards gamma lam | advantages are computed for each player and turn | \
HANABI_ADVANTAGE, HANABI_ADVANTAGE_SCALE, HANABI_WHITEN
importance_sampling_level tau_pos tau_neg off_policy_sequence_mask_delta advantage_reweight real_tau rlsd_* sdar_* \
fipo_* | the ratio of a token is its own: conversations of different players have no ratio in common
rollout_importance_sampling_mode | the correction is a setting | HANABI_SAMPLER_CORRECTION
rollout_importance_sampling_threshold | its limit is a setting | HANABI_SAMPLER_CORRECTION_LIMIT
teacher_* offload_teacher_model chord_* sft_alpha router_aux_loss_coef neftune_noise_alpha | the loss is that of the \
games alone, and the trainer computes what the sampler computed
# the step and its updates
num_iterations steps_per_generation | passes over a step's games are counted | HANABI_UPDATES_PER_STEP
gradient_accumulation_steps generation_batch_size auto_find_batch_size | a step is whole deals with all their games \
and players | HANABI_DEALS_PER_STEP, HANABI_TOKENS_PER_MICRO_BATCH
per_device_train_batch_size | it is part of a step's arithmetic | PER_DEVICE_TRAIN_BATCH_SIZE
num_generations | it is part of a step's arithmetic | NUM_GENERATIONS
max_steps | a step is one set of games; resumes and schedules count it | MAX_STEPS
num_train_epochs max_epochs | it is counted in deals | NUM_TRAIN_EPOCHS
max_grad_norm | each player's gradient is clipped by its own norm | MAX_GRAD_NORM
learning_rate lorap_lr_ratio aligner_lr vit_lr | each player has a rate of its own | LEARNING_RATE, \
HANABI_LEARNING_RATES
lr_scheduler_type lr_scheduler_kwargs | each player is at its own count of updates | LR_SCHEDULER_TYPE
warmup_steps warmup_ratio | each player is at its own count of updates | WARMUP_STEPS
optimizer use_galore galore_* lisa_* | the optimizer has one group for each player, which it may move alone; --optim \
chooses its kind
# games and sampling
temperature | the trainer's logprobs must be under the temperature that sampled | TEMPERATURE
top_p top_k min_p repetition_penalty num_beams stop_words structured_outputs_regex | replies are sampled from the \
whole distribution that is trained | TEMPERATURE
max_completion_length max_new_tokens response_length | it goes to the server | MAX_COMPLETION_LENGTH
max_length max_model_len | the server counts a conversation's tokens | HANABI_MAX_MODEL_LEN
rlhf_type dynamic_sample max_resample_times multi_turn_scheduler use_gym_env gym_env max_turns \
completion_length_limit_scope | games are played by the rollout server, as many as a step asks for | \
HANABI_MAX_TURNS, HANABI_DEALS_PER_STEP
async_generate | games are played ahead with stamped versions only | HANABI_OVERLAP
use_vllm vllm_* move_model_batches sleep_level offload_model offload_optimizer enable_flattened_weight_sync | the \
server is a process of its own, which is handed adapters and never the base model | VLLM_SERVER_HOST, \
VLLM_SERVER_PORT
reward_* overlong_filter soft_* cosine_* repetition_n_grams repetition_max_penalty | rewards belong to moves and come \
from the environment | HANABI_REWARD_SCORE, HANABI_REWARD_ILLEGAL, HANABI_REWARD_OUT_OF_TOKENS, HANABI_LENGTH_PENALTY
# data and text
dataset val_dataset cached_* split_dataset_ratio dataset_shuffle val_dataset_shuffle stream* columns \
train_dataloader_shuffle interleave_prob dataloader_drop_last group_by_length train_sampling_strategy data_seed \
ignore_data_skip | every rank reads the same deals in the same order, also after a resume | DATASET, HANABI_DEAL_SEED
eval_* do_eval do_predict early_stop_interval | held-out deals are played by a command of their own | hanabi-grpo \
evaluate
template system truncation_strategy use_chat_template padding_side enable_thinking preserve_thinking response_prefix \
add_non_thinking_prefix disable_ignore_empty_think agent_template | the server's token ids are trained on as they \
are; no text is encoded here | HANABI_OBSERVATION, HANABI_THINKING
# model and adapters
model model_revision local_repo_path new_special_tokens num_labels task_type rope_scaling init_strategy | trainer and \
server compare the base model that both load | MODEL
torch_dtype bf16 fp16 | trainer and server have one number format | HANABI_DTYPE
quant_* bnb_4bit_* hqq_axis | the trainer's base model must be the server's | MODEL
lora_rank | the server has room for one rank | LORA_RANK
lora_alpha | it travels with every adapter | LORA_ALPHA
tuner_* lora_* use_rslora use_dora use_swift_lora target_* modules_to_save init_weights | every player's adapter is \
plain LoRA on all linear layers, which the server can load | LORA_RANK, LORA_ALPHA
freeze_* trainable_parameters* | the base model is frozen, and players by name | HANABI_FREEZE
adapters | each player has an adapter to start from | HANABI_START_FROM
seed | it is recorded, and resumes compare it | SEED
# processes
deepspeed fsdp* parallelism_config accelerator_config deepspeed_autotp_size use_ray device_groups use_cpu | players \
are kept apart under plain torch and DeepSpeed's ZeRO only | DEEPSPEED, NPROC_PER_NODE
# files
output_dir add_version create_checkpoint_symlink hanabi_settings | a run is one folder | OUTPUT_DIR
save_steps | checkpoints are written by us, whole or not at all | SAVE_STEPS
save_total_limit | checkpoints are written by us, whole or not at all | SAVE_TOTAL_LIMIT
save_strategy save_only_model save_on_each_node safe_serialization max_shard_size use_flash_ckpt \
enable_jit_checkpoint load_best_model_at_end metric_for_best_model | a checkpoint holds every player's adapter and \
all that a resume needs | SAVE_STEPS
push_to_hub hub_* | a checkpoint is published a player at a time | hanabi-grpo export
resume_from_checkpoint resume_only_model restore_callback_states_from_checkpoint load_args load_data_args | a resume \
brings back every player, and says what it goes on from | RESUME
logging_steps logging_strategy logging_first_step log_completions | metrics.jsonl has one line a step; games are \
recorded beside it | HANABI_EPISODES_EVERY
report_to | metrics are written by us | REPORT_TO
run_name | metrics are written by us | WANDB_NAME
project | metrics are written by us | WANDB_PROJECT
swanlab_* trackio_* | metrics are written by us | REPORT_TO
ignore_args_error | a misspelt option is an error
""",
    "server": """\
model tokenizer tokenizer_mode tokenizer_revision revision code_revision hf_config_path config_format hf_overrides \
model_class_overrides load_format ignore_patterns | trainer and server compare the base model and the tokenizer that \
both load | MODEL
trust_remote_code | no code of a model is run
config | a file could hold any of these options; write them behind the command
runner convert pooler_config | the engine samples replies
dtype | trainer and server have one number format | HANABI_DTYPE
quantization q quantization_config allow_deprecated_quantization kv_cache_dtype | coarser numbers than the trainer's \
change every logprob | HANABI_DTYPE
logprobs_mode logits_processors return_sampling_mask | logprobs must be those of the distribution that was sampled \
from | TEMPERATURE
generation_config override_generation_config | the model's own stop tokens end a reply, and the rest of sampling \
travels with each request | TEMPERATURE, MAX_COMPLETION_LENGTH
seed | it is recorded | SEED
max_lora_rank | uploads are compared with the rank that was agreed on | LORA_RANK
enable_lora max_loras max_cpu_loras lora_target_modules lora_dtype default_mm_loras enable_tower_connector_lora | \
every player has an adapter, and one that falls out of memory would end the engine | HANABI_PLAYERS
max_model_len | a game ends before its conversation outgrows it | HANABI_MAX_MODEL_LEN
max_num_seqs | it is recorded | HANABI_MAX_NUM_SEQS
gpu_memory_utilization device_memory_utilization | it is recorded | HANABI_GPU_MEMORY_UTILIZATION
tensor_parallel_size tp | it divides the GPUs of this terminal | VLLM_TENSOR_PARALLEL_SIZE
data_parallel_size dp | it divides the GPUs of this terminal | VLLM_DATA_PARALLEL_SIZE
data_parallel_* dpn dpr dpl dpa dpp dpb dph dpe dpm nnodes n node_rank r | an adapter must reach every engine, and \
one process hands it out; use several servers | VLLM_SERVER_HOST
worker_cls worker_extension_cls | the workers load adapters and end with the server
host | the HTTP server is ours | HANABI_HOST
port | the HTTP server is ours | PORT
api_key | the HTTP server is ours | HANABI_API_KEY
chat_template | it is the tokenizer's own; trainer and server compare it | MODEL
served_model_name | players are named by seat, adapters by version | MODEL
""",
}
"""A line for each reason: options, the reason, and what to use; lines with # are headings."""


def _rows(table: str) -> tuple[Refusal, ...]:
    lines = [line.split(" | ") for line in table.splitlines() if not line.startswith("#")]
    return tuple(Refusal(options=tuple(cells[0].split()), why=cells[1], instead="".join(cells[2:])) for cells in lines)


REFUSED = {terminal: _rows(table) for terminal, table in _TABLES.items()}

PASSED: dict[Terminal, tuple[str, ...]] = {
    "trainer": (
        *("optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "attn_impl", "model_type"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "dataloader_num_workers", "disable_tqdm"),
    ),
    "server": (
        *("max_num_batched_tokens", "enforce_eager", "attention_backend", "enable_prefix_caching", "block_size"),
        *("disable_cascade_attn", "cudagraph_capture_sizes", "compilation_config", "pipeline_parallel_size"),
    ),
}
"""Options that are handed on and worth knowing; also those whose name begins that of a refused one."""


def option_problems(terminal: Terminal, extra_args: Sequence[str]) -> list[str]:
    """Return a sentence for each word on a command line that is an option which is not handed on.

    Args:
        terminal: Whose command line it is.
        extra_args: What would be handed on. Options may be written as their software takes them: with dashes for
            underscores, `=` before the value, `no-` before a switch, cut short.
    """
    problems = []
    for word in extra_args:
        if word.startswith("-"):
            typed = word.partition("=")[0]
            name = typed.lstrip("-").partition(".")[0].replace("-", "_").removeprefix("no_")
            row = _refusal(terminal, name)
            if row is not None:
                way = f"use {row.instead}" if row.instead else "leave it out"
                problems.append(f"{typed} is not handed on to {SOFTWARE[terminal]}: {row.why}; {way}. See {PAGE}.")
    return problems


def check_options(terminal: Terminal, extra_args: Sequence[str]) -> None:
    """Refuse options that would break a guarantee; see `option_problems`.

    Raises:
        SettingsError: With all of them.
    """
    if problems := option_problems(terminal, extra_args):
        raise SettingsError("\n".join(problems))


def _refusal(terminal: Terminal, name: str) -> Refusal | None:
    if not name or name in PASSED[terminal]:
        return None
    rows = REFUSED[terminal]
    named = [row for row in rows if any(fnmatchcase(name, one) for one in row.options)]
    # argparse takes the beginning of an option for an abbreviation.
    begun = [row for row in rows if any(one.rstrip("*").startswith(name) for one in row.options)]
    return next(iter(named + begun), None)


def pass_through_markdown() -> str:
    """Return the tables of docs/pass-through.md."""
    parts = []
    for terminal, software in SOFTWARE.items():
        parts += [f"## {software}", "", f"Handed on, for example: {_code(PASSED[terminal])}.", ""]
        parts += ["| not handed on | because | use |", "|---|---|---|"]
        for row in REFUSED[terminal]:
            use = ", ".join(f"`{one}`" for one in row.instead.split(", ")) if row.instead else ""
            parts.append(f"| {_code(row.options)} | {row.why} | {use} |")
        parts.append("")
    return "\n".join(parts)


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
