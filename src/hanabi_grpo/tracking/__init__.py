"""Where metrics go: a JSONL file and a line in the terminal always; TensorBoard and W&B on request.

The trainer writes files and, for W&B, starts one process, the mirror. The mirror alone imports
wandb: it reads the run folder and sends what it finds there. So W&B can hang, refuse or die without
the trainer noticing, and what a killed trainer left is sent all the same.

What the trainer calls:

- `callback`: transformers' callback; owns the monitors and the alarms.
- `monitor`: the base class of all monitors, and what happens when one fails.
- `file_monitor`, `terminal_monitor`, `tensorboard_monitor`, `wandb_monitor`: the monitors.

W&B:

- `mirror`: the mirror as the trainer sees it: started, listened to, ended in time. Its process is
  `commands.mirror`.
- `publisher`: sends what is new in a run folder.
- `wandb_run`: the run at W&B: opened, refused, or kept on this disk; rows, sample games, artifacts.
- `record`: `wandb.json` in the run folder: the run's id, its artifacts, and which is the best.
- `artifact`: the folder that is uploaded: adapters, card, settings, evaluations, sample games.

Checkpoints that lie elsewhere:

- `checkpoints`: the folder behind a reference: on this disk, at W&B, on the hub.
- `used_checkpoints`: which folders a run used for HANABI_START_FROM and HANABI_PARTNERS.
"""
