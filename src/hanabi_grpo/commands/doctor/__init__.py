"""`hanabi-grpo doctor`: everything that two terminals need, looked at before either is started.

`command` lists the checks in order, `context` is what they look at, `check` is one finding with its remedy. The other
files hold the checks and what they ask: the machine, the model, the network.
"""

from hanabi_grpo.commands.doctor.command import doctor

__all__ = ["doctor"]
