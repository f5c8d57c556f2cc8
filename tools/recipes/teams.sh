#!/usr/bin/env bash
# Does a team pay off? Train and compare every workflow of docs/teams.md on chain sums, with several seeds.
#
#   bash tools/recipes/teams.sh
#   TEAM_SEEDS="3 4" TEAM_WORKFLOWS=debate bash tools/recipes/teams.sh
#
#   TEAM_SEEDS      seeds of adapters, problems and sampling (0 1 2); the tiny model is the same
#   TEAM_WORKFLOWS  workflows to run (vote debate summary pioneer_observer)
#   TEAM_OUT        folder (outputs/teams); finished runs are not repeated
#
# Each is a demo (tools/demo.sh) of 4 to 5 minutes on two cores; DEMO_STEPS, DEMO_DEALS and training settings apply to all.
# At the end, it prints means over the seeds as Markdown.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
out=${TEAM_OUT:-outputs/teams}
mkdir -p "$out"
for seed in ${TEAM_SEEDS:-0 1 2}; do
    for workflow in ${TEAM_WORKFLOWS:-vote debate summary pioneer_observer}; do
        folder=$out/$workflow-$seed
        [ -e "$folder/teams.json" ] && continue
        rm -rf "$folder" # from an interrupted run
        DEMO_ENV=$workflow DEMO_SEED=$seed DEMO_OUT=$folder bash tools/demo.sh
    done
done
python tools/recipes/teams_table.py "$out"/*/teams.json
