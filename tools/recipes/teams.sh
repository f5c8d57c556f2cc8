#!/usr/bin/env bash
# Does a team pay off? Train and compare every workflow of docs/teams.md on chain sums, with several seeds.
#
#   bash tools/recipes/teams.sh
#   TEAM_SEEDS="3 4" TEAM_WORKFLOWS=debate bash tools/recipes/teams.sh
#
#   TEAM_SEEDS      seeds of adapters, problems and sampling (0 1 2); the tiny model is the same
#   TEAM_WORKFLOWS  workflows to run (vote debate summary pioneer_observer)
#   TEAM_OUT        folder (outputs/teams); finished runs are not repeated, and one of other settings is refused
#   DEMO_STEPS      steps of each (150)
#
# Each is a demo (tools/demo.sh) of 4 to 5 minutes on two cores; DEMO_DEALS and training settings apply to all.
# At the end, it prints means over the seeds as Markdown.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
source tools/recipe.sh
name=teams
out=${TEAM_OUT:-outputs/teams}
export DEMO_STEPS=${DEMO_STEPS:-150}
mkdir -p "$out"
for seed in ${TEAM_SEEDS:-0 1 2}; do
    for workflow in ${TEAM_WORKFLOWS:-vote debate summary pioneer_observer}; do
        folder=$out/$workflow-$seed
        if [ -e "$folder/teams.json" ]; then
            # The demo's own names of environment and model.
            model=outputs/tiny-$workflow${HANABI_PLAYERS:+-$HANABI_PLAYERS-players}${DEMO_MODEL_SEED:+-seed-$DEMO_MODEL_SEED}
            check_run "$folder/train" SEED="$seed" HANABI_ENV="${workflow%%-*}" HANABI_PRESET="$workflow" MODEL="$model" \
                MAX_STEPS="$DEMO_STEPS"
            continue
        fi
        rm -rf "$folder" # from an interrupted run
        DEMO_ENV=$workflow DEMO_SEED=$seed DEMO_OUT=$folder bash tools/demo.sh
    done
done
python tools/recipes/teams_table.py "$out"/*/teams.json
