#!/usr/bin/env bash
# Thoughts in a hat code: a small model imitates plain-hat-bot twice, with its sums written down and without, for about equal
# minutes.
#
#   bash tools/recipes/hat_thoughts.sh
#   PLAYERS=3 bash tools/recipes/hat_thoughts.sh
#
#   PLAYERS          3 to 5 (5); with four and five, each arm starts from its own imitation with three players, of as many steps
#   RECIPE_SEED      seed of the model, the games and the order of batches (0)
#   RECIPE_GAMES     games of the teacher, 6 % of its moves random (14000)
#   RECIPE_STEPS     steps of 128 turns, with thoughts (5000)
#   RECIPE_SILENT    steps without thoughts: a step is faster, so more of them take the same time (7500)
#   RECIPE_DEALS     deals of the evaluations, from the suite test (1000)
#
# Full Hanabi in words, a card and all that is known of it one word (HANABI_DEDUCTIONS=recalled). Both arms have the same
# tokenizer, network and random weights. All output is in outputs/hat-thoughts-PLAYERS-SEED.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh
source tools/recipe.sh
name=hat_thoughts
whole_numbers RECIPE_SEED RECIPE_GAMES RECIPE_STEPS RECIPE_SILENT RECIPE_DEALS
players=${PLAYERS:-${HANABI_PLAYERS:-5}}
if [[ ! $players =~ ^[3-5]$ ]]; then
    echo "$name: PLAYERS='$players': a hat code needs 3 to 5 players." >&2
    exit 2
fi
export SEED=${RECIPE_SEED:-0} HANABI_PRESET=full HANABI_PLAYERS=$players HANABI_MEMORY=turn
thoughts_in_words
games=${RECIPE_GAMES:-14000} deals=${RECIPE_DEALS:-1000}
folder=outputs/hat-thoughts-$players-$SEED
mkdir -p "$folder"
unset DATASET
source tools/session.sh
start_session

# imitate ARM PLAYERS OUT [START]: OUT/model imitates the bot; it starts from random weights, or from those of the model START
imitate() {
    local out=$3 script=plain-hat-bot steps=${RECIPE_SILENT:-7500}
    if [ "$1" = aloud ]; then script=plain-hat-bot-aloud steps=${RECIPE_STEPS:-5000}; fi
    untaught "$2" "$out-untaught" "${4:-}"
    say "$1: imitation of $script with $2 players, $steps steps, log $out.log"
    run "$out.log" hanabi-grpo warm-start "$script" --full --out "$out" --tasks "$games" --noise 0.06 \
        --batch 128 --steps "$steps" --learning-rate 3e-3 --resume
}

for arm in aloud silent; do
    start=
    if [ "$players" -gt 3 ]; then
        imitate $arm 3 "$folder/$arm-of-three"
        start=$folder/$arm-of-three/model
    fi
    imitate $arm "$players" "$folder/$arm" "$start"
done
for arm in aloud silent; do
    export MODEL=$folder/$arm/model
    say "$arm: $deals test deals, sampled and greedy"
    start_server
    evaluate "$folder/$arm-sampled.json" base --label "$arm"
    evaluate "$folder/$arm-greedy.json" base --label "$arm" --temperature 0
    # A deal has some 180 thoughts that can be corrupted.
    if [ $arm = aloud ]; then run - python tools/recipes/thought_table.py plain-hat-bot-aloud 2 "$folder/corrupted.json"; fi
    stop_server
done
evaluate "$folder/teacher.json" plain-hat-bot
finish 0
