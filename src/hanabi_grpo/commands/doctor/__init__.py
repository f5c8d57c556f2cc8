"""`hanabi-grpo doctor`: what two terminals need, before either starts; `command` has the table of
checks.
"""

from hanabi_grpo.commands.doctor.command import doctor
