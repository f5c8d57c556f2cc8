#!/usr/bin/env bash
# Terminal 1: the rollout server. Settings are environment variables (hanabi-grpo settings); options go to vLLM.
#
#   bash tools/rollout/rollout_hanabi_gym.sh
#   bash tools/rollout/rollout_hanabi_gym.sh --dry-run      # checks and shows, starts nothing; --print-config: only settings
#   MODEL=Qwen/Qwen3-4B PORT=8000 CUDA_VISIBLE_DEVICES=0,1,2,3 bash tools/rollout/rollout_hanabi_gym.sh
#
# -h prints this, --version the version; .venv/bin/hanabi-grpo serve -h lists the command's own options.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh

if on_gpu; then
    split_gpus server
fi
if ! on_gpu && ! given MODEL && ! only_looks "$@"; then
    # Shipped for the default board, created here for others; kept if it was built with the same settings.
    hanabi-grpo tiny-model
fi
exec hanabi-grpo serve "$@"
