"""The settings of a run.

All defaults of the project are defined here, except those of an environment's own fields.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ModelWrapValidatorHandler,
    model_validator,
)

from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.settings import defaults, values
from hanabi_grpo.settings.affects import Affects, AffectsWhen
from hanabi_grpo.settings.game import (
    HANABI,
    INPUTS,
    changed_board,
    default_preset,
    game_defaults,
    game_model,
    game_values,
)
from hanabi_grpo.settings.judge_template import (
    TEMPLATE_ALLOWED,
    is_judge,
    is_template,
    read_template,
)
from hanabi_grpo.settings.per_player import (
    FORM,
    PerPlayer,
    Rate,
    entries,
    per_player,
    value_of,
    whole_numbers,
)
from hanabi_grpo.settings.values import where
from hanabi_grpo.settings.variables import (
    Variable,
    game,
    run,
    server,
    split_list,
    tracking,
    trainer,
    variables_of,
)
from hanabi_grpo.token_filter import TokenFilter
from hanabi_grpo.training.estimators import (
    DISCOUNTED,
    ESTIMATORS,
    Learned,
    Method,
    Over,
    Scale,
    names_needing,
)
from hanabi_grpo.types import SHARED_ADAPTER

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM can load (`vllm.config.lora`)."""
RANK_ALLOWED = "a rank that vLLM can load: " + ", ".join(str(rank) for rank in LORA_RANKS)
"""Allowed values of LORA_RANK, for messages."""
DEEPSPEED_STAGES = ("none", "zero1", "zero2", "zero3")
"""Values of DEEPSPEED that are not a file; the index is ZeRO's stage, 0 without DeepSpeed."""
Schedule = Literal[
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]
"""Values of LR_SCHEDULER_TYPE: transformers' schedules that depend only on the number of updates
and need only their name."""
_WITH_CRITIC = " and ".join(names_needing(Learned.CRITIC, Learned.CENTRAL_CRITIC))
"""Estimators that read HANABI_GAE_LAMBDA."""
_WITH_CREDIT = " and ".join(names_needing(Learned.CREDIT_SUM, Learned.CREDIT_MIXER))
_MAX_SEED = 2**31 - 1
"""Largest seed that every library takes."""
_STEPS_OF_BOOLEAN = {"true": 1, "yes": 1, "on": 1, "false": 0, "no": 0, "off": 0}
_MAX_SECONDS = 10_000_000
"""Longest time limit, 116 days; a socket's must stay below about 300 years."""
_MAX_STEPS = 500
"""Steps of a run without MAX_STEPS and NUM_TRAIN_EPOCHS."""
_GUEST_TOKENS = 1_000_000
"""Token budget of guests at a model that needs a key, and so may cost money."""
_DEEPSPEED_ALLOWED = (
    "one of " + ", ".join(DEEPSPEED_STAGES) + ", or the path of a .json file that exists"
)
_PHASES = AffectsWhen(field="update", value="best_response", affects=Affects.LEARNING)
"""Validations end a run early; with HANABI_UPDATE=best_response they also decide who is trained."""


def _is_deepspeed(text: str) -> bool:
    """Tell whether DEEPSPEED names a stage, or a configuration file that exists."""
    return text in DEEPSPEED_STAGES or (text.endswith(".json") and Path(text).is_file())


def _is_lora_rank(rank: int) -> bool:
    return rank in LORA_RANKS


def _is_sequential_limit(limit: float) -> bool:
    return limit == 0 or limit > 1


def _number_of_steps(value: object) -> object:
    """Also read HANABI_OVERLAP as it was typed before 0.3, true or false."""
    if isinstance(value, str):
        return _STEPS_OF_BOOLEAN.get(value.strip().lower(), value)
    return value


def _default_max_steps(given: dict[str, Any]) -> int | None:
    return None if given.get("num_train_epochs") else _MAX_STEPS


def _default_games_at_once(given: dict[str, Any]) -> int:
    # As many as all copies sample at once. Invalid values are absent, and reported separately.
    return int(given.get("max_num_seqs", 1) * given.get("vllm_data_parallel_size", 1))


def _default_guest_tokens(given: dict[str, Any]) -> int | None:
    if given.get("partner_tokens"):
        return int(given["partner_tokens"])
    return _GUEST_TOKENS if given.get("partner_key") else None


def _default_task_seed(given: dict[str, Any]) -> int:
    return int(given.get("seed", 0))


CommaList = Annotated[tuple[str, ...], BeforeValidator(split_list)]
"""A tuple that is typed as a comma-separated list."""


