#!/usr/bin/env bash
# Checks that need a GPU, in calls of at most 8 minutes each; writes figures as JSON and as a table for docs/benchmarks.md.
#
#   bash tools/gpu/check.sh                # all calls, on one GPU
#   bash tools/gpu/check.sh A C            # some calls
#   bash tools/gpu/check.sh --cpu          # rehearsal without a GPU: the same calls with a tiny model
#
#   A   the trainer's passes alone, 4 billion parameters: seconds, peak memory, kernels, gradient against plain attention,
#       the fused optimizer's saved state, the mismatch check's pass and the output head
#   B   the machine: driver, compiler, headers, /dev/shm, packages, the doctor's findings
#   C   server and trainer with 0.6 billion parameters: 3 steps, 2 more after a resume, 3 under ZeRO-2; then kill -9 of the
#       engine and of the server
#   D   server and trainer with 4 billion: 64 games with 128 tokens per reply, 3 steps, then overlapped, then 256 games per step
#   E   a team of two base models, 0.6 and 1.7 billion: two engines on one GPU, one trainer
#   K   kill -9 of the engine while the trainer runs: the trainer continues with the next engine
#   S   the engine sleeps while the trainer learns (HANABI_SLEEP=1): both may use most of the GPU
#   V   vLLM's first model runner compared with its second, each with all tokens and with TOP_P=0.9
#   R   bench rows R1, R3, R5, R10 with 4 billion (R10b: a stale adapter must be detected)
#
#   CHECK_OUT       folder for logs and figures (outputs/gpu-check)
#   CHECK_SECONDS   time limit per call (480)
#   CHECK_RUNNERS   vLLM's model runners in call V (1 2)
#   CHECK_SERVER    vLLM options for the servers, e.g. --enforce-eager: they start faster, without CUDA graphs
#
# Models have Qwen3's sizes and random weights: only the set-up downloads anything. docs/benchmarks.md lists what ran where. One GPU
# does not test tensor parallelism, NCCL or ZeRO across processes; random weights inflate the logprob mismatch: judge it against R10b.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
SECONDS=0
source tools/launch.sh

device=cuda small=qwen3-0.6b middle=qwen3-1.7b large=qwen3-4b tokens="16384 40960" steps=3
if [ "${1:-}" = --cpu ]; then
    shift
    device=cpu small=small middle=small-deep large=small tokens="2048 4096" steps=1
    cpu=--cpu
fi
folder=${CHECK_OUT:-outputs/gpu-check}
mkdir -p "$folder"
export PYTHONPATH="$PWD/tools${PYTHONPATH:+:$PYTHONPATH}" HANABI_PRESET=laptop HANABI_MEMORY=game HANABI_OBSERVATION=compact REPORT_TO=none WANDB_MODE=disabled
export NUM_GENERATIONS=16 HANABI_TASKS_PER_STEP=4 HANABI_MAX_MODEL_LEN=4096
if [ "$device" = cuda ]; then
    # Both on one GPU; in bfloat16, random weights exceed the tolerance for trained ones.
    export HANABI_PROFILE=tools/profiles/gpu-1.env HANABI_PARITY_TOLERANCE=1
    # As many as a step has games; the engine records a graph for every size up to this.
    export HANABI_MAX_NUM_SEQS=${HANABI_MAX_NUM_SEQS:-64}
    export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
fi

# model NAME: sets MODEL to its folder, which is created once.
model() {
    export MODEL=$folder/$1
    [ -f "$MODEL/tokenizer.json" ] || python -m gpu.random_model "$1" "$MODEL" "$device"
}

# train NAME STEPS: a run with the server, medians in NAME.json.
train() {
    rm -rf "$folder/$1-run"
    go_on "$1" "$2"
}

# go_on NAME STEPS: the same, continuing the run if it exists.
go_on() {
    OUTPUT_DIR=$folder/$1-run MAX_STEPS=$2 SAVE_STEPS=1000 run "$folder/$1-train.log" bash tools/train/train_grpo_msswift.sh
    python -m gpu.table steps "$folder/$1-run" >"$folder/$1.json"
}

# begin_server: starts the server with the options of CHECK_SERVER.
begin_server() {
    start_server ${CHECK_SERVER:-}
}

# engine_of PID: prints the engine process of a server.
engine_of() {
    local pid
    for pid in $(descendants "$1"); do
        if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q EngineCore; then
            echo "$pid"
            return
        fi
    done
}

