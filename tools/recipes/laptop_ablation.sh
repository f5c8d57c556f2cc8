#!/usr/bin/env bash
# What is each choice worth? The arms differ in one setting, start from one warm start, use equally many games, and learn from
# single turns like laptop_headline.sh.
#
#   bash tools/recipes/laptop_ablation.sh                    # all arms, seed 0
#   bash tools/recipes/laptop_ablation.sh shared             # one line of the table in docs/results-appendix.md
#   RECIPE_SEED=2 bash tools/recipes/laptop_ablation.sh turn rloo
#   RECIPE_BELIEFS=0.3 bash tools/recipes/laptop_ablation.sh turn belief_loss
#
#   RECIPE_SEED     seed of the models, adapters, deals and sampling (0)
#   RECIPE_STEPS    steps of 192 games, of each arm (60)
#   RECIPE_DEALS    held-out deals of each evaluation, sampled at temperature 1 (1000)
#   RECIPE_BELIEFS  share of the answers about hidden cards among the replies that the warm start learns (0)
#   RECIPE_TINY_STEPS  steps of the tiny model before it imitates RECIPE_START, 1 to save time (900)
#   BOARD           laptop, marshal-mini, marshal-simple or marshal-full (laptop)
#
# An arm's run is outputs/ablation/BOARD/ARM-SEED. With several seeds, this makes the table and the picture:
#   hanabi-grpo compare 'turn=outputs/ablation/laptop/turn-*' 'shared=outputs/ablation/laptop/shared-*' --out-png arms.png
# Written 2026-11-21, settings of 2026-11-25. The expected table is in docs/results-appendix.md.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
name=laptop_ablation
source tools/recipe.sh

declare -A arms=(
    [turn]=""
    [turn_unscaled]="HANABI_ADVANTAGE_SCALE=none"
    [grpo]="HANABI_ADVANTAGE=grpo"
    [return_to_go]="HANABI_ADVANTAGE=return_to_go"
    [rloo]="HANABI_ADVANTAGE=rloo"
    [state_baseline]="HANABI_ADVANTAGE=state_baseline"
    [resample_flat]="HANABI_RESAMPLE_FLAT=2"
    [reinforce_pp]="HANABI_ADVANTAGE=reinforce_pp"
    [baseline]="HANABI_ADVANTAGE=baseline"
    [ippo]="HANABI_ADVANTAGE=ippo"
    [sequential]="HANABI_UPDATE=sequential"
    [updates_1]="HANABI_UPDATES_PER_STEP=1"
    [updates_4]="HANABI_UPDATES_PER_STEP=4"
    [no_bonus]="HANABI_ENTROPY_BONUS=0 HANABI_ENTROPY_TARGET="
    # The objective of MARSHAL's own configuration, with ROLL's clips: one game per task, returns of its turns minus the mean
    # of the board, whitening, dual clip (1 + 2 * .2), KL to the start in the reward, no entropy bonus.
    [marshal]="HANABI_ADVANTAGE=return_to_go HANABI_NORMALIZE_OVER=environment HANABI_NORMALIZE=mean HANABI_WHITEN_REWARDS=1
        HANABI_WHITEN_ADVANTAGES=1 HANABI_REWARD_CLIP=10 HANABI_ADVANTAGE_CLIP=4 HANABI_DUAL_CLIP=1.4 HANABI_KL_IN=reward
        BETA=0.01 HANABI_KL_TARGET=0.1 HANABI_REFERENCE=start HANABI_TRAIN_THOUGHTS=0 TOP_P=0.99 TOP_K=100
        NUM_GENERATIONS=1 HANABI_TASKS_PER_STEP=192 HANABI_ENTROPY_BONUS=0 HANABI_ENTROPY_TARGET="
    # For a start that has learned to answer: RECIPE_BELIEFS=0.3.
    [belief_loss]="HANABI_BELIEF_WEIGHT=0.05"
    # Against conventions that only the team itself understands, see strangers.sh.
    [other_play]="HANABI_OTHER_PLAY=1"
    [more_entropy]="HANABI_ENTROPY_BONUS=0.8 HANABI_ENTROPY_TARGET=0.4"
    [pool]="HANABI_PARTNERS=earlier*3,iggi,hint-bot,piers HANABI_PARTNER_SHARE=0.5"
    # Partners of each kind: bots that ignore hints, and bots that understand them. Each arm meets those that the other does not.
    [generalist_a]="HANABI_PARTNERS=earlier*2,random,flawed,iggi HANABI_PARTNER_SHARE=0.7"
    [generalist_b]="HANABI_PARTNERS=earlier*2,blind,hint-bot,focus-bot HANABI_PARTNER_SHARE=0.7"
    [shared]="HANABI_ADAPTERS=shared"
)
# shared comes last, because it needs a restart of the server.
order=(turn turn_unscaled grpo return_to_go rloo state_baseline reinforce_pp baseline ippo resample_flat sequential updates_1
    updates_4 no_bonus marshal belief_loss other_play more_entropy pool generalist_a generalist_b shared)
single_turns
default_env LR_SCHEDULER_TYPE constant
RECIPE_START=${RECIPE_START:-iggi}
recipe_settings 60 1000
choose_arms "$@"

for arm in "${order[@]}"; do must_be_new "outputs/ablation/$board/$arm-$seed"; done
folder=outputs/ablation/$board/logs-$seed-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
source tools/session.sh
start_session
warm_start

served=""
for arm in "${order[@]}"; do
    adapters=per_player
    if [ "$arm" = shared ]; then adapters=shared; fi
    if [ "$served" != $adapters ]; then
        if [ -n "$served" ]; then stop_server; fi
        say "rollout server, adapters $adapters, log $folder/server.log"
        HANABI_ADAPTERS=$adapters start_server
        served=$adapters
    fi
    say "$arm: ${arms[$arm]:-the settings of the others}"
    run_folder=outputs/ablation/$board/$arm-$seed
    run "$folder/$arm.log" env ${arms[$arm]} OUTPUT_DIR="$run_folder" MAX_STEPS="$steps" REPORT_TO=none WANDB_MODE=disabled \
        bash tools/train/train_grpo_msswift.sh
    # Every arm plays the plain game here, so that they can be compared.
    run - env ${arms[$arm]} HANABI_OTHER_PLAY=0 hanabi-grpo evaluate served --tasks "$deals" --out "$run_folder/sampled.json"
done
finish 0
