"""`hanabi-grpo doctor`: everything that two terminals need, looked at before either is started.

`run` lists the checks in order, `context` is what they look at, `check` is one finding with its remedy, and `show`
prints it. The other files hold the checks and what they ask: the machine, the model, the network.
"""

from hanabi_grpo.commands.doctor.check import Check, Role
from hanabi_grpo.commands.doctor.environment import resolve_settings
from hanabi_grpo.commands.doctor.run import run_checks
from hanabi_grpo.commands.doctor.show import report_json, report_lines

__all__ = ["Check", "Role", "report_json", "report_lines", "resolve_settings", "run_checks"]
