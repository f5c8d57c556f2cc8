"""What checks look at, with the slow parts that several of them share read once."""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from hanabi_grpo.client.fleet import each_server
from hanabi_grpo.client.waiting import Health, NotReady, look_once
from hanabi_grpo.commands.doctor.check import Role
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.budget import Budget, measure_budget
from hanabi_grpo.rollout.dataset_rows import DatasetRow
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.resume import ResumePlan, plan_resume
from hanabi_grpo.server.adapter_files import linear_shapes
from hanabi_grpo.settings import LoadedSettings, Settings
from hanabi_grpo.settings.defaults import is_local_model

if TYPE_CHECKING:
    from hanabi_grpo.rollout.chat import ChatFormat

LOCAL = ("localhost", "127.0.0.1", "::1")


def is_ours(health: Health) -> bool:
    """Tell whether a rollout server of this project answers, if only that it starts or refuses the
    key.
    """
    return not isinstance(health, NotReady) or health.reason.startswith("is starting")


# Without slots: a cached property needs the instance's dict.
@dataclass(frozen=True, kw_only=True)
class Context:
    """Settings, environment and role, and what can be derived from them; only the rollout servers
    are asked.
    """

    loaded: LoadedSettings
    shell: Mapping[str, str]
    """The variables of this process, before any library changed them."""
    role: Role = "both"

    @property
    def environ(self) -> Mapping[str, str]:
        """The shell's variables over those that `.env` holds for other software."""
        return {**self.loaded.dotenv_environ, **self.shell}

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.settings

    @property
    def serves(self) -> bool:
        """True when the rollout server matters."""
        return self.role != "trainer"

    @property
    def trains(self) -> bool:
        """True when the trainer matters."""
        return self.role != "server"

    @property
    def num_adapters(self) -> int:
        """Adapters of a run."""
        return 1 if self.settings.adapters == "shared" else self.settings.players

    @cached_property
    def located_folder(self) -> Path | None:
        """The folder on this machine that MODEL means; None when there is none. Nothing is
        downloaded.
        """
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
        """The model's folder; None when it is not here or not whole, which the check of the model
        reports.
        """
        folder = self.located_folder
        whole = folder and (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        return folder if whole and folder and not broken_weights(folder) else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The model's config.json; empty without a model."""
        return (
            json.loads((self.model_folder / "config.json").read_text(encoding="utf-8"))
            if self.model_folder
            else {}
        )

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the model; 0 without one."""
        total = 0
        for path in self.model_folder.glob("*.safetensors") if self.model_folder else ():
            with safe_open(path, framework="numpy") as file:
                total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
        return total

    @cached_property
    def adapter_parameters(self) -> int:
        """Parameters of one adapter; 0 without a model."""
        shapes = linear_shapes(self.model_folder).values() if self.model_folder else ()
        return sum(self.settings.lora_rank * (num_out + num_in) for num_out, num_in in shapes)

    @cached_property
    def chat(self) -> "ChatFormat | None":
        """The chat format by the tokenizer's own files, None without a model; SettingsError: it
        cannot be used.
        """
        return (
            None
            if self.model_folder is None
            else read_chat(self.model_folder, self.settings.thinking)
        )

    @cached_property
    def healths(self) -> tuple[tuple[Settings, Health], ...]:
        """The settings that name each rollout server, and how that is."""
        return tuple((one, look_once(one)) for one in each_server(self.settings))

    @property
    def server_is_up(self) -> bool:
        """True when the rollout server runs on this machine, so that its memory is taken
        already.
        """
        first, health = self.healths[0]
        return first.vllm_server_host in LOCAL and is_ours(health)

    @cached_property
    def planned(self) -> tuple[ResumePlan | None, str]:
        """What the run goes on with, or the reason that RESUME cannot be followed."""
        try:
            return plan_resume(self.settings), ""
        except HanabiGrpoError as error:
            return None, str(error)

    @cached_property
    def rows(self) -> list[DatasetRow] | None:
        """The dataset's rows; None when they are not valid, which the check of the dataset
        reports.
        """
        try:
            return training_rows(self.settings)
        except HanabiGrpoError:
            return None

    @cached_property
    def setups(self) -> tuple[Setup[Any], ...]:
        """The different games of the dataset, in the order of its rows; none when it is not
        valid.
        """
        return tuple(played_setups(self.rows or []))

    @cached_property
    def budget(self) -> Budget | None:
        """Tokens of the longest conversations of the dataset's games; None without model, template
        or dataset.
        """
        with contextlib.suppress(SettingsError):
            if self.chat is not None and self.setups:
                return measure_budget(self.setups, self.chat, self.settings.max_completion_length)
        return None


def amount(number: float, unit: str = "") -> str:
    """Return a number as it is read, e.g. "21.5 kB", "1.41 k", "896"."""
    # 999.9 is a thousand.
    power = min(int(math.log10(max(1.0005 * number, 1)) / 3), 4)
    return f"{number / 1000**power:.3g} {('', 'k', 'M', 'G', 'T')[power]}{unit}".rstrip()


def broken_weights(folder: Path) -> list[str]:
    """Return what is wrong with the weights of a folder, e.g. ["model.safetensors: not a whole
    safetensors file …"].
    """
    problems = []
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            why = "(a pointer of git-lfs, or an interrupted download?)"
            problems.append(f"{path.name}: not a whole safetensors file {why}: {error}")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(json.loads(index.read_text(encoding="utf-8")).get("weight_map", {}).values())
        problems += [f"{name}: missing" for name in sorted(shards - {path.name for path in paths})]
    return problems


def read_chat(folder: Path, thinking: bool) -> "ChatFormat":
    """Read a tokenizer and its chat format, which may be a SettingsError."""
    from hanabi_grpo.rollout.chat import ChatFormat

    if not (folder / "tokenizer.json").is_file():  # else without torch, and many times as fast
        from transformers import AutoTokenizer as Reader
    else:
        from transformers import PreTrainedTokenizerFast as Reader
    return ChatFormat.from_tokenizer(Reader.from_pretrained(str(folder)), thinking=thinking)