# kill_beside_trainer: five steps, with the engine killed after the second.
kill_beside_trainer() {
    local metrics=$folder/K-run/metrics.jsonl
    rm -rf "$folder/K-run"
    (
        until [ "$(wc -l 2>/dev/null <"$metrics" || echo 0)" -ge 2 ]; do sleep 0.2; done
        kill -KILL "$(engine_of "$server")"
    ) &
    go_on K 5
}

# kills: kills the engine, waits for the next one, kills the server, waits until nothing is left of it.
kills() {
    local engine all back gone
    engine=$(engine_of "$server")
    kill -KILL "$engine"
    back=$SECONDS
    while is_running "$engine"; do sleep 0.2; done
    sleep 2 # until the server has noticed
    run - python -c "$WAIT_FOR_SERVER"
    back=$((SECONDS - back)) all=$(descendants "$server")
    kill -KILL "$server"
    server="" gone=$SECONDS
    while [ -n "$(alive $all)" ] && [ $((SECONDS - gone)) -lt 60 ]; do sleep 0.2; done
    printf '{"seconds until it serves again": %d, "seconds until all is gone": %d, "left behind": "%s"}\n' \
        "$back" $((SECONDS - gone)) "$(alive $all)" >"$folder/C-kills.json"
}

call() {
    name=gpu-check
    source tools/session.sh
    case $1 in
    A)
        python -m gpu.cuda_parts "$large" "$device" "$folder/A-parts.json"
        python -m gpu.trainer "$large" "$device" $tokens >"$folder/A.json"
        ;;
    B)
        python -m gpu.look >"$folder/B.json"
        hanabi-grpo doctor --json >"$folder/B-doctor.json" || true
        ;;
    C)
        export MAX_COMPLETION_LENGTH=16
        model "$small"
        start_session
        begin_server
        train C "$steps"
        RESUME=$folder/C-run go_on C $((steps + 2))
        # With a rate at which bfloat16 keeps updates: with the default rate it loses the first ones.
        DEEPSPEED=zero2 LEARNING_RATE=1e-3 train C-zero2 3
        kills
        ;;
    D)
        export MAX_COMPLETION_LENGTH=128
        model "$large"
        start_session
        begin_server
        train D 3
        HANABI_OVERLAP=1 train D-overlap 5
        HANABI_TASKS_PER_STEP=16 train D-256 2
        ;;
    E)
        export MAX_COMPLETION_LENGTH=16
        model "$small"
        local first=$MODEL
        model "$middle"
        export MODEL="player_0=$first,player_1=$MODEL"
        start_session
        begin_server
        train E "$steps"
        ;;
    K)
        export MAX_COMPLETION_LENGTH=16
        model "$small"
        start_session
        begin_server
        kill_beside_trainer
        ;;
    S)
        if [ "$device" = cpu ]; then
            echo "call S: an engine can sleep only on a GPU"
            return
        fi
        export MAX_COMPLETION_LENGTH=16 HANABI_SLEEP=1
        model "$small"
        start_session
        begin_server
        train S "$steps"
        grep -E "engine: (asleep|awake)" "$folder/server.log"
        ;;
    V)
        export MAX_COMPLETION_LENGTH=16
        model "$small"
        local runner
        start_session
        for runner in ${CHECK_RUNNERS:-1 2}; do
            [ $runner = 2 ] || export VLLM_USE_V2_MODEL_RUNNER=0
            begin_server
            train V-runner$runner "$steps"
            TOP_P=0.9 train V-runner$runner-top-p "$steps"
            stop_server
            unset VLLM_USE_V2_MODEL_RUNNER
        done
        ;;
    R)
        export MAX_COMPLETION_LENGTH=32
        model "$large"
        python tools/bench --quick --only R1 --only R3 --only R5 --only R10 --out "$folder/bench"
        cp "$folder/bench/bench.json" "$folder/R.json"
        ;;
    *) echo "gpu-check: '$1': must be A, B, C, D, E, K, R, S or V." >&2 && exit 2 ;;
    esac
}

if [ "${1:-}" = --one ]; then
    call "$2"
    exit
fi
status=0
for one in ${@:-A B C D E K R S V}; do
    case $one in A | B | C | D | E | K | R | S | V) ;; *) call "$one" ;; esac
    rm -f "$folder/$one".json "$folder/$one"-*.json
    began=$SECONDS result=0
    timeout --kill-after=60 "${CHECK_SECONDS:-480}" bash tools/gpu/check.sh ${cpu:-} --one "$one" >"$folder/$one.log" 2>&1 || result=$?
    echo "call $one: $((SECONDS - began)) s, exit code $result, log $folder/$one.log"
    [ "$result" = 0 ] || status=1
done
python -m gpu.table table "$folder" | tee "$folder/table.md"
exit "$status"
