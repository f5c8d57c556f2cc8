"""What the checks examine; slow values that several checks need are read once."""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from hanabi_grpo.client.fleet import each_server
from hanabi_grpo.client.waiting import Health, NotReady, look_once
from hanabi_grpo.commands.doctor.check import Role
from hanabi_grpo.commands.doctor.nvidia_smi import Gpu
from hanabi_grpo.commands.doctor.published import (
    PUBLISHED,
    linear_shapes_of,
    num_parameters_of,
    unknown_part,
)
from hanabi_grpo.commands.nodes import read_nodes
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.files import MAX_DOCUMENT_BYTES, read_bytes
from hanabi_grpo.rollout.budget import Budget, measure_budget
from hanabi_grpo.rollout.dataset_rows import DatasetRow
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.fingerprint import has_model, tokenizer_problem
from hanabi_grpo.runs.resume import ResumePlan, plan_resume
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.settings import LoadedSettings, Settings
from hanabi_grpo.settings.base_models import base_of, bases_by_player
from hanabi_grpo.settings.defaults import is_local_model
from hanabi_grpo.types import SHARED_ADAPTER, player_names

if TYPE_CHECKING:
    from hanabi_grpo.rollout.chat import ChatFormat

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Addresses of this machine."""
_ESTIMATED_TOKEN = r"[^\r\n\p{L}\p{N}]?\p{L}{1,8}|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
_UNIT_PREFIXES = ("", "k", "M", "G", "T")
_ROUNDS_UP = 1.0005
"""A number that three digits round up to the next power of 1000 gets its prefix."""


# Without slots: a cached property needs the instance's dict.
@dataclass(frozen=True, kw_only=True)
class Context:
    """Settings, environment and role, and what is derived from them.

    Outside this machine, only the rollout servers are contacted.
    """

    loaded: LoadedSettings
    shell: Mapping[str, str]
    """The variables of this process, before any library changed them."""
    role: Role = "both"
    planned_gpus: tuple[Gpu, ...] = ()
    """The GPUs of a planned machine; empty if this machine is examined."""
    players_on_model: tuple[str, ...] | None = None
    """Players on the base model that is examined; None: all of them."""
    options: tuple[str, ...] | None = None
    """Options for ms-swift; None: unknown."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The shell's variables, which override those of `.env` for other software."""
        return {**self.loaded.dotenv_environ, **self.shell}

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.settings

    def with_model(self, name: str) -> "Context":
        """Return the context of one of a team's base models."""
        settings = self.settings.model_copy(update={"model": name})
        players = tuple(
            player for player, base in bases_by_player(self.settings).items() if base == name
        )
        loaded = replace(self.loaded, settings=settings)
        return replace(self, loaded=loaded, players_on_model=players)

    def with_settings(self, **update: Any) -> "Context":
        """Return the context with other settings that do not change model, dataset or replies.

        Values that were already read from these are reused.
        """
        settings = self.settings.model_copy(update=update)
        changed = replace(self, loaded=replace(self.loaded, settings=settings))
        for name in ("config", "num_parameters", "adapted_width", "budget", "rows"):
            changed.__dict__[name] = getattr(self, name)
        return changed

    def with_published(self, name: str) -> "Context":
        """Return the context with a model whose sizes are in `PUBLISHED`."""
        changed = self.with_settings(model=name)
        config = PUBLISHED[name]
        changed.__dict__["config"] = config
        changed.__dict__["num_parameters"] = num_parameters_of(config)
        shapes = linear_shapes_of(config)
        changed.__dict__["adapted_width"] = sum(map(sum, shapes.values()))
        return changed

    @property
    def num_processes(self) -> int:
        """Trainer processes on all machines."""
        return self.settings.nproc_per_node * read_nodes(self.environ).count

    @property
    def serves(self) -> bool:
        """True when the terminal of the rollout server is checked."""
        return self.role != "trainer"

    @property
    def trains(self) -> bool:
        """True when the terminal of the trainer is checked."""
        return self.role != "server"

    @property
    def num_adapters(self) -> int:
        """Number of adapters of a run on its base model."""
        if self.players_on_model is not None:
            return len(self.players_on_model)
        return 1 if self.settings.adapters == "shared" else self.settings.players

    @cached_property
    def located_folder(self) -> Path | None:
        """The folder of MODEL on this machine, None without one; nothing is downloaded."""
        folder = Path(self.settings.model)
        if folder.is_dir():
            return folder.resolve()
        if is_local_model(self.settings.model):
            return None
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            return Path(snapshot_download(self.settings.model, local_files_only=True))
        except (LocalEntryNotFoundError, HFValidationError):
            return None

    @cached_property
    def model_folder(self) -> Path | None:
        """The folder of the model; None if it is missing or incomplete, which `model` reports."""
        folder = self.located_folder
        if folder is None:
            return None
        if not has_model(folder) or tokenizer_problem(folder) or broken_weights(folder):
            return None
        return folder

    @cached_property
    def planned_config(self) -> dict[str, Any] | None:
        """The config.json or published sizes of a planned run whose weights are not here.

        None if this machine is examined, the weights are here, or no sizes are known.
        """
        config = self.found_config
        if config is None or unknown_part(config):
            return None
        return config

    @cached_property
    def found_config(self) -> dict[str, Any] | None:
        """As `planned_config`, even if it does not give the sizes, which `model` reports."""
        if not self.planned_gpus or self.model_folder is not None:
            return None
        folder = self.located_folder
        if folder is not None and (folder / "config.json").is_file():
            config = json.loads(read_bytes(folder / "config.json", MAX_DOCUMENT_BYTES))
            return config if isinstance(config, dict) else {}
        return PUBLISHED.get(self.settings.model)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's config.json; empty without a model."""
        if self.planned_config is not None:
            return self.planned_config
        if self.model_folder is None:
            return {}
        return json.loads(read_bytes(self.model_folder / "config.json", MAX_DOCUMENT_BYTES))

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the model; 0 without one."""
        if self.planned_config is not None:
            return num_parameters_of(self.planned_config)
        if self.model_folder is None:
            return 0
        total = 0
        for path in self.model_folder.glob("*.safetensors"):
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118
                    total += math.prod(file.get_slice(name).get_shape())
        return total

    @property
    def adapter_parameters(self) -> int:
        """Parameters of an adapter of the largest rank; 0 without a model.

        An adapter of rank r adds matrices of r × inputs and outputs × r to each linear layer.
        """
        return self.settings.largest_rank * self.adapted_width

    @property
    def run_adapter_parameters(self) -> int:
        """Parameters of all adapters of a run, each with its own rank; 0 if a model is unknown.

        For one of several base models, only the adapters of its players count.
        """
        settings = self.settings
        players = player_names(settings.players)
        names = (SHARED_ADAPTER,) if settings.adapters == SHARED_ADAPTER else players
        if self.players_on_model is not None:
            names = self.players_on_model
        total = 0
        widths: dict[str, int] = {}
        for name in names:
            base = settings.model if self.players_on_model else base_of(settings, name)
            if base not in widths:
                other = self if base == settings.model else self.with_model(base)
                widths[base] = other.adapted_width
            if not widths[base]:
                return 0
            total += settings.rank_of(name) * widths[base]
        return total

    @cached_property
    def adapted_width(self) -> int:
        """Inputs and outputs of all linear layers that adapters cover; 0 without a model."""
        if self.planned_config is not None:
            shapes = linear_shapes_of(self.planned_config)
        elif self.model_folder is not None:
            shapes = linear_shapes(self.model_folder)
        else:
            return 0
        return sum(num_outputs + num_inputs for num_outputs, num_inputs in shapes.values())

    @cached_property
    def chat(self) -> "ChatFormat | None":
        """The chat format of the model's tokenizer; None without a model.

        Raises:
            SettingsError: Conversations cannot grow with this chat template.
        """
        if self.planned_config is not None:
            return estimated_chat(thinking=self.settings.thinking)
        if self.model_folder is None:
            return None
        return read_chat(self.model_folder, thinking=self.settings.thinking)

    @cached_property
    def healths(self) -> tuple[tuple[Settings, Health], ...]:
        """For each rollout server, the settings that name it and its health."""
        healths = []
        for settings in each_server(self.settings):
            healths.append((settings, look_once(settings)))
        return tuple(healths)

    @property
    def server_is_up(self) -> bool:
        """True when the rollout server runs on this machine and has allocated its memory."""
        if self.planned_gpus:
            return False
        first, health = self.healths[0]
        return first.vllm_server_host in LOCAL and is_rollout_server(health)

    @cached_property
    def planned(self) -> tuple[ResumePlan | None, str]:
        """What the run continues from, or the reason why RESUME cannot be followed."""
        try:
            return plan_resume(self.settings), ""
        except HanabiGrpoError as error:
            return None, str(error)

    @cached_property
    def rows(self) -> list[DatasetRow] | None:
        """The rows of the dataset; None if they are invalid, which `dataset` reports."""
        try:
            return training_rows(self.settings)
        except HanabiGrpoError:
            return None

    @cached_property
    def setups(self) -> tuple[Setup[Any], ...]:
        """The different games of the dataset in the order of its rows; empty without valid rows."""
        return tuple(played_setups(self.rows or []))

    @cached_property
    def budget(self) -> Budget | None:
        """Tokens of the longest conversations; None without model, chat template or dataset."""
        with contextlib.suppress(SettingsError):
            if self.chat is not None and self.setups:
                return measure_budget(self.setups, self.chat, self.settings.max_completion_length)
        return None


def is_rollout_server(health: Health) -> bool:
    """Tell whether a rollout server of this project answers, even if it is starting or refuses."""
    if isinstance(health, NotReady):
        return health.reason.startswith("is starting")
    return True


def amount(number: float, unit: str = "") -> str:
    """Return a number of three digits with its prefix, e.g. "21.5 kB", "1.41 k", "896"."""
    thousands = int(math.log10(max(_ROUNDS_UP * number, 1)) / 3)
    power = min(thousands, len(_UNIT_PREFIXES) - 1)
    return f"{number / 1000**power:.3g} {_UNIT_PREFIXES[power]}{unit}".rstrip()


def broken_weights(folder: Path) -> list[str]:
    """Return what is wrong with the weights of a model folder, one text for each file.

    Example:
        ["model.safetensors: not a complete safetensors file (a git-lfs pointer, …): …"]
    """
    problems = []
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            reason = "(a git-lfs pointer, or an interrupted download?)"
            problems.append(f"{path.name}: not a complete safetensors file {reason}: {error}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        missing = set(weight_map.values()) - {path.name for path in paths}
        problems += [f"{name}: missing" for name in sorted(missing)]
    return problems


def estimated_chat(*, thinking: bool) -> "ChatFormat":
    """Return a chat format that estimates token counts of a model whose tokenizer is not here.

    A token is a run of up to eight letters, a digit, a run of punctuation or a run of spaces, which
    approximates byte-pair tokenizers with 150,000 entries on English text. The text around messages
    is Qwen3's. Only the token counts are usable.

    Args:
        thinking: HANABI_THINKING.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from hanabi_grpo.rollout.chat import ChatFormat
    from hanabi_grpo.sft.tiny_model.tokenizer import CHAT_TEMPLATE, END, START

    words = (START, END, "<think>", "</think>")
    unknown = "<unk>"
    vocabulary = {word: number for number, word in enumerate((*words, unknown))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(_ESTIMATED_TOKEN), "isolated")
    core.add_special_tokens([AddedToken(word, special=True) for word in words])
    no_thoughts = (
        "{%- if add_generation_prompt and not enable_thinking -%}"
        "{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}"
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        unk_token=unknown,
        chat_template=CHAT_TEMPLATE + no_thoughts,
    )
    return ChatFormat.from_tokenizer(tokenizer, thinking=thinking)


def read_chat(folder: Path, *, thinking: bool) -> "ChatFormat":
    """Read the chat format of a model folder.

    Args:
        folder: A folder with a tokenizer.
        thinking: HANABI_THINKING.

    Raises:
        SettingsError: The tokenizer has no chat template, or an unusable one.
    """
    from hanabi_grpo.rollout.chat import ChatFormat

    tokenizer: Any
    if (folder / "tokenizer.json").is_file():
        # It needs no torch, so it loads many times faster.
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    return ChatFormat.from_tokenizer(tokenizer, thinking=thinking)
