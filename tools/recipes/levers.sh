#!/usr/bin/env bash
# A control for cross-play: the lever game, where each team agrees on a convention that no other team can know.
#
#   bash tools/recipes/levers.sh
#   LEVER_SEEDS="0 1 2" RECIPE_STEPS=40 bash tools/recipes/levers.sh self_play
#
#   LEVER_SEEDS    seeds of models, adapters and sampling (0 1 2 3 4)
#   RECIPE_STEPS   steps of each run, of 192 games (100)
#   RECIPE_DEALS   tasks that every pair plays (200)
#
# Arms: self_play and other_play. Finished runs are not repeated, and one of other settings is refused; the folder of an
# interrupted run has to be deleted. For each arm, cross-play of its seeds prints self-play minus cross-play, in the plain
# game, with the same names for both players.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
source tools/recipe.sh
name=levers
seeds=${LEVER_SEEDS:-0 1 2 3 4} steps=${RECIPE_STEPS:-100} tasks=${RECIPE_DEALS:-200}
whole_numbers RECIPE_STEPS RECIPE_DEALS
declare -A arms=(
    [self_play]=""
    [other_play]="HANABI_OTHER_PLAY=1"
)
order=(self_play other_play)
choose_arms "$@"
export HANABI_ENV=levers HANABI_PRESET=levers
unset DATASET
default_env NUM_GENERATIONS 8
default_env HANABI_TASKS_PER_STEP 24
default_env LEARNING_RATE 1e-3
# Paid in points: a convention that is found makes nearly all groups equal, and dividing by their spread would enlarge the noise.
default_env HANABI_ADVANTAGE_SCALE none
default_env LR_SCHEDULER_TYPE linear
default_env HANABI_ENTROPY_BONUS 0.02

out=outputs/levers
for seed in $seeds; do
    for arm in "${order[@]}"; do
        if [ -e "$out/$arm-$seed/sampled.json" ]; then
            check_run "$out/$arm-$seed" ${arms[$arm]} SEED="$seed" MODEL="outputs/tiny-levers-seed-$seed" MAX_STEPS="$steps"
        fi
    done
done
folder=$out/logs-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
source tools/session.sh
start_session
for seed in $seeds; do
    missing=()
    for arm in "${order[@]}"; do
        if [ -e "$out/$arm-$seed/sampled.json" ]; then continue; fi
        must_be_new "$out/$arm-$seed"
        missing+=("$arm")
    done
    if [ ${#missing[@]} = 0 ]; then continue; fi
    export SEED=$seed MODEL=outputs/tiny-levers-seed-$seed
    run - hanabi-grpo tiny-model --env levers --preset levers --out "$MODEL"
    say "rollout server of seed $seed, log $folder/server.log"
    start_server
    for arm in "${missing[@]}"; do
        say "$arm, seed $seed"
        run "$folder/$arm-$seed.log" env ${arms[$arm]} OUTPUT_DIR="$out/$arm-$seed" MAX_STEPS="$steps" REPORT_TO=none WANDB_MODE=disabled \
            bash tools/train/train_grpo_msswift.sh
        run - hanabi-grpo evaluate served --tasks "$tasks" --out "$out/$arm-$seed/sampled.json"
    done
    stop_server
done
for arm in "${order[@]}"; do
    entries=()
    for seed in $seeds; do entries+=("$arm#$seed=$out/$arm-$seed"); done
    if [ ${#entries[@]} -gt 1 ]; then
        say "cross-play of $arm"
        run - hanabi-grpo cross-play "${entries[@]}" --own-server --suite test --tasks "$tasks" --out "$out/cross-$arm"
    fi
done
finish 0
