#!/usr/bin/env bash
# Search as teacher: games of a team that computes are recorded, adapters imitate them, and self-play may go on from there.
#
#   bash tools/recipes/search_teacher.sh                       # laptop, best responses to each other, no self-play
#   BOARD=marshal-mini RECIPE_START=search RECIPE_STEPS=300 bash tools/recipes/search_teacher.sh
#
#   BOARD         laptop or marshal-mini (laptop)
#   RECIPE_START  the teacher: best-response, search, search-piers or any other script (best-response)
#   RECIPE_GAMES  its games (2000), each of another deal
#   RECIPE_WARM   updates of each adapter by imitation (1500)
#   RECIPE_SEED   seed of the models, adapters, deals and sampling (0)
#   RECIPE_STEPS  optimizer steps of self-play afterwards (0: none)
#   RECIPE_DEALS  deals of each evaluation (2000), of the suite test, which nothing was chosen by
#
# Any HANABI_*, LEARNING_RATE or LR_SCHEDULER_TYPE of the shell wins over the recipe's own value. The games are kept, and a
# second run learns from the same; what is there of an evaluation shows how near the adapters come to their teacher.
# Written 2026-11-23 and not run yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
name=search_teacher
source tools/recipe.sh

RECIPE_START=${RECIPE_START:-best-response}
recipe_settings 0 2000
out=outputs/search-teacher/$board-$start-$seed games=outputs/search-teacher/games-$board-$start
must_be_new "$out"
folder=$out/logs
mkdir -p "$folder"
source tools/session.sh
start_session
export MODEL=outputs/tiny-$board-seed-$seed
say "tiny model of $board, seed $seed"
run - hanabi-grpo tiny-model --preset "$board" --out "$MODEL"

say "games of $start: $games"
run - hanabi-grpo collect "$start" --preset "$board" --deals "${RECIPE_GAMES:-2000}" --out "$games"

say "warm start: adapters that imitate them, log $folder/warm_start.log"
run "$folder/warm_start.log" hanabi-grpo warm-start --games "$games" --preset "$board" --steps "${RECIPE_WARM:-1500}" \
    --out "$out/warm"

say "rollout server on port $PORT, log $folder/server.log"
start_server

say "the teacher and what was learned of it, greedy and sampled: $deals test deals"
evaluate() { run - hanabi-grpo evaluate "$1" --suite test --deals "$deals" --temperature "$2" --out "$out/$3.json"; }
run - hanabi-grpo evaluate "$start" --suite test --deals "$deals" --out "$out/teacher.json"
evaluate "$out/warm/checkpoint-0" 0 warm-greedy
evaluate "$out/warm/checkpoint-0" 1 warm-sampled

if [ "$steps" -gt 0 ]; then
    say "training from there: $steps steps, log $folder/train.log"
    HANABI_START_FROM=$out/warm/checkpoint-0 OUTPUT_DIR=$out/run MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled \
        run "$folder/train.log" bash tools/train/train_grpo_msswift.sh
    evaluate served 0 greedy
    evaluate served 1 sampled
fi
finish 0
