"""Settings: every environment variable, its default, and where a run's value came from.

Map:
variables   one variable: name, section, defaults per device, what is allowed
model       `Settings`, the frozen model; the only place where a default is written
game        the fields of the chosen environment's Config as settings
values      values of a form of their own: servers, names at W&B
refs        references to scripts, adapters and checkpoints
partners    who may take a player's seat in training, and in which deals
board       names of models: the tiny one of a preset, and the default on a GPU
device      which engine package is installed, so which defaults hold
sources     what the shell, `.env` and the profile say
gpus        which GPUs a terminal takes
load        shell over `.env` over profile over default; unknown and bad values are refused together
misspelt    names in the environment that are one letter from a setting
pass_through  options of ms-swift and vLLM that are not handed on, and what to set instead
show        the table, the JSON form and the README's table
updates     who is trained in which step, and at which rate
batch       how many deals, games and micro-batches make one step
"""

from hanabi_grpo.settings.batch import BatchPlan, batch_plan, deepspeed_stage
from hanabi_grpo.settings.load import LoadedSettings, load_settings, read_settings
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.show import environment_markdown, settings_json, settings_table, settings_values
from hanabi_grpo.settings.updates import (
    active_players,
    check_updates,
    rates_of_each,
    steps_of_each,
    trained_players,
    update_notes,
)
from hanabi_grpo.settings.variables import PASSED_THROUGH, SECTIONS, Variable

__all__ = [
    "PASSED_THROUGH",
    "SECTIONS",
    "BatchPlan",
    "LoadedSettings",
    "Settings",
    "Variable",
    "active_players",
    "batch_plan",
    "check_updates",
    "deepspeed_stage",
    "environment_markdown",
    "load_settings",
    "rates_of_each",
    "read_settings",
    "settings_json",
    "settings_table",
    "settings_values",
    "steps_of_each",
    "trained_players",
    "update_notes",
    "variables",
]
