#!/usr/bin/env bash
# Train players whose last version is close to an equilibrium: self-play with a reference policy that follows the players.
#
#   bash tools/recipes/poker.sh                      # Kuhn poker, about 25 minutes per seed on two idle cores
#   POKER_SEEDS=0 bash tools/recipes/poker.sh leduc_poker   # an hour on one core
#
#   POKER_SEEDS   seeds of tiny model, adapters, deals and sampling (0 1 2)
#   POKER_OUT     folder (outputs/poker); finished seeds are not repeated, and an interrupted seed continues
#
# Each step plays 512 games, with rewards in chips, and pulls the players by BETA toward their policy of some steps ago (magnetic
# mirror descent, arXiv 2206.05825; the moving reference as in R-NaD, arXiv 2206.15378). The reference may be old while the
# players still move, and the rate decays to 0 by a cosine. DEMO_STEPS and training settings override those below.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/launch.sh
source tools/recipe.sh
name=poker
game=${1:-kuhn_poker} out=${POKER_OUT:-outputs/poker}
case $game in
    kuhn_poker)
        steps=1000 bonus=0.02 reference=every:50 ;;
    leduc_poker)
        steps=800 bonus=0.3 reference=every:200
        # Games take longer than updates here, so 16 updates are made from those of each step.
        default_env HANABI_ADVANTAGE mappo
        case $(setting HANABI_ADVANTAGE) in mappo | ippo) default_env HANABI_GAE_LAMBDA 0.8 ;; esac
        default_env HANABI_MINIBATCHES 8
        default_env HANABI_UPDATES_PER_STEP 2
        default_env BETA 1 ;;
    *)
        echo "poker: '$game': must be kuhn_poker or leduc_poker." >&2
        exit 2 ;;
esac
export DEMO_ENV=$game DEMO_STEPS=${DEMO_STEPS:-$steps} DEMO_DEALS=${DEMO_DEALS:-100}
default_env HANABI_TASKS_PER_STEP 64
default_env NUM_GENERATIONS 8
default_env LEARNING_RATE 3e-3
default_env LR_SCHEDULER_TYPE cosine
default_env BETA 0.5
default_env HANABI_REFERENCE $reference
default_env HANABI_ENTROPY_BONUS $bonus
for seed in ${POKER_SEEDS:-0 1 2}; do
    folder=$out/$game-$seed
    if [ -e "$folder/exploit.json" ]; then
        # The demo's own name of its model.
        model=outputs/tiny-$game${HANABI_PLAYERS:+-$HANABI_PLAYERS-players}-seed-$seed
        check_run "$folder/train" SEED="$seed" HANABI_ENV="$game" HANABI_PRESET="$game" MODEL="$model" MAX_STEPS="$DEMO_STEPS"
    else
        DEMO_SEED=$seed DEMO_MODEL_SEED=$seed DEMO_OUT=$folder DEMO_RESUME=yes bash tools/demo.sh
    fi
done
python tools/recipes/poker_table.py "$out" "$game"
