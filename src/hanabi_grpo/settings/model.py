"""The settings of a run. Every default of the project is written here and nowhere else."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from hanabi_grpo.settings import board, values
from hanabi_grpo.settings.device import REPLY_LIMIT, reply_limit
from hanabi_grpo.settings.variables import header_safe, setting, split_list

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM can load (`vllm.config.lora`)."""
TRACKERS = ("none", "wandb", "tensorboard")
DEEPSPEED_STAGES = ("none", "zero1", "zero2", "zero3")


def _known_trackers(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or any(name not in TRACKERS for name in names) or ("none" in names and len(names) > 1):
        raise ValueError("not a list of trackers")
    return names


def _loadable_rank(rank: int) -> int:
    if rank not in LORA_RANKS:
        raise ValueError("not a rank that vLLM can load")
    return rank


def _deepspeed(value: str) -> str:
    if value not in DEEPSPEED_STAGES and not (value.endswith(".json") and Path(value).is_file()):
        raise ValueError("neither a stage nor a file")
    return value


def _positive(rates: tuple[float, ...]) -> tuple[float, ...]:
    if not all(rate > 0 for rate in rates):
        raise ValueError("not all above 0")
    return rates


CommaList = Annotated[tuple[str, ...], BeforeValidator(split_list)]


class Settings(BaseModel):
    """Resolved settings, flat; a field is named like its variable, in lower case and without `HANABI_`.

    Fields that the user gave are in `model_fields_set`; the others hold the default of `device`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    device: Literal["cpu", "gpu"] = "cpu"
    """Which defaults hold."""
    device_reason: str = ""

    # What defaults of others follow from comes first.
    dataset: str | None = setting(
        "DATASET", "run", "File of rows that say which boards are played (data/README.md); unset: the board below."
    )
    players: int = setting(
        "HANABI_PLAYERS", "game", "Players of a game.", 2, allowed="Hanabi needs 2 to 5 players", both=True, ge=2, le=5
    )
    preset: str | None = setting(
        "HANABI_PRESET", "game", board.PRESET, board.LAPTOP, gpu=board.FULL, both=True, factory=board.default_preset
    )

    # run
    model: str = setting(
        "MODEL", "run", board.MODEL, board.TINY_MODEL, gpu=board.QWEN, both=True, factory=board.default_model
    )
    output_dir: Path | None = setting(
        "OUTPUT_DIR", "run", "Run folder; unset: outputs/(board or dataset)-(date and time)."
    )
    profile: Path | None = setting(
        "HANABI_PROFILE", "run", "File of settings for a kind of machine, such as tools/profiles/gpu-1.env.", both=True
    )
    seed: int = setting(
        "SEED", "run", "Seeds sampling, adapters, training deals and a tiny model that is made.", 42, ge=0, le=2**31 - 1
    )

    # server
    host: str = setting("HANABI_HOST", "server", "Address to listen on; all but this machine need a key.", "127.0.0.1")
    port: int = setting("PORT", "server", "Port to listen on.", 8000, ge=1, le=65535)
    api_key: Annotated[SecretStr, AfterValidator(header_safe)] | None = setting(
        "HANABI_API_KEY",
        "server",
        "Key that every request must carry; 16 characters or more where other machines reach the server.",
        allowed="printable ASCII without spaces",
        both=True,
    )
    vllm_tensor_parallel_size: int = setting(
        "VLLM_TENSOR_PARALLEL_SIZE", "server", "GPUs that share one copy of the model.", 1, gpu=4, ge=1
    )
    vllm_data_parallel_size: int = setting("VLLM_DATA_PARALLEL_SIZE", "server", "Copies of the model.", 1, ge=1)
    max_model_len: int = setting(
        "HANABI_MAX_MODEL_LEN",
        "server",
        "Tokens of one private conversation, replies included.",
        1024,
        gpu=40960,
        ge=64,
    )
    gpu_memory_utilization: float = setting(
        "HANABI_GPU_MEMORY_UTILIZATION", "server", "Share of each GPU's memory for the engine.", 0.9, gt=0, le=1
    )
    max_num_seqs: int = setting("HANABI_MAX_NUM_SEQS", "server", "Replies sampled at once.", 256, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        "HANABI_DTYPE", "server", "Number format of the base model.", "float32", gpu="bfloat16", both=True
    )
    die_with_parent: bool = setting(
        "HANABI_DIE_WITH_PARENT", "server", "The server stops when the process that started it is gone.", False
    )
    session_timeout: float = setting(
        "HANABI_SESSION_TIMEOUT",
        "server",
        "Seconds without a sign of life after which another trainer may take over the server.",
        60.0,
        gt=0,
    )
    games_at_once: int = setting("HANABI_GAMES_AT_ONCE", "server", "Games in play at once.", 256, ge=1)
    engine_timeout: float = setting(
        "HANABI_ENGINE_TIMEOUT", "server", "Seconds without an answer until the engine counts as hung.", 300.0, gt=0
    )
    engine_restarts: int = setting(
        "HANABI_ENGINE_RESTARTS",
        "server",
        "Restarts of the server after a death or a kill, without ten healthy minutes in between; 0: it exits.",
        3,
        ge=0,
    )

    # game
    observation: Literal["compact", "full"] = setting(
        "HANABI_OBSERVATION", "game", "Prompt style: one line of words, or readable text.", "compact", gpu="full"
    )
    legal_moves: bool = setting("HANABI_LEGAL_MOVES", "game", "List the legal moves in each prompt.", False, gpu=True)
    thinking: bool = setting("HANABI_THINKING", "game", "Let the model think before it moves.", False, both=True)
    bomb_rule: Literal["zero", "keep"] = setting(
        "HANABI_BOMB_RULE", "game", "What a lost last life does to the points scored so far.", "zero"
    )
    reward_score: float = setting("HANABI_REWARD_SCORE", "game", "Reward of one point, for the whole team.", 1.0)
    reward_illegal: float = setting("HANABI_REWARD_ILLEGAL", "game", "Reward of a move that the rules forbid.", -0.5)
    reward_unparsable: float = setting("HANABI_REWARD_UNPARSABLE", "game", "Reward of a reply without a move.", -0.5)
    reward_out_of_tokens: float = setting("HANABI_REWARD_OUT_OF_TOKENS", "game", "Reward of a full conversation.", -0.5)
    max_turns: int = setting("HANABI_MAX_TURNS", "game", "Moves before a game is cut; 0: the rules' bound.", 0, ge=0)
    max_completion_length: int = setting(
        "MAX_COMPLETION_LENGTH", "game", REPLY_LIMIT, 4, gpu=512, ge=1, factory=reply_limit
    )
    temperature: float = setting("TEMPERATURE", "game", "Sampling temperature.", 1.0, ge=0.01, le=2)

    # trainer
    vllm_mode: Literal["server"] = setting(
        "VLLM_MODE",
        "trainer",
        "Where replies are sampled.",
        "server",
        allowed="only server: the games are played by the rollout server's process; start it in another terminal",
    )
    vllm_server_host: values.Servers = setting(
        "VLLM_SERVER_HOST", "trainer", values.SERVERS, "127.0.0.1", allowed=values.SERVERS_ALLOWED
    )
    vllm_server_port: int = setting("VLLM_SERVER_PORT", "trainer", values.SERVER_PORT, 8000, ge=1, le=65535)
    server_timeout: float = setting("HANABI_SERVER_TIMEOUT", "trainer", "Seconds to wait for the server.", 600.0, gt=0)
    rollout_timeout: float = setting(
        "HANABI_ROLLOUT_TIMEOUT", "trainer", "Seconds to wait for one step's games.", 1800.0, gt=0
    )
    nproc_per_node: int = setting("NPROC_PER_NODE", "trainer", "Trainer processes, one a GPU.", 1, gpu=4, ge=1)
    num_generations: int = setting("NUM_GENERATIONS", "trainer", "Games of each deal (the group).", 16, ge=2)
    deals_per_step: int = setting("HANABI_DEALS_PER_STEP", "trainer", "Deals of one step.", 8, gpu=4, ge=1)
    deal_seed: int = setting(
        "HANABI_DEAL_SEED",
        "trainer",
        "Chooses the fresh deals of training; unset: SEED. 0: the deals of runs before there was this variable.",
        ge=0,
        le=2**31 - 1,
        factory=lambda data: data.get("seed", 0),
    )
    group: Literal["deal", "mixed"] = setting(
        "HANABI_GROUP",
        "trainer",
        "What is compared: NUM_GENERATIONS games of one deal, or of as many different deals.",
        "deal",
    )
    per_device_train_batch_size: int = setting(
        "PER_DEVICE_TRAIN_BATCH_SIZE", "trainer", "Trajectories of one micro-batch; unset: by tokens.", 64, gpu=1, ge=1
    )
    tokens_per_micro_batch: int = setting(
        "HANABI_TOKENS_PER_MICRO_BATCH",
        "trainer",
        "Tokens of one micro-batch, shared ones once; 0, or PER_DEVICE_TRAIN_BATCH_SIZE set alone: by trajectories.",
        2048,
        gpu=16384,
        ge=0,
    )
    num_train_epochs: float | None = setting(
        "NUM_TRAIN_EPOCHS", "trainer", "Passes over a dataset with seeds; MAX_STEPS wins when both are set.", gt=0
    )
    max_steps: int | None = setting(
        "MAX_STEPS",
        "trainer",
        "Steps: each plays its games and learns from them.",
        500,
        ge=1,
        factory=lambda data: None if data.get("num_train_epochs") else 500,
    )
    learning_rate: float = setting("LEARNING_RATE", "trainer", "Peak learning rate.", 1.5e-3, gpu=2e-5, gt=0)
    learning_rates: Annotated[tuple[float, ...], BeforeValidator(split_list), AfterValidator(_positive)] = setting(
        "HANABI_LEARNING_RATES",
        "trainer",
        "Peak learning rate of each player, a comma list; unset: LEARNING_RATE for all.",
        (),
        allowed="a comma list of numbers above 0, one for each player",
    )
    lr_scheduler_type: str = setting("LR_SCHEDULER_TYPE", "trainer", "Schedule, by its transformers name.", "constant")
    warmup_steps: int = setting("WARMUP_STEPS", "trainer", "Steps of linear warm-up.", 0, ge=0)
    max_grad_norm: float = setting("MAX_GRAD_NORM", "trainer", "Largest norm of one player's gradient.", 1.0, gt=0)
    lora_rank: Annotated[int, AfterValidator(_loadable_rank)] = setting(
        "LORA_RANK",
        "trainer",
        "Rank of each adapter.",
        16,
        allowed="a rank that vLLM can load: " + ", ".join(map(str, LORA_RANKS)),
        both=True,
    )
    lora_alpha: int = setting("LORA_ALPHA", "trainer", "LoRA's alpha.", 32, ge=1)
    deepspeed: Annotated[str, AfterValidator(_deepspeed)] = setting(
        "DEEPSPEED",
        "trainer",
        "DeepSpeed stage or config file.",
        "none",
        gpu="zero2",
        allowed="one of " + ", ".join(DEEPSPEED_STAGES) + ", or the path of a .json file that exists",
    )
    updates_per_step: int = setting(
        "HANABI_UPDATES_PER_STEP",
        "trainer",
        "Optimizer updates from one step's games; the clips act from the second on.",
        1,
        ge=1,
        le=64,
    )
    clip_low: float = setting(
        "HANABI_CLIP_LOW", "trainer", "How far below 1 a token's probability ratio still counts.", 0.2, gt=0, le=1
    )
    clip_high: float = setting(
        "HANABI_CLIP_HIGH", "trainer", "How far above 1 a token's probability ratio still counts.", 0.2, gt=0
    )
    clip_dual: float | None = setting(
        "HANABI_CLIP_DUAL",
        "trainer",
        "Largest probability ratio of a token with a negative advantage (dual clip); unset: none.",
        allowed="a number above 1 + HANABI_CLIP_HIGH",
        gt=1,
    )
    beta: float = setting("BETA", "trainer", "Weight of the KL term against the base model.", 0.0, ge=0)
    kl: Literal["loss", "reward"] = setting(
        "HANABI_KL", "trainer", "Where the KL term enters: the loss, or the advantage of each token.", "loss"
    )
    entropy_bonus: float = setting(
        "HANABI_ENTROPY_BONUS",
        "trainer",
        "Weight of the policy's entropy, as a part of each token's advantage.",
        0.0,
        ge=0,
    )
    sampler_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = setting(
        "HANABI_SAMPLER_CORRECTION",
        "trainer",
        "Importance weights of trainer over sampler: cut at the limit, or left out above it.",
        "none",
    )
    sampler_correction_limit: float = setting(
        "HANABI_SAMPLER_CORRECTION_LIMIT", "trainer", "Largest such weight.", 2.0, ge=1
    )
    overlap: bool = setting(
        "HANABI_OVERLAP",
        "trainer",
        "The next step's games are played while this step is learned from, with weights that are one step old.",
        False,
    )
    adapters: Literal["per_player", "shared"] = setting(
        "HANABI_ADAPTERS", "trainer", "One adapter for each player, or one for all.", "per_player", both=True
    )
    update: Literal["independent", "alternating", "sequential"] = setting(
        "HANABI_UPDATE",
        "trainer",
        "Who moves in a step: everybody at once, one player for some steps, or one player after the other.",
        "independent",
    )
    alternate_every: int = setting(
        "HANABI_ALTERNATE_EVERY", "trainer", "Steps of a player's turn with HANABI_UPDATE=alternating.", 10, ge=1
    )
    freeze: CommaList = setting(
        "HANABI_FREEZE",
        "trainer",
        "Players that play and are not trained, a comma list.",
        (),
        allowed="a comma list of players, such as player_1",
    )
    start_from: CommaList = setting(
        "HANABI_START_FROM",
        "trainer",
        "Adapters to start from instead of new ones, a comma list.",
        (),
        allowed="a run, its checkpoint-N, or a wandb: or hf: word, for all players or with player_0= before it; "
        ":player_1 behind it chooses another of its adapters",
    )
    partners: CommaList = setting(
        "HANABI_PARTNERS",
        "trainer",
        "Who takes a player's seat in some deals, without being trained, a comma list; unset: self-play alone.",
        (),
        allowed="scripts (iggi), base, earlier (this run's kept checkpoints), folders with a slash (a run, or its "
        "checkpoint-N) and wandb: or hf: words; :player_0 behind those chooses an adapter, player_1= before one a seat",
    )
    partner_share: float = setting(
        "HANABI_PARTNER_SHARE", "trainer", "Share of the deals that have a partner.", 0.5, gt=0, le=1
    )
    advantage: Literal["grpo", "turn", "return_to_go", "rloo", "reinforce_pp", "baseline"] = setting(
        "HANABI_ADVANTAGE", "trainer", "How much better a turn was than others: the estimator.", "turn"
    )
    advantage_scale: Literal["std", "none"] | None = setting(
        "HANABI_ADVANTAGE_SCALE",
        "trainer",
        "Divide advantages by the standard deviation of what is compared; unset: as the estimator's source does.",
    )
    whiten: bool = setting(
        "HANABI_WHITEN", "trainer", "Bring each player's advantages of a step to mean 0 and deviation 1.", False
    )
    loss_unit: Literal["token", "turn", "sequence"] = setting(
        "HANABI_LOSS_UNIT", "trainer", "What has equal weight in the loss.", "token"
    )
    length_penalty: float = setting(
        "HANABI_LENGTH_PENALTY", "trainer", "Taken off the reward for each token beyond HANABI_LENGTH_FREE.", 0.0, ge=0
    )
    length_free: int = setting("HANABI_LENGTH_FREE", "trainer", "Tokens of a reply that cost nothing.", 0, ge=0)
    parity_tolerance: float = setting(
        "HANABI_PARITY_TOLERANCE",
        "trainer",
        "Largest mean difference of trainer and sampler logprobs before training stops.",
        0.001,
        gpu=0.05,
        gt=0,
    )
    resume: str | None = setting(
        "RESUME",
        "trainer",
        "What to go on from; unset: a new run. With another OUTPUT_DIR: a new run from that checkpoint.",
        allowed="latest, or the folder of a run or of one of its checkpoints",
    )
    save_steps: int = setting("SAVE_STEPS", "trainer", "Steps between checkpoints.", 50, ge=1)
    save_total_limit: int = setting("SAVE_TOTAL_LIMIT", "trainer", "Checkpoints kept.", 3, ge=1)
    episodes_every: int = setting(
        "HANABI_EPISODES_EVERY", "trainer", "Steps between recorded steps of games.", 10, ge=1
    )
    reward_funcs: Literal[""] = setting(
        "REWARD_FUNCS",
        "trainer",
        "Must stay empty: rewards come from the environment.",
        "",
        allowed="leave it empty: rewards come from the environment; weigh them with HANABI_REWARD_SCORE, "
        "HANABI_REWARD_ILLEGAL, HANABI_REWARD_UNPARSABLE, HANABI_REWARD_OUT_OF_TOKENS and HANABI_BOMB_RULE",
    )

    # tracking
    report_to: Annotated[CommaList, AfterValidator(_known_trackers)] = setting(
        "REPORT_TO",
        "tracking",
        "Trackers beside the local records.",
        ("none",),
        allowed="none, or a comma list of wandb and tensorboard",
    )
    wandb_project: values.ProjectName = setting(
        "WANDB_PROJECT", "tracking", "W&B project.", "hanabi-grpo", allowed=values.PROJECT_ALLOWED
    )
    wandb_entity: values.EntityName | None = setting(
        "WANDB_ENTITY", "tracking", "W&B team or user.", allowed=values.PROJECT_ALLOWED
    )
    wandb_mode: Literal["online", "offline", "disabled"] = setting("WANDB_MODE", "tracking", "W&B mode.", "online")
    wandb_name: str | None = setting("WANDB_NAME", "tracking", "W&B run name; unset: the run folder's name.")
    wandb_log_model: Literal["checkpoint", "end", "false"] = setting(
        "WANDB_LOG_MODEL", "tracking", "Artifacts: every checkpoint, the last, or none by this setting.", "checkpoint"
    )
    upload_ckpt_to_wandb: bool = setting(
        "UPLOAD_CKPT_TO_WANDB", "tracking", "After training, the last adapters become an artifact.", True
    )
    ckpt_artifact_name: values.ArtifactName | None = setting(
        "CKPT_ARTIFACT_NAME", "tracking", "Its name; unset: after the run folder.", allowed=values.ARTIFACT_ALLOWED
    )
    ckpt_artifact_aliases: values.Aliases = setting(
        "CKPT_ARTIFACT_ALIASES",
        "tracking",
        "Its aliases, besides checkpoint_global_step_N and, for the best score so far, best.",
        ("latest", "end"),
        allowed=values.ALIASES_ALLOWED,
    )
