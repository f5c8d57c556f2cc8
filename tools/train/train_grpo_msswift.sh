#!/usr/bin/env bash
# Terminal 2: the trainer. Settings are environment variables (hanabi-grpo settings); options go to ms-swift.
#
#   bash tools/train/train_grpo_msswift.sh
#   bash tools/train/train_grpo_msswift.sh --dry-run        # checks and shows, starts nothing; --print-config: only settings
#   MAX_STEPS=500 NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=4,5,6,7 bash tools/train/train_grpo_msswift.sh
#
# -h prints this, --version the version; .venv/bin/hanabi-grpo train -h lists the command's own options.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh

if on_gpu; then
    split_gpus trainer
fi
exec hanabi-grpo train "$@"
