#!/usr/bin/env bash
# What is a calculator worth? One seat answers chain sums (docs/teams.md) with and without it, from the same start.
#
#   bash tools/recipes/calculator.sh
#   TOOL_SEEDS="0 1 2" DEMO_STEPS=250 bash tools/recipes/calculator.sh
#
#   TOOL_SEEDS   seeds of adapters, problems and sampling (0); the tiny model is the same
#   TOOL_OUT     folder (outputs/calculator); finished parts are not repeated, and a run of other settings is refused
#
# Both arms are demos (tools/demo.sh) with equally many steps of 128 games, from one tiny model, which imitates a script that calls
# the calculator in half of its turns and is right in .7 of the others. The second arm differs only in HANABI_TOOLS=none.
# DEMO_STEPS, DEMO_DEALS, DEMO_LOGIT_SCALE and training settings apply to both. At the end, it prints a Markdown table;
# "greedy" is the trained seat when it always takes the likeliest token.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
source tools/recipe.sh
name=calculator
out=${TOOL_OUT:-outputs/calculator}
mkdir -p "$out"
export HANABI_PLAYERS=1 DEMO_ENV=vote-calculator DEMO_STEPS=${DEMO_STEPS:-150}
default_env MAX_COMPLETION_LENGTH 16
# The demo's own name for it.
model=outputs/tiny-$DEMO_ENV-$HANABI_PLAYERS-players${DEMO_MODEL_SEED:+-seed-$DEMO_MODEL_SEED}
for seed in ${TOOL_SEEDS:-0}; do
    for tools in calculator none; do
        folder=$out/$tools-$seed
        if [ -e "$folder/after.json" ]; then
            check_run "$folder/train" SEED="$seed" HANABI_ENV=vote HANABI_PRESET="$DEMO_ENV" HANABI_TOOLS="$tools" MODEL="$model" \
                MAX_STEPS="$DEMO_STEPS"
        else
            rm -rf "$folder" # from an interrupted run
            HANABI_TOOLS=$tools DEMO_SEED=$seed DEMO_OUT=$folder bash tools/demo.sh
        fi
        # The demo samples at temperature 1; here the likeliest token, on a server of its own.
        [ -e "$folder/greedy.json" ] ||
            HANABI_ENV=vote HANABI_PRESET=$DEMO_ENV HANABI_TOOLS=$tools MODEL=$model hanabi-grpo evaluate "$folder/train" \
                --own-server --temperature 0 --label greedy --tasks "${DEMO_DEALS:-1000}" --out "$folder/greedy.json"
    done
done
python tools/recipes/calculator_table.py "$out"
