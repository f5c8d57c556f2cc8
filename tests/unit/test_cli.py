"""Every command: its group, help, environment variables and exit codes.

Also what one terminal says of the other, and trainers on several machines.
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

from doctor_machines import NOWHERE, ROOT, make_model
from hanabi_grpo import __version__
from hanabi_grpo.cli import GROUPS, all_commands, app
from hanabi_grpo.commands.console import INTERRUPTED, offline_environ
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
from hanabi_grpo.settings.shell import server_command
from ports import free_port

RUNNER = CliRunner()
CLI = (sys.executable, "-m", "hanabi_grpo.cli")
COMMANDS = all_commands()
OURS = {variable.env for variable in variables()} | set(PASSED_THROUGH)
OTHERS = {"VLLM_CPU_KVCACHE_SPACE", "HF_HUB_OFFLINE", "HF_TOKEN", "WANDB_API_KEY", "WANDB_BASE_URL"}
"""Variables of other software, read by the doctor, the W&B and hub libraries, or vLLM."""
SERVER = {"VLLM_SERVER_PORT", "HANABI_PRESET", "TEMPERATURE"}
"""Variables of commands that play on a server."""
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
    "adhoc": SERVER,
    "play": SERVER,
    "beliefs": {"VLLM_SERVER_PORT", "HANABI_PRESET", "HANABI_MEMORY", "SEED"},
    "exploit": {"HANABI_MEMORY"},
    "teams": {"HANABI_ENV"},
    "demo": {"SEED", "HANABI_SERVER_TIMEOUT"},
    "doctor": {"CUDA_VISIBLE_DEVICES", "HTTP_PROXY", "NO_PROXY", "WANDB_API_KEY"},
    "warm-start": {"MODEL", "LORA_RANK", "HANABI_ADAPTERS", "SEED", "HANABI_PRESET"},
    "tiny-model": {"HANABI_PRESET", "HANABI_PLAYERS", "SEED"},
    "dataset": {"HANABI_PLAYERS", "HANABI_OBSERVATION"},
    "view": {"WANDB_MODE", "WANDB_ENTITY", "OUTPUT_DIR"},
    "export": {"WANDB_MODE", "WANDB_ENTITY", "HF_HOME"},
    "watch": {"OUTPUT_DIR"},
    "openenv": {"HANABI_ENV", "HANABI_PRESET", "HANABI_PLAYERS"},
}
"""Variables that the help of a command must name."""
WITHOUT = {"settings", "report", "compare", "digest", "import-hanab-live"}
"""Commands that show all settings, or look at a run folder or at nothing but their options."""
HEAVY = {
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
"""Packages that the command line must not import before a command is called."""


def loaded(**environ: str) -> LoadedSettings:
    return load_settings(environ, NOWHERE)


def test_commands_stand_in_groups() -> None:
    text = RUNNER.invoke(app, ["--help"]).output
    titles = []
    for line in text.splitlines():
        if line.startswith("╭─"):
            titles.append(re.findall(r"\w+", line)[0])
    assert titles == ["Options", *GROUPS]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_and_version_of_every_command_start_nothing(command: str) -> None:
    args = [command] if command else []
    result = RUNNER.invoke(app, [*args, "-h"])
    assert result.exit_code == 0
    assert "Usage" in result.output
    result = RUNNER.invoke(app, [*args, "--mine", "1", "--version"])
    assert result.exit_code == 0
    assert result.output == f"hanabi-grpo {__version__}\n"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("pyproject.toml", r'^version = "(.*)"'),
        ("CITATION.cff", r"^version: (.*)"),
        ("CHANGELOG.md", r"^## (\S+) \(20\d\d-\d\d-\d\d\)"),
        ("README.md", r"^\*\*Status, version (\S+)\*\*"),
        ("integrations/openenv/openenv.yaml", r'^version: "(.*)"'),
        ("integrations/verifiers/pyproject.toml", r'^version = "(.*)"'),
    ],
)
def test_every_file_that_names_the_version_names_the_same_one(name: str, pattern: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None
    assert match[1] == __version__


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_of_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = RUNNER.invoke(app, [command, "--help"]).output.splitlines()
    assert [line for line in lines if len(line) > 80] == []


def test_the_command_line_imports_nothing_heavy() -> None:
    program = (
        "import sys, hanabi_grpo.cli; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    imported = set(answer.stdout.split())
    assert HEAVY & imported == set(), "0.1 of 0.5 CPU seconds without them"


@pytest.mark.parametrize(("given", "expected"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_of_whatever_a_command_starts_wait_without_spinning(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where it is not set now, so that what the command sets is undone.
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    assert RUNNER.invoke(app, ["settings"]).exit_code == 0
    assert os.environ["OMP_WAIT_POLICY"] == expected


def help_text(command: Any) -> str:
    """Return a command's help with that of its options and their defaults."""
    texts = [command.help or ""]
    for parameter in command.params:
        texts.append(getattr(parameter, "help", None) or "")
        texts.append(str(getattr(parameter, "show_default", "")))
    return " ".join(texts)


