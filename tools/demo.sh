#!/usr/bin/env bash
# The whole loop on this machine, without a second terminal: server, evaluation, training, evaluation, report.
#
#   bash tools/demo.sh
#   DEMO_SEED=7 DEMO_STEPS=40 DEMO_DEALS=500 bash tools/demo.sh
#
#   DEMO_SEED    seed of the adapters, the deals and the sampling (unset: SEED's own default); the start is data/tiny-model
#   DEMO_STEPS   steps of 128 games (60)
#   DEMO_DEALS   held-out deals of each evaluation (1000)
#   DEMO_PORT    port of the rollout server (unset: a free one)
#   DEMO_MIN_RISE, DEMO_MIN_SIGMA   least rise of the mean score; below it the demo exits with 1 (unset: none)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SECONDS=0
source tools/launch.sh

steps=${DEMO_STEPS:-60} deals=${DEMO_DEALS:-1000}
for knob in DEMO_SEED DEMO_STEPS DEMO_DEALS DEMO_PORT; do
    if [[ -n ${!knob:-} && ! ${!knob} =~ ^[0-9]+$ ]]; then
        echo "demo: $knob='${!knob}': must be a whole number." >&2
        exit 2
    fi
done
folder=outputs/demo-$(date +%Y%m%d-%H%M%S)-$$
mkdir -p "$folder"

# Other settings keep their meaning here; a variable of these names in the shell would make it another demo.
if [ -n "${DEMO_SEED:-}" ]; then export SEED=$DEMO_SEED; fi
export MODEL=data/tiny-model
export DATASET=data/hanabi.laptop.jsonl
name=demo
source tools/session.sh
start_session "${DEMO_PORT:-}"

# First, and alone: its three processes import vLLM at the same time.
say "1 of 5: waiting for the rollout server on port $PORT: it loads vLLM and $MODEL, half a minute to a minute; log $folder/server.log"
start_server

say "2 of 5: before: the untrained players, who have watched a noisy hint bot, play $deals deals"
run - hanabi-grpo evaluate base --label before --deals "$deals" --out "$folder/before.json"

say "3 of 5: training, $steps steps of 128 games, after the trainer's start of half a minute; log $folder/train.log"
OUTPUT_DIR=$folder/train MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled \
    run "$folder/train.log" bash tools/train/train_grpo_msswift.sh

say "4 of 5: after: the trained players play the same deals"
run - hanabi-grpo evaluate served --label after --deals "$deals" --out "$folder/after.json"

say "5 of 5: what changed; scripted players for comparison"
status=0
run - hanabi-grpo report --before "$folder/before.json" --after "$folder/after.json" --run "$folder/train" \
    --out-png "$folder/learning_curve.png" --out-markdown "$folder/report.md" \
    ${DEMO_MIN_RISE:+--min-rise "$DEMO_MIN_RISE"} ${DEMO_MIN_SIGMA:+--min-sigma "$DEMO_MIN_SIGMA"} || status=$?
own="MODEL=$MODEL DATASET=$DATASET .venv/bin/hanabi-grpo"
cat <<END

What next? The last two start a rollout server of their own, which takes a minute or two.

  # The run as one page for a browser: curves, tables, games to step through
  .venv/bin/hanabi-grpo report-page $folder/train --out $folder/report.html

  # Play a game with a trained player
  $own play $folder/train --own-server

  # Everybody with everybody: the trained players, the untrained ones, two scripts
  $own cross-play trained=$folder/train untrained=base hint-bot iggi --deals 200 --out $folder/cross --own-server

END
finish "$status"
