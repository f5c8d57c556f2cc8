"""What the variables of W&B may say; a bad name is found before W&B is asked."""

from pathlib import Path

import pytest

from hanabi_grpo.errors import SettingsError
from hanabi_grpo.settings import load_settings

NO_FILE = Path("no-such.env")


def test_the_defaults_are_those_of_the_wrapper() -> None:
    settings = load_settings({}, dotenv=NO_FILE).settings
    assert (settings.wandb_project, settings.wandb_mode, settings.wandb_log_model) == (
        "hanabi-grpo",
        "online",
        "checkpoint",
    )
    assert settings.upload_ckpt_to_wandb and settings.ckpt_artifact_aliases == ("latest", "end")


def test_values_that_wandb_would_refuse_are_refused_by_name() -> None:
    bad = {
        "WANDB_LOG_MODEL": ("true", "Checkpoint!"),
        "WANDB_MODE": ("dryrun",),
        "WANDB_PROJECT": ("a/b", "a?b", "..", "p" * 129),
        "WANDB_ENTITY": ("../../..", ".."),
        "CKPT_ARTIFACT_NAME": ("..", "my team", "team:latest", "é"),
        "CKPT_ARTIFACT_ALIASES": ("latest,v3", "a/b", "a:b"),
        "UPLOAD_CKPT_TO_WANDB": ("perhaps",),
    }
    for variable, values in bad.items():
        for value in values:
            with pytest.raises(SettingsError, match=rf"{variable}="):
                load_settings({variable: value}, dotenv=NO_FILE)


def test_aliases_are_a_list_without_doubles_and_may_be_none() -> None:
    settings = load_settings({"CKPT_ARTIFACT_ALIASES": " best , end,best"}, dotenv=NO_FILE).settings
    assert settings.ckpt_artifact_aliases == ("best", "end")
