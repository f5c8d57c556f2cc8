"""Settings: every environment variable, its default, and where a run's value came from.

`model` defines the fields, `load` finds their values, `affects` declares what each of them changes
in a run, and `saved` reads the settings of a run folder.
"""

from hanabi_grpo.settings.affects import Affects
from hanabi_grpo.settings.load import LoadedSettings, load_settings, read_settings
from hanabi_grpo.settings.model import Settings, variables
from hanabi_grpo.settings.show import (
    environment_markdown,
    settings_json,
    settings_table,
    settings_values,
)
from hanabi_grpo.settings.steps import BatchPlan, batch_plan, deepspeed_stage
from hanabi_grpo.settings.variables import PASSED_THROUGH, SECTIONS, Variable
