#!/usr/bin/env bash
# Do independently trained teams understand each other? Seeds with separate base models, and methods that should help.
#
#   bash tools/recipes/strangers.sh
#   STRANGER_SEEDS="0 1" RECIPE_STEPS=30 bash tools/recipes/strangers.sh turn other_play
#   BOARD=full bash tools/recipes/strangers.sh
#
#   STRANGER_SEEDS   seeds of models, adapters, deals and sampling (0 1 2 3 4)
#   RECIPE_STEPS     steps of each run: of 192 games on the small boards (60), of 64 games on full (12)
#   RECIPE_DEALS     held-out deals that every pair plays (1000; 100 on full)
#   BOARD            laptop, marshal-mini, marshal-simple, marshal-full or full (laptop)
#
# Arms are those of laptop_ablation.sh; default: turn (self-play), other_play, more_entropy and pool. On full they are the same
# methods with the settings of full_laptop.sh, where self-play is called ippo, and start from imitations of 2,000 games of
# save-bot, unless RECIPE_TEACHER and RECIPE_GAMES say otherwise. Finished runs are not repeated, so the recipe can be
# interrupted; a run of other steps or from another start is refused. For each arm, cross-play of its seeds prints self-play minus cross-play with a jackknife over seeds; adhoc compares
# seed 0 of all arms with scripts as partners (on full with seven of them, without bounds). These evaluations use the plain
# game, with the same colours for all players.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
source tools/recipe.sh
name=strangers
seeds=${STRANGER_SEEDS:-0 1 2 3 4} board=${BOARD:-laptop} deals=${RECIPE_DEALS:-1000}
arms=("$@")
if [ $# = 0 ]; then arms=(turn other_play more_entropy pool); fi

declare -A full_arms=(
    [ippo]=""
    [other_play]="HANABI_OTHER_PLAY=1"
    [more_entropy]="HANABI_ENTROPY_BONUS=0.1 HANABI_ENTROPY_TARGET=0.4"
    [pool]="HANABI_PARTNERS=earlier*3,iggi,hint-bot,piers HANABI_PARTNER_SHARE=0.5"
)
partners=() steps=${RECIPE_STEPS:-60} start=${RECIPE_START:-iggi}
model="*/warm-$start-*"
if [ "$start" = tiny ]; then model="*/tiny-*"; fi
if [ "$board" = full ]; then
    if [ "${PLAYERS:-${HANABI_PLAYERS:-2}}" != 2 ]; then
        echo "$name: PLAYERS=${PLAYERS:-$HANABI_PLAYERS}: strangers are pairs; unset it." >&2
        exit 2
    fi
    deals=${RECIPE_DEALS:-100} steps=${RECIPE_STEPS:-12} model="*"
    if [ $# = 0 ]; then arms=(ippo other_play more_entropy pool); fi
    for arm in "${arms[@]}"; do
        if [[ ! -v full_arms[$arm] ]]; then
            echo "$name: '$arm': with BOARD=full must be one of ippo other_play more_entropy pool." >&2
            exit 2
        fi
    done
    export HANABI_DEDUCTIONS=${HANABI_DEDUCTIONS:-joined}
    for script in random hint-bot iggi piers outer focus-bot save-bot; do partners+=(--with "$script"); done
    partners+=(--only)
fi
for seed in $seeds; do
    if [[ ! $seed =~ ^[0-9]+$ ]]; then
        echo "$name: STRANGER_SEEDS='$seeds': must be whole numbers, as in '0 1 2'." >&2
        exit 2
    fi
done
out=outputs/strangers/$board
mkdir -p "$out"

# run_of ARM SEED: the folder of a run
run_of() {
    if [ "$board" = full ]; then
        local level=-$HANABI_DEDUCTIONS
        if [ "$HANABI_DEDUCTIONS" = counted ]; then level=""; fi
        echo "outputs/full-$2$level/$1"
    else
        echo "outputs/ablation/$board/$1-$2"
    fi
}

# train_on_full SEED ARM...: full_laptop.sh continues an interrupted run
train_on_full() {
    local seed=$1 arm
    shift
    for arm in "$@"; do
        env ${full_arms[$arm]} RECIPE_SEED="$seed" RECIPE_RUN="$arm" RECIPE_DEALS="$deals" RECIPE_STEPS="$steps" \
            RECIPE_TEACHER="${RECIPE_TEACHER:-save-bot}" RECIPE_GAMES="${RECIPE_GAMES:-2000}" bash tools/recipes/full_laptop.sh
        if [ ! -e "$(run_of "$arm" "$seed")/sampled.json" ]; then exit 0; fi # its RECIPE_MINUTES are over, and it has said so
    done
}

for seed in $seeds; do
    missing=()
    for arm in "${arms[@]}"; do
        run=$(run_of "$arm" "$seed")
        if [ -e "$run/sampled.json" ]; then
            # The arms of laptop_ablation.sh have settings of their own.
            check_run --only "$run" SEED="$seed" HANABI_PRESET="$board" MODEL="$model" MAX_STEPS="$steps"
            continue
        fi
        missing+=("$arm")
        if [ "$board" != full ] && [ -e "$run" ]; then
            echo "$name: $run has no sampled.json: it was interrupted, or is being trained. If it was interrupted: rm -r $run" >&2
            exit 2
        fi
    done
    if [ ${#missing[@]} = 0 ]; then continue; fi
    if [ "$board" = full ]; then
        train_on_full "$seed" "${missing[@]}"
    else
        RECIPE_SEED=$seed RECIPE_DEALS=$deals bash tools/recipes/laptop_ablation.sh "${missing[@]}"
    fi
done

# The memory and the deductions that the runs were trained with.
export HANABI_PRESET=$board
default_env HANABI_MEMORY turn
default_env HANABI_DEDUCTIONS counted
candidates=()
for arm in "${arms[@]}"; do
    entries=()
    for seed in $seeds; do entries+=("$arm#$seed=$(run_of "$arm" "$seed")"); done
    if [ ${#entries[@]} -gt 1 ]; then
        hanabi-grpo cross-play "${entries[@]}" --own-server --suite test --tasks "$deals" --out "$out/$arm"
    fi
    candidates+=("$arm=$(run_of "$arm" "${seeds%% *}")")
done
first_settings=$(run_of "${arms[0]}" "${seeds%% *}")/settings.json
MODEL=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["settings"]["MODEL"])' "$first_settings")
export MODEL
hanabi-grpo adhoc "${candidates[@]}" "${partners[@]}" --own-server --tasks "$deals" --out "$out/adhoc"
