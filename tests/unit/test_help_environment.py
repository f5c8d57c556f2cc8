"""Each command's --help names the environment variables that it reads, and none that does not exist."""

import ast
import re

from doctor_machines import ROOT
from hanabi_grpo.cli import all_commands
from hanabi_grpo.settings import PASSED_THROUGH, variables

COMMANDS = all_commands()
OURS = {variable.env for variable in variables()} | set(PASSED_THROUGH)
# Of other software, read by the doctor, the W&B and hub libraries, or vLLM.
OTHERS = {
    *("OMP_NUM_THREADS", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "NETRC", "VLLM_CPU_KVCACHE_SPACE"),
    *("HF_HUB_OFFLINE", "HF_TOKEN", "WANDB_API_KEY", "WANDB_BASE_URL"),
}
SERVER = {"VLLM_SERVER_PORT", "HANABI_PRESET", "TEMPERATURE"}
NAMED = {
    "serve": {"MODEL", "PORT", "HANABI_HOST", "HANABI_API_KEY", "VLLM_TENSOR_PARALLEL_SIZE", "CUDA_VISIBLE_DEVICES"},
    "train": {"MODEL", "DATASET", "OUTPUT_DIR", "RESUME", "VLLM_SERVER_PORT", "NPROC_PER_NODE", "REPORT_TO"},
    "evaluate": {*SERVER, "VLLM_SERVER_HOST", "HANABI_API_KEY", "DATASET", "MODEL", "WANDB_MODE", "HF_HOME"},
    "collect": SERVER,
    "cross-play": SERVER,
    "play": SERVER,
    "doctor": {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HTTP_PROXY", "NO_PROXY", "WANDB_API_KEY"},
    "warm-start": {"MODEL", "LORA_RANK", "HANABI_ADAPTERS", "SEED", "HANABI_PRESET"},
    "tiny-model": {"HANABI_PRESET", "HANABI_PLAYERS", "SEED"},
    "dataset": {"HANABI_PLAYERS", "HANABI_OBSERVATION"},
    "view": {"WANDB_MODE", "WANDB_ENTITY", "OUTPUT_DIR"},
    "export": {"MODEL", "WANDB_MODE", "WANDB_ENTITY", "HF_HOME"},
    "upload": {"WANDB_PROJECT", "WANDB_ENTITY", "WANDB_NAME", "WANDB_MODE", "CKPT_ARTIFACT_NAME"},
    "watch": {"OUTPUT_DIR"},
}
# These show all settings, or look at a run folder or at nothing but their options.
WITHOUT = {"settings", "report", "compare", "hanab-live"}


def help_of(command: str) -> str:
    """Return what --help says of a command and its options."""
    found = COMMANDS[command]
    return " ".join([found.help or "", *(getattr(parameter, "help", None) or "" for parameter in found.params)])


def test_every_command_is_in_one_of_the_two_lists() -> None:
    assert set(COMMANDS) == NAMED.keys() | WITHOUT and not NAMED.keys() & WITHOUT


def test_the_help_of_a_command_names_what_it_reads_and_no_variable_that_does_not_exist() -> None:
    for command in COMMANDS:
        text = help_of(command)
        wanted = NAMED.get(command, set())
        assert {name for name in wanted if not re.search(rf"\b{name}\b", text)} == set(), command
        assert set(re.findall(r"\b(?:HANABI|WANDB|VLLM|HF|CUDA|LORA|CKPT|NCCL)_[A-Z_0-9]+\b", text)) <= OURS | OTHERS


def test_a_command_without_variables_resolves_no_settings() -> None:
    for command in WITHOUT - {"settings"}:
        path = ROOT / "src" / "hanabi_grpo" / "commands" / f"{command.replace('-', '_')}.py"
        calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        assert not {call.id for call in calls if isinstance(call, ast.Name)} & {"load_settings", "announce"}
