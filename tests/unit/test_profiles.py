"""Profiles: every file of tools/profiles loads; shell and .env win over it, defaults do not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from doctor_machines import ROOT
from hanabi_grpo.commands.doctor.command import settings_or_problems
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import (
    PASSED_THROUGH,
    LoadedSettings,
    batch_plan,
    load_settings,
    settings_json,
    settings_values,
)
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings.gpus import Terminal, check_enough_gpus, gpu_share

NOWHERE = Path("/nonexistent/.env")
PROFILES = sorted((ROOT / "tools" / "profiles").glob("*.env"))
WITHOUT_GPUS = ("cpu", "mig")
"""Profiles that name no GPUs; a MIG slice has a name of its machine only."""
ON_ONE_GPU = ("gpu-1", "gpu-24gb")
"""Profiles of which both terminals use the same GPU."""
LAUNCH = ROOT / "tools" / "launch.sh"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the project's profiles."""
    shutil.copytree(ROOT / "tools" / "profiles", tmp_path / "tools" / "profiles")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def use_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(load_module, "installed_device", lambda: (kind, "a test says so"))


def load_profile(folder: Path, text: str, dotenv: Path = NOWHERE, **shell: str) -> LoadedSettings:
    """Load settings with a profile of this text."""
    (folder / "my.env").write_text(text)
    return load_settings({"HANABI_PROFILE": "my.env", **shell}, dotenv)


def gpus(loaded: LoadedSettings, terminal: Terminal) -> str:
    share = gpu_share(loaded, terminal)
    return ",".join(share.names) if share else ""


def message(environ: dict[str, str], dotenv: Path = NOWHERE) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ, dotenv)
    return str(caught.value)


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_loads_and_its_batch_divides(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, "cpu" if path.stem == "cpu" else "gpu")
    loaded = load_settings({"HANABI_PROFILE": str(path)}, NOWHERE)
    assert loaded.dotenv_environ.keys() <= set(PASSED_THROUGH), "a name in it is nobody's"
    settings = loaded.settings
    assert settings.profile == path
    assert list(loaded.origins.values()).count("profile") >= 6
    plan = batch_plan(settings)
    assert plan.games == settings.tasks_per_step * settings.num_generations


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
def test_every_profile_gives_each_terminal_the_gpus_that_it_needs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, "cpu" if path.stem == "cpu" else "gpu")
    loaded = load_settings({"HANABI_PROFILE": str(path)}, NOWHERE)
    settings = loaded.settings
    server = gpu_share(loaded, "server")
    trainer = gpu_share(loaded, "trainer")
    if path.stem in WITHOUT_GPUS:
        assert server is trainer is None
        return
    assert server is not None
    assert trainer is not None
    needed = settings.vllm_tensor_parallel_size * settings.vllm_data_parallel_size
    assert len(server.names) == needed
    assert len(trainer.names) == settings.nproc_per_node
    on_both = set(server.names) & set(trainer.names)
    assert bool(on_both) == (path.stem in ON_ONE_GPU)
    if on_both:
        assert settings.gpu_memory_utilization <= 0.5


@pytest.mark.parametrize(
    ("name", "kind", "others"),
    [("gpu-8", "gpu", {"HANABI_OVERLAP": 1}), ("cpu", "cpu", {})],
)
def test_two_of_them_are_the_defaults_written_out(
    name: str, kind: str, others: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, kind)
    path = ROOT / "tools" / "profiles" / f"{name}.env"
    given = settings_values(load_settings({"HANABI_PROFILE": str(path)}, NOWHERE).settings)
    defaults = settings_values(load_settings({}, NOWHERE).settings)
    assert {**given, "HANABI_PROFILE": None} == {**defaults, **others}


