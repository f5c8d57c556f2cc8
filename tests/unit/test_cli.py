"""Every command: its place, help, environment variables and exit codes, and what one terminal says
of the other.
"""

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from doctor_machines import NOWHERE, ROOT, free_port, make_model
from hanabi_grpo import __version__
from hanabi_grpo.cli import GROUPS, all_commands, app
from hanabi_grpo.commands.console import INTERRUPTED, offline_environ, server_command
from hanabi_grpo.commands.nodes import Nodes, check_nodes, read_nodes, trainer_argv
from hanabi_grpo.commands.serve import trainer_command
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.server.main import EXIT_CODE
from hanabi_grpo.settings import (
    PASSED_THROUGH,
    LoadedSettings,
    Settings,
    batch_plan,
    load_settings,
    variables,
)

RUNNER = CliRunner()
CLI = (sys.executable, "-m", "hanabi_grpo.cli")
COMMANDS = all_commands()
OURS = {variable.env for variable in variables()} | set(PASSED_THROUGH)
# Of other software, read by the doctor, the W&B and hub libraries, or vLLM.
OTHERS = {"VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE", "HF_TOKEN", "WANDB_API_KEY", "WANDB_BASE_URL"}
SERVER = {"VLLM_SERVER_PORT", "HANABI_PRESET", "TEMPERATURE"}
NAMED = {
    "serve": {
        "MODEL",
        "PORT",
        "HANABI_HOST",
        "HANABI_API_KEY",
        "VLLM_TENSOR_PARALLEL_SIZE",
        "CUDA_VISIBLE_DEVICES",
    },
    "train": {
        "MODEL",
        "DATASET",
        "OUTPUT_DIR",
        "RESUME",
        "VLLM_SERVER_PORT",
        "NPROC_PER_NODE",
        "REPORT_TO",
    },
    "evaluate": {
        *SERVER,
        "VLLM_SERVER_HOST",
        "HANABI_API_KEY",
        "DATASET",
        "MODEL",
        "WANDB_MODE",
        "HF_HOME",
    },
    "collect": SERVER,
    "cross-play": SERVER,
    "play": SERVER,
    "exploit": {"HANABI_MEMORY"},
    "teams": {"HANABI_ENV"},
    "doctor": {"CUDA_VISIBLE_DEVICES", "HTTP_PROXY", "NO_PROXY", "WANDB_API_KEY"},
    "warm-start": {"MODEL", "LORA_RANK", "HANABI_ADAPTERS", "SEED", "HANABI_PRESET"},
    "tiny-model": {"HANABI_PRESET", "HANABI_PLAYERS", "SEED"},
    "dataset": {"HANABI_PLAYERS", "HANABI_OBSERVATION"},
    "view": {"WANDB_MODE", "WANDB_ENTITY", "OUTPUT_DIR"},
    "export": {"WANDB_MODE", "WANDB_ENTITY", "HF_HOME"},
    "watch": {"OUTPUT_DIR"},
    "openenv": {"HANABI_ENV", "HANABI_PRESET", "HANABI_PLAYERS"},
}
# These show all settings, or look at a run folder or at nothing but their options.
WITHOUT = {"settings", "report", "compare"}


def loaded(**environ: str) -> LoadedSettings:
    return load_settings(environ, NOWHERE)


def test_commands_stand_in_groups_and_help_and_version_of_each_start_nothing() -> None:
    text = RUNNER.invoke(app, ["--help"]).output
    panels = [line for line in text.splitlines() if line.startswith("╭─")]
    assert [re.findall(r"\w+", line)[0] for line in panels] == ["Options", *GROUPS]
    for words in ([], *([command] for command in COMMANDS)):
        result = RUNNER.invoke(app, [*words, "-h"])
        assert result.exit_code == 0 and "Usage" in result.output
        result = RUNNER.invoke(app, [*words, "--mine", "1", "--version"])
        assert (result.exit_code, result.output) == (0, f"hanabi-grpo {__version__}\n")


