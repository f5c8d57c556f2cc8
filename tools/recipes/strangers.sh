#!/usr/bin/env bash
# Do independently trained teams understand each other? Seeds with separate base models, and methods that should help.
#
#   bash tools/recipes/strangers.sh
#   STRANGER_SEEDS="0 1" RECIPE_STEPS=30 bash tools/recipes/strangers.sh turn other_play
#
#   STRANGER_SEEDS   seeds of models, adapters, deals and sampling (0 1 2 3 4)
#   RECIPE_STEPS     steps of 192 games, of each run (60)
#   RECIPE_DEALS     held-out deals that every pair plays (1000)
#   BOARD            laptop, marshal-mini, marshal-simple or marshal-full (laptop)
#
# Arms are those of laptop_ablation.sh; default: turn (self-play), other_play, more_entropy and pool. Finished runs are not
# repeated, so the recipe can be interrupted. For each arm, cross-play of its seeds prints self-play minus cross-play with a
# jackknife over seeds; adhoc compares seed 0 of all arms with the board's scripts as partners. These evaluations use the plain
# game, with the same colours for all players.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
seeds=${STRANGER_SEEDS:-0 1 2 3 4} board=${BOARD:-laptop} deals=${RECIPE_DEALS:-1000}
arms=("$@")
if [ $# = 0 ]; then arms=(turn other_play more_entropy pool); fi
runs=outputs/ablation/$board out=outputs/strangers/$board
mkdir -p "$out"
for seed in $seeds; do
    if [[ ! $seed =~ ^[0-9]+$ ]]; then
        echo "strangers: STRANGER_SEEDS='$seeds': must be whole numbers, as in '0 1 2'." >&2
        exit 2
    fi
    missing=()
    for arm in "${arms[@]}"; do
        if [ ! -e "$runs/$arm-$seed/sampled.json" ]; then
            rm -rf "${runs:?}/$arm-$seed" # from an interrupted run
            missing+=("$arm")
        fi
    done
    if [ ${#missing[@]} -gt 0 ]; then
        RECIPE_SEED=$seed RECIPE_DEALS=$deals bash tools/recipes/laptop_ablation.sh "${missing[@]}"
    fi
done

# The memory and the deductions that the runs were trained with.
export HANABI_PRESET=$board HANABI_MEMORY=${HANABI_MEMORY:-turn} HANABI_DEDUCTIONS=${HANABI_DEDUCTIONS:-counted}
candidates=()
for arm in "${arms[@]}"; do
    entries=()
    for seed in $seeds; do entries+=("$arm#$seed=$runs/$arm-$seed"); done
    if [ ${#entries[@]} -gt 1 ]; then
        hanabi-grpo cross-play "${entries[@]}" --own-server --suite test --tasks "$deals" --out "$out/$arm"
    fi
    candidates+=("$arm=$runs/$arm-${seeds%% *}")
done
first_settings=$runs/${arms[0]}-${seeds%% *}/settings.json
MODEL=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["settings"]["MODEL"])' "$first_settings")
export MODEL
hanabi-grpo adhoc "${candidates[@]}" --own-server --tasks "$deals" --out "$out/adhoc"
