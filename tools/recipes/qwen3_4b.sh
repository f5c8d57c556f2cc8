#!/usr/bin/env bash
# Qwen3-4B on MARSHAL's Mini Hanabi or on the full game: adapters warmed up on bot games, then self-play.
#
#   BOARD=marshal-mini bash tools/recipes/qwen3_4b.sh          # 8 GPUs: server on 0-3, trainer on 4-7
#   BOARD=full GPUS=1 bash tools/recipes/qwen3_4b.sh           # one GPU, shared by both
#
#   BOARD         marshal-mini or full (marshal-mini)
#   GPUS          8 or 1 (8)
#   RECIPE_STEPS  optimizer steps (200)
#   RECIPE_DEALS  held-out deals of each evaluation (500)
#
# Any setting in the shell or .env overrides the recipe's own value.
#
# Written 2026-11-21. NOT RUN: no machine with such GPUs was available. The settings follow the lessons from the laptop boards
# (a start that explores, an entropy bonus, per-turn credit); their values are a judgment call. Compare with:
#
#   board          random   blind play   hint bot   IGGI    published for Qwen3-4B
#   marshal-mini   1.44     2.30         2.63       2.83    2.17-2.22 (full fine-tuning, 8 GPUs; below blind play)
#   full           0.00     0.00         16.6       17.6    8.4 after 220 steps (self-play from a supervised 2.9)
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
name=qwen3_4b board=${BOARD:-marshal-mini} gpus=${GPUS:-8} steps=${RECIPE_STEPS:-200} deals=${RECIPE_DEALS:-500}
case $board in
marshal-mini) bot=hint-bot ;;
full) bot=iggi ;;
*)
    echo "$name: BOARD='$board': must be marshal-mini or full." >&2
    exit 2
    ;;
esac
source tools/launch.sh
if ! on_gpu; then
    echo "$name: CUDA vLLM is not installed here (tools/setup.sh installs it if nvidia-smi lists a GPU). On a machine without" \
        "a GPU, run tools/recipes/laptop_headline.sh." >&2
    exit 2
fi

case $gpus in
8) ;; # the defaults are for 8
1)
    default_env CUDA_VISIBLE_DEVICES 0
    default_env VLLM_TENSOR_PARALLEL_SIZE 1
    default_env HANABI_GPU_MEMORY_UTILIZATION 0.4
    default_env HANABI_TRAINER_MEMORY 0.55
    default_env NPROC_PER_NODE 1
    default_env DEEPSPEED none
    ;;
*)
    echo "$name: GPUS='$gpus': must be 8 or 1." >&2
    exit 2
    ;;
esac
default_env MODEL Qwen/Qwen3-4B
export HANABI_PRESET=$board
# A move needs only a few tokens; without a limit, a model that no longer ends its replies fills the context.
default_env MAX_COMPLETION_LENGTH 64
default_env LR_SCHEDULER_TYPE cosine
default_env HANABI_ENTROPY_BONUS 0.01

folder=outputs/qwen3_4b-$board-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
source tools/session.sh
start_session

say "warm start: adapters that imitate $bot with 10 % random moves, log $folder/warm_start.log"
run "$folder/warm_start.log" hanabi-grpo warm-start "$bot" --preset "$board" --noise 0.1 --learn-noise --out "$folder/warm"

say "rollout server on port $PORT, log $folder/server.log"
start_server

say "training: $steps steps, log $folder/train.log"
HANABI_START_FROM=$folder/warm OUTPUT_DIR=$folder/train MAX_STEPS=$steps \
    run "$folder/train.log" bash tools/train/train_grpo_hanabi_server_wandb.sh

say "after training: $deals held-out deals"
run - hanabi-grpo evaluate served "$bot" --tasks "$deals" --out "$folder/train/sampled.json"
finish 0