@pytest.mark.parametrize(
    ("shell", "tensor_parallel", "data_parallel"),
    [
        ({}, 1, 4),
        ({"VLLM_TENSOR_PARALLEL_SIZE": "4"}, 4, 1),
        ({"VLLM_TENSOR_PARALLEL_SIZE": "1"}, 1, 1),
        ({"VLLM_DATA_PARALLEL_SIZE": "2"}, 1, 2),
    ],
)
def test_whoever_divides_the_model_and_says_no_more_has_one_copy_of_it(
    shell: dict[str, str],
    tensor_parallel: int,
    data_parallel: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_device(monkeypatch, "gpu")
    loaded = load_settings(shell, NOWHERE)
    assert loaded.settings.vllm_tensor_parallel_size == tensor_parallel
    assert loaded.settings.vllm_data_parallel_size == data_parallel
    is_given = loaded.origins["vllm_data_parallel_size"] == "shell"
    assert is_given == ("VLLM_DATA_PARALLEL_SIZE" in shell)


def test_shell_beats_dotenv_beats_profile_beats_default(folder: Path) -> None:
    dotenv = folder / ".env"
    dotenv.write_text("SEED=2\nPORT=8002\nHF_HOME=/of-dotenv\n")
    profile = (
        "SEED=3\nPORT=8003\nLORA_ALPHA=7\nHF_HOME=/of-profile\nNCCL_IB_DISABLE=1\nOTHER=topsecret\n"
    )
    loaded = load_profile(folder, profile, dotenv, SEED="1", LORA_RANK="")
    settings = loaded.settings
    assert (settings.seed, loaded.origins["seed"]) == (1, "shell")
    assert (settings.port, loaded.origins["port"]) == (8002, ".env")
    assert (settings.lora_alpha, loaded.origins["lora_alpha"]) == (7, "profile")
    assert (settings.lora_rank, loaded.origins["lora_rank"]) == (16, "default")
    assert loaded.origins["profile"] == "shell"
    assert loaded.passed_through == {
        "HF_HOME": ("/of-dotenv", ".env"),
        "NCCL_IB_DISABLE": ("1", "profile"),
    }
    assert loaded.dotenv_environ == {
        "HF_HOME": "/of-dotenv",
        "NCCL_IB_DISABLE": "1",
        "OTHER": "topsecret",
    }
    assert "topsecret" not in repr(loaded)
    assert settings_json(loaded)["origins"]["LORA_ALPHA"] == "profile"
    assert "lora_alpha" in settings.model_fields_set
    assert "beta" not in settings.model_fields_set


def test_a_misspelt_profile_is_an_error_that_lists_what_there_is(folder: Path) -> None:
    assert message({"HANABI_PROFILE": "tools/profiles/gpu1.env"}).startswith(
        "HANABI_PROFILE='tools/profiles/gpu1.env' (from shell): no such file; there are "
        "tools/profiles/cpu.env, "
    )
    for wrong in ("tools/profiles", "x" * 5000, "\0"):
        assert "no such file" in message({"HANABI_PROFILE": wrong})
    assert "HANABI_PROFILE" in message({"HANABI_PROFIL": "tools/profiles/cpu.env"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            b"NPROC_PER_NODE=many\n",
            "NPROC_PER_NODE='many': a whole number, at least 1. It is in my.env.",
        ),
        (
            b"HANABI_PLAYRS=2\n",
            "HANABI_PLAYRS (from my.env): no such setting; did you mean HANABI_PLAYERS?",
        ),
        (
            b"SEED=1\nthis is no line\n",
            "my.env line 2: not a NAME=value line. Example: HANABI_PLAYERS=2",
        ),
        (b"MODEL=\xff\n", "my.env: cannot be read"),
        # What some editors call Unicode.
        (b"SEED=1\nO\0T\0H\0", "my.env line 2: a NUL character, which no variable can hold"),
        (
            b"HANABI_PROFILE=other.env\n",
            "HANABI_PROFILE='my.env' (from shell): names a profile itself",
        ),
    ],
)
def test_a_wrong_profile_is_refused_and_the_doctor_says_so(
    folder: Path, text: bytes, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "my.env").write_bytes(text + b"LORA_ALPHA=7\n")
    assert message({"HANABI_PROFILE": "my.env"}).startswith(expected)
    monkeypatch.setenv("HANABI_PROFILE", "my.env")
    _, [check] = settings_or_problems(NOWHERE)
    assert check.finding.startswith(expected)


# GPUs


