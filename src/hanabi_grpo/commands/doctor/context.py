"""What checks look at, with the slow parts that several of them share read once."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanabi_grpo.client.fleet import each_server
from hanabi_grpo.commands.doctor.answer import Answer, ask_health, is_local
from hanabi_grpo.commands.doctor.budget import Budget, measure_budget
from hanabi_grpo.commands.doctor.check import Role
from hanabi_grpo.commands.doctor.weights import adapter_parameters, broken_weights
from hanabi_grpo.envs.base import Setup
from hanabi_grpo.errors import HanabiGrpoError, SettingsError
from hanabi_grpo.rollout.datasets import played_setups, training_rows
from hanabi_grpo.runs.resume import ResumePlan, plan_resume
from hanabi_grpo.settings import LoadedSettings, Settings
from hanabi_grpo.settings.defaults import is_local_model

if TYPE_CHECKING:
    from hanabi_grpo.rollout.chat import ChatFormat


# Without slots: a cached property needs the instance's dict.
@dataclass(frozen=True, kw_only=True)
class Context:
    """Settings, environment and role, and what can be derived from them without a network."""

    loaded: LoadedSettings
    shell: Mapping[str, str]
    """The variables of this process, before any library changed them."""
    role: Role = "both"
    _healths: dict[tuple[str, int], Answer] = field(default_factory=dict)

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

    @property
    def adapter_parameters(self) -> int | None:
        """Parameters of one adapter; None without a model."""
        return adapter_parameters(self.model_folder, self.settings.lora_rank) if self.model_folder else None

    @cached_property
    def model_folder(self) -> Path | None:
        """The model's folder; None when it is not here or not whole, which the check of the model reports."""
        folder = self.located_folder
        whole = folder and (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
        return folder if whole and folder and not broken_weights(folder) else None

    @cached_property
    def located_folder(self) -> Path | None:
        """The folder on this machine that MODEL means; None when there is none. Nothing is downloaded."""
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
    def chat(self) -> "ChatFormat | None":
        """The chat format by the tokenizer's own files; None without a model folder.

        Raises:
            SettingsError: The chat template cannot be used.
        """
        return None if self.model_folder is None else read_chat(self.model_folder, self.settings.thinking)

    def health(self, host: str, port: int) -> Answer:
        """Return what an address of a rollout server answers; it is asked once."""
        if (host, port) not in self._healths:
            self._healths[host, port] = ask_health(host, port, self.settings)
        return self._healths[host, port]

    @property
    def server_is_up(self) -> bool:
        """True when the rollout server runs on this machine, so that its memory is taken already."""
        first = each_server(self.settings)[0]
        host, port = first.vllm_server_host, first.vllm_server_port
        return is_local(host) and self.health(host, port).is_ours

    @cached_property
    def planned(self) -> tuple[ResumePlan | None, str]:
        """What the run goes on with, or the reason that RESUME cannot be followed."""
        try:
            return plan_resume(self.settings), ""
        except HanabiGrpoError as error:
            return None, str(error)

    @property
    def resume(self) -> ResumePlan | None:
        """What the run goes on with; None for nothing, or where the check of the run folder says why it cannot."""
        return self.planned[0]

    @cached_property
    def rows(self) -> list[dict[str, Any]] | None:
        """The dataset's rows; None when they are not valid, which the check of the dataset reports."""
        try:
            return training_rows(self.settings)
        except HanabiGrpoError:
            return None

    @cached_property
    def setups(self) -> tuple[Setup[Any], ...]:
        """The different games of the dataset, in the order of its rows; none when it is not valid."""
        return tuple(played_setups(self.rows or []))

    @cached_property
    def budget(self) -> Budget | None:
        """Tokens of the longest conversations of the dataset's games; None without model, template or dataset."""
        with contextlib.suppress(SettingsError):
            if self.chat is not None and self.setups:
                return measure_budget(self.setups, self.chat, self.settings.max_completion_length)
        return None


def read_chat(folder: Path, thinking: bool, *, automatic: bool = False) -> "ChatFormat":
    """Read a tokenizer and its chat format.

    Args:
        folder: The model's folder.
        thinking: HANABI_THINKING.
        automatic: Read it exactly as server and trainer do; that imports torch and takes many times as long.

    Raises:
        SettingsError: The chat template cannot be used.
    """
    from hanabi_grpo.rollout.chat import ChatFormat

    if automatic or not (folder / "tokenizer.json").is_file():
        from transformers import AutoTokenizer as Reader
    else:
        from transformers import PreTrainedTokenizerFast as Reader
    return ChatFormat.from_tokenizer(Reader.from_pretrained(str(folder)), thinking=thinking)
