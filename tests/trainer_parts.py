"""What a trainer consists of, imported as `hanabi-grpo train` imports it.

Whoever imports this before anything of ms-swift gets it without vLLM, whose import would take as
long again.
"""

import hanabi_grpo.commands.train  # noqa: F401
from hanabi_grpo.training.main import import_parts

for _ in import_parts():
    pass