def test_the_gpus_of_a_terminal_are_those_of_the_highest_source(folder: Path) -> None:
    split = "CUDA_VISIBLE_DEVICES_SERVER=0\nCUDA_VISIBLE_DEVICES_TRAINER=1\n"
    loaded = load_profile(folder, split)
    assert (gpus(loaded, "server"), gpus(loaded, "trainer")) == ("0", "1")
    in_profile = load_profile(folder, f"{split}CUDA_VISIBLE_DEVICES=5\n")
    assert gpus(in_profile, "trainer") == "1"
    in_shell = load_profile(folder, split, CUDA_VISIBLE_DEVICES="5")
    assert gpus(in_shell, "trainer") == "5"

    dotenv = folder / ".env"
    dotenv.write_text("CUDA_VISIBLE_DEVICES_TRAINER=MIG-2\n")
    mixed = load_profile(folder, "CUDA_VISIBLE_DEVICES=5\n", dotenv)
    assert (gpus(mixed, "server"), gpus(mixed, "trainer")) == ("5", "MIG-2")
    exported = load_profile(folder, "", dotenv, CUDA_VISIBLE_DEVICES="MIG-1,MIG-2")
    assert (gpus(exported, "server"), gpus(exported, "trainer")) == ("MIG-1", "MIG-2")


def test_where_nobody_chose_gpus_there_is_no_share() -> None:
    assert gpu_share(load_settings({}, NOWHERE), "server") is None


EXPORTED = "0,1,2,3,4,5,6,7"
"""What a scheduler exports in both terminals."""


@pytest.mark.parametrize(
    ("given", "server", "trainer"),
    [
        # One list for both, as a scheduler exports it.
        ({"VLLM_TENSOR_PARALLEL_SIZE": "4", "NPROC_PER_NODE": "4"}, "0,1,2,3", "4,5,6,7"),
        (
            {
                "VLLM_TENSOR_PARALLEL_SIZE": "1",
                "VLLM_DATA_PARALLEL_SIZE": "2",
                "NPROC_PER_NODE": "6",
            },
            "0,1",
            "2,3,4,5,6,7",
        ),
        (
            {
                "HANABI_PROFILE": f"{ROOT}/tools/profiles/gpu-4.env",
                "CUDA_VISIBLE_DEVICES": "4,5,6,7",
            },
            "4,5",
            "6,7",
        ),
        (
            {
                "HANABI_PROFILE": f"{ROOT}/tools/profiles/mig.env",
                "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b",
            },
            "MIG-a",
            "MIG-b",
        ),
        (
            {
                "NPROC_PER_NODE": "4",
                "CUDA_VISIBLE_DEVICES_SERVER": "6,7",
                "CUDA_VISIBLE_DEVICES_TRAINER": "1",
            },
            "6,7",
            "1",
        ),
        # A list of this terminal, or one GPU for both.
        (
            {
                "VLLM_TENSOR_PARALLEL_SIZE": "2",
                "NPROC_PER_NODE": "2",
                "CUDA_VISIBLE_DEVICES": "2,3",
            },
            "2,3",
            "2,3",
        ),
        ({"HANABI_PROFILE": f"{ROOT}/tools/profiles/gpu-1.env"}, "0", "7"),
        (
            {
                "HANABI_PROFILE": f"{ROOT}/tools/profiles/gpu-1.env",
                "CUDA_VISIBLE_DEVICES": "",
            },
            "0",
            "0",
        ),
        (
            {
                "VLLM_TENSOR_PARALLEL_SIZE": "4",
                "NPROC_PER_NODE": "4",
                "CUDA_VISIBLE_DEVICES": "5",
            },
            "5",
            "5",
        ),
    ],
)
def test_a_list_that_both_terminals_were_given_is_divided(
    given: dict[str, str], server: str, trainer: str
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": EXPORTED, **given}
    loaded = load_settings(environ, NOWHERE)
    assert (gpus(loaded, "server"), gpus(loaded, "trainer")) == (server, trainer)
    # A terminal that has others than the list says is told why.
    exported = environ["CUDA_VISIBLE_DEVICES"]
    terminals: tuple[Terminal, Terminal] = ("server", "trainer")
    for terminal in terminals:
        share = gpu_share(loaded, terminal)
        assert share is not None
        names = ",".join(share.names)
        is_told = f"GPUs {names}: " in share.reason
        assert is_told == (exported not in ("", names))


def test_a_list_that_is_too_short_for_both_terminals_is_refused_with_the_ways_out() -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "0,1,2",
        "NPROC_PER_NODE": "2",
        "VLLM_TENSOR_PARALLEL_SIZE": "2",
    }
    with pytest.raises(SettingsError) as caught:
        gpu_share(load_settings(environ, NOWHERE), "trainer")
    assert str(caught.value) == (
        "CUDA_VISIBLE_DEVICES=0,1,2 (shell): too short for both terminals: NPROC_PER_NODE=2 uses "
        "2 and VLLM_TENSOR_PARALLEL_SIZE=2 uses 2. Lower one of them, or list this terminal's "
        "GPUs: CUDA_VISIBLE_DEVICES_TRAINER=1,2."
    )


