"""Where metrics go: a JSONL file and a line in the terminal always; TensorBoard and W&B beside them when asked for.

The trainer writes files and starts one process, the mirror. The mirror alone imports wandb: it reads the run folder,
and sends what it finds there. So W&B can hang, refuse or die without the trainer noticing, and a run whose trainer was
killed is sent later by the same code (`hanabi-grpo upload RUN`).

Map:
    callback      what the trainer calls: rows, alarms, the terminal's line
    board         TensorBoard, and the names of metrics there and at W&B
    mirror        the mirror as the trainer sees it: started, heard, ended within a time limit
    sidecar       the mirror's own process
    run_reader    what is new in a run folder: rows, checkpoints, games
    wandb_run     the run at W&B: opened, refused or kept on this disk; rows, tables, artifacts
    record        `wandb.json` in the run folder: the run's id, and the artifacts that were made
    artifact      the folder that goes up: adapters, card, settings, evaluation, games
    sample_games  the games of it, and of an exported folder
    score         a checkpoint's running score, and which checkpoint is the best
    card          the artifact's README
    upload        a run folder that is sent afterwards
    checkpoints   the folder behind a reference: here, at W&B, on the hub
    download      artifacts that are fetched from W&B
    used_checkpoints   which folders a run used for HANABI_START_FROM and HANABI_PARTNERS
"""
