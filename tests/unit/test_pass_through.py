"""Options that would break a guarantee are refused with the setting that does the same; all others
are handed on.
"""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import variables
from hanabi_grpo.settings.pass_through import Terminal, check_options, option_tables

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, Terminal] = {"train": "trainer", "serve": "server"}


REFUSALS: dict[Terminal, str] = {
    "trainer": """
        --loss_type grpo: HANABI_LOSS_UNIT; --loss-type=grpo: HANABI_LOSS_UNIT; --loss_t grpo: HANABI_LOSS_UNIT
        --use_liger_kernel true: leave it out; --use_liger_kernel: leave it out; --no_dataset_shuffle: DATASET
        --max_grad_norm 0.1: MAX_GRAD_NORM; --temperature 0.7: TEMPERATURE; --lora_dropout 0.1: LORA_RANK
        --vllm_gpu_memory_utilization 0.5: VLLM_SERVER_HOST
    """,
    "server": """
        --no-enable-lora: HANABI_PLAYERS; --max_lora_rank 8: LORA_RANK; -tp 2: VLLM_TENSOR_PARALLEL_SIZE
        --kv-cache-dtype=fp8: HANABI_DTYPE; --kv-cache-dt fp8: HANABI_DTYPE; --hf-overrides.rope_theta=1: MODEL
        --config mine.yaml: write them behind the command; --api-key=topsecret: HANABI_API_KEY
    """,
}
"""What is typed: what the error says to use."""


def test_an_option_that_breaks_a_guarantee_is_refused() -> None:
    for terminal, table in REFUSALS.items():
        for row in re.split(r"; |\n", table.strip()):
            words, setting = row.strip().split(": ")
            with pytest.raises(SettingsError) as refused:
                check_options(
                    terminal,
                    ["--optim" if terminal == "trainer" else "--enforce-eager", *words.split()],
                )
            [line] = str(refused.value).splitlines()
            assert (
                line.startswith(f"{words.split()[0].partition('=')[0]} is not handed on to ")
                and setting in line
            )
            assert "topsecret" not in line


def test_all_refused_options_are_named_at_once_and_everything_else_is_handed_on() -> None:
    with pytest.raises(SettingsError) as refused:
        check_options("trainer", ["--packing", "true", "--optim", "sgd", "--beta", "0.1"])
    assert [line.partition(" ")[0] for line in str(refused.value).splitlines()] == [
        "--packing",
        "--beta",
    ]
    check_options(
        "trainer", ["--optim", "adamw_torch", "--adam_beta2", "-1", "--weight_decay", "0", "word"]
    )
    check_options("server", ["--max-num-batched-tokens", "8192", "-O2", "--mine", "seed"])
    for terminal in COMMANDS.values():
        check_options(terminal, [f"--{name}" for name in option_tables(terminal)[1]])


@pytest.mark.parametrize(("command", "terminal"), COMMANDS.items())
def test_the_command_and_its_dry_run_refuse_alike(
    command: str, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(ROOT)
    with pytest.raises(SettingsError) as refused:
        check_options(terminal, ["--seed", "3"])
    expected = str(refused.value)
    started = CliRunner().invoke(app, [command, "--seed", "3"])
    assert started.exit_code == 2 and expected in started.stderr
    looked = CliRunner().invoke(app, [command, "--dry-run", "--json", "--seed", "3"])
    assert looked.exit_code == 2 and expected in looked.stderr
    assert not (tmp_path / "run").exists()


def test_every_setting_that_is_offered_exists() -> None:
    known = {variable.env for variable in variables()}
    rows = [row for terminal in COMMANDS.values() for row in option_tables(terminal)[0]]
    offered = {one for row in rows for one in row.instead.split(", ") if one}
    assert len(rows) > 80
    assert {one for one in offered - known if not one.startswith("hanabi-grpo ")} == set()