@pytest.mark.parametrize(
    ("processes", "names", "reason"),
    [
        (1, "4", "GPUs 4: CUDA_VISIBLE_DEVICES_TRAINER=4,5,6,7 (shell) lists more than "),
        (2, "4,5", "GPUs 4,5: CUDA_VISIBLE_DEVICES_TRAINER=4,5,6,7 (shell) lists more than "),
        (4, "4,5,6,7", ""),
        (6, "4,5,6,7", ""),
    ],
)
def test_the_trainer_sees_no_more_gpus_of_its_own_list_than_it_has_processes(
    processes: int, names: str, reason: str
) -> None:
    # What the script gives it of 8 GPUs. ms-swift refuses a process with several.
    environ = {
        "CUDA_VISIBLE_DEVICES_TRAINER": "4,5,6,7",
        "CUDA_VISIBLE_DEVICES_SERVER": "0,1,2,3",
        "NPROC_PER_NODE": f"{processes}",
        "VLLM_TENSOR_PARALLEL_SIZE": "2",
    }
    loaded = load_settings(environ, NOWHERE)
    share = gpu_share(loaded, "trainer")
    assert share is not None
    assert ",".join(share.names) == names
    assert share.names + share.idle == ("4", "5", "6", "7")
    assert share.reason == (f"{reason}NPROC_PER_NODE={processes} uses" if reason else "")
    # An option of vLLM may take the others, e.g. --pipeline-parallel-size.
    assert gpus(loaded, "server") == "0,1,2,3"


@pytest.mark.parametrize(
    ("terminal", "given", "problem"),
    [
        (
            "server",
            {"CUDA_VISIBLE_DEVICES_SERVER": "0,1"},
            "VLLM_TENSOR_PARALLEL_SIZE=1 × VLLM_DATA_PARALLEL_SIZE=4 uses 4 GPUs, but the "
            "server's list has 2 (0,1): set VLLM_DATA_PARALLEL_SIZE=2, list more GPUs in "
            "CUDA_VISIBLE_DEVICES_SERVER, or use a profile of docs/hardware.md in both terminals.",
        ),
        (
            "server",
            {"CUDA_VISIBLE_DEVICES": "GPU-5d", "VLLM_TENSOR_PARALLEL_SIZE": "2"},
            "VLLM_TENSOR_PARALLEL_SIZE=2 uses 2 GPUs, but the server's list has 1 (GPU-5d): set "
            "VLLM_TENSOR_PARALLEL_SIZE=1 VLLM_DATA_PARALLEL_SIZE=1, list more GPUs in "
            "CUDA_VISIBLE_DEVICES_SERVER, or use a profile of docs/hardware.md in both terminals.",
        ),
        (
            "trainer",
            {"CUDA_VISIBLE_DEVICES_TRAINER": "4,5"},
            "NPROC_PER_NODE=4 uses 4 GPUs, but the trainer's list has 2 (4,5): set "
            "NPROC_PER_NODE=2, list more GPUs in CUDA_VISIBLE_DEVICES_TRAINER, or use a profile "
            "of docs/hardware.md in both terminals.",
        ),
    ],
)
def test_a_list_that_is_shorter_than_a_terminals_sizes_is_refused_before_anything_is_loaded(
    terminal: Terminal, given: dict[str, str], problem: str
) -> None:
    loaded = load_settings(given, NOWHERE, device=("gpu", "a test"))
    with pytest.raises(SettingsError) as caught:
        check_enough_gpus(loaded, terminal)
    assert str(caught.value) == problem
    # A scheduler's list says nothing where everything runs on the CPU.
    sizes = {"VLLM_TENSOR_PARALLEL_SIZE": "4", "NPROC_PER_NODE": "4", "DEEPSPEED": "zero2"}
    on_cpu = load_settings({**sizes, **given}, NOWHERE, device=("cpu", "a test"))
    check_enough_gpus(on_cpu, terminal)
    whole_machine = {"CUDA_VISIBLE_DEVICES": EXPORTED}
    check_enough_gpus(load_settings(whole_machine, NOWHERE, device=("gpu", "a test")), terminal)


