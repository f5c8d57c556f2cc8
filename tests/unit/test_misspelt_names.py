"""One letter from a setting stops train and serve; the names of other software never do."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.settings import PASSED_THROUGH, variables
from hanabi_grpo.settings.misspelt import misspelt_names

KNOWN = [*(variable.env for variable in variables()), *PASSED_THROUGH]
ORDINARY = """
EDITOR HOME HOST HOSTNAME LINES LOGNAME MODE MODELS NAME NODE PATH PORTS POST PROFILE REPLY RESUMED SEEDS SERVER SHELL
SORT SPEED STEPS TASK TEMP TEST TERM USER VERSION port model seed RUNNER_OS JENKINS_HOME KUBERNETES_PORT REDIS_PORT
SLURM_NNODES SLURM_NODEID RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT NNODES NODE_RANK NPROC_PER_NODE
CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES NCCL_IB_HCA NCCL_P2P_LEVEL HF_TOKEN HF_HUB_OFFLINE WANDB_API_KEY WANDB_MODEL
WANDB_NOTES WANDB_RESUME VLLM_API_KEY VLLM_MODEL VLLM_PORT LOG_LEVEL DEMO_SEED DEMO_STEPS RECIPE_SEED RECIPE_STEPS
"""
"""What shells, schedulers, containers, CI and the libraries of a trainer put into an environment."""


@pytest.mark.parametrize("module", ["vllm.envs", "wandb.env", "huggingface_hub.constants", "torch.distributed.run"])
def test_names_of_other_software_are_no_slips(module: str) -> None:
    assert misspelt_names(ORDINARY.split()) == {}
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
