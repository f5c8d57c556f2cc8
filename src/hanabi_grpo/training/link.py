"""The trainer's link to the rollout server, in the place where ms-swift keeps its `VLLMClient`."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from hanabi_grpo.client import RolloutClient
from hanabi_grpo.errors import ServerError
from hanabi_grpo.settings import Settings
from hanabi_grpo.training.adapters import adapter_names, export_adapter
from hanabi_grpo.types import Episode, adapter_of, player_name, player_names


class ServerLink:
    """Handshake, pushes and games. Every rank holds one; only the main process connects."""

    # What ms-swift's trainer reads from its client after `get_engine_type()`.
    use_async_engine = True
    enable_multi_turn = True
    enable_lora = True
    use_gym_env = True

    def __init__(self, settings: Settings, run_folder: Path) -> None:
        """Prepare a link; `connect` does the talking."""
        self.settings = settings
        self.run_folder = run_folder
        self.instance_id = ""
        self.spec_hashes: list[str] = []
        self._dtype: torch.dtype = getattr(torch, settings.dtype)
        self._log_seen = 0
        self.client = RolloutClient.from_settings(settings)

    def connect(self) -> None:
        """Introduce this run to the server; `hanabi-grpo train` has waited for it.

        Raises:
            ServerError: No server, or one with another base model, chat format, fewer players or a smaller rank.
        """
        settings = self.settings
        answer = self.client.introduce(
            settings,
            run_id=str(self.run_folder.resolve()),
            adapters=adapter_names(settings.players, settings.adapters),
            lora_rank=settings.lora_rank,
        )
        self.instance_id = answer["instance_id"]
        self._log_seen, _ = self.client.log(0)

    def push(self, model: PeftModel, names: tuple[str, ...], version: int) -> None:
        """Upload and commit every adapter in the server's number format; the receipts are checked."""
        answer = self.client.push(version, {name: export_adapter(model, name, self._dtype) for name in names})
        if answer["instance_id"] != self.instance_id:
            raise ServerError(
                f"{self.client.url}: instance {self.instance_id} was replaced by {answer['instance_id']} "
                "during the run; restart the trainer with a new OUTPUT_DIR."
            )

    def play(self, deals: list[dict[str, Any]], names: tuple[str, ...], version: int) -> list[list[Episode]]:
        """Play one step's deals with exactly the pushed version; every turn's stamp is checked."""
        settings = self.settings
        wanted = {player: f"{adapter_of(player, names)}@{version}" for player in player_names(settings.players)}
        groups = self.client.play(
            deals,
            num_games=settings.num_generations,
            max_tokens=settings.max_completion_length,
            temperature=settings.temperature,
            adapters=wanted,
        )
        self._check_stamps(groups, version)
        self.spec_hashes = sorted({*self.spec_hashes, *(group[0].spec_hash for group in groups)})
        return groups

    def copy_log(self) -> None:
        """Append the server's new log lines to `server.log` in the run folder."""
        self._log_seen, lines = self.client.log(self._log_seen)
        with (self.run_folder / "server.log").open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    def get_engine_type(self) -> None:
        """ms-swift asks before it reads the attributes above; they do not depend on the server."""

    def reset_mm_cache(self) -> None:
        """ms-swift calls this at start; text models have no such cache."""

    def _check_stamps(self, groups: list[list[Episode]], version: int) -> None:
        for episode in (episode for group in groups for episode in group):
            for turn in episode.turns:
                if turn.version != version or episode.instance_id != self.instance_id:
                    raise ServerError(
                        f"{player_name(turn.player)}: a turn is stamped version {turn.version} of instance "
                        f"{episode.instance_id}, required was version {version} of instance {self.instance_id}; "
                        "its data cannot be trained on. Restart the server, then the trainer."
                    )
