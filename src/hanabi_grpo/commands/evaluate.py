"""`hanabi-grpo evaluate`: one team on held-out deals, beside what the scripts score on them."""

import contextlib
import difflib
import uuid
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hanabi_grpo.client import RolloutClient
from hanabi_grpo.commands.console import make_console
from hanabi_grpo.commands.train import wait_for_server
from hanabi_grpo.datasets import load_rows
from hanabi_grpo.env_config import EnvConfig
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation import evaluate_scripted, evaluate_served, served_adapters
from hanabi_grpo.evaluation_result import EvaluationResult, write_result
from hanabi_grpo.heartbeat import Heartbeat
from hanabi_grpo.policies import REFERENCES, SCRIPTED
from hanabi_grpo.report import board_title, reference_results, result_cells, rich_table
from hanabi_grpo.saved_adapters import SavedAdapters, read_adapters
from hanabi_grpo.settings import LoadedSettings, Settings, load_settings
from hanabi_grpo.types import player_names

POLICIES = ("served", "base", *SCRIPTED)


def evaluate(
    policy: str,
    *,
    deals: int,
    out: Path | None,
    checkpoint: Path | None,
    preset: str | None,
    temperature: float | None,
    label: str | None,
) -> None:
    """Play held-out deals, print the table and write the result.

    Args:
        policy: "served" (the adapters that the server holds), "base" (its model without them) or a script.
        deals: Number of deals, one game each.
        out: JSON file of the result.
        checkpoint: Folder of adapters that the server is to serve first.
        preset: Board; None: the one of HANABI_PRESET or DATASET.
        temperature: Of sampling, 0 for greedy; None: TEMPERATURE.
        label: What tables call the team; None: the policy's name.

    Raises:
        SettingsError: Bad options, or a checkpoint that cannot be read.
        ServerError: No server, or one that does not fit.
    """
    if policy not in POLICIES:
        close = difflib.get_close_matches(policy, POLICIES, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise SettingsError(f"--policy {policy!r}: allowed are {', '.join(POLICIES)}.{hint}")
    if checkpoint is not None and policy != "served":
        raise SettingsError(f"--checkpoint with --policy {policy}: only --policy served plays a checkpoint.")
    if temperature is not None and not 0 <= temperature < float("inf"):
        raise SettingsError(f"--temperature {temperature}: must be 0 (greedy) or more.")
    if deals < 2:
        raise SettingsError(f"--deals {deals}: a mean with an error needs at least 2 deals.")
    console = make_console()
    loaded = load_settings()
    config = game_config(loaded.settings, preset)
    if policy in SCRIPTED:
        result = evaluate_scripted(policy, config, deals)
    else:
        heat = loaded.settings.temperature if temperature is None else temperature
        result = _through_server(loaded, config, policy, checkpoint, deals, heat, label or policy, console)
    others = reference_results(result, [name for name in REFERENCES if name != policy])
    groups = [[result_cells(result)], [result_cells(other) for other in others]]
    console.print(rich_table(board_title(result), groups))
    if out is not None:
        write_result(out, result)
        console.print(f"wrote {out}", markup=False, soft_wrap=True)


def game_config(settings: Settings, preset: str | None) -> EnvConfig:
    """Return the game as training plays it: of the dataset's row, or of the settings when a preset is given.

    Raises:
        SettingsError: The dataset has rows of several games, and no preset chooses.
    """
    if preset is not None:
        return EnvConfig.parse({**{key: getattr(settings, key) for key in EnvConfig.model_fields}, "preset": preset})
    rows = load_rows(settings.dataset, settings)
    games = [row["env_config"] for row in rows]
    if any(game != games[0] for game in games):
        boards = ", ".join(dict.fromkeys(str(game["preset"]) for game in games))
        raise SettingsError(f"DATASET={settings.dataset}: holds several games ({boards}); choose one by --preset.")
    return EnvConfig.parse(games[0])


def _through_server(
    loaded: LoadedSettings,
    config: EnvConfig,
    policy: str,
    checkpoint: Path | None,
    deals: int,
    temperature: float,
    label: str,
    console: Console,
) -> EvaluationResult:
    settings = loaded.settings
    saved = None if checkpoint is None else read_adapters(checkpoint)
    wait_for_server(loaded, console)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(RolloutClient.from_settings(settings))
        if policy == "base":
            adapters: dict[str, str | None] = dict.fromkeys(player_names(config.players))
        else:
            if saved is None:
                versions = client.identity()["versions"]
            else:
                versions = _serve(client, settings, saved, config)
                # Many deals may take longer than the server's patience.
                stack.enter_context(Heartbeat.from_client(client))
            adapters = served_adapters(versions, config.players)
        playing = ", ".join(name or "base model" for name in dict.fromkeys(adapters.values()))
        with _progress(console) as progress:
            bar = progress.add_task(f"{deals} deals: {playing}", total=deals)
            return evaluate_served(
                client,
                config,
                adapters,
                deals,
                settings.max_completion_length,
                temperature,
                lambda done: progress.update(bar, completed=done),
                label=label,
            )


def _serve(client: RolloutClient, settings: Settings, saved: SavedAdapters, config: EnvConfig) -> dict[str, int]:
    """Let the server serve a checkpoint's adapters; returns their versions."""
    client.introduce(
        settings,
        run_id=f"evaluate-{uuid.uuid4()}",
        adapters=list(saved.adapters),
        lora_rank=saved.lora_rank,
        configs=[config],
        version=saved.step,
    )
    client.push(saved.step, saved.adapters)
    return dict.fromkeys(saved.adapters, saved.step)


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)
