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
# DEMO_STEPS, DEMO_DEALS and settings of training hold for both. At the end: a row each, as Markdown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${TOOL_OUT:-outputs/calculator}
mkdir -p "$out"
export HANABI_PLAYERS=1 DEMO_ENV=vote-calculator DEMO_STEPS=${DEMO_STEPS:-100} MAX_COMPLETION_LENGTH=${MAX_COMPLETION_LENGTH:-16}
for seed in ${TOOL_SEEDS:-0}; do
    for tools in calculator none; do
        folder=$out/$tools-$seed
        [ -e "$folder/after.json" ] && continue
        rm -rf "$folder" # one that was interrupted
        HANABI_TOOLS=$tools DEMO_SEED=$seed DEMO_OUT=$folder bash tools/demo.sh
    done
done
.venv/bin/python tools/recipes/calculator_table.py "$out"
