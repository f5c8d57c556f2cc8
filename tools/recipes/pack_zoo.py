"""Make a team of the zoo (`data/zoo/NAME`) from a finished run: adapters, base model, facts.

    python tools/recipes/pack_zoo.py outputs/headline/laptop-0 laptop
    python tools/recipes/pack_zoo.py outputs/full-zoo/checkpoint-1 full

Weights are rounded to 16 bits, which halves the files; the team's score is measured afterwards.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from hanabi_grpo.runs.fingerprint import model_fingerprint
from hanabi_grpo.runs.manifest import read_manifest, write_manifest
from hanabi_grpo.settings.shipped import ZOO
from hanabi_grpo.settings.zoo import FACTS

_SETTINGS = (
    "HANABI_ENV",
    "HANABI_PRESET",
    "HANABI_PLAYERS",
    "HANABI_MEMORY",
    "HANABI_OBSERVATION",
    "HANABI_LEGAL_MOVES",
    "HANABI_DEDUCTIONS",
    "MAX_COMPLETION_LENGTH",
)
"""The settings that a team must be played with."""
_TASKS = 2000
_TEMPERATURES = {"sampled": "1", "greedy": "0"}


def pack(run: Path, team: Path) -> None:
    """Write a team's adapters and its base model.

    Args:
        run: The run, whose best checkpoint in validation is taken, or a checkpoint.
        team: The folder to write; it must not exist.
    """
    is_checkpoint = run.name.startswith("checkpoint-")
    folder = run.parent if is_checkpoint else run
    chosen_version = str(run) if is_checkpoint else f"{run}@best"
    settings = json.loads((folder / "settings.json").read_text())["settings"]
    with tempfile.TemporaryDirectory() as name:
        model = Path(name) / "model"
        shutil.copytree(settings["MODEL"], model)
        for weights in model.glob("*.safetensors"):
            _round(weights)
        export = Path(name) / "export"
        subprocess.run(["hanabi-grpo", "export", chosen_version, "--out", str(export)], check=True)
        manifest = read_manifest(export)
        team.mkdir(parents=True)
        for player in export.glob("player_*"):
            shutil.copytree(player, team / player.name)
        for weights in team.glob("*/*.safetensors"):
            _round(weights)
        facts = {**manifest.facts, "model_fingerprint": model_fingerprint(model)}
        facts.pop("manifest_sha256", None)
        write_manifest(team, step=manifest.step, facts=facts)
        shutil.copytree(model, team / "model")
    chosen = {name: _as_text(settings[name]) for name in _SETTINGS}
    document = {"settings": chosen, "made": f"{folder.name}, step {manifest.step}"}
    _write(team, document)


def measure(team: Path) -> None:
    """Evaluate a team on held-out tasks not used to choose anything, and record its score."""
    document = json.loads((team / FACTS).read_text())
    evaluations = {}
    for label, temperature in _TEMPERATURES.items():
        with tempfile.TemporaryDirectory() as name:
            out = Path(name) / "result.json"
            command = ["hanabi-grpo", "evaluate", f"zoo:{team.name}", "--suite", "test"]
            command += ["--tasks", str(_TASKS), "--temperature", temperature, "--out", str(out)]
            subprocess.run(command, check=True)
            summary = json.loads(out.read_text())["summary"]
        evaluations[label] = {
            "suite": "test",
            "num_tasks": _TASKS,
            "mean": summary["mean"],
            "standard_error": round(summary["standard_error"], 4),
        }
    _write(team, {**document, "evaluations": evaluations})


def _write(team: Path, document: dict[str, Any]) -> None:
    (team / FACTS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _round(path: Path) -> None:
    """Round a file's weights to 16 bits; exit if one of them would become infinite."""
    tensors = {name: tensor.half() for name, tensor in load_file(path).items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            sys.exit(f"{path}: {name} has weights outside the range of float16")
    save_file(tensors, path, metadata={"format": "pt"})


def _as_text(value: Any) -> str:
    """Return a setting as an environment variable holds it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make a team of the zoo from a finished run.")
    parser.add_argument("run", type=Path, help="folder of the run, or of a checkpoint")
    parser.add_argument("name", help="name of the team")
    arguments = parser.parse_args()
    pack(arguments.run, Path(ZOO) / arguments.name)
    measure(Path(ZOO) / arguments.name)