class Settings(BaseModel):
    """Resolved settings; a field is named like its variable in lower case, without `HANABI_`.

    Fields that the user gave are in `model_fields_set`; the others have the default of `device`.
    Fields of the chosen environment are attributes like those below, e.g. `settings.max_turns`;
    `env_config` has all of them.

    Each field declares what it `affects`; see `settings.affects`.
    """

    # "allow": the fields of the environment, which `_add_the_game` checks.
    model_config = ConfigDict(
        frozen=True, extra="allow", allow_inf_nan=False, protected_namespaces=()
    )

    device: Literal["cpu", "gpu"] = "cpu"
    """Which defaults apply."""
    device_reason: str = ""
    """The reason, for the terminal."""

    # Fields that the defaults of others depend on come first.
    dataset: str | None = run(
        "DATASET",
        "Dataset file whose rows select the boards to play (data/README.md); unset: the board "
        "configured below.",
        affects=Affects.PLAY,
    )
    env: str = game(
        "HANABI_ENV",
        "Environment to play (docs/environments.md).",
        HANABI,
        both=True,
        allowed="an environment",
        affects=Affects.PLAY,
    )
    preset: str | None = None
    """A variable of the environment, see `settings.game`; None: a dataset's rows name it."""
    players: int = 2
    """Also a variable of the environment."""

    # run
    model: str = run(
        "MODEL",
        defaults.MODEL,
        defaults.TINY_MODEL,
        gpu=defaults.QWEN,
        both=True,
        factory=defaults.default_model,
        affects=Affects.WEIGHTS,
    )
    output_dir: Path | None = run(
        "OUTPUT_DIR",
        "Run folder; unset: outputs/(board or dataset)-(date and time).",
        affects=Affects.PLACE,
    )
    profile: Path | None = run(
        "HANABI_PROFILE",
        "Settings file, such as tools/profiles/gpu-1.env, or a YAML file (below).",
        both=True,
        affects=Affects.MACHINE,
    )
    seed: int = run(
        "SEED",
        "Seed for sampling, adapter initialization, training tasks and tiny models.",
        42,
        ge=0,
        le=_MAX_SEED,
        affects=Affects.SEED,
    )

    debug: Literal["server", "trainer"] | None = run(
        "HANABI_DEBUG",
        "Terminal that waits for a debugger on port 5678 of this machine (CONTRIBUTING.md); unset: "
        "none.",
        affects=Affects.PLACE,
    )

    # server
    host: str = server(
        "HANABI_HOST",
        "Address to listen on; any address that other machines can reach needs a key.",
        "127.0.0.1",
        affects=Affects.PLACE,
    )
    port: int = server(
        "PORT",
        "Port to listen on.",
        8000,
        ge=1,
        le=65535,
        affects=Affects.PLACE,
    )
    api_key: values.HeaderSafe | None = server(
        "HANABI_API_KEY",
        "API key required in every request; at least 16 characters if other machines can reach the "
        "server.",
        allowed="printable ASCII without spaces",
        both=True,
        affects=Affects.PLACE,
    )
    vllm_tensor_parallel_size: int = server(
        "VLLM_TENSOR_PARALLEL_SIZE",
        "GPUs per copy of the model.",
        1,
        ge=1,
        affects=Affects.MACHINE,
    )
    vllm_data_parallel_size: int = server(
        "VLLM_DATA_PARALLEL_SIZE",
        "Copies of the model; 1 if only VLLM_TENSOR_PARALLEL_SIZE is set.",
        1,
        gpu=4,
        ge=1,
        affects=Affects.MACHINE,
    )
    max_model_len: int = server(
        "HANABI_MAX_MODEL_LEN",
        "Maximum length in tokens of one player's private conversation, replies included.",
        1024,
        gpu=40960,
        ge=64,
        affects=Affects.MACHINE,
    )
    gpu_memory_utilization: float = server(
        "HANABI_GPU_MEMORY_UTILIZATION",
        "Fraction of each GPU's memory for the engine.",
        0.9,
        gt=0,
        le=1,
        affects=Affects.MACHINE,
    )
    sleep: bool = server(
        "HANABI_SLEEP",
        "For a GPU that both terminals share: the engine releases its memory while the trainer "
        "learns (docs/hardware.md).",
        False,
        both=True,
        affects=Affects.MACHINE,
    )
    max_num_seqs: int = server(
        "HANABI_MAX_NUM_SEQS",
        "Maximum number of replies sampled at once.",
        256,
        ge=1,
        affects=Affects.MACHINE,
    )
    guest_slots: int = server(
        "HANABI_GUEST_SLOTS",
        "Guest adapters that one engine batch may mix, in addition to those of the run's players. "
        "Requests for more wait.",
        4,
        ge=0,
        affects=Affects.MACHINE,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = server(
        "HANABI_DTYPE",
        "Data type of the base model.",
        "float32",
        gpu="bfloat16",
        both=True,
        affects=Affects.LEARNING,
    )
    die_with_parent: bool = server(
        "HANABI_DIE_WITH_PARENT",
        "Stop the server when the process that started it ends.",
        False,
        affects=Affects.PLACE,
    )
    session_timeout: float = server(
        "HANABI_SESSION_TIMEOUT",
        "Seconds of silence after which another trainer may take over the server.",
        60.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.PLACE,
    )
    games_at_once: int = server(
        "HANABI_GAMES_AT_ONCE",
        "Maximum number of games in play at the same time; each waits for one or two replies. "
        "Unset: HANABI_MAX_NUM_SEQS per copy of the model.",
        ge=1,
        factory=_default_games_at_once,
        affects=Affects.MACHINE,
    )
    game_timeout: float = server(
        "HANABI_GAME_TIMEOUT",
        "Seconds after which an unfinished game is dropped.",
        900.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.MACHINE,
    )
    call_timeout: float = server(
        "HANABI_CALL_TIMEOUT",
        "Time limit in seconds for one call to an environment or script that may block.",
        120.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.MACHINE,
    )
    game_workers: int = server(
        "HANABI_GAME_WORKERS",
        "Worker processes for environments and scripts that may block.",
        2,
        ge=1,
        affects=Affects.MACHINE,
    )
    engine_timeout: float = server(
        "HANABI_ENGINE_TIMEOUT",
        "Seconds without a response after which the engine is considered hung.",
        300.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.PLACE,
    )
    engine_restarts: int = server(
        "HANABI_ENGINE_RESTARTS",
        "Engine restarts after crashes with less than ten healthy minutes between them; 0: the "
        "server exits instead.",
        3,
        ge=0,
        affects=Affects.PLACE,
    )
    partner_urls: values.PartnerUrls = server(
        "HANABI_PARTNER_URLS",
        "Models behind OpenAI-compatible URLs that may take a seat as url:NAME; a comma-separated "
        "list (docs/evaluation.md).",
        (),
        allowed=values.PARTNER_URLS_ALLOWED,
        affects=Affects.MACHINE,
    )
    partner_key: values.HeaderSafe | None = server(
        "HANABI_PARTNER_KEY",
        "API key sent to these URLs; the same for all of them.",
        allowed="printable ASCII without spaces",
        affects=Affects.PLACE,
    )
    partner_timeout: float = server(
        "HANABI_PARTNER_TIMEOUT",
        "Time limit in seconds for one call to such a URL.",
        60.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.PLACE,
    )
    partner_tokens: int = server(
        "HANABI_PARTNER_TOKENS",
        "Token budget (prompts and replies) at these URLs for the session's trainer until this "
        "server restarts; 0: no limit.",
        0,
        ge=0,
        affects=Affects.MACHINE,
    )
    partner_guest_tokens: int | None = server(
        "HANABI_PARTNER_GUEST_TOKENS",
        "The same budget for all other clients together, evaluations included; 0: they may not "
        "seat these URLs. Unset: HANABI_PARTNER_TOKENS if that is set, 1000000 if only "
        "HANABI_PARTNER_KEY is set, otherwise no limit.",
        ge=0,
        factory=_default_guest_tokens,
        affects=Affects.MACHINE,
    )
    partner_requests: int = server(
        "HANABI_PARTNER_REQUESTS",
        "Concurrent calls to these URLs.",
        8,
        ge=1,
        affects=Affects.MACHINE,
    )
    judge: Annotated[str | None, where(is_judge)] = server(
        "HANABI_JUDGE",
        "Frozen model from HANABI_PARTNER_URLS that scores every training game; the score is the "
        "reward part judge (docs/judge.md). Unset: no judge.",
        allowed="url:NAME, with the name of one of the server's HANABI_PARTNER_URLS",
        both=True,
        affects=Affects.PLAY,
    )
    judge_template: Annotated[str, BeforeValidator(read_template), where(is_template)] = server(
        "HANABI_JUDGE_TEMPLATE",
        "Prompt template of the judge.",
        "answer",
        allowed=TEMPLATE_ALLOWED,
        both=True,
        affects=Affects.PLAY,
    )
    judge_weight: float = server(
        "HANABI_JUDGE_WEIGHT",
        "Reward of each player for the judge's best score, 10.",
        1.0,
        both=True,
        affects=Affects.PLAY,
    )
    judge_failure: Literal["drop", "mean"] = server(
        "HANABI_JUDGE_FAILURE",
        "What to do with a game that the judge does not score: drop it, or give it the mean score "
        "of the other games of its task.",
        "drop",
        both=True,
        affects=Affects.PLAY,
    )
    judge_timeout: float = server(
        "HANABI_JUDGE_TIMEOUT",
        "Time limit in seconds for one call to the judge.",
        60.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.PLACE,
    )
    judge_tokens: int = server(
        "HANABI_JUDGE_TOKENS",
        "Token budget of the judge (prompts and replies) until this server restarts, separate from "
        "HANABI_PARTNER_TOKENS; 0: no limit.",
        0,
        ge=0,
        affects=Affects.MACHINE,
    )
    judge_reply_tokens: int = server(
        "HANABI_JUDGE_REPLY_TOKENS",
        "Maximum length of the judge's reply in tokens.",
        1024,
        ge=1,
        affects=Affects.MACHINE,
    )
    judge_requests: int = server(
        "HANABI_JUDGE_REQUESTS",
        "Concurrent calls to the judge.",
        8,
        ge=1,
        affects=Affects.MACHINE,
    )

    # game, in addition to the environment's settings
    thinking: bool = game(
        "HANABI_THINKING",
        "Let the model think before it moves.",
        False,
        both=True,
        affects=Affects.PLAY,
    )
    max_completion_length: int = game(
        "MAX_COMPLETION_LENGTH",
        defaults.REPLY_LIMIT,
        4,
        gpu=512,
        ge=1,
        factory=defaults.reply_limit,
        affects=Affects.PLAY,
    )
    temperature: float = game(
        "TEMPERATURE",
        "Sampling temperature.",
        1.0,
        ge=0.01,
        le=2,
        affects=Affects.PLAY,
    )
    top_p: float = game(
        "TOP_P",
        "Sample only from the most likely tokens whose probabilities add up to this value; 1: all "
        "tokens.",
        1.0,
        gt=0,
        le=1,
        affects=Affects.PLAY,
    )
    top_k: int = game(
        "TOP_K",
        "Sample only from this many of the most likely tokens; 0: all tokens.",
        0,
        ge=0,
        affects=Affects.PLAY,
    )

    # trainer
    vllm_mode: Literal["server"] = trainer(
        "VLLM_MODE",
        "Where replies are sampled.",
        "server",
        allowed="only server: games are played in the rollout server's process; start it in "
        "another terminal",
        affects=Affects.PLACE,
    )
    vllm_server_host: values.Servers = trainer(
        "VLLM_SERVER_HOST",
        values.SERVERS,
        "127.0.0.1",
        allowed=values.SERVERS_ALLOWED,
        affects=Affects.PLACE,
    )
    vllm_server_port: int = trainer(
        "VLLM_SERVER_PORT",
        values.SERVER_PORT,
        8000,
        ge=1,
        le=65535,
        affects=Affects.PLACE,
    )
    server_timeout: float = trainer(
        "HANABI_SERVER_TIMEOUT",
        "Seconds to wait for the server.",
        600.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.PLACE,
    )
    rollout_timeout: float = trainer(
        "HANABI_ROLLOUT_TIMEOUT",
        "Seconds to wait for the games of one request (at most 4096 games).",
        1800.0,
        gt=0,
        le=_MAX_SECONDS,
        affects=Affects.PLACE,
    )
    nproc_per_node: int = trainer(
        "NPROC_PER_NODE",
        "Trainer processes, one per GPU.",
        1,
        gpu=4,
        ge=1,
        affects=Affects.MACHINE,
    )
    trainer_memory: float = trainer(
        "HANABI_TRAINER_MEMORY",
        "Fraction of each GPU's memory for the trainer; less than 1 if the engine uses the same "
        "GPU.",
        1.0,
        gt=0,
        le=1,
        affects=Affects.MACHINE,
    )
    num_generations: int = trainer(
        "NUM_GENERATIONS",
        "Games per task (the group size); may be 1 if HANABI_ADVANTAGE compares more than a group.",
        16,
        ge=1,
        affects=Affects.PLAY,
    )
    tasks_per_step: int = trainer(
        "HANABI_TASKS_PER_STEP",
        "Tasks per step.",
        8,
        gpu=4,
        ge=1,
        affects=Affects.PLAY,
        renamed_from="HANABI_DEALS_PER_STEP",
    )
    task_seed: int = trainer(
        "HANABI_TASK_SEED",
        "Seed of the training tasks; unset: SEED. 0: the tasks of runs from before this variable "
        "existed.",
        ge=0,
        le=_MAX_SEED,
        factory=_default_task_seed,
        affects=Affects.SEED,
        renamed_from="HANABI_DEAL_SEED",
    )
    # These may change on resume, because the trainer's state is saved per parameter.
    per_device_train_batch_size: int = trainer(
        "PER_DEVICE_TRAIN_BATCH_SIZE",
        "Trajectories per micro-batch; unset: micro-batches are sized by tokens.",
        64,
        gpu=1,
        ge=1,
        affects=Affects.MACHINE,
    )
    tokens_per_micro_batch: int = trainer(
        "HANABI_TOKENS_PER_MICRO_BATCH",
        "Tokens per micro-batch; 0, or only PER_DEVICE_TRAIN_BATCH_SIZE set: micro-batches are "
        "sized by trajectories.",
        2048,
        gpu=16384,
        ge=0,
        affects=Affects.MACHINE,
    )
    num_train_epochs: float | None = trainer(
        "NUM_TRAIN_EPOCHS",
        "Passes over the dataset; a row without seeds counts as one step, and so does a run "
        "without DATASET. MAX_STEPS wins if both are set.",
        gt=0,
        affects=Affects.SCHEDULE,
    )
    max_steps: int | None = trainer(
        "MAX_STEPS",
        "Training steps; each step plays its games and learns from them.",
        _MAX_STEPS,
        ge=1,
        factory=_default_max_steps,
        affects=Affects.SCHEDULE,
    )
    # Learning rate and norm may be lowered during a run, e.g. when gradients overflow.
    learning_rate: Rate = trainer(
        "LEARNING_RATE",
        "Peak learning rate.",
        1.5e-3,
        gpu=2e-5,
        allowed="a number above 0, " + FORM.format(example="player_0=1e-5,player_1=3e-5"),
        affects=Affects.SCHEDULE,
    )
    lr_scheduler_type: Schedule = trainer(
        "LR_SCHEDULER_TYPE",
        "Learning rate schedule, by its name in transformers; warmup_stable_decay falls to 0 in "
        "the last third.",
        "constant",
        affects=Affects.SCHEDULE,
    )
    warmup_steps: int = trainer(
        "WARMUP_STEPS",
        "Steps of linear warmup, for every schedule except constant.",
        0,
        ge=0,
        affects=Affects.SCHEDULE,
    )
    max_grad_norm: float = trainer(
        "MAX_GRAD_NORM",
        "Maximum norm of one player's gradient.",
        1.0,
        gt=0,
        affects=Affects.SCHEDULE,
    )
    lora_rank: Annotated[int | str, whole_numbers(_is_lora_rank)] = trainer(
        "LORA_RANK",
        "LoRA rank of each adapter; the server reserves room for the largest.",
        16,
        allowed=RANK_ALLOWED + "; " + FORM.format(example="player_0=8,player_1=16"),
        both=True,
        affects=Affects.WEIGHTS,
    )
    lora_alpha: Annotated[int | str, whole_numbers(lambda alpha: alpha >= 1)] = trainer(
        "LORA_ALPHA",
        "LoRA alpha; an adapter's output is scaled by alpha / rank.",
        32,
        allowed="a whole number, at least 1, " + FORM.format(example="player_0=16,player_1=32"),
        affects=Affects.WEIGHTS,
    )
    deepspeed: Annotated[str, where(_is_deepspeed)] = trainer(
        "DEEPSPEED",
        "DeepSpeed stage or config file.",
        "none",
        gpu="zero2",
        allowed=_DEEPSPEED_ALLOWED,
        affects=Affects.MACHINE,
    )
    updates_per_step: int = trainer(
        "HANABI_UPDATES_PER_STEP",
        "Number of updates on the episodes of one step; clipping takes effect from the second "
        "update on.",
        1,
        ge=1,
        le=64,
        affects=Affects.LEARNING,
    )
    minibatches: int = trainer(
        "HANABI_MINIBATCHES",
        "Minibatches of a step's episodes, each made of whole groups and followed by an update; "
        "clipping takes effect from the second on.",
        1,
        ge=1,
        affects=Affects.LEARNING,
    )
    clip_low: float = trainer(
        "HANABI_CLIP_LOW",
        "Clip range of a token's probability ratio below 1.",
        0.2,
        gt=0,
        le=1,
        affects=Affects.LEARNING,
    )
    clip_high: float = trainer(
        "HANABI_CLIP_HIGH",
        "Clip range of a token's probability ratio above 1.",
        0.2,
        gt=0,
        affects=Affects.LEARNING,
    )
    dual_clip: float | None = trainer(
        "HANABI_DUAL_CLIP",
        "Dual clip: upper limit of a token's probability ratio where its advantage is negative; "
        "unset: no limit.",
        gt=1,
        affects=Affects.LEARNING,
    )
    beta: float = trainer(
        "BETA",
        "Weight of the KL term against HANABI_REFERENCE.",
        0.0,
        ge=0,
        affects=Affects.LEARNING,
    )
    kl_in: Literal["loss", "reward"] = trainer(
        "HANABI_KL_IN",
        "Where the KL term goes: into the loss, or into the reward as a cost of each reply.",
        "loss",
        affects=Affects.LEARNING,
    )
    kl_target: float | None = trainer(
        "HANABI_KL_TARGET",
        "Target KL in nats per token; each player's KL weight starts at BETA and adapts to reach "
        "it. Unset: the weight stays at BETA.",
        gt=0,
        affects=Affects.LEARNING,
    )
    reference: Annotated[str, where(values.is_reference)] = trainer(
        "HANABI_REFERENCE",
        "Reference policy of the KL term: the base model, the adapters at the start of the run, or "
        "those of the last step divisible by K.",
        "base",
        allowed="base, start, or every:K with a whole number K from 1, e.g. every:50",
        affects=Affects.LEARNING,
    )
    train_thoughts: bool = trainer(
        "HANABI_TRAIN_THOUGHTS",
        "Whether the tokens of <think>…</think> contribute to the loss; they stay in the "
        "conversation either way.",
        True,
        affects=Affects.LEARNING,
    )
    entropy_bonus: float = trainer(
        "HANABI_ENTROPY_BONUS",
        "Weight of the policy's entropy, added to each token's advantage; 0.1 in zero-sum games.",
        0.0,
        factory=defaults.entropy_bonus,
        ge=0,
        affects=Affects.LEARNING,
    )
    entropy_target: float | None = trainer(
        "HANABI_ENTROPY_TARGET",
        "Entropy in nats per token at which a player's bonus is 0; the bonus grows to its full "
        "size below it. The target falls with the learning rate. Unset: always the full bonus.",
        None,
        gt=0,
        affects=Affects.LEARNING,
    )
    sampler_correction: Literal[
        "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
    ] = trainer(
        "HANABI_SAMPLER_CORRECTION",
        "Importance sampling weights of trainer over sampler: truncated at the limit, or masked "
        "above it.",
        "none",
        affects=Affects.LEARNING,
    )
    sampler_correction_limit: float = trainer(
        "HANABI_SAMPLER_CORRECTION_LIMIT",
        "Limit of these importance weights.",
        2.0,
        ge=1,
        affects=Affects.LEARNING,
    )
    overlap: Annotated[int, BeforeValidator(_number_of_steps)] = trainer(
        "HANABI_OVERLAP",
        "Number of steps for which games are sampled ahead while the trainer learns (asynchronous, "
        "off-policy training); data are up to this many versions old (max_async_level, maximum "
        "staleness). The server reserves room for these versions.",
        0,
        ge=0,
        le=defaults.MAX_OVERLAP,
        both=True,
        affects=Affects.LEARNING,
    )
    decoupled_loss: bool = trainer(
        "HANABI_DECOUPLED_LOSS",
        "With HANABI_OVERLAP, clip against the policy at the beginning of the step, not against "
        "the older policy that sampled; HANABI_SAMPLER_CORRECTION corrects for the difference.",
        False,
        affects=Affects.LEARNING,
    )
    adapters: Literal["per_player", "shared"] = trainer(
        "HANABI_ADAPTERS",
        "One adapter per player, or one shared by all.",
        "per_player",
        both=True,
        affects=Affects.WEIGHTS,
    )
    update: Literal["independent", "sequential", "best_response"] = trainer(
        "HANABI_UPDATE",
        "Which players are updated: all at once, one after another, or one until it stops "
        "improving.",
        "independent",
        affects=Affects.LEARNING,
    )
    sequential_factor: Literal["game", "step"] = trainer(
        "HANABI_SEQUENTIAL_FACTOR",
        "With HANABI_UPDATE=sequential, which replies of earlier players enter a token's factor: "
        "those of the whole game, or those of the same step of the game (as in HAPPO).",
        "game",
        affects=Affects.LEARNING,
    )
    sequential_limit: Annotated[float, where(_is_sequential_limit)] = trainer(
        "HANABI_SEQUENTIAL_LIMIT",
        "Upper limit of that factor; its inverse is the lower limit. 0: no limit, which is exact.",
        2.0,
        allowed="0, or a number above 1",
        affects=Affects.LEARNING,
    )
    swap_every: int = trainer(
        "HANABI_SWAP_EVERY",
        "Steps after which every player moves to the next seat; 0: players keep their seats.",
        0,
        ge=0,
        affects=Affects.PLAY,
    )
    freeze: CommaList = trainer(
        "HANABI_FREEZE",
        "Players that play but are not trained.",
        (),
        allowed="a comma-separated list of players, e.g. player_1",
        affects=Affects.LEARNING,
    )
    # A resumed run ignores it: its weights come from its checkpoint.
    start_from: CommaList = trainer(
        "HANABI_START_FROM",
        "Adapters to start from instead of new ones; a comma-separated list.",
        (),
        allowed="a run, RUN@best, its checkpoint-N, or a wandb: or hf: reference, for all players "
        "or with the prefix player_0=; the suffix :player_1 chooses another of its adapters",
        affects=Affects.SCHEDULE,
    )
    partners: CommaList = trainer(
        "HANABI_PARTNERS",
        "Policies that take a player's seat in some tasks without being trained; a comma-separated "
        "list. Unset: self-play only.",
        (),
        allowed="scripts (iggi), base, earlier (this run's kept checkpoints), url:NAME (of the "
        "server's HANABI_PARTNER_URLS), folders with a slash (a run, RUN@best, its checkpoint-N), "
        "wandb: or hf: references; the suffix :player_0 chooses an adapter of these, the prefix "
        "player_1= a seat, and *3 at the end sets a weight",
        affects=Affects.PLAY,
    )
    partner_draw: Literal["uniform", "worst"] = trainer(
        "HANABI_PARTNER_DRAW",
        "How partners are drawn: by their weights alone, or more often if the run's recent games "
        "with them scored low (prioritized fictitious self-play).",
        "uniform",
        affects=Affects.PLAY,
    )
    partner_power: float = trainer(
        "HANABI_PARTNER_POWER",
        "With HANABI_PARTNER_DRAW=worst, the p of (1 - normalized mean score)^p; 0: weights alone.",
        2.0,
        ge=0,
        affects=Affects.PLAY,
    )
    partner_share: float = trainer(
        "HANABI_PARTNER_SHARE",
        "Fraction of the tasks that have a partner.",
        0.5,
        gt=0,
        le=1,
        affects=Affects.PLAY,
    )
    teacher: CommaList = trainer(
        "HANABI_TEACHER",
        "Teacher of each player: a script shows what it would do on each of the player's turns, a "
        "model scores how likely the player's replies are (docs/learning.md). Unset: no teacher.",
        (),
        allowed="a script of the environment, base, or a checkpoint as in HANABI_PARTNERS, for all "
        "players that learn, or for each as in player_0=iggi,player_1=outputs/run",
        affects=Affects.LEARNING,
    )
    teacher_weight: Annotated[PerPlayer, per_player(float, lambda weight: weight >= 0)] = trainer(
        "HANABI_TEACHER_WEIGHT",
        "Weight of the teacher's signal, in addition to the reward; 0: the player is only compared "
        "with the teacher.",
        1.0,
        allowed="a number, at least 0, " + FORM.format(example="player_0=1,player_1=0.3"),
        affects=Affects.LEARNING,
    )
    teacher_steps: int = trainer(
        "HANABI_TEACHER_STEPS",
        "Steps over which that weight falls linearly to 0; 0: it stays constant.",
        0,
        ge=0,
        affects=Affects.LEARNING,
    )
    teacher_plays: Annotated[PerPlayer, per_player(float, lambda share: 0 <= share <= 1)] = trainer(
        "HANABI_TEACHER_PLAYS",
        "Fraction of a player's turns on which its teacher's move is played instead of its own.",
        0.0,
        allowed="a number from 0 to 1, " + FORM.format(example="player_0=0.5,player_1=0"),
        affects=Affects.PLAY,
    )
    reward_weight: Annotated[PerPlayer, per_player(float, lambda weight: weight >= 0)] = trainer(
        "HANABI_REWARD_WEIGHT",
        "Weight of the reward for a player with a teacher; 0: it learns from the teacher alone.",
        1.0,
        allowed="a number, at least 0, " + FORM.format(example="player_0=0,player_1=1"),
        affects=Affects.LEARNING,
    )
    belief_weight: Annotated[PerPlayer, per_player(float, lambda weight: weight >= 0)] = trainer(
        "HANABI_BELIEF_WEIGHT",
        "Weight of the belief loss: on each turn a player also learns to name a card that it "
        "cannot see, outside its conversation (docs/beliefs.md); 0: none.",
        0.0,
        allowed="a number, at least 0, " + FORM.format(example="player_0=0.1,player_1=0"),
        affects=Affects.LEARNING,
    )
    advantage: Annotated[str, where(ESTIMATORS.__contains__)] = trainer(
        "HANABI_ADVANTAGE",
        "Advantage estimator.",
        "turn",
        allowed="one of " + ", ".join(ESTIMATORS),
        affects=Affects.LEARNING,
    )
    advantage_scale: Scale | None = trainer(
        "HANABI_ADVANTAGE_SCALE",
        "Divide advantages by the standard deviation of what is compared; unset: as in the "
        "estimator's source.",
        affects=Affects.LEARNING,
    )
    normalize: Method | None = trainer(
        "HANABI_NORMALIZE",
        "How the compared credits are normalized: subtract the mean, divide by the standard "
        "deviation, both, or neither; unset: as in the estimator's source.",
        allowed="one of " + ", ".join(Method),
        affects=Affects.LEARNING,
    )
    normalize_over: Over | None = trainer(
        "HANABI_NORMALIZE_OVER",
        "Which credits are compared: those of the group, of the task, of the same board, or of the "
        "whole step; unset: as in the estimator's source.",
        allowed="one of " + ", ".join(Over),
        affects=Affects.LEARNING,
    )
    gamma: float = trainer(
        "HANABI_GAMMA",
        "Discount factor between successive turns of a player, with " + ", ".join(DISCOUNTED) + ".",
        1.0,
        gt=0,
        le=1,
        affects=Affects.LEARNING,
    )
    reward_clip: float | None = trainer(
        "HANABI_REWARD_CLIP",
        "Limit on the absolute reward of a player in one game; unset: no limit.",
        gt=0,
        affects=Affects.LEARNING,
    )
    whiten_rewards: bool = trainer(
        "HANABI_WHITEN_REWARDS",
        "Whiten the rewards of turns to mean 0 and standard deviation 1 over a player's tokens in "
        "the step.",
        False,
        affects=Affects.LEARNING,
    )
    whiten_advantages: bool = trainer(
        "HANABI_WHITEN_ADVANTAGES",
        "Whiten advantages to mean 0 and standard deviation 1 over a player's tokens in the step.",
        False,
        affects=Affects.LEARNING,
    )
    advantage_clip: float | None = trainer(
        "HANABI_ADVANTAGE_CLIP",
        "Limit on the absolute advantage, after whitening; unset: no limit.",
        gt=0,
        affects=Affects.LEARNING,
    )
    gae_lambda: float = trainer(
        "HANABI_GAE_LAMBDA",
        f"GAE's lambda, with {_WITH_CRITIC}.",
        0.95,
        ge=0,
        le=1,
        affects=Affects.LEARNING,
    )
    gae_unit: Literal["turn", "token"] = trainer(
        "HANABI_GAE_UNIT",
        "Unit that gets its own advantage with ippo: a turn, or, with HANABI_CRITIC=adapter, each "
        "token.",
        "turn",
        affects=Affects.LEARNING,
    )
    critic: Literal["head", "adapter"] = trainer(
        "HANABI_CRITIC",
        f"Value model of {_WITH_CRITIC}: a small head on the model's features, or, with ippo, a "
        "separate LoRA adapter on the base model.",
        "head",
        affects=Affects.LEARNING,
    )
    critic_learning_rate: float = trainer(
        "HANABI_CRITIC_LEARNING_RATE",
        f"Learning rate of the critics of {_WITH_CRITIC}, and of {_WITH_CREDIT}; unset with "
        "HANABI_CRITIC=adapter: the default of LEARNING_RATE.",
        3e-3,
        factory=defaults.critic_learning_rate,
        gt=0,
        affects=Affects.LEARNING,
    )
    resample_flat: int = trainer(
        "HANABI_RESAMPLE_FLAT",
        "Rounds of dynamic sampling, each of which replaces zero-variance groups with new tasks; "
        "0: off.",
        0,
        ge=0,
        le=15,
        affects=Affects.PLAY,
    )
    loss_unit: Literal["token", "turn", "sequence"] = trainer(
        "HANABI_LOSS_UNIT",
        "Unit that has weight 1 in the loss.",
        "token",
        affects=Affects.LEARNING,
    )
    parity_tolerance: float = trainer(
        "HANABI_PARITY_TOLERANCE",
        "Mean logprob difference between trainer and sampler above which a run stops.",
        0.001,
        gpu=0.05,
        gt=0,
        affects=Affects.MACHINE,
    )
    resume: str | None = trainer(
        "RESUME",
        "Run or checkpoint to resume from; unset: a new run. With a different OUTPUT_DIR: a new "
        "run from that checkpoint. An artifact of UPLOAD_CKPT_TO_WANDB=full is restored as a run "
        "folder first.",
        allowed="latest, the folder of a run or of one of its checkpoints, "
        "wandb:entity/project/name:alias, or the folder of such an artifact",
        affects=Affects.PLACE,
    )
    # These two do not change updates, although they decide which earlier versions of the run are in
    # the pool of HANABI_PARTNERS=earlier.
    save_steps: int = trainer(
        "SAVE_STEPS",
        "Steps between checkpoints.",
        50,
        ge=1,
        affects=Affects.RECORD,
    )
    save_total_limit: int = trainer(
        "SAVE_TOTAL_LIMIT",
        "Maximum number of checkpoints to keep.",
        3,
        ge=1,
        affects=Affects.RECORD,
    )
    episodes_every: int = trainer(
        "HANABI_EPISODES_EVERY",
        "Steps between recordings of a step's episodes.",
        10,
        ge=1,
        affects=Affects.RECORD,
    )
    exploit_every: int = trainer(
        "HANABI_EXPLOIT_EVERY",
        "Steps between measurements of exploitability (what a best response wins) in small "
        "zero-sum games of OpenSpiel; 0: never.",
        0,
        ge=0,
        affects=Affects.RECORD,
    )
    beliefs_every: int = trainer(
        "HANABI_BELIEFS_EVERY",
        "Steps between measurements of what players believe about hidden cards and what they "
        "should believe, on boards with few decks (docs/beliefs.md); 0: never.",
        0,
        ge=0,
        affects=Affects.RECORD,
    )
    eval_steps: int = trainer(
        "HANABI_EVAL_STEPS",
        "Steps between validations, in which the current players play separate tasks; 0: never.",
        0,
        allowed="0, or a multiple of SAVE_STEPS",
        ge=0,
        affects=Affects.SCHEDULE,
        affects_when=_PHASES,
    )
    eval_tasks: int = trainer(
        "HANABI_EVAL_TASKS",
        "Tasks per validation and curve.",
        200,
        ge=2,
        affects=Affects.SCHEDULE,
        affects_when=_PHASES,
        renamed_from="HANABI_EVAL_DEALS",
    )
    eval_dataset: str | None = trainer(
        "HANABI_EVAL_DATASET",
        "Dataset file to validate on, with one curve for each different game; unset: the training "
        "games, as one curve.",
        affects=Affects.SCHEDULE,
        affects_when=_PHASES,
    )
    eval_lineups: str = trainer(
        "HANABI_EVAL_LINEUPS",
        "Lineups that play in validations, separated by semicolons, e.g. served;served,iggi; one "
        "curve per lineup.",
        "served",
        allowed="lineups with a served seat; other seats: base, scripts, url:NAME, folders",
        affects=Affects.SCHEDULE,
        affects_when=_PHASES,
    )
    eval_best: str | None = trainer(
        "HANABI_EVAL_BEST",
        "Curve that selects the best version and counts for HANABI_EVAL_PATIENCE; unset: the "
        "first.",
        allowed="the name of a curve: training, the preset of a row, or a lineup, as preset:lineup "
        "with a row",
        affects=Affects.SCHEDULE,
        affects_when=_PHASES,
    )
    eval_patience: int = trainer(
        "HANABI_EVAL_PATIENCE",
        "Validations without improvement after which a run stops, or a phase of "
        "HANABI_UPDATE=best_response; 0: never.",
        0,
        ge=0,
        affects=Affects.SCHEDULE,
        affects_when=_PHASES,
    )
    reward_funcs: Literal[""] = trainer(
        "REWARD_FUNCS",
        "Must stay empty: rewards come from the environment.",
        "",
        allowed="leave it empty: rewards come from the environment; weight them with "
        "HANABI_REWARD_ILLEGAL, HANABI_REWARD_UNPARSABLE, HANABI_REWARD_OUT_OF_TOKENS and the "
        "environment's own",
        affects=Affects.PLAY,
    )

    # tracking
    report_to: values.Monitors = tracking(
        "REPORT_TO",
        "Where metrics go in addition to the run folder: tensorboard, wandb, both as a "
        "comma-separated list, or none; also applies to collect and evaluate.",
        (values.NO_MONITOR,),
        allowed=values.MONITORS_ALLOWED,
        affects=Affects.RECORD,
    )
    logging_steps: int = tracking(
        "LOGGING_STEPS",
        "Steps averaged into one terminal line and one point in TensorBoard and W&B; metrics.jsonl "
        "has every step.",
        1,
        ge=1,
        affects=Affects.RECORD,
    )
    wandb_project: values.ProjectName = tracking(
        "WANDB_PROJECT",
        "W&B project.",
        "hanabi-grpo",
        allowed=values.PROJECT_ALLOWED,
        affects=Affects.RECORD,
    )
    wandb_entity: values.ProjectName | None = tracking(
        "WANDB_ENTITY",
        "W&B team/user.",
        allowed=values.PROJECT_ALLOWED,
        affects=Affects.RECORD,
    )
    wandb_mode: Literal["online", "offline", "disabled"] = tracking(
        "WANDB_MODE",
        "W&B mode.",
        "online",
        affects=Affects.RECORD,
    )
    wandb_name: str | None = tracking(
        "WANDB_NAME",
        "W&B run name; unset: the run folder's name.",
        affects=Affects.RECORD,
    )
    wandb_log_model: values.LogModel = tracking(
        "WANDB_LOG_MODEL",
        "Which checkpoints this setting uploads as artifacts: every one, the last, or none.",
        "checkpoint",
        allowed=values.LOG_MODEL_ALLOWED,
        affects=Affects.RECORD,
    )
    upload_ckpt_to_wandb: bool | Literal["full"] = tracking(
        "UPLOAD_CKPT_TO_WANDB",
        "Upload the last adapters as an artifact; full: every artifact of the run also holds the "
        "trainer's state and the run's records, so that RESUME=wandb:… can continue from it on "
        "another machine.",
        True,
        allowed="true, false, full",
        affects=Affects.RECORD,
    )
    ckpt_artifact_name: values.ArtifactName | None = tracking(
        "CKPT_ARTIFACT_NAME",
        "Name of that artifact; unset: after the run folder.",
        allowed=values.ARTIFACT_ALLOWED,
        affects=Affects.RECORD,
    )
    ckpt_artifact_aliases: values.Aliases = tracking(
        "CKPT_ARTIFACT_ALIASES",
        "Aliases of that artifact, in addition to checkpoint_global_step_N and, for a team's best "
        "version so far, best.",
        ("latest", "end"),
        allowed=values.ALIASES_ALLOWED,
        affects=Affects.RECORD,
    )

    @model_validator(mode="wrap")
    @classmethod
    def _add_the_game(cls, data: dict[str, Any], make: ModelWrapValidatorHandler[Self]) -> Self:
        game = game_values(data, cls.model_fields.keys())
        unknown = sorted(data.keys() - cls.model_fields.keys() - game.keys())
        if unknown:
            raise ValueError(f"no such setting: {', '.join(unknown)}")
        values = {**data, **game}
        # If only the tensor parallel size is set, a single copy is meant.
        if "vllm_tensor_parallel_size" in values:
            values.setdefault("vllm_data_parallel_size", 1)
        board = changed_board(values)
        if board is not None:
            values.setdefault("model", defaults.default_model({**values, "preset": board}))
        settings = make(values)
        settings.model_fields_set.intersection_update(data)
        return settings

    def rate_of(self, adapter: str) -> float:
        """Return LEARNING_RATE of an adapter, e.g. "player_0"."""
        return value_of(self.learning_rate, adapter, "LEARNING_RATE")

    def rank_of(self, adapter: str) -> int:
        """Return LORA_RANK of an adapter."""
        return int(value_of(self.lora_rank, adapter, "LORA_RANK"))

    def alpha_of(self, adapter: str) -> int:
        """Return LORA_ALPHA of an adapter."""
        return int(value_of(self.lora_alpha, adapter, "LORA_ALPHA"))

    def teacher_weight_of(self, player: str) -> float:
        """Return HANABI_TEACHER_WEIGHT of a player, before its schedule."""
        return value_of(self.teacher_weight, self.adapter_of(player), "HANABI_TEACHER_WEIGHT")

    def teacher_plays_of(self, player: str) -> float:
        """Return HANABI_TEACHER_PLAYS of a player that has a teacher."""
        return value_of(self.teacher_plays, self.adapter_of(player), "HANABI_TEACHER_PLAYS")

    def reward_weight_of(self, player: str) -> float:
        """Return HANABI_REWARD_WEIGHT of a player that has a teacher."""
        return value_of(self.reward_weight, self.adapter_of(player), "HANABI_REWARD_WEIGHT")

    def belief_weight_of(self, player: str) -> float:
        """Return HANABI_BELIEF_WEIGHT of a player."""
        return value_of(self.belief_weight, self.adapter_of(player), "HANABI_BELIEF_WEIGHT")

    def adapter_of(self, player: str) -> str:
        """Return the adapter of a player in this run: its own, or the shared one."""
        return SHARED_ADAPTER if self.adapters == SHARED_ADAPTER else player

    @property
    def largest_rank(self) -> int:
        """The largest LORA_RANK, for which a server must reserve room."""
        return int(max(entries(self.lora_rank).values()))

    @property
    def per_player_values(self) -> Mapping[str, PerPlayer]:
        """The settings that may differ from player to player, by variable."""
        return {
            "LEARNING_RATE": self.learning_rate,
            "LORA_RANK": self.lora_rank,
            "LORA_ALPHA": self.lora_alpha,
            "HANABI_TEACHER_WEIGHT": self.teacher_weight,
            "HANABI_TEACHER_PLAYS": self.teacher_plays,
            "HANABI_REWARD_WEIGHT": self.reward_weight,
            "HANABI_BELIEF_WEIGHT": self.belief_weight,
        }

    @property
    def token_filter(self) -> TokenFilter:
        """TOP_P and TOP_K."""
        return TokenFilter(top_p=self.top_p, top_k=self.top_k)

    @property
    def env_config(self) -> dict[str, Any]:
        """The fields of the environment's config, without those that are unset.

        `preset` is always included; None if a dataset's rows have to name it.
        """
        return self.config_row({})

    def config_row(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return `env_config` with some fields changed.

        With a different preset, fields that the user did not give take that preset's values.

        Args:
            chosen: Fields of the environment's config with their values, e.g. {"preset": "mini"}.
        """
        names = registry.get(self.env).Config.model_fields
        given = {name: getattr(self, name) for name in INPUTS}
        for name in names:
            if name in self.model_fields_set:
                given[name] = getattr(self, name)
        values = {**game_defaults({**given, **chosen}), **given, **chosen}
        row = {}
        for name in names:
            if values[name] is not None or name == "preset":
                row[name] = values[name]
        return row

    def for_game(self, setup: Setup[Any]) -> Self:
        """Return these settings for another game, with the defaults that belong to it.

        What the user gave stays, except fields of an environment that is no longer played.

        Example:
            Settings().for_game(...).model == "outputs/tiny-mini" for the preset mini.
        """
        fields_before = registry.get(self.env).Config.model_fields
        values: dict[str, Any] = {"device": self.device, "device_reason": self.device_reason}
        for name in self.model_fields_set:
            if name not in fields_before:
                values[name] = getattr(self, name)
        values["env"] = setup.env
        for name, value in setup.config.model_dump().items():
            if value is not None:
                values[name] = value
        return type(self).model_validate(values)

    @property
    def board(self) -> str | None:
        """Name of the board in records; None if a dataset's rows name it.

        It is HANABI_PRESET, unless other settings change the board.
        """
        return None if self.preset is None else self.setup().spec.preset

    def setup(self) -> Setup[Any]:
        """Return what is played; with a dataset, whose rows name presets, the default preset."""
        preset = self.preset or default_preset(dict(self))
        return registry.setup(self.env, self.config_row({"preset": preset}))


@functools.cache
def variables(env: str = HANABI) -> tuple[Variable, ...]:
    """Return every variable; those of the environment come after HANABI_ENV."""
    of_every_run = variables_of(Settings)
    fields = [variable.field for variable in of_every_run]
    position = fields.index("env") + 1
    return (*of_every_run[:position], *variables_of(game_model(env)), *of_every_run[position:])


@functools.cache
def renamed_variables() -> Mapping[str, str]:
    """Return the renamed variables: earlier name to current name."""
    return {
        variable.renamed_from: variable.env for variable in variables() if variable.renamed_from
    }
