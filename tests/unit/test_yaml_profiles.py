"""Profiles in YAML with a base, sections and lists; --set; the profile that a command prints."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hanabi_grpo.cli import app
from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import LoadedSettings, load_settings, settings_values
from hanabi_grpo.settings.given import given_names
from hanabi_grpo.settings.names import check_names
from hanabi_grpo.settings.shell import shell_assignments
from hanabi_grpo.settings.show import settings_yaml
from hanabi_grpo.settings.sources import set_on_command_line

NOWHERE = Path("/nonexistent/.env")


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**files: str) -> None:
    """Write files by name; `_` before the suffix stands for a dot."""
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        path = Path(f"{stem}.{suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def load(*assignments: str, **shell: str) -> LoadedSettings:
    environ = {"HANABI_PROFILE": "my.yaml", **shell}
    set_on_command_line(assignments, environ)
    return load_settings(environ, NOWHERE, device=("cpu", "a test says so"))


def refusal(*assignments: str, **shell: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*assignments, **shell)
    return str(caught.value)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_sections_lists_and_scalars_are_read_as_they_are_typed() -> None:
    write(
        my_yaml="""
game:
  HANABI_PRESET: marshal-mini
trainer:
  LEARNING_RATE: 1e-5
  HANABI_PARTNERS: [iggi, base]
  HANABI_FREEZE:
    - player_1
  HANABI_OVERLAP: yes
  HANABI_EVAL_STEPS: 50
  HANABI_EVAL_LINEUPS:
    - served
    - served,iggi
