#!/usr/bin/env bash
# What a calculator in the seat is worth: one seat answers chain sums (docs/teams.md) with and without it, trained alike.
#
#   bash tools/recipes/calculator.sh
#   TOOL_SEEDS="0 1 2" DEMO_STEPS=150 bash tools/recipes/calculator.sh
#
#   TOOL_SEEDS   seeds of adapters, problems and sampling (0); the tiny models are the same
#   TOOL_OUT     folder (outputs/calculator); what is there already is not done again
#
# Both rows are demos (tools/demo.sh) with as many steps of 128 games; DEMO_STEPS, DEMO_DEALS and settings of training hold for
# both. The tiny model of either is pretrained on as many games of the script `noisy`, which calls the calculator in half of its
# turns where it has one. At the end: a row each, as Markdown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${TOOL_OUT:-outputs/calculator}
mkdir -p "$out"
export HANABI_PLAYERS=1 DEMO_STEPS=${DEMO_STEPS:-60}
for seed in ${TOOL_SEEDS:-0}; do
    for preset in vote-calculator vote; do
        folder=$out/$preset-$seed
        [ -e "$folder/after.json" ] && continue
        rm -rf "$folder" # one that was interrupted
        DEMO_ENV=$preset DEMO_SEED=$seed DEMO_OUT=$folder bash tools/demo.sh
    done
done
.venv/bin/python tools/recipes/calculator_table.py "$out"
