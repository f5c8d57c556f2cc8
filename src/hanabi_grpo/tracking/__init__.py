"""Logging of metrics: always to a JSONL file and the terminal, optionally to TensorBoard and W&B.

The trainer writes files and, for W&B, starts one process, the mirror. Only the mirror imports
wandb: it reads the run folder and uploads its content. W&B can therefore hang, refuse a run or
crash without affecting the trainer, and the files of a killed trainer are still uploaded.

Called by the trainer:

- `callback`: transformers' callback; owns the monitors and the alarms.
- `monitor`: the base class of all monitors, and the handling of their failures.
- `file_monitor`, `terminal_monitor`, `tensorboard_monitor`, `wandb_monitor`: the monitors.

W&B:

- `mirror`: the trainer's side of the mirror: starts it, reads its messages and ends it in time. Its
  process is `commands.mirror`.
- `publisher`: uploads new content of a run folder.
- `wandb_run`: the run at W&B: online, refused, or offline; rows, sample games, artifacts.
- `record`: `wandb.json` in the run folder: the run's id, its artifacts, and which one is the best.
- `artifact`: the folder that is uploaded: adapters, card, settings, evaluations, sample games.

Checkpoints from other places:

- `checkpoints`: the folder of a reference: on this disk, at W&B, on the hub.
- `used_checkpoints`: which folders a run used for HANABI_START_FROM and HANABI_PARTNERS.
"""
