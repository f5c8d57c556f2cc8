#!/usr/bin/env bash
# Terminal 2, tracked by Weights & Biases: sets the W&B default, then runs train_grpo_msswift.sh.
#
#   wandb login                # once; or WANDB_MODE=offline
#   bash tools/train/train_grpo_hanabi_server_wandb.sh
#
# WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME and WANDB_MODE (online, offline, disabled) set where the run is logged;
# WANDB_LOG_MODEL (checkpoint, end, false), UPLOAD_CKPT_TO_WANDB, CKPT_ARTIFACT_NAME and CKPT_ARTIFACT_ALIASES set which
# adapters are uploaded with it.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh

# The only value that differs from the settings' own defaults.
default_env REPORT_TO wandb
exec bash tools/train/train_grpo_msswift.sh "$@"
