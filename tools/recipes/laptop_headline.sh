#!/usr/bin/env bash
# The headline on this machine: a 0.6 M-parameter model learns to pass the bots by self-play with an adapter per player.
#
#   bash tools/recipes/laptop_headline.sh                      # laptop, seed 0
#   BOARD=marshal-mini RECIPE_SEED=2 bash tools/recipes/laptop_headline.sh
#
#   BOARD         laptop or marshal-mini (laptop)
#   RECIPE_SEED   seed of the models, adapters, deals and sampling (0)
#   RECIPE_STEPS  optimizer steps (200)
#   RECIPE_DEALS  held-out deals of each evaluation (2000)
#
# Any HANABI_*, LEARNING_RATE or LR_SCHEDULER_TYPE of the shell wins over the recipe's own value.
# Written 2026-11-21. Seen once on 2 cores, beside other work: marshal-mini, seed 0, 200 steps, 1000 held-out deals, greedy:
#   trained 3.060 ± .022, hint bot 2.632, IGGI 2.83 (docs/scores.md), blind play 2.312, random 1.411, 16 min.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh

board=${BOARD:-laptop} seed=${RECIPE_SEED:-0} steps=${RECIPE_STEPS:-200} deals=${RECIPE_DEALS:-2000}
for knob in RECIPE_SEED RECIPE_STEPS RECIPE_DEALS; do
    if [[ -n ${!knob:-} && ! ${!knob} =~ ^[0-9]+$ ]]; then
        echo "laptop_headline: $knob='${!knob}': must be a whole number." >&2
        exit 2
    fi
done
case $board in
laptop | marshal-mini) ;;
*)
    echo "laptop_headline: BOARD='$board': must be laptop or marshal-mini." >&2
    exit 2
    ;;
esac
name=laptop_headline folder=outputs/headline-$board-$seed-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
export SEED=$seed HANABI_PRESET=$board DATASET=$folder/deals.jsonl
default_env LEARNING_RATE 1e-3
default_env LR_SCHEDULER_TYPE cosine
default_env HANABI_ENTROPY_BONUS 0.03
source tools/session.sh
start_session

say "tiny model of $board, seed $seed"
export MODEL=outputs/tiny-$board-seed-$seed
run - hanabi-grpo tiny-model --preset "$board" --out "$MODEL"
run - hanabi-grpo dataset --preset "$board" --out "$DATASET"

# The random moves are learned too: a perfect imitation of the bot plays every game of a deal alike, and learns nothing.
say "warm start: games of the hint bot with 10 % random moves"
run "$folder/warm_start.log" hanabi-grpo warm-start hint-bot --preset "$board" --full --steps 400 --noise 0.1 --learn-noise \
    --learning-rate 3e-3 --out "$folder/warm"
export MODEL=$folder/warm/model

say "rollout server on port $PORT, log $folder/server.log"
start_server

say "before: $deals held-out deals with the warm start, sampled"
run - hanabi-grpo evaluate base --deals "$deals" --out "$folder/warm.json"

say "training: $steps steps, log $folder/train.log"
OUTPUT_DIR=$folder/train MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled \
    run "$folder/train.log" bash tools/train/train_grpo_msswift.sh

say "after: the same deals, sampled at temperature 1 and greedy, beside IGGI"
run - hanabi-grpo evaluate served --deals "$deals" --out "$folder/sampled.json"
run - hanabi-grpo evaluate served iggi --deals "$deals" --temperature 0 --out "$folder/greedy.json"
finish 0