def test_every_file_that_names_the_version_names_the_same_one() -> None:
    said = {
        "pyproject.toml": r'^version = "(.*)"',
        "CITATION.cff": r"^version: (.*)",
        "CHANGELOG.md": r"^## (\S+) \(20\d\d-\d\d-\d\d\)",
        "README.md": r"^\*\*Status, version (\S+)\*\*",
        "integrations/openenv/openenv.yaml": r'^version: "(.*)"',
        "integrations/verifiers/pyproject.toml": r'^version = "(.*)"',
    }
    found = {
        name: re.search(one, (ROOT / name).read_text(encoding="utf-8"), re.M)
        for name, one in said.items()
    }
    assert {name: match and match[1] for name, match in found.items()} == dict.fromkeys(
        said, __version__
    )


def test_help_fits_a_screen_of_80_columns_and_the_command_line_imports_nothing_heavy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(GROUPS) == 5
    sizes = {name: RUNNER.invoke(app, [name, "--help"]).output.splitlines() for name in COMMANDS}
    assert {
        name: len(lines)
        for name, lines in sizes.items()
        if len(lines) > 40 or max(map(len, lines)) > 80
    } == {}
    ask = "import sys, hanabi_grpo.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    heavy = {
        "torch",
        "transformers",
        "vllm",
        "swift",
        "numpy",
        "pyspiel",
        "pydantic",
        "fastapi",
        "httpx",
        "wandb",
    }
    assert heavy & set(done.stdout.split()) == set(), "0.1 of 0.5 CPU seconds without them"


def test_threads_of_whatever_a_command_starts_wait_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for given, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if given:
            monkeypatch.setenv("OMP_WAIT_POLICY", given)
        assert RUNNER.invoke(app, ["settings"]).exit_code == 0
        assert os.environ["OMP_WAIT_POLICY"] == expected


def test_the_help_of_a_command_names_what_it_reads_and_no_variable_that_does_not_exist() -> None:
    assert set(COMMANDS) == NAMED.keys() | WITHOUT and not NAMED.keys() & WITHOUT
    for name, command in COMMANDS.items():
        text = " ".join(
            [command.help or "", *(getattr(each, "help", None) or "" for each in command.params)]
        )
        assert {
            env for env in NAMED.get(name, ()) if not re.search(rf"\b{env}\b", text)
        } == set(), name
        assert (
            set(re.findall(r"\b(?:HANABI|WANDB|VLLM|HF|CUDA|LORA|CKPT|NCCL)_[A-Z_0-9]+\b", text))
            <= OURS | OTHERS
        )
    for name in WITHOUT - {"settings"}:
        path = ROOT / "src" / "hanabi_grpo" / "commands" / f"{name.replace('-', '_')}.py"
        calls = (
            node.func
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        )
        assert not {call.id for call in calls if isinstance(call, ast.Name)} & {
            "load_settings",
            "announce",
        }


def test_the_other_terminals_commands_repeat_what_only_this_shell_knows(tmp_path: Path) -> None:
    here = loaded(
        MODEL="my model",
        HANABI_PLAYERS="3",
        VLLM_SERVER_PORT="8123",
        HANABI_API_KEY="k",
        LEARNING_RATE="1",
    )
    assert server_command(here) == (
        "HANABI_PLAYERS=3 MODEL='my model' HANABI_API_KEY=\"$HANABI_API_KEY\" PORT=8123 "
        "bash tools/rollout/rollout_hanabi_gym.sh"
    )
    there = loaded(PORT="8123", HANABI_HOST="0.0.0.0", HANABI_API_KEY="k" * 16)
    assert trainer_command(there) == (
        'HANABI_API_KEY="$HANABI_API_KEY" VLLM_SERVER_PORT=8123 bash '
        "tools/train/train_grpo_msswift.sh"
    )
    assert server_command(loaded()) == "bash tools/rollout/rollout_hanabi_gym.sh"
    assert offline_environ(Settings(model=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in offline_environ(Settings(model="Qwen/Qwen3-4B"))


TWO = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}


def test_the_trainer_is_one_process_or_torchrun_that_is_told_of_every_machine() -> None:
    path, own = (
        Path("run/settings.json"),
        ["-m", "hanabi_grpo.training.main", "--settings", "run/settings.json"],
    )
    assert (
        read_nodes({})
        == read_nodes({"NNODES": "1", "MASTER_ADDR": "x", "NODE_RANK": "7"})
        == Nodes()
    )
    assert trainer_argv(Settings(nproc_per_node=1), path, ["--a", "1"], Nodes()) == [
        sys.executable,
        *own,
        "--a",
        "1",
    ]
    assert trainer_argv(Settings(nproc_per_node=4), path, [], Nodes()) == [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            "4",
            *own,
        )
    ]
    nodes = read_nodes({**TWO, "MASTER_PORT": "29600"})
    assert nodes == Nodes(count=2, rank=1, address="10.0.0.1", port=29600)
    assert trainer_argv(Settings(nproc_per_node=1), path, ["--x"], nodes) == [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", "1"),
        *(
            "--master_addr",
            "10.0.0.1",
            "--master_port",
            "29600",
            "--nproc_per_node",
            "1",
            *own,
            "--x",
        ),
    ]


