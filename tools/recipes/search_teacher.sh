#!/usr/bin/env bash
# Learn from a teacher that computes: the whole model imitates its games, then self-play continues with an adapter per player.
#
#   bash tools/recipes/search_teacher.sh                       # laptop, the best known players that read one message per turn
#   BOARD=marshal-mini RECIPE_START=best-response bash tools/recipes/search_teacher.sh
#   BOARD=marshal-mini RECIPE_START=search RECIPE_GAMES=3000 bash tools/recipes/search_teacher.sh
#
#   BOARD         laptop, marshal-mini, marshal-simple or marshal-full (laptop)
#   RECIPE_START  the teacher: best-messages, best-response, search, search-piers or any other script (best-messages). With
#                 best-messages, single turns are learned (HANABI_MEMORY=turn, HANABI_DEDUCTIONS=counted)
#   RECIPE_GAMES  its games (12000), each with a different start number; a search takes a second per game
#   RECIPE_WARM   updates of the model by imitation (6000 for best-messages, 2500 for others)
#   RECIPE_SEED   seed of the models, adapters, deals and sampling (0)
#   RECIPE_STEPS  optimizer steps of self-play afterwards (0 after best-messages, which can be memorized; 250)
#   RECIPE_DEALS  deals of each evaluation (2000), from the suite test, which was not used to choose anything
#
# Any HANABI_*, LEARNING_RATE, NUM_GENERATIONS or LR_SCHEDULER_TYPE in the shell overrides the recipe's own value. All output
# is in outputs/search-teacher/BOARD-TEACHER-SEED. A second call continues an interrupted one: finished imitations and
# steps are not repeated. docs/results-appendix.md has the results.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
name=search_teacher
source tools/recipe.sh

RECIPE_START=${RECIPE_START:-best-messages}
default_warm=2500 default_steps=250
if [ "$RECIPE_START" = best-messages ]; then
    # It chooses by the message of a turn, which these two settings define.
    default_env HANABI_MEMORY turn
    default_env HANABI_DEDUCTIONS counted
    default_warm=6000 default_steps=0
fi
# Close to a good team: small steps, little exploration, many deals with few games each.
default_env LEARNING_RATE 6e-4
default_env HANABI_TASKS_PER_STEP 48
default_env NUM_GENERATIONS 8
default_env HANABI_ENTROPY_BONUS 0.005
recipe_settings $default_steps 2000
out=outputs/search-teacher/$board-$start-$seed
folder=$out/logs
mkdir -p "$folder"
source tools/session.sh
start_session
level=$(setting HANABI_DEDUCTIONS)
export MODEL=outputs/tiny-$board${level:+-$level}-seed-$seed
say "tiny model of $board, seed $seed"
run - hanabi-grpo tiny-model --preset "$board" --out "$MODEL"

# Every start is in the games and none is held out: such a team plays from a table, which does not generalize.
say "games of $start, and the model that learns to imitate them, log $folder/warm_start.log"
run "$folder/warm_start.log" hanabi-grpo warm-start "$start" --preset "$board" --full --every-start --noise 0.03 \
    --tasks "${RECIPE_GAMES:-12000}" --batch 128 --steps "${RECIPE_WARM:-$default_warm}" --learning-rate 3e-3 --out "$out/warm" --resume
export MODEL=$out/warm/model

say "rollout server on port $PORT, log $folder/server.log"
start_server

say "the teacher and the model that imitates it, sampled and greedy: $deals test deals"
evaluate_once "$out/teacher.json" "$start"
evaluate_once "$out/warm-sampled.json" base
evaluate_once "$out/warm-greedy.json" base --temperature 0

if [ "$steps" -gt 0 ]; then
    say "training from there: $steps steps, log $folder/train.log"
    OUTPUT_DIR=$out/run MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled RESUME=latest \
        run "$folder/train.log" bash tools/train/train_grpo_msswift.sh
    # By its folder: a finished run pushes no players in a second call.
    evaluate "$out/sampled.json" "$out/run"
    evaluate "$out/greedy.json" "$out/run" --temperature 0
fi
finish 0
