#!/usr/bin/env bash
# Compare one pair of players for several games with a specialist pair for each; two games are held out from training.
#
#   bash tools/recipes/generalist.sh
#
#   RECIPE_SEED   seed of the model, adapters, deals and sampling (0)
#   RECIPE_STEPS  steps of 128 games for each specialist (200); the generalist gets as many per game
#   RECIPE_DEALS  deals of each evaluation (500)
#
# All start from one tiny model that was pretrained on games of noisy teachers in all five games. Finished runs and evaluations
# are not repeated, and a run of other settings is refused. The runs are outputs/generalist-SEED/NAME, with the evaluations next to
# them.
# Takes half an hour on two cores. The results are in docs/results-appendix.md.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
source tools/recipe.sh
name=generalist
export SEED=${RECIPE_SEED:-0}
steps=${RECIPE_STEPS:-200} deals=${RECIPE_DEALS:-500}
folder=outputs/generalist-$SEED
trained=(tic_tac_toe:tic_tac_toe kuhn_poker:kuhn_poker hanabi:marshal-mini)
held_out=(leduc_poker:leduc_poker connect_four:connect_four-4x5)
export MODEL=$folder/model
# DATASET is unset, so that the shell's own does not replace a game.
unset DATASET HANABI_ENV HANABI_PRESET
default_env NUM_GENERATIONS 8
default_env HANABI_TASKS_PER_STEP 16
default_env HANABI_ENTROPY_BONUS 0.02
default_env LEARNING_RATE 1e-3
default_env LR_SCHEDULER_TYPE linear

# every_run COMMAND: calls COMMAND NAME STEPS VARIABLE=VALUE... for each specialist, then for the generalist.
every_run() {
    local one
    for one in "${trained[@]}"; do
        "$1" "${one##*:}" "$steps" HANABI_ENV="${one%%:*}" HANABI_PRESET="${one##*:}"
    done
    "$1" all $((steps * ${#trained[@]})) DATASET="$folder/all.jsonl"
}

# check_finished NAME STEPS VARIABLE=VALUE...: exits if the run is finished and has other settings.
check_finished() {
    if [ -e "$folder/$1/done" ]; then check_run "$folder/$1" MAX_STEPS="$2" "${@:3}"; fi
}

every_run check_finished
mkdir -p "$folder"
source tools/session.sh
start_session

say "the tiny model, with the words of five games: $MODEL"
run - hanabi-grpo tiny-model --env tic_tac_toe $(printf -- '--preset %s ' "${trained[@]}" "${held_out[@]}") \
    --out "$MODEL" --seed "$SEED" --steps 2000
say "the dataset of the generalist: $folder/all.jsonl"
rm -f "$folder/all.jsonl"
for one in "${trained[@]}"; do
    run - hanabi-grpo dataset --env "${one%%:*}" --preset "${one##*:}" --out "$folder/all.jsonl" \
        $([ -e "$folder/all.jsonl" ] && echo --add)
done
HANABI_ENV=tic_tac_toe start_server

# evaluate NAME POLICY: evaluate POLICY, base or a run, on every game.
evaluate() {
    local who=$1 one lineups
    for one in "${trained[@]}" "${held_out[@]}"; do
        case $one in
            hanabi:*) lineups=("$2") ;;
            tic_tac_toe:* | connect_four:*) lineups=("$2,random" "$2,minimax") ;;
            *) lineups=("$2,random" "$2,cfr") ;;
        esac
        local file=$folder/$who-${one##*:}
        export HANABI_ENV=${one%%:*} HANABI_PRESET=${one##*:}
        [ -e "$file.json" ] || run - hanabi-grpo evaluate "${lineups[@]}" --tasks "$deals" --out "$file.json"
        case $one in
            *_poker) [ -e "$file-exploit.json" ] || run - hanabi-grpo exploit "$2" --out "$file-exploit.json" ;;
        esac
        unset HANABI_ENV HANABI_PRESET
    done
}

# train NAME STEPS VARIABLE=VALUE...: train, or continue an interrupted training, then evaluate the players of the run.
train() {
    local who=$1 count=$2
    shift 2
    if [ -e "$folder/$who/done" ]; then return; fi
    say "$who: $count steps"
    run "$folder/$who.log" env OUTPUT_DIR="$folder/$who" MAX_STEPS="$count" REPORT_TO=none WANDB_MODE=disabled RESUME=latest "$@" \
        bash tools/train/train_grpo_msswift.sh
    # By its folder: after the last step, a trainer that was only continued has pushed no players.
    evaluate "$who" "$folder/$who"
    touch "$folder/$who/done"
}

evaluate start base
say "the specialists of ${#trained[@]} games, then the generalist: all"
every_run train
finish 0
