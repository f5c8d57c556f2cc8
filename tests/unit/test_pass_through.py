"""Options that would break a guarantee are refused with a remedy; all others are passed through."""

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import variables
from hanabi_grpo.settings.pass_through import (
    Terminal,
    check_options,
    option_tables,
    option_values,
)

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, Terminal] = {"train": "trainer", "serve": "server"}
HANDED_ON: dict[Terminal, str] = {"trainer": "--optim", "server": "--enforce-eager"}
"""An option of each terminal that breaks nothing."""


@pytest.mark.parametrize(
    ("terminal", "typed", "remedy"),
    [
        ("trainer", ["--loss_type", "grpo"], "HANABI_LOSS_UNIT"),
        ("trainer", ["--loss-type=grpo"], "HANABI_LOSS_UNIT"),
        ("trainer", ["--loss_t", "grpo"], "HANABI_LOSS_UNIT"),
        ("trainer", ["--use_liger_kernel", "true"], "leave it out"),
        ("trainer", ["--use_liger_kernel"], "leave it out"),
        ("trainer", ["--no_dataset_shuffle"], "DATASET"),
        ("trainer", ["--max_grad_norm", "0.1"], "MAX_GRAD_NORM"),
        ("trainer", ["--temperature", "0.7"], "TEMPERATURE"),
        ("trainer", ["--lora_dropout", "0.1"], "LORA_RANK"),
        ("trainer", ["--vllm_gpu_memory_utilization", "0.5"], "VLLM_SERVER_HOST"),
        ("server", ["--no-enable-lora"], "HANABI_PLAYERS"),
        ("server", ["--max_lora_rank", "8"], "LORA_RANK"),
        ("server", ["-tp", "2"], "VLLM_TENSOR_PARALLEL_SIZE"),
        ("server", ["--kv-cache-dtype=fp8"], "HANABI_DTYPE"),
        ("server", ["--kv-cache-dt", "fp8"], "HANABI_DTYPE"),
        ("server", ["--hf-overrides.rope_theta=1"], "MODEL"),
        ("server", ["--config", "mine.yaml"], "write options after the command"),
        ("server", ["--api-key=topsecret"], "HANABI_API_KEY"),
    ],
)
def test_an_option_that_breaks_a_guarantee_is_refused(
    terminal: Terminal, typed: list[str], remedy: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        check_options(terminal, [HANDED_ON[terminal], *typed])
    [line] = str(refused.value).splitlines()
    name = typed[0].partition("=")[0]
    assert line.startswith(f"{name} is not passed through to ")
    assert remedy in line
    assert "topsecret" not in line


def test_all_refused_options_are_named_at_once_and_everything_else_is_handed_on() -> None:
    with pytest.raises(SettingsError) as refused:
        check_options("trainer", ["--packing", "true", "--optim", "sgd", "--beta", "0.1"])
    options = [line.partition(" ")[0] for line in str(refused.value).splitlines()]
    assert options == ["--packing", "--beta"]
    check_options(
        "trainer", ["--optim", "adamw_torch", "--adam_beta2", "-1", "--weight_decay", "0", "word"]
    )
    check_options("server", ["--max-num-batched-tokens", "8192", "-O2", "--mine", "seed"])
    for terminal in COMMANDS.values():
        check_options(terminal, [f"--{name}" for name in option_tables(terminal).passed])


def test_an_option_has_one_value_however_it_is_spelled() -> None:
    typed = ["--adam-beta2=0.99", "--lr", "-1e-3", "-x", "-.5", "--names", "a", "b", "--quiet"]
    assert option_values(typed) == {
        "--adam_beta2": "0.99",
        "--lr": "-1e-3",
        "--x": "-.5",
        "--names": "a b",
        "--quiet": "",
    }
    assert option_values(["word", "--optim", "sgd", "--optim=adamw_torch"]) == {
        "": "word",
        "--optim": "adamw_torch",
    }


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
    commands = get_command(app).list_commands(None)
    refusals = [*option_tables("trainer").refusals, *option_tables("server").refusals]
    assert len(refusals) > 80
    for refusal in refusals:
        if not refusal.instead:
            continue
        for offered in refusal.instead.split(", "):
            program, _, command = offered.partition(" ")
            if program == "hanabi-grpo":
                assert command.split()[0] in commands
            else:
                assert offered in known
