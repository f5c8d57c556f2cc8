#!/usr/bin/env bash
# The whole loop on this machine, without a second terminal: tiny model, server, evaluation, training, evaluation, report.
#
#   bash tools/demo.sh
#   DEMO_SEED=7 DEMO_STEPS=40 DEMO_DEALS=500 bash tools/demo.sh
#
#   DEMO_SEED    seed of the tiny model, the adapters and the sampling (unset: SEED's own default)
#   DEMO_STEPS   optimizer steps (60)
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
export MODEL=outputs/tiny-model${DEMO_SEED:+-seed-$DEMO_SEED}
export DATASET=data/hanabi.laptop.jsonl
PORT=${DEMO_PORT:-$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
export PORT VLLM_SERVER_PORT=$PORT VLLM_SERVER_HOST=127.0.0.1

server="" child="" peak=0

# Every process that descends from the given ones, children before grandchildren.
descendants() {
    local level=$* next all=""
    while [ -n "$level" ]; do
        next=""
        for pid in $level; do
            next+=" $(cat /proc/"$pid"/task/*/children 2>/dev/null || pgrep -P "$pid" || true)"
        done
        level=$(echo $next)
        all+=" $level"
    done
    echo $all
}

alive() {
    local pid
    for pid in "$@"; do
        if kill -0 "$pid" 2>/dev/null && [ "$(ps -o stat= -p "$pid" | cut -c1)" != Z ]; then echo "$pid"; fi
    done
}

clean_up() {
    local status=$? left waited=0
    # A second Ctrl-C must not cut this short: it would leave the engine running.
    trap '' INT TERM HUP
    trap - EXIT
    left=$(echo $child $server $(descendants $child $server))
    if [ -n "$(alive $left)" ]; then
        kill -TERM $(alive $child $server) 2>/dev/null || true
        while [ -n "$(alive $left)" ] && [ $waited -lt 200 ]; do
            sleep 0.1
            waited=$((waited + 1))
        done
        left=$(alive $left)
        if [ -n "$left" ]; then kill -KILL $left 2>/dev/null || true; fi
    fi
    if [ "$status" -ne 0 ]; then
        echo "demo: stopped with exit code $status after $SECONDS s; kept: $folder (logs, what was trained) and $MODEL" >&2
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'trap "" INT TERM HUP; exit 130' INT
trap 'trap "" INT TERM HUP; exit 143' TERM HUP

# Kilobytes that the demo's processes hold together now, shared pages counted once where the system tells.
memory() {
    local pid total=0 size
    for pid in $server $child $(descendants $server $child); do
        size=$(awk '/^Pss:/ {print $2}' /proc/"$pid"/smaps_rollup 2>/dev/null || true)
        [ -n "$size" ] || size=$(ps -o rss= -p "$pid" 2>/dev/null || echo 0)
        total=$((total + ${size:-0}))
    done
    if [ $total -gt $peak ]; then peak=$total; fi
}

# run LOG COMMAND...: in the background, because bash handles a signal only between foreground commands.
run() {
    local log=$1
    shift
    if [ "$log" = - ]; then "$@" & else "$@" > >(tee "$log") 2>&1 & fi
    child=$!
    while [ -n "$(alive "$child")" ]; do
        memory
        if [ -n "$server" ] && [ -z "$(alive "$server")" ]; then
            echo "demo: the rollout server died; the end of $folder/server.log:" >&2
            tail -n 25 "$folder/server.log" >&2
            exit 1
        fi
        sleep 1
    done
    local status=0
    wait "$child" || status=$?
    child=""
    return "$status"
}

say() { printf '\n== %s (%s s)\n' "$*" "$SECONDS"; }

say "tiny model"
run - hanabi-grpo tiny-model --out "$MODEL"

say "rollout server on port $PORT, log $folder/server.log"
HANABI_DIE_WITH_PARENT=true bash tools/rollout/rollout_hanabi_gym.sh >"$folder/server.log" 2>&1 &
server=$!
run - python -c '
import sys, time, urllib.error, urllib.request
# No proxy of the environment: the server is on this machine.
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for _ in range(600):
    try:
        opener.open(sys.argv[1], timeout=5)
        sys.exit(0)
    except urllib.error.HTTPError as error:
        if error.code == 401:  # it is up, and the commands below know the key
            sys.exit(0)
    except OSError:
        pass
    time.sleep(1)
sys.exit("demo: the rollout server did not become healthy within 10 minutes; see its log")
' "http://127.0.0.1:$PORT/health/"

say "before: $deals held-out deals with the base model"
run - hanabi-grpo evaluate base --label before --deals "$deals" --out "$folder/before.json"

say "training: $steps steps, log $folder/train.log"
OUTPUT_DIR=$folder/train MAX_STEPS=$steps REPORT_TO=none WANDB_MODE=disabled \
    run "$folder/train.log" bash tools/train/train_grpo_msswift.sh

say "after: the same deals with the trained adapters"
run - hanabi-grpo evaluate served --label after --deals "$deals" --out "$folder/after.json"

say "result"
status=0
run - hanabi-grpo report --before "$folder/before.json" --after "$folder/after.json" --run "$folder/train" \
    --out-png "$folder/learning_curve.png" --out-markdown "$folder/report.md" \
    ${DEMO_MIN_RISE:+--min-rise "$DEMO_MIN_RISE"} ${DEMO_MIN_SIGMA:+--min-sigma "$DEMO_MIN_SIGMA"} || status=$?
printf '%d min %02d s, at most %d.%d GB of memory, everything in %s\n' \
    $((SECONDS / 60)) $((SECONDS % 60)) $((peak / 1000000)) $((peak / 100000 % 10)) "$folder"
exit "$status"