MAX_STEPS: 0010
CUDA_VISIBLE_DEVICES: 0,1
"""
    )
    loaded = load()
    settings = loaded.settings
    assert settings.preset == "marshal-mini"
    assert settings.learning_rate == 1e-5
    assert settings.partners == ("iggi", "base")
    assert settings.freeze == ("player_1",)
    assert settings.overlap == 1
    assert settings.eval_lineups == "served;served,iggi"
    # YAML's octal numbers are none here.
    assert settings.max_steps == 10
    assert loaded.origins["learning_rate"] == "profile"
    assert loaded.passed_through["CUDA_VISIBLE_DEVICES"] == ("0,1", "profile")


def test_a_file_wins_over_its_base_which_is_beside_it_and_may_have_one_itself() -> None:
    write(
        my_yaml="base: machines/two.yaml\nSEED: 3\nMAX_STEPS: null\n",
        **{
            "machines/two_yaml": "base: one.env\nSEED: 2\nPORT: 8002\nMAX_STEPS: 20\n",
            "machines/one_env": "SEED=1\nPORT=8001\nLORA_ALPHA=7\n",
        },
    )
    loaded = load(PORT="8003")
    settings = loaded.settings
    assert (settings.seed, settings.port, settings.lora_alpha) == (3, 8003, 7)
    # Taken away again.
    assert (settings.max_steps, loaded.origins["max_steps"]) == (500, "default")


def test_the_path_of_a_base_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "mine.env").write_text("PORT=8001\n")
    write(my_yaml="base: ~/mine.env\nSEED: 3\n")
    assert load().settings.port == 8001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "trainer:\n  LERNING_RATE: 1\n",
            "LERNING_RATE (from my.yaml): no such setting; did you mean LEARNING_RATE?",
        ),
        (
            "learning_rate: 1\n",
            "learning_rate (from my.yaml): no such setting; did you mean LEARNING_RATE?",
        ),
        ("EDITOR: vi\n", "EDITOR (from my.yaml): no such setting; hanabi-grpo settings lists"),
        (
            "HANABI_PLAYRS: 2\n",
            "HANABI_PLAYRS (from my.yaml): no such setting; did you mean HANABI_PLAYERS?",
        ),
        (
            "trianer:\n  SEED: 1\n",
            "my.yaml line 2: trianer: no such section; did you mean 'trainer'? allowed are run, "
            "server, game, trainer, tracking and base.",
        ),
        (
            "server:\n  LEARNING_RATE: 1e-4\n",
            "LEARNING_RATE (from my.yaml, section server): it belongs to section trainer; move it "
            "there, or out of the sections.",
        ),
        ("SEED: 1\nrun:\n  SEED: 2\n", "my.yaml line 3: SEED is in this file twice"),
        ("SEED: 1\nSEED: 2\n", "my.yaml line 2: SEED is in this file twice; remove one."),
        (
            "HANABI_PARTNERS: [[iggi]]\n",
            "my.yaml line 1: HANABI_PARTNERS: nested lists and mappings are not allowed.",
        ),
        (
            "HANABI_PARTNERS: ['a,b']\n",
            "my.yaml line 1: HANABI_PARTNERS: an item of the list contains ','.",
        ),
        ("- SEED\n", "my.yaml line 1: the file must map names to values"),
        ("trainer: 3\n", "my.yaml line 1: the section trainer must map names to values."),
        ("SEED: [1\n", "my.yaml: not YAML ("),
        ("a: &a [*a]\n", "my.yaml line 1: a: nested lists and mappings are not allowed."),
        ("NPROC_PER_NODE: many\n", "NPROC_PER_NODE='many': a whole number, at least 1. It is in"),
        (
            "base: nowhere.yaml\n",
            "my.yaml: base: nowhere.yaml: no such file next to my.yaml; files there are my.yaml. "
            "Correct the line, or remove it.",
        ),
        (
            "base: my.yaml\n",
            "my.yaml: base: my.yaml: a cycle of bases (my.yaml → my.yaml); remove the line",
        ),
        (
            "HANABI_PROFILE: other.yaml\n",
            "HANABI_PROFILE='my.yaml' (from shell): names a profile itself; only one is read, so "
            "remove that line from my.yaml.",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_right(text: str, expected: str) -> None:
    write(my_yaml=text)
    assert refusal().startswith(expected)


def test_a_cycle_through_other_files_names_all_of_them() -> None:
    write(my_yaml="base: a.yaml\n", a_yaml="base: b.yml\n", b_yml="base: ./a.yaml\n")
    assert refusal() == (
        "b.yml: base: a.yaml: a cycle of bases (my.yaml → a.yaml → b.yml → a.yaml); remove the "
        "line from one of these files."
    )


def test_what_is_wrong_in_a_base_is_told_with_the_base() -> None:
    write(my_yaml="base: a.yaml\nSEED: 1\n", a_yaml="HANABI_PLAYRS: 2\n")
    assert refusal().startswith("HANABI_PLAYRS (from a.yaml): no such setting")
    write(a_yaml="NPROC_PER_NODE: many\n")
    assert refusal().endswith("It is in a.yaml.")
    write(my_yaml="base: a.yaml\nNPROC_PER_NODE: many\n")
    assert refusal().endswith("It is in my.yaml.")
    write(a_yaml="HANABI_PROFILE: x.yaml\n", my_yaml="base: a.yaml\n")
    assert refusal().endswith("so remove that line from a.yaml.")


def test_an_empty_file_sets_nothing() -> None:
    write(my_yaml="# nothing yet\ntrainer:\n")
    assert "profile" not in load().origins.values()


# --set


def test_set_wins_over_the_shell_and_says_where_it_comes_from() -> None:
    write(my_yaml="SEED: 3\nLORA_ALPHA: 7\n")
    loaded = load("SEED=1", "MAX_STEPS=8", "MAX_STEPS=9", SEED="2", PORT="8001")
    settings = loaded.settings
    assert (settings.seed, loaded.origins["seed"]) == (1, "--set")
    assert (settings.max_steps, loaded.origins["max_steps"]) == (9, "--set")
    assert loaded.origins["port"] == "shell"
    assert loaded.origins["lora_alpha"] == "profile"
    # The commands that messages name for another terminal hold both.
    assignments = shell_assignments(loaded)
    assert {"SEED=1", "MAX_STEPS=9", "PORT=8001"} <= set(assignments)


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("SEDE=1", "SEDE (from --set): no such setting; did you mean SEED?"),
        ("HANABI_PLAYRS=2", "HANABI_PLAYRS (from --set): no such setting; did you mean HANABI_"),
        ("EDITOR=vi", "EDITOR (from --set): no such setting; hanabi-grpo settings lists them."),
        ("NPROC_PER_NODE=many", "NPROC_PER_NODE='many': a whole number, at least 1."),
        (
            "HANABI_API_KEY=0123456789abcdef",
            "HANABI_API_KEY (from --set): a key on a command line is visible to everybody on this "
            "machine; export HANABI_API_KEY instead.",
        ),
        ("SEED", "--set 'SEED': give NAME=VALUE, e.g. --set MAX_STEPS=20; hanabi-grpo settings"),
        ("=1", "--set '=1': give NAME=VALUE"),
    ],
)
def test_wrong_assignments_are_refused(assignment: str, expected: str) -> None:
    write(my_yaml="")
    assert refusal(assignment).startswith(expected)


def test_set_may_stand_anywhere_in_a_command_and_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SEED", "2")
    monkeypatch.setenv("HANABI_TASKS_PER_STEP", "4")
    answer = run("--set", "SEED=1", "train", "--print-config", "--set=MAX_STEPS=9", "--json")
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert (document["settings"]["SEED"], document["origins"]["SEED"]) == (1, "--set")
    assert (document["settings"]["MAX_STEPS"], document["origins"]["MAX_STEPS"]) == (9, "--set")
    assert document["origins"]["HANABI_TASKS_PER_STEP"] == "shell"
    # Processes that the command starts inherit it.
    assert os.environ["SEED"] == "1"
    assert load_settings(dotenv=NOWHERE).origins["seed"] == "--set"


def test_a_command_with_a_wrong_assignment_ends_with_the_reason() -> None:
    for arguments, reason in (
        (("settings", "--set", "SEDE=1"), "SEDE (from --set): no such setting"),
        (("settings", "--set"), "--set '': give NAME=VALUE"),
        (("train", "--set", "SEDE=1", "--print-config"), "SEDE (from --set): no such setting"),
    ):
        answer = run(*arguments)
        assert answer.exit_code == 2
        assert reason in " ".join(answer.stderr.split())
        os.environ.pop("SEDE", None)


def test_a_name_that_only_looks_misspelt_is_not_told_twice() -> None:
    environ: dict[str, str] = {}
    set_on_command_line(["MAX_STEP=1"], environ)
    check_names(environ, NOWHERE)
    with pytest.raises(SettingsError, match=r"MAX_STEP \(from --set\): no such setting"):
        load_settings(environ, NOWHERE)


def test_the_names_that_a_script_s_defaults_yield_to() -> None:
    write(my_yaml="base: a.yaml\nSEED: 1\n", a_yaml="trainer:\n  MAX_STEPS: 4\n")
    Path("my.env").write_text("PORT=8001\n")
    names = given_names(
        ["--set", "BETA=1", "--dry-run", "--set=LORA_RANK=8"],
        {"HANABI_PROFILE": "my.yaml", "LORA_ALPHA": "7"},
        Path("my.env"),
    )
    assert names == ["BETA", "LORA_RANK", "MAX_STEPS", "PORT", "SEED"]


# What --print-config --yaml writes


@pytest.mark.parametrize(
    "shell",
    [
        {},
        {
            "SEED": "7",
            "LEARNING_RATE": "2.5e-6",
            "HANABI_PARTNERS": "iggi,player_1=base",
            "HANABI_EVAL_STEPS": "50",
            "HANABI_EVAL_LINEUPS": "served;served,iggi",
            "HANABI_OVERLAP": "1",
            "MODEL": "data/tiny: model #1 'é'",
            "WANDB_NAME": "no",
            "OUTPUT_DIR": "outputs/null",
            "CUDA_VISIBLE_DEVICES": "0,1",
            "HF_HOME": "~/a b",
        },
        {"HANABI_ENV": "kuhn_poker", "HANABI_REWARD_ILLEGAL": "-1.5", "MAX_STEPS": "3"},
    ],
)
def test_a_printed_profile_reads_back_equal(shell: dict[str, str]) -> None:
    device = ("cpu", "a test says so")
    printed = load_settings(shell, NOWHERE, device=device)
    write(my_yaml=settings_yaml(printed))
    again = load()

    def everything(loaded: LoadedSettings) -> dict[str, Any]:
        passed = {name: value for name, (value, _) in loaded.passed_through.items()}
        values = settings_values(loaded.settings)
        return {**values, **passed, "HANABI_PROFILE": None}

    assert everything(again) == everything(printed)
    given = again.settings.model_fields_set - {"profile"}
    assert given == printed.settings.model_fields_set
    # And once more, now from the profile.
    assert settings_yaml(again) == settings_yaml(printed)


def test_the_command_prints_it_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANABI_API_KEY", "0123456789abcdef")
    monkeypatch.setenv("MAX_STEPS", "9")
    for command in ("train", "serve"):
        answer = run(command, "--print-config", "--yaml")
        assert answer.exit_code == 0, answer.output
        assert "  MAX_STEPS: 9\n" in answer.stdout
        assert "  # HANABI_API_KEY: a key, set it in the environment\n" in answer.stdout
        assert "0123456789abcdef" not in answer.stdout
    for arguments in (("--yaml",), ("--dry-run", "--yaml"), ("--print-config", "--json", "--yaml")):
        answer = run("train", *arguments)
        assert answer.exit_code == 2
        assert "use --print-config --yaml" in " ".join(answer.stderr.split())
