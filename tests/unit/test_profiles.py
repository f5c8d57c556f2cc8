"""Profiles: every file of tools/profiles loads, and a profile is below shell and .env and above the
defaults.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

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
from hanabi_grpo.settings.gpus import Terminal, gpu_share

NOWHERE = Path("/nonexistent/.env")
PROFILES = sorted((ROOT / "tools" / "profiles").glob("*.env"))
SHARED = ("gpu-1", "gpu-24gb")
LAUNCH = ROOT / "tools" / "launch.sh"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the project's profiles."""
    shutil.copytree(ROOT / "tools" / "profiles", tmp_path / "tools" / "profiles")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def use_device(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(load_module, "installed_device", lambda: (kind, "a test says so"))


def profiled(folder: Path, text: str, dotenv: Path = NOWHERE, **shell: str) -> LoadedSettings:
    (folder / "my.env").write_text(text)
    return load_settings({"HANABI_PROFILE": "my.env", **shell}, dotenv)


def gpus(loaded: LoadedSettings, terminal: Terminal) -> str:
    share = gpu_share(loaded, terminal)
    return ",".join(share[0]) if share else ""


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
    assert loaded.settings.profile == path
    assert sum(origin == "profile" for origin in loaded.origins.values()) >= 6
    settings = loaded.settings
    plan = batch_plan(settings)
    assert plan.games == settings.tasks_per_step * settings.num_generations
    # What each terminal is given is what it needs; a MIG slice has a name of its machine only.
    server, trainer = gpu_share(loaded, "server"), gpu_share(loaded, "trainer")
    if path.stem in ("cpu", "mig"):
        assert server is trainer is None
    else:
        assert server is not None and trainer is not None
        needed = settings.vllm_tensor_parallel_size * settings.vllm_data_parallel_size
        assert len(server[0]) == needed and len(trainer[0]) == settings.nproc_per_node
        shared = set(server[0]) & set(trainer[0])
        assert bool(shared) == (path.stem in SHARED) and (
            not shared or settings.gpu_memory_utilization <= 0.5
        )


@pytest.mark.parametrize(("name", "kind"), [("gpu-8", "gpu"), ("cpu", "cpu")])
def test_two_of_them_are_the_defaults_written_out(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, kind)
    path = ROOT / "tools" / "profiles" / f"{name}.env"
    given = settings_values(load_settings({"HANABI_PROFILE": str(path)}, NOWHERE).settings)
    assert given | {"HANABI_PROFILE": None} == settings_values(load_settings({}, NOWHERE).settings)
    # Who divides the model and says no more has one copy of it.
    parallel, data = "VLLM_TENSOR_PARALLEL_SIZE", "VLLM_DATA_PARALLEL_SIZE"
    default = 4 if kind == "gpu" else 1
    for shell, sizes in (
        ({}, (1, default)),
        ({parallel: "4"}, (4, 1)),
        ({parallel: "1"}, (1, 1)),
        ({data: "2"}, (1, 2)),
    ):
        loaded = load_settings(shell, NOWHERE)
        assert (
            loaded.settings.vllm_tensor_parallel_size,
            loaded.settings.vllm_data_parallel_size,
        ) == sizes
        assert (loaded.origins["vllm_data_parallel_size"] == "shell") == (data in shell)


def test_shell_beats_dotenv_beats_profile_beats_default(folder: Path) -> None:
    (folder / ".env").write_text("SEED=2\nPORT=8002\nHF_HOME=/of-dotenv\n")
    text = (
        "SEED=3\nPORT=8003\nLORA_ALPHA=7\nHF_HOME=/of-profile\nNCCL_IB_DISABLE=1\nOTHER=topsecret\n"
    )
    loaded = profiled(folder, text, folder / ".env", SEED="1", LORA_RANK="")
    settings, origins = loaded.settings, loaded.origins
    assert (settings.seed, settings.port, settings.lora_alpha, settings.lora_rank) == (
        1,
        8002,
        7,
        16,
    )
    assert [origins[name] for name in ("seed", "port", "lora_alpha", "lora_rank", "profile")] == [
        *("shell", ".env", "profile", "default", "shell")
    ]
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
    assert "lora_alpha" in settings.model_fields_set and "beta" not in settings.model_fields_set


def test_a_misspelt_profile_is_an_error_that_lists_what_there_is(folder: Path) -> None:
    said = message({"HANABI_PROFILE": "tools/profiles/gpu1.env"})
    assert said.startswith(
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
    shell = {"HANABI_PROFILE": "my.env"}
    assert message(shell).startswith(expected)
    monkeypatch.setenv("HANABI_PROFILE", "my.env")
    _, [check] = settings_or_problems(NOWHERE)
    assert check.finding.startswith(expected)


def test_the_gpus_of_a_terminal_are_those_of_the_highest_place(folder: Path) -> None:
    split = "CUDA_VISIBLE_DEVICES_SERVER=0\nCUDA_VISIBLE_DEVICES_TRAINER=1\n"
    loaded = profiled(folder, split)
    assert (gpus(loaded, "server"), gpus(loaded, "trainer")) == ("0", "1")
    assert gpus(profiled(folder, split + "CUDA_VISIBLE_DEVICES=5\n"), "trainer") == "1"
    assert gpus(profiled(folder, split, CUDA_VISIBLE_DEVICES="5"), "trainer") == "5"
    (folder / ".env").write_text("CUDA_VISIBLE_DEVICES_TRAINER=MIG-2\n")
    mixed = profiled(folder, "CUDA_VISIBLE_DEVICES=5\n", folder / ".env")
    assert (gpus(mixed, "server"), gpus(mixed, "trainer")) == ("5", "MIG-2")
    exported = profiled(folder, "", folder / ".env", CUDA_VISIBLE_DEVICES="MIG-1,MIG-2")
    assert (gpus(exported, "server"), gpus(exported, "trainer")) == ("MIG-1", "MIG-2")
    assert gpu_share(load_settings({}, NOWHERE), "server") is None


EXPORTED = "0,1,2,3,4,5,6,7"


@pytest.mark.parametrize(
    ("given", "server", "trainer"),
    [
        # One list for both, as a scheduler exports it.
        ({"VLLM_TENSOR_PARALLEL_SIZE": 4, "NPROC_PER_NODE": 4}, "0,1,2,3", "4,5,6,7"),
        (
            {"VLLM_TENSOR_PARALLEL_SIZE": 1, "VLLM_DATA_PARALLEL_SIZE": 2, "NPROC_PER_NODE": 6},
            "0,1",
            "2,3,4,5,6,7",
        ),
        (
            {
                "HANABI_PROFILE": ROOT / "tools/profiles/gpu-4.env",
                "CUDA_VISIBLE_DEVICES": "4,5,6,7",
            },
            "4,5",
            "6,7",
        ),
        (
            {
                "HANABI_PROFILE": ROOT / "tools/profiles/mig.env",
                "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b",
            },
            "MIG-a",
            "MIG-b",
        ),
        (
            {
                "NPROC_PER_NODE": 4,
                "CUDA_VISIBLE_DEVICES_SERVER": "6,7",
                "CUDA_VISIBLE_DEVICES_TRAINER": "1",
            },
            "6,7",
            "1",
        ),
        # A list of this terminal, or one GPU for both.
        (
            {"VLLM_TENSOR_PARALLEL_SIZE": 2, "NPROC_PER_NODE": 2, "CUDA_VISIBLE_DEVICES": "2,3"},
            "2,3",
            "2,3",
        ),
        ({"HANABI_PROFILE": ROOT / "tools/profiles/gpu-1.env"}, "0", "7"),
        (
            {"HANABI_PROFILE": ROOT / "tools/profiles/gpu-1.env", "CUDA_VISIBLE_DEVICES": ""},
            "0",
            "0",
        ),
        (
            {"VLLM_TENSOR_PARALLEL_SIZE": 4, "NPROC_PER_NODE": 4, "CUDA_VISIBLE_DEVICES": "5"},
            "5",
            "5",
        ),
    ],
)
def test_a_list_that_both_terminals_were_given_is_divided(
    given: dict[str, object], server: str, trainer: str
) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": EXPORTED} | {
        name: str(value) for name, value in given.items()
    }
    loaded = load_settings(environ, NOWHERE)
    shares = [gpu_share(loaded, "server"), gpu_share(loaded, "trainer")]
    assert [",".join(share[0]) for share in shares if share] == [server, trainer]
    said = environ["CUDA_VISIBLE_DEVICES"]
    for names, why in filter(None, shares):
        assert (f"GPUs {','.join(names)}: " in why) == (said not in ("", ",".join(names)))


def test_a_list_that_is_too_short_for_both_terminals_is_refused_with_the_ways_out() -> None:
    loaded = load_settings(
        {"CUDA_VISIBLE_DEVICES": "0,1,2", "NPROC_PER_NODE": "2", "VLLM_TENSOR_PARALLEL_SIZE": "2"},
        NOWHERE,
    )
    with pytest.raises(SettingsError) as caught:
        gpu_share(loaded, "trainer")
    assert str(caught.value) == (
        "CUDA_VISIBLE_DEVICES=0,1,2 (shell): too short for both terminals, NPROC_PER_NODE=2 uses "
        "2 and "
        "VLLM_TENSOR_PARALLEL_SIZE=2 2. Lower one of them, or name this terminal's GPUs: "
        "CUDA_VISIBLE_DEVICES_TRAINER=1,2."
    )
    # What the other terminal uses is not known where it is not given here.
    alone = load_settings({"CUDA_VISIBLE_DEVICES": "0,1,2", "NPROC_PER_NODE": "2"}, NOWHERE)
    assert gpus(alone, "trainer") == "1,2"


def shell_answer(folder: Path, script: str, **environ: str) -> str:
    """Return what a script prints that has sourced launch.sh, in a folder whose set-up is done."""
    tools = folder / "tools"
    (tools / "setup.sh").write_text("exit 0\n")
    shutil.copy(LAUNCH, tools)
    command = ["bash", "-c", f"set -euo pipefail; source tools/launch.sh; {script}"]
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", **environ},
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
    script = (
        "default_env NPROC_PER_NODE 9; default_env DEEPSPEED zero1; default_env SEED 1; echo "
        '"$profile|'
    )
    shown = shell_answer(
        folder, script + '${NPROC_PER_NODE:-}|$DEEPSPEED|$SEED"', SEED="3", **environ
    )
    assert shown == "my.env||zero1|3"
    assert load_settings(environ, folder / ".env").settings.profile == Path("my.env")
