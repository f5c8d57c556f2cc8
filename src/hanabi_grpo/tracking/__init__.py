"""Where metrics go: a JSONL file and a line in the terminal always; W&B beside them when asked for.

The trainer writes files and starts one process, the mirror. The mirror alone imports wandb: it
reads the run folder, and sends what it finds there. So W&B can hang, refuse or die without the
trainer noticing, and what a trainer left that was killed is sent all the same.

Map: callback      what the trainer calls: rows, alarms, the terminal's line mirror        the
    mirror as the trainer sees it: started, heard, ended in time; its process is `commands.mirror`
    publisher     what is new in a run folder, sent wandb_run     the run at W&B: opened, refused or
    kept on this disk; rows, sample games, artifacts record        `wandb.json` in the run folder:
    the run's id, the artifacts that were made, and which is the best artifact      the folder that
    goes up: adapters, card, settings, evaluation, sample games checkpoints   the folder behind a
    reference: here, at W&B, on the hub used_checkpoints   which folders a run used for
    HANABI_START_FROM and HANABI_PARTNERS
"""
