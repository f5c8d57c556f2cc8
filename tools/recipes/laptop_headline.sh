#!/usr/bin/env bash
# The headline result on this machine: a 0.6 M-parameter model learns to beat the bots by self-play with an adapter per player.
#
#   bash tools/recipes/laptop_headline.sh                      # laptop, seed 0
#   BOARD=marshal-mini RECIPE_SEED=2 bash tools/recipes/laptop_headline.sh
#
#   BOARD         laptop, marshal-mini, marshal-simple (3 colours x 2 ranks) or marshal-full (3 x 3) (laptop)
#   RECIPE_SEED   seed of the adapters, deals and sampling (0)
#   RECIPE_MODEL_SEED  seed of the model and its imitation (0: the players of all seeds share one model and can cross-play)
#   RECIPE_START  the bot whose games the model imitates first; tiny: none beyond those of the tiny model itself (iggi)
#   RECIPE_STEPS  steps of 192 games; learning rate and entropy target fall in the last third (200)
#   RECIPE_DEALS  deals of each evaluation (2000), from the suite test, which was not used to choose anything
#
# Any HANABI_*, LEARNING_RATE or LR_SCHEDULER_TYPE in the shell overrides the recipe's own value.
# The run is outputs/headline/BOARD-SEED. With several seeds, this makes the table and the picture:
#   hanabi-grpo compare 'headline=outputs/headline/laptop-*' --out-png headline.png
# and this lets them play with one another (MODEL as `report RUN` shows it):
#   HANABI_PRESET=laptop HANABI_MEMORY=turn HANABI_DEDUCTIONS=counted MODEL=outputs/warm-... \
#       hanabi-grpo cross-play outputs/headline/laptop-? --suite test --own-server
# Written 2026-11-21, settings of 2026-11-25. The expected tables are in docs/results-appendix.md.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
name=laptop_headline
source tools/recipe.sh

single_turns
default_env LR_SCHEDULER_TYPE warmup_stable_decay
default_env HANABI_ADVANTAGE rloo
default_env HANABI_EVAL_STEPS 50
default_env HANABI_EVAL_TASKS 400
variant=${RECIPE_START:+$RECIPE_START-}
RECIPE_START=${RECIPE_START:-iggi}
recipe_settings 200 2000
variant=$board-$variant$seed
out=outputs/headline/$variant folder=outputs/headline/logs-$variant-$(date +%Y%m%d-%H%M%S)
must_be_new "$out"
mkdir -p "$folder"
source tools/session.sh
start_session
warm_start "${RECIPE_MODEL_SEED:-0}"

say "rollout server on port $PORT, log $folder/server.log"
start_server

say "before training: $deals test deals with the starting model, sampled"
evaluate "$folder/start.json" base --label start

say "training: $steps steps, log $folder/train.log"
OUTPUT_DIR=$out MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled \
    run "$folder/train.log" bash tools/train/train_grpo_msswift.sh
mv "$folder/start.json" "$out/"

say "after training: the same deals, sampled at temperature 1 and greedy, compared with IGGI"
evaluate "$out/sampled.json" served
evaluate "$out/greedy.json" served --temperature 0
evaluate "$folder/iggi.json" iggi
finish 0
