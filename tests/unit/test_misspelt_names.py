"""One letter from a setting stops train and serve; the names of other software never do."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import PASSED_THROUGH, variables
from hanabi_grpo.settings.misspelt import check_names, misspelt_names

KNOWN = [*(variable.env for variable in variables()), *PASSED_THROUGH]
ORDINARY = """
BASH BASH_ENV BASHOPTS CDPATH COLORTERM COLUMNS CONDA_DEFAULT_ENV CONDA_PREFIX DBUS_SESSION_BUS_ADDRESS DEBUG DISPLAY
EDITOR ENV EUID FPATH GID GROUP GROUPS HISTFILE HISTSIZE HOME HOST HOSTNAME HOSTTYPE IFS INVOCATION_ID JOURNAL_STREAM
LANG LANGUAGE LC_ALL LESS LINES LOGNAME LS_COLORS MACHTYPE MAIL MANPATH MODE MODELS MODULEPATH MOTD_SHOWN NAME NODE
NVM_DIR OLDPWD OSTYPE PAGER PATH PORTS POST PPID PROFILE PROMPT_COMMAND PS1 PWD PYENV_ROOT PYTHONPATH RANDOM REPLY
RESUMED ROOT SECONDS SEEDS SERVER SHELL SHELLOPTS SHLVL SORT SPEED SSH_AUTH_SOCK SSH_CLIENT SSH_CONNECTION SSH_TTY
STEPS SUDO_USER TASK TEMP TERM TERM_PROGRAM TEST TMP TMPDIR TMUX TZ UID USER USERNAME VENDOR VERSION VIRTUAL_ENV
VISUAL WAYLAND_DISPLAY WINDOWID WSL_DISTRO_NAME XAUTHORITY XDG_CACHE_HOME XDG_RUNTIME_DIR XDG_SESSION_ID ZDOTDIR ZSH _
HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy port model seed CI CI_JOB_ID GITHUB_ACTIONS GITHUB_ENV
GITHUB_PATH GITHUB_RUN_ID GITLAB_CI RUNNER_OS JENKINS_HOME BUILD_ID KUBERNETES_PORT KUBERNETES_SERVICE_HOST
KUBERNETES_SERVICE_PORT KUBERNETES_SERVICE_PORT_HTTPS REDIS_PORT DOCKER_HOST SLURM_JOB_ID SLURM_JOB_NODELIST
SLURM_JOB_NUM_NODES SLURM_LOCALID SLURM_NNODES SLURM_NODEID SLURM_NODELIST SLURM_NPROCS SLURM_NTASKS
SLURM_NTASKS_PER_NODE SLURM_PROCID SLURM_STEP_ID PBS_JOBID PBS_NODEFILE LSB_JOBID OMPI_COMM_WORLD_RANK
OMPI_COMM_WORLD_SIZE PMI_RANK PMI_SIZE PMIX_RANK RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK ROLE_RANK
MASTER_ADDR MASTER_PORT NNODES NODE_RANK NPROC_PER_NODE TORCHELASTIC_RUN_ID TORCH_HOME TORCH_CUDA_ARCH_LIST
TORCH_DISTRIBUTED_DEBUG TORCHINDUCTOR_CACHE_DIR OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS CUDA_HOME
CUDA_PATH CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING NVIDIA_VISIBLE_DEVICES
NVIDIA_DRIVER_CAPABILITIES LD_LIBRARY_PATH LD_PRELOAD TRITON_CACHE_DIR PYTORCH_CUDA_ALLOC_CONF NCCL_ALGO NCCL_BUFFSIZE
NCCL_CROSS_NIC NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_TIMEOUT NCCL_MAX_NCHANNELS
NCCL_NET_GDR_LEVEL NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE NCCL_SOCKET_IFNAME NCCL_TIMEOUT HF_DATASETS_CACHE
HF_ENDPOINT HF_HUB_CACHE HF_HUB_OFFLINE HF_TOKEN HUGGING_FACE_HUB_TOKEN TRANSFORMERS_CACHE TOKENIZERS_PARALLELISM
WANDB_API_KEY WANDB_BASE_URL WANDB_CACHE_DIR WANDB_CONFIG_DIR WANDB_CONSOLE WANDB_DIR WANDB_MODEL WANDB_NOTES
WANDB_RESUME WANDB_RUN_GROUP WANDB_RUN_ID WANDB_SILENT WANDB_TAGS WANDB_WATCH VLLM_API_KEY VLLM_ATTENTION_BACKEND
VLLM_CPU_KVCACHE_SPACE VLLM_HOST_IP VLLM_LOGGING_LEVEL VLLM_MODEL VLLM_PORT VLLM_USE_V1 RAY_ADDRESS DS_ACCELERATOR
UV_CACHE_DIR UV_PYTHON PIP_INDEX_URL SETUP_EXTRA LOG_LEVEL USE_HF DEMO_SEED DEMO_STEPS DEMO_DEALS DEMO_PORT
RECIPE_SEED RECIPE_STEPS RECIPE_DEALS RECIPE_START BOARD GPUS
"""
"""What shells, schedulers, containers, CI and the libraries of a trainer put into an environment."""


def test_names_of_other_software_are_no_slips() -> None:
    assert misspelt_names(ORDINARY.split()) == {}
    assert misspelt_names(os.environ) == {}


@pytest.mark.parametrize("module", ["vllm.envs", "wandb.env", "huggingface_hub.constants", "torch.distributed.run"])
def test_no_variable_that_a_library_reads_is_a_slip(module: str) -> None:
    package = find_spec(module.partition(".")[0])
    assert package is not None and package.origin is not None
    source = Path(package.origin).parents[0].joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
    names = set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", source))
    assert len(names) > 10 and misspelt_names(names) == {}


@given(st.data())
def test_one_letter_off_a_long_name_is_found(data: st.DataObject) -> None:
    right = data.draw(st.sampled_from([name for name in KNOWN if len(name) >= 10]))
    at = data.draw(st.sampled_from([index for index, letter in enumerate(right) if letter != "_"]))
    slip = data.draw(
        st.sampled_from([right[:at] + right[at + 1 :], f"{right[:at]}X{right[at:]}", f"{right[:at]}X{right[at + 1 :]}"])
    )
    letters = slip.replace("_", "")
    if letters not in {name.replace("_", "") for name in KNOWN}:
        assert slip in misspelt_names([slip])
        assert misspelt_names([slip, misspelt_names([slip])[slip]]) == {}


def test_case_underscores_and_swapped_neighbours_count() -> None:
    slips = {"MAXSTEPS": "MAX_STEPS", "max_steps": "MAX_STEPS", "PROT": "PORT", "MODLE": "MODEL"}
    assert misspelt_names(slips) == slips


@pytest.mark.parametrize("command", ["train", "serve"])
def test_train_and_serve_stop_and_say_how_to_go_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", "outputs/none")  # where a run would end that was not stopped
    (tmp_path / ".env").write_text("NUM_GENERATION=8\n")
    result = CliRunner().invoke(app, [command], env={"MAX_STEP": "5"})
    assert result.exit_code == 2
    assert "MAX_STEP (from shell): no such setting; did you mean MAX_STEPS?" in result.stderr
    assert "for other software, keep it from this command: unset MAX_STEP." in result.stderr
    assert "did you mean NUM_GENERATIONS?" in result.stderr and "remove its line from .env." in result.stderr


def test_a_slip_beside_the_setting_itself_is_left_alone(tmp_path: Path) -> None:
    check_names({"MAX_STEP": "5", "MAX_STEPS": "7"}, tmp_path / ".env")
    with pytest.raises(SettingsError, match="HANBI_PLAYERS"):
        check_names({"HANBI_PLAYERS": "3"}, tmp_path / ".env")
