#!/usr/bin/env bash
# What a calculator in the seat is worth: one seat answers chain sums (docs/teams.md) with and without it, from one start.
#
#   bash tools/recipes/calculator.sh
#   TOOL_SEEDS="0 1 2" DEMO_STEPS=150 bash tools/recipes/calculator.sh
#
#   TOOL_SEEDS   seeds of adapters, problems and sampling (0); the tiny model is the same
#   TOOL_OUT     folder (outputs/calculator); what is there already is not done again
#
# Both rows are demos (tools/demo.sh) of as many steps of 128 games, from one tiny model, which imitates a script that calls the
# calculator in half of its turns and is right in .7 of the others. The second row has HANABI_TOOLS=none, and everything else alike.
# DEMO_STEPS, DEMO_DEALS and settings of training hold for both. At the end: a row each, as
# Markdown; "greedy" is the trained seat that always says what it finds likeliest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
out=${TOOL_OUT:-outputs/calculator}
mkdir -p "$out"
export HANABI_PLAYERS=1 DEMO_ENV=vote-calculator DEMO_STEPS=${DEMO_STEPS:-100}
default_env MAX_COMPLETION_LENGTH 16
model=outputs/tiny-$DEMO_ENV-$HANABI_PLAYERS-players
for seed in ${TOOL_SEEDS:-0}; do
    for tools in calculator none; do
        folder=$out/$tools-$seed
        if [ ! -e "$folder/after.json" ]; then
            rm -rf "$folder" # one that was interrupted
            HANABI_TOOLS=$tools DEMO_SEED=$seed DEMO_OUT=$folder bash tools/demo.sh
        fi
        # The demo samples at temperature 1; here the likeliest token, on a server of its own.
        [ -e "$folder/greedy.json" ] ||
            HANABI_ENV=vote HANABI_PRESET=$DEMO_ENV HANABI_TOOLS=$tools MODEL=$model hanabi-grpo evaluate "$folder/train" \
                --own-server --temperature 0 --label greedy --tasks "${DEMO_DEALS:-1000}" --out "$folder/greedy.json"
    done
done
python tools/recipes/calculator_table.py "$out"