def test_every_command_is_known_to_name_variables_or_none() -> None:
    assert set(COMMANDS) == NAMED.keys() | WITHOUT
    assert NAMED.keys() & WITHOUT == set()


@pytest.mark.parametrize("name", NAMED)
def test_the_help_of_a_command_names_the_variables_that_it_reads(name: str) -> None:
    text = help_text(COMMANDS[name])
    missing = {variable for variable in NAMED[name] if not re.search(rf"\b{variable}\b", text)}
    assert missing == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_names_no_variable_that_does_not_exist(name: str) -> None:
    pattern = r"\b(?:HANABI|WANDB|VLLM|HF|CUDA|LORA|CKPT|NCCL)_[A-Z_0-9]+\b"
    named = set(re.findall(pattern, help_text(COMMANDS[name])))
    assert named - OURS - OTHERS == set()


def test_settings_are_shown_by_a_part_of_their_name_or_where_they_differ() -> None:
    def rows(*options: str, **environ: str) -> list[str]:
        result = RUNNER.invoke(app, ["settings", *options], env=environ)
        assert result.exit_code == 0, result.output
        cells = [line.split("│") for line in result.output.splitlines() if line.startswith("│")]
        return [row[1].strip() for row in cells]

    assert rows("hanabi_adv") == [
        "HANABI_ADVANTAGE",
        "HANABI_ADVANTAGE_SCALE",
        "HANABI_ADVANTAGE_CLIP",
    ]
    assert rows("--changed") == []
    assert rows("--changed", HANABI_PLAYERS="3") == ["HANABI_PLAYERS"]
    assert rows("--changed", "SEED", HANABI_PLAYERS="3") == []
    for options, message in (
        (("HANABI_ADVX",), "NAME='HANABI_ADVX': no setting has this in its name"),
        (("SEED", "--json"), "--json and --markdown always print every setting"),
        (("--json", "--markdown"), "--json and --markdown: two formats; choose one"),
    ):
        result = RUNNER.invoke(app, ["settings", *options])
        assert result.exit_code == 2
        assert message in result.stderr


@pytest.mark.parametrize("name", sorted(WITHOUT - {"settings"}))
def test_a_command_that_names_no_variable_loads_no_settings(name: str) -> None:
    file = f"{name.replace('-', '_')}.py"
    source = (ROOT / "src" / "hanabi_grpo" / "commands" / file).read_text()
    called = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
    assert called & {"load_settings", "announce"} == set()


def test_the_servers_command_repeats_what_only_the_trainers_shell_knows() -> None:
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
    assert server_command(loaded()) == "bash tools/rollout/rollout_hanabi_gym.sh"


def test_the_trainers_command_repeats_what_only_the_servers_shell_knows() -> None:
    there = loaded(PORT="8123", HANABI_HOST="0.0.0.0", HANABI_API_KEY="k" * 16)
    assert trainer_command(there) == (
        'HANABI_API_KEY="$HANABI_API_KEY" VLLM_SERVER_PORT=8123 bash '
        "tools/train/train_grpo_msswift.sh"
    )


def test_libraries_stay_off_the_network_where_the_model_is_a_folder(tmp_path: Path) -> None:
    assert offline_environ(Settings(model=str(tmp_path)))["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in offline_environ(Settings(model="Qwen/Qwen3-4B"))


TWO = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
SETTINGS_PATH = Path("run/settings.json")
TRAINER = ["-m", "hanabi_grpo.training.main", "--settings", "run/settings.json"]


def test_one_node_needs_no_other_variable() -> None:
    assert read_nodes({}) == Nodes()
    assert read_nodes({"NNODES": "1", "MASTER_ADDR": "x", "NODE_RANK": "7"}) == Nodes()


def test_a_trainer_of_one_process_needs_no_launcher() -> None:
    argv = trainer_argv(Settings(nproc_per_node=1), SETTINGS_PATH, ["--a", "1"], Nodes())
    assert argv == [sys.executable, *TRAINER, "--a", "1"]


def test_a_trainer_of_several_processes_is_started_by_torchrun() -> None:
    argv = trainer_argv(Settings(nproc_per_node=4), SETTINGS_PATH, [], Nodes())
    assert argv == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "4",
        *TRAINER,
    ]


