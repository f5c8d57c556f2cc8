#!/usr/bin/env bash
# Is a thought worth points? A small model that reads English imitates a bot twice, with and without its thoughts; then both
# are trained on points alone.
#
#   bash tools/recipes/thoughts.sh
#   RECIPE_SEED=1 RECIPE_TEACHER=focus-bot bash tools/recipes/thoughts.sh
#
#   RECIPE_SEED      seed of the model, the games and the order of batches (0)
#   RECIPE_TEACHER   hint-bot, iggi or focus-bot (iggi)
#   RECIPE_GAMES     games of the teacher, a tenth of its moves random (3000)
#   RECIPE_STEPS     steps of 96 turns, with thoughts (500)
#   RECIPE_SILENT    steps without thoughts: a step is faster, so more of them take the same time (700)
#   RECIPE_RL        steps of 128 games afterwards, on the reward alone, with thoughts (40; 0: none)
#   RECIPE_RL_SILENT steps without thoughts (same number)
#   RECIPE_DEALS     deals of the evaluations, from the suite test (1000)
#
# A second call continues an interrupted one: finished imitations and steps are not repeated.
#
# In reinforcement learning, each player has an adapter, and nothing rewards a good thought directly: its tokens get the
# advantage of their turn.
#
# A message contains the rules and the whole position in sentences, without deductions (HANABI_DEDUCTIONS=none). Both models
# have the same tokenizer, network and initial weights. All output is in outputs/thoughts-TEACHER-SEED.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
source tools/recipe.sh
name=thoughts
whole_numbers RECIPE_SEED RECIPE_GAMES RECIPE_STEPS RECIPE_SILENT RECIPE_RL RECIPE_RL_SILENT RECIPE_DEALS
export SEED=${RECIPE_SEED:-0}
teacher=${RECIPE_TEACHER:-iggi} games=${RECIPE_GAMES:-3000} deals=${RECIPE_DEALS:-1000}
export HANABI_PRESET=${HANABI_PRESET:-laptop} HANABI_OBSERVATION=full HANABI_MEMORY=turn HANABI_DEDUCTIONS=none MAX_COMPLETION_LENGTH=96
folder=outputs/thoughts-$teacher-$SEED
mkdir -p "$folder"
# Close to a good start: small steps and little exploration, with advantages of single turns.
default_env LEARNING_RATE 1e-3
default_env LR_SCHEDULER_TYPE linear
default_env HANABI_ADVANTAGE turn
default_env NUM_GENERATIONS 8
default_env HANABI_TASKS_PER_STEP 16
unset DATASET
source tools/session.sh
start_session

export MODEL=$folder/untaught
run - hanabi-grpo tiny-model --preset "$HANABI_PRESET" --style full --teacher "$teacher-aloud" --games 2 --steps 1 --out "$MODEL"
for arm in aloud silent; do
    script=$teacher steps=${RECIPE_SILENT:-700}
    if [ $arm = aloud ]; then script=$teacher-aloud steps=${RECIPE_STEPS:-500}; fi
    say "$arm: imitation of $script, $steps steps, log $folder/$arm.log"
    MODEL=$folder/untaught run "$folder/$arm.log" hanabi-grpo warm-start "$script" --full --out "$folder/$arm" --tasks "$games" --noise 0.1 \
        --batch 96 --steps "$steps" --learning-rate 3e-3 --resume
done
for arm in aloud silent; do
    export MODEL=$folder/$arm/model
    say "$arm: $deals test deals, sampled and greedy"
    start_server
    evaluate_once "$folder/$arm-sampled.json" base --label "$arm"
    evaluate_once "$folder/$arm-greedy.json" base --label "$arm" --temperature 0
    if [ $arm = aloud ] && [ ! -e "$folder/corrupted.json" ]; then
        run - python tools/recipes/thought_table.py "$teacher-aloud" 300 "$folder/corrupted.json"
    fi
    rl=${RECIPE_RL:-40}
    if [ $arm = silent ]; then rl=${RECIPE_RL_SILENT:-$rl}; fi
    if [ "$rl" -gt 0 ]; then
        say "$arm: $rl steps on the reward alone, log $folder/$arm-rl.log"
        OUTPUT_DIR=$folder/$arm-rl MAX_STEPS=$rl REPORT_TO=none WANDB_MODE=disabled RESUME=latest \
            run "$folder/$arm-rl.log" bash tools/train/train_grpo_msswift.sh
        # By its folder: a finished run pushes no players in a second call.
        evaluate "$folder/$arm-rl-sampled.json" "$folder/$arm-rl" --label "$arm, trained"
        evaluate "$folder/$arm-rl-greedy.json" "$folder/$arm-rl" --label "$arm, trained" --temperature 0
    fi
    stop_server
done
evaluate_once "$folder/teacher.json" "$teacher"
finish 0