def test_a_server_without_a_list_is_refused_where_the_machine_has_fewer_gpus_than_it_uses() -> None:
    # `evaluate --own-server`, or `serve` without the script, with the defaults of 8 GPUs.
    loaded = load_settings({}, NOWHERE, device=("gpu", "a test"))
    with pytest.raises(SettingsError) as caught:
        check_enough_gpus(loaded, "server", count=lambda: 2)
    assert str(caught.value) == (
        "VLLM_TENSOR_PARALLEL_SIZE=1 × VLLM_DATA_PARALLEL_SIZE=4 uses 4 GPUs, but this machine "
        "has 2: set VLLM_DATA_PARALLEL_SIZE=2, or use a profile of docs/hardware.md in both "
        "terminals."
    )
    for enough in (0, 4, 8):
        check_enough_gpus(loaded, "server", count=lambda num=enough: num)
    check_enough_gpus(loaded, "server")


def test_what_the_other_terminal_uses_is_not_known_where_it_is_not_given_here() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2", "NPROC_PER_NODE": "2"}
    assert gpus(load_settings(environ, NOWHERE), "trainer") == "1,2"


# Scripts


def shell_answer(folder: Path, script: str, **environ: str) -> str:
    """Return what a script prints that has sourced launch.sh, in a folder whose set-up is done."""
    tools = folder / "tools"
    (tools / "setup.sh").write_text("exit 0\n")
    shutil.copy(LAUNCH, tools)
    command = ["bash", "-c", f"set -euo pipefail; source tools/launch.sh; {script}"]
    done = subprocess.run(
        command,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **environ},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("dotenv", "environ"),
    [
        ("", {"HANABI_PROFILE": "my.env"}),
        ("HANABI_PROFILE=other.env\nHANABI_PROFILE=my.env\n", {"HANABI_PROFILE": ""}),
    ],
)
def test_a_script_s_own_default_yields_to_the_profile_as_python_reads_it(
    folder: Path, dotenv: str, environ: dict[str, str]
) -> None:
    (folder / "my.env").write_text("NPROC_PER_NODE=2\nDEEPSPEED=\n")
    (folder / ".env").write_text(dotenv)
    defaults = "default_env NPROC_PER_NODE 9; default_env DEEPSPEED zero1; default_env SEED 1"
    script = f'{defaults}; echo "${{NPROC_PER_NODE:-}}|$DEEPSPEED|$SEED"'
    assert shell_answer(folder, script, SEED="3", **environ) == "|zero1|3"
    assert load_settings(environ, folder / ".env").settings.profile == Path("my.env")


def test_a_script_s_own_default_yields_to_a_yaml_profile_its_base_and_to_set(folder: Path) -> None:
    (folder / "my.yaml").write_text("base: other.yaml\ntrainer:\n  NPROC_PER_NODE: 2\n")
    (folder / "other.yaml").write_text("MAX_STEPS: 9\n")
    defaults = "; ".join(
        f"default_env {name} 1" for name in ("NPROC_PER_NODE", "MAX_STEPS", "LORA_RANK", "SEED")
    )
    names = "|".join(
        f"${{{name}:-}}" for name in ("NPROC_PER_NODE", "MAX_STEPS", "LORA_RANK", "SEED")
    )
    script = f'{defaults}; echo "{names}"'
    assert shell_answer(folder, script, HANABI_PROFILE="my.yaml") == "||1|1"
    with_set = f"set -- --set LORA_RANK=8; source tools/launch.sh; {script}"
    assert shell_answer(folder, with_set, HANABI_PROFILE="my.yaml") == "|||1"
    # The command, not the script, says what is wrong with a profile.
    assert shell_answer(folder, script, HANABI_PROFILE="nowhere.yaml") == "1|1|1|1"
