#!/usr/bin/env bash
# What is credit assignment worth? A team gets a joint reward, and the arms differ only in the advantage estimator.
#
#   bash tools/recipes/credit_ablation.sh                     # debate, all arms, seeds 0, 1 and 2
#   BOARD=marshal-mini bash tools/recipes/credit_ablation.sh group ippo
#
#   BOARD         debate, vote, marshal-mini or laptop (debate)
#   RECIPE_SEEDS  seeds of adapters, starts and sampling (0 1 2); the model is that of seed 0
#   RECIPE_STEPS  steps of 128 games, of each arm and seed (75 in a workflow, 60 on a board)
#   RECIPE_DEALS  held-out starts of each evaluation, sampled at temperature 1 (1000)
#   NOISE_STEPS   steps with a learning rate of nearly 0, which measure the gradient noise (40; 0: not measured)
#
# Arms: group (each player's returns against those of its group, HANABI_ADVANTAGE=turn), ippo, mappo, vdn and qmix, all with the
# same reward; in a workflow also difference (the difference reward) and own (the workflow's own rewards).
# An arm's run is outputs/credit/BOARD/ARM-SEED; finished runs are not repeated, and one of other settings is refused.
# docs/results-appendix.md has the tables.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
name=credit_ablation
source tools/recipe.sh

declare -A arms=(
    [group]="HANABI_ADVANTAGE=turn"
    [ippo]="HANABI_ADVANTAGE=ippo"
    [mappo]="HANABI_ADVANTAGE=mappo"
    [vdn]="HANABI_ADVANTAGE=vdn"
    [qmix]="HANABI_ADVANTAGE=qmix"
)
order=(group ippo mappo vdn qmix)
case ${BOARD:=debate} in
debate | vote)
    board=$BOARD steps=${RECIPE_STEPS:-75} deals=${RECIPE_DEALS:-1000}
    own=HANABI_REWARD_CORRECT
    if [ "$board" = debate ]; then own=HANABI_REWARD_LATER_ROUNDS; fi
    for arm in "${order[@]}"; do arms[$arm]+=" $own=0 HANABI_REWARD_TEAM=1"; done
    arms[difference]="$own=0 HANABI_REWARD_DIFFERENCE=1" arms[own]="$own=1"
    order+=(difference own)
    export HANABI_ENV=$board HANABI_PRESET=$board MODEL=outputs/tiny-$board
    default_env LEARNING_RATE 1e-3
    default_env LR_SCHEDULER_TYPE linear
    default_env NUM_GENERATIONS 8
    default_env HANABI_TASKS_PER_STEP 16 ;;
*)
    default_env HANABI_TASKS_PER_STEP 8
    RECIPE_SEED=0 recipe_settings 60 1000 ;;
esac
choose_arms "$@"

out=outputs/credit/$board
folder=$out/logs-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
source tools/session.sh
start_session
export SEED=0
if [ -n "${HANABI_ENV:-}" ]; then
    run - hanabi-grpo tiny-model --env "$HANABI_ENV" --preset "$board" --out "$MODEL" --seed 0
else
    warm_start
fi

# train RUN ARM STEPS [SETTING=VALUE...]: train with the arm's settings, in RUN.begun, which is renamed when complete.
train() {
    local run_folder=$1 arm=$2 for_steps=$3
    shift 3
    rm -rf "$run_folder.begun"
    run "$folder/$(basename "$run_folder").log" env ${arms[$arm]} "$@" OUTPUT_DIR="$run_folder.begun" MAX_STEPS="$for_steps" \
        REPORT_TO=none WANDB_MODE=disabled bash tools/train/train_grpo_msswift.sh
}

# The policy does not change, so all gradients are of one policy and contain nothing but the estimator.
unmoved=(LEARNING_RATE=1e-12 LR_SCHEDULER_TYPE=constant MAX_GRAD_NORM=1e9 HANABI_ENTROPY_BONUS=0 HANABI_UPDATES_PER_STEP=1)
noise_steps=${NOISE_STEPS:-40}
for arm in "${order[@]}"; do
    if [ "$noise_steps" -gt 0 ] && [ -e "$out/noise-$arm" ]; then
        check_run "$out/noise-$arm" ${arms[$arm]} "${unmoved[@]}" SEED=0 MAX_STEPS="$noise_steps"
    fi
    for seed in ${RECIPE_SEEDS:-0 1 2}; do
        if [ -e "$out/$arm-$seed" ]; then check_run "$out/$arm-$seed" ${arms[$arm]} SEED="$seed" MAX_STEPS="$steps"; fi
    done
done

for seed in ${RECIPE_SEEDS:-0 1 2}; do
    export SEED=$seed
    say "seed $seed: rollout server, log $folder/server.log"
    start_server
    for arm in "${order[@]}"; do
        if [ "$seed" = 0 ] && [ "$noise_steps" -gt 0 ] && [ ! -e "$out/noise-$arm" ]; then
            say "$arm: measuring its gradient noise"
            train "$out/noise-$arm" "$arm" "$noise_steps" "${unmoved[@]}"
            mv "$out/noise-$arm.begun" "$out/noise-$arm"
        fi
        if [ ! -e "$out/$arm-$seed" ]; then
            say "$arm, seed $seed: ${arms[$arm]}"
            train "$out/$arm-$seed" "$arm" "$steps"
            run - env ${arms[$arm]} hanabi-grpo evaluate served --tasks "$deals" --out "$out/$arm-$seed.begun/sampled.json"
            mv "$out/$arm-$seed.begun" "$out/$arm-$seed"
        fi
    done
    stop_server
done
python tools/recipes/credit_table.py "$out" "${order[@]}"
finish 0