def test_torchrun_is_told_of_every_machine() -> None:
    nodes = read_nodes({**TWO, "MASTER_PORT": "29600"})
    assert nodes == Nodes(count=2, rank=1, address="10.0.0.1", port=29600)
    argv = trainer_argv(Settings(nproc_per_node=1), SETTINGS_PATH, ["--x"], nodes)
    assert argv == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--node_rank",
        "1",
        "--master_addr",
        "10.0.0.1",
        "--master_port",
        "29600",
        "--nproc_per_node",
        "1",
        *TRAINER,
        "--x",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NNODES": "0"}, "NNODES='0'"),
        ({"NODE_RANK": "2"}, "NODE_RANK='2': a whole number from 0 to 1"),
        ({"NODE_RANK": ""}, "NODE_RANK=''"),
        ({"MASTER_ADDR": " "}, "MASTER_ADDR must be the address at which"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000'"),
    ],
)
def test_a_wrong_variable_of_several_machines_is_refused(
    changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        read_nodes({**TWO, **changes})


def check(nodes: Nodes, **settings: Any) -> None:
    made = Settings(**settings)
    check_nodes(nodes, made, batch_plan(made))


def test_settings_that_several_machines_cannot_use_are_refused() -> None:
    first = Nodes(count=2, address="a")
    second = Nodes(count=2, rank=1, address="a")
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
    """Return variables for a process: no proxy, a free port, and a run folder of its own."""
    variables = {}
    for name, value in os.environ.items():
        if "proxy" not in name.lower():
            variables[name] = value
    port = str(free_port())
    variables["OUTPUT_DIR"] = str(tmp_path / "run")
    variables["PORT"] = port
    variables["VLLM_SERVER_PORT"] = port
    variables["REPORT_TO"] = "none"
    return {**variables, **settings}


def test_the_page_of_exit_codes_lists_every_code() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    codes = []
    for line in page.splitlines():
        if line.startswith("| ") and line[2].isdecimal():
            codes.append(int(line.split("|")[1]))
    assert codes == [0, 1, 1, 2, EXIT_CODE, INTERRUPTED, 128 + signal.SIGTERM]


@pytest.mark.parametrize(
    ("args", "settings", "code", "message"),
    [
        (("train", "--dry-run"), {"DATASET": "no/such.jsonl"}, 1, ""),
        (
            ("train", "--dry-run"),
            {"HANABI_PLAYERS": "7"},
            2,
            "error: HANABI_PLAYERS=7: Hanabi needs 2 to 5 players.",
        ),
        (("no-such-command",), {}, 2, "no-such-command"),
        (("report", "no-run"), {}, 2, "no-run: no such folder"),
    ],
)
def test_a_negative_answer_ends_with_1_a_wrong_use_with_2_and_neither_with_a_traceback(
    tmp_path: Path, args: tuple[str, ...], settings: dict[str, str], code: int, message: str
) -> None:
    answer = subprocess.run(
        [*CLI, *args],
        env=environ(tmp_path, **settings),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == code
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "iggi", "--tasks", "2"],
        ["teams", "vote=noisy", "--tasks", "2"],
        ["beliefs", "random", "--env", "kuhn_poker", "--tasks", "2"],
        ["exploit", "base", "--env", "kuhn_poker"],
    ],
    ids=lambda words: words[0],
)
def test_a_result_that_could_not_be_written_is_refused_before_anything_is_played(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANABI_SERVER_TIMEOUT", "0.1")
    (tmp_path / "file").touch()
    for out, reason in (
        (tmp_path, f"is a folder; name a file, e.g. --out {tmp_path / 'result.json'}."),
        (
            tmp_path / "file" / "below" / "x.json",
            f"{tmp_path / 'file'} is not writable; name another file.",
        ),
    ):
        result = RUNNER.invoke(app, [*words, "--out", str(out)])
        assert result.exit_code == 2
        assert result.stderr == f"error: --out {out}: {reason}\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_trainer_that_waits_ends_with_the_code_of_the_signal(
    tmp_path: Path,
    number: signal.Signals,
    code: int,
    start_process: Callable[..., "subprocess.Popen[str]"],
) -> None:
    model = make_model(tmp_path / "model")
    variables = environ(tmp_path, MODEL=str(model), PYTHONUNBUFFERED="1")
    process = start_process(
        [*CLI, "train"],
        env=variables,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "waiting for" in line:
            break
    process.send_signal(number)
    exit_code = process.wait(timeout=60)
    if exit_code < 0:
        # A process that a signal ends has the shell's code for it.
        exit_code = 128 - exit_code
    assert exit_code == code


@pytest.mark.parametrize("words", [("evaluate", "iggi", "--tasks", "2"), ("settings", "--changed")])
def test_a_misspelled_setting_ends_a_command_that_would_have_ignored_it(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPERATUR", "0.5")
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2
    assert "TEMPERATUR (from shell): no such setting; did you mean TEMPERATURE?" in result.output
