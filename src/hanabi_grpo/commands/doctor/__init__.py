"""`hanabi-grpo doctor`: check what both terminals need before either one starts.

`command` holds the table of all checks. If the trainer or the server makes a check itself, the
doctor calls the same function, so that both agree on what is refused and why.

- `check`: one result, and how results are printed.
- `context`: settings, model, dataset and servers, each read once for all checks.
- `software`: packages, engine, compiler and W&B.
- `gpus`: the GPUs and how both terminals share them.
- `machine`: run folder, disk and shared memory.
- `checkpoints`: checkpoints of other runs that the run uses.
- `games`: dataset, batch and context length.
- `model`: the model folder and its chat template.
- `server`: ports and servers.
- `experts`: the sizes of a mixture of experts.
- `memory`, `budget`: estimates of the memory and the time that a step takes.
"""

from hanabi_grpo.commands.doctor.command import doctor

__all__ = ["doctor"]
