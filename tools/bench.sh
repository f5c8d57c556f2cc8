#!/usr/bin/env bash
# Ratios that show how close this software comes to what its parts can do, in one table (docs/benchmarks.md).
#
#   bash tools/bench.sh                  # every ratio, about 10 minutes on 2 cores
#   bash tools/bench.sh --quick          # fewer pairs of runs, and no R14
#   bash tools/bench.sh --only R3        # one of them; may be given more than once
#   bash tools/bench.sh --no-engine      # only ratios that do not need vLLM
#   BENCH_MODEL=Qwen/Qwen3-4B bash tools/bench.sh
#
#   BENCH_MODEL   base model (unset: MODEL, or its default; the CPU default is shipped)
#   BENCH_CORES   cores for everything, as taskset writes them, e.g. 0-3 (unset: all)
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/launch.sh

if [ -n "${BENCH_MODEL:-}" ]; then export MODEL=$BENCH_MODEL; fi
if ! on_gpu && ! given MODEL; then
    hanabi-grpo tiny-model
fi
pin=()
if [ -n "${BENCH_CORES:-}" ]; then pin=(taskset --cpu-list "$BENCH_CORES"); fi
# Both arms use the same number of threads, whatever a library would choose, and waiting threads do not spin.
cores=$(${pin[@]+"${pin[@]}"} nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$cores} MKL_NUM_THREADS=${MKL_NUM_THREADS:-$cores}
export OMP_WAIT_POLICY=PASSIVE TOKENIZERS_PARALLELISM=false
# One process and its children, which end with it however it exits.
exec ${pin[@]+"${pin[@]}"} python tools/bench "$@"