def test_what_several_machines_need_is_said() -> None:
    for changes, named in (
        ({"NNODES": "0"}, "NNODES='0'"),
        ({"NODE_RANK": "2"}, "NODE_RANK='2': a whole number from 0 to 1"),
        ({"NODE_RANK": ""}, "NODE_RANK=''"),
        ({"MASTER_ADDR": " "}, "MASTER_ADDR must be"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
    ):
        with pytest.raises(SettingsError, match=named):
            read_nodes({**TWO, **changes})

    def check(nodes: Nodes, **settings: Any) -> None:
        made = Settings(**settings)
        check_nodes(nodes, made, batch_plan(made))

    first, second = Nodes(count=2, address="a"), Nodes(count=2, rank=1, address="a")
    with pytest.raises(SettingsError, match="NNODES=2 DEEPSPEED=none"):
        check(first)
    with pytest.raises(SettingsError, match="micro-batches must be cut by tokens"):
        check(first, deepspeed="zero2", per_device_train_batch_size=64)
    with pytest.raises(
        SettingsError, match="NODE_RANK=1: OUTPUT_DIR must name the run folder of node 0"
    ):
        check(second, deepspeed="zero2")
    check(second, deepspeed="zero2", output_dir=Path("run"))
    check(Nodes(), per_device_train_batch_size=64)


def environ(tmp_path: Path, **settings: str) -> dict[str, str]:
    port = str(free_port())
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    own = {
        "OUTPUT_DIR": str(tmp_path / "run"),
        "PORT": port,
        "VLLM_SERVER_PORT": port,
        "REPORT_TO": "none",
    }
    return {**kept, **own, **settings}


def test_an_answer_and_a_wrong_use_end_with_1_or_2_and_without_a_traceback(tmp_path: Path) -> None:
    table = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    rows = [
        int(line.split("|")[1])
        for line in table.splitlines()
        if line.startswith("| ") and line[2].isdecimal()
    ]
    assert rows == [0, 1, 1, 2, EXIT_CODE, INTERRUPTED, 128 + signal.SIGTERM]
    for words, settings, code, said in (
        (("train", "--dry-run"), {"DATASET": "no/such.jsonl"}, 1, ""),
        (
            ("train", "--dry-run"),
            {"HANABI_PLAYERS": "7"},
            2,
            "error: HANABI_PLAYERS=7: Hanabi needs 2 to 5 players.",
        ),
        (("no-such-command",), {}, 2, "no-such-command"),
        (("report", "no-run"), {}, 2, "no-run: no such folder"),
    ):
        given = environ(tmp_path, **settings)
        done = subprocess.run(
            [*CLI, *words], env=given, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_trainer_that_waits_ends_with_the_code_of_the_signal(
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    process = start_process(
        [*CLI, "train"],
        env={
            **environ(tmp_path, MODEL=str(make_model(tmp_path / "model"))),
            "PYTHONUNBUFFERED": "1",
        },
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "waiting for" in line:
            break
    process.send_signal(number)
    # A process that a signal ends has the shell's code for it.
    ended = process.wait(timeout=60)
    assert (128 - ended if ended < 0 else ended) == code
